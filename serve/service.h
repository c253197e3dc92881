#pragma once
// How a service is run: sockets it is given or opens, and what it tells the service manager.
//
// Source of the protocols: systemd's manual pages sd_notify(3) and sd_listen_fds(3).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::serve {

struct ListenAddress {
  std::string host;
  uint16_t port = 0;  ///< 0: any that is free
};
/// "127.0.0.1:8080", "[::1]:8080".
/// Errors: kInvalidArgument.
Result<ListenAddress> parse_address(std::string_view text);

struct ListenSocket {
  int fd = -1;
  std::string url;            ///< "http://127.0.0.1:8080"
  bool is_loopback = false;   ///< only this machine reaches it
  bool is_inherited = false;  ///< by socket activation
};
/// The first socket of LISTEN_FDS where it is meant for this process, otherwise a new one.
/// Errors: kIo naming the address; kInvalidArgument for a name that is no address.
Result<ListenSocket> open_listener(const ListenAddress& address);

/// Tells the service manager ("READY=1"); nothing where there is none.
void notify_manager(std::string_view message);

/// The first line of a file, which no one but its owner may read.
/// Errors: kNotFound, kIo; kPermission when others may read it; kInvalidArgument when it is empty.
Result<std::string> read_api_key(const std::string& path);

/// Whether origins of web pages are written as browsers send them: scheme, host, and a port that
/// is not the scheme's own; or "*" alone.
/// Errors: kInvalidArgument, saying how it would be right.
/// Source: the Fetch standard, "Origin header", and the HTML standard, "Origin".
Status check_origins(const std::vector<std::string>& origins);

/// Whether two secrets are equal, in a time that does not tell where they differ.
bool equals_secret(std::string_view given, std::string_view secret);

}  // namespace bm::serve
