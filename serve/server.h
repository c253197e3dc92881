#pragma once
// The HTTP server: which request goes where, what is logged, what the limits are. Connections have
// a thread each (libmicrohttpd), so that one that waits or reads slowly keeps nobody.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/hosted_model.h"

namespace bm::serve {

struct ServerOptions {
  int socket = -1;           ///< listening
  std::string api_key = {};  ///< empty: none is asked for
  size_t body_bytes = 32 << 20;
  size_t header_bytes = 32 << 10;
  uint32_t connections = 256;
  /// A connection that neither sends nor takes anything for so long is closed.
  uint32_t idle_seconds = 30;
  bool has_access_log = true;
  /// Pages of these origins may ask, without credentials; "*": of any. Empty: none. See
  /// check_origins().
  std::vector<std::string> cors_origins = {};
};

/// Thread: any.
class Server {
 public:
  using Models = std::vector<std::shared_ptr<HostedModel>>;
  /// Errors: kIo when libmicrohttpd does not start.
  static Result<std::unique_ptr<Server>> start(ServerOptions options, Models models);
  /// Closes all connections. Whoever waits for a model must have been answered: stop the models'
  /// schedulers first.
  ~Server();
  /// Requests from now on go to `next`, in place of the model of the same name; those that have
  /// begun keep the old one.
  void replace(std::shared_ptr<HostedModel> next);
  /// /readyz says so from now on.
  void set_draining();

  struct Impl;

 private:
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// One line of JSON on stderr, written at once.
void log_line(nlohmann::ordered_json fields);

}  // namespace bm::serve
