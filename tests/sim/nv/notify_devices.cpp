#include "tests/sim/nv/notify_devices.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace bm::sim::nv {
namespace {

struct NvNode final : notify::Node {
  std::shared_ptr<File> file;
};

}  // namespace

bool NvDevices::is_hidden(const std::string& path) const {
  if (kernel_.options().has_toolkit) return false;
  return path.find("libnvJitLink.") != path.npos || path.find("libnvrtc.") != path.npos;
}

int NvDevices::open(pid_t, const std::string& path, int, ScopedFd* fd,
                    std::shared_ptr<notify::Node>* node) {
  if (is_hidden(path)) return -ENOENT;
  if (path.starts_with("/proc/")) {
    if (!kernel_.options().has_nodes || path != "/proc/driver/nvidia/version") return -ENOENT;
    const std::string text = kernel_.proc_version();
    fd->reset(memfd_create("fake-nvidia-version", MFD_CLOEXEC));
    if (pwrite(fd->get(), text.data(), text.size(), 0) < 0) return -EIO;
    return 0;
  }
  auto made = std::make_shared<NvNode>();
  if (const int error = kernel_.open(path, &made->file); error != 0) return error;
  fd->reset(memfd_create("fake-nvidia", MFD_CLOEXEC));
  *node = std::move(made);
  return 0;
}

void NvDevices::close(const std::shared_ptr<notify::Node>& node) {
  kernel_.close(static_cast<NvNode&>(*node).file);
}

std::shared_ptr<Process> NvDevices::process(pid_t pid) {
  auto& entry = processes_[pid];
  if (entry == nullptr) entry = open_process(pid);
  return entry;
}

int NvDevices::ioctl(notify::Server& server, const notify::Ioctl& call, notify::Replace* replace) {
  const Caller caller{process(call.process), [&](int fd) -> File* {
                        const auto node = server.node_of(call.process, fd);
                        return node == nullptr ? nullptr : static_cast<NvNode&>(*node).file.get();
                      }};
  Effect effect;
  File& file = *static_cast<NvNode&>(*call.node).file;
  const int result = kernel_.ioctl(file, call.request, call.argument, caller, &effect);
  // A mapping prepared for a descriptor becomes the file behind it: the client's mmap is the
  // kernel's own then, with nothing of ours in between.
  if (effect.map) {
    if (effect.map->offset != 0) return -EINVAL;  // a file can be replaced only from its start
    *replace = {effect.fd, effect.map->backing->fd()};
  } else if (effect.events != nullptr) {
    *replace = {effect.fd, effect.events->client_fd()};
  }
  return result;
}

}  // namespace bm::sim::nv
