#pragma once
// The simulated driver for other processes, through the seccomp server.

#include <map>
#include <memory>
#include <string>

#include "tests/sim/notify/server.h"
#include "tests/sim/nv/kernel.h"

namespace bm::sim::nv {

/// Serves /dev/nvidia* and /proc/driver/nvidia/version.
class NvDevices final : public notify::Devices {
 public:
  explicit NvDevices(Kernel& kernel) : kernel_(kernel) {}

  /// The ioctls to stop: NVIDIA's type and the unified memory module's bare numbers.
  static notify::Options options() { return {.types = {'F'}, .has_bare_requests = true}; }

  bool owns(const std::string& path) const override {
    return Kernel::owns(path) || is_hidden(path);
  }
  int open(pid_t process, const std::string& path, int flags, ScopedFd* fd,
           std::shared_ptr<notify::Node>* node) override;
  void close(const std::shared_ptr<notify::Node>& node) override;
  int ioctl(notify::Server& server, const notify::Ioctl& call, notify::Replace* replace) override;

 private:
  /// What the machine is said not to have.
  bool is_hidden(const std::string& path) const;
  std::shared_ptr<Process> process(pid_t pid);

  Kernel& kernel_;
  std::map<pid_t, std::shared_ptr<Process>> processes_;
};

}  // namespace bm::sim::nv
