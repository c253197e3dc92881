#pragma once
// The modelled driver for other processes, through the seccomp server.

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "runtime/base/private_folder.h"
#include "tests/sim/amd/kfd/machine.h"
#include "tests/sim/amd/kfd/process.h"
#include "tests/sim/notify/server.h"

namespace bm::sim::amd {

/// Serves /dev/kfd, /dev/dri/renderD* and what the driver shows in sysfs.
class AmdDevices final : public notify::Devices {
 public:
  /// Writes the sysfs files into a folder of its own. Aborts when there is no room for that.
  explicit AmdDevices(Machine& machine);
  ~AmdDevices() override;

  /// The ioctls to stop: KFD's type.
  static notify::Options options() { return {.types = {'K'}}; }

  bool owns(const std::string& path) const override;
  int open(pid_t process, const std::string& path, int flags, ScopedFd* fd,
           std::shared_ptr<notify::Node>* node) override;
  void close(const std::shared_ptr<notify::Node>& node) override;
  int ioctl(notify::Server& server, const notify::Ioctl& call, notify::Replace* replace) override;
  void finish() override;

 private:
  struct Client;
  struct AmdNode;
  struct Waiter {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> is_over;
  };

  std::shared_ptr<Client> client(pid_t process);
  void wait_apart(notify::Server& server, const notify::Ioctl& call,
                  std::shared_ptr<Client> client);
  void collect(bool all);

  Machine& machine_;
  PrivateFolder folder_;                              ///< the program lists it, so it needs a name
  std::map<pid_t, std::shared_ptr<Client>> clients_;  ///< the kernel forgets none that lives
  std::list<Waiter> waiters_;                         ///< calls that block
};

}  // namespace bm::sim::amd
