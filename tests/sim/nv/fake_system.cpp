#include "tests/sim/nv/fake_system.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace bm::sim::nv {

FakeNvSystem::FakeNvSystem(std::unique_ptr<Kernel> kernel)
    : kernel_(std::move(kernel)), self_(open_process(getpid())) {}

FakeNvSystem::~FakeNvSystem() {
  for (auto& [fd, file] : files_) {
    kernel_->close(file);
    ::close(fd);
  }
}

std::unique_ptr<FakeNvSystem> FakeNvSystem::create(const Options& options) {
  auto kernel = Kernel::create(options);
  if (!kernel) {
    std::fprintf(stderr, "simulated NVIDIA driver: %s\n", kernel.error().message.c_str());
    std::abort();
  }
  return std::make_unique<FakeNvSystem>(std::move(*kernel));
}

int FakeNvSystem::open(const std::string& path, int flags) {
  if (!Kernel::owns(path)) return System::open(path, flags);
  std::shared_ptr<File> file;
  if (const int error = kernel_->open(path, &file); error != 0) return error;
  const int fd = memfd_create("fake-nvidia", MFD_CLOEXEC);
  if (fd < 0) {
    kernel_->close(file);
    return -errno;
  }
  const std::lock_guard lock(mutex_);
  files_[fd] = std::move(file);
  return fd;
}

int FakeNvSystem::close(int fd) {
  std::shared_ptr<File> file;
  {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(fd);
    if (found != files_.end()) {
      file = std::move(found->second);
      files_.erase(found);
    }
  }
  if (file != nullptr) kernel_->close(file);
  return System::close(fd);
}

std::shared_ptr<File> FakeNvSystem::find(int fd) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(fd);
  return found == files_.end() ? nullptr : found->second;
}

int FakeNvSystem::ioctl(int fd, unsigned long request, void* argument) {
  const std::shared_ptr<File> file = find(fd);
  if (file == nullptr) return System::ioctl(fd, request, argument);
  const Caller caller{self_, [this](int named) { return find(named).get(); }};
  Effect effect;
  int result = -EINTR;
  // Interrupted calls are repeated here, as the real System repeats them.
  for (int i = 0; i < 1000 && (result == -EINTR || result == -EAGAIN); ++i)
    result = kernel_->ioctl(*file, request, reinterpret_cast<uint64_t>(argument), caller, &effect);
  if (effect.events != nullptr) dup3(effect.events->client_fd(), effect.fd, O_CLOEXEC);
  return result;
}

int FakeNvSystem::mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
                       void** out) {
  const std::shared_ptr<File> file = fd < 0 ? nullptr : find(fd);
  if (file == nullptr) return System::mmap(address, bytes, protection, flags, fd, offset, out);
  File::PendingMap map;
  const bool wants_write = (protection & PROT_WRITE) != 0;
  const int error = kernel_->map(*file, bytes, static_cast<uint64_t>(offset), wants_write, &map);
  if (error != 0) return error;
  return System::mmap(address, bytes, protection, flags, map.backing->fd(),
                      static_cast<off_t>(map.offset), out);
}

int FakeNvSystem::read_file(const std::string& path, std::string* out) {
  if (!path.starts_with("/proc/driver/nvidia")) return System::read_file(path, out);
  if (!kernel_->options().has_nodes || path != "/proc/driver/nvidia/version") return -ENOENT;
  *out = kernel_->proc_version();
  return 0;
}

int FakeNvSystem::list(const std::string& path, std::vector<std::string>* out) {
  if (path.starts_with("/proc/driver/nvidia")) return -ENOENT;
  return System::list(path, out);
}

size_t FakeNvSystem::open_files() const {
  const std::lock_guard lock(mutex_);
  return files_.size();
}

}  // namespace bm::sim::nv
