#pragma once
// The operating system as a driver sees it: the seam at which kernel drivers can be replaced,
// recorded or made to fail.

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace bm {

/// Calls return what the kernel returns, failures as -errno, so that a driver decides what an error
/// means. Thread: any. A fake overrides what its device needs.
class System {
 public:
  virtual ~System() = default;
  /// open(2) with O_CLOEXEC added; descriptor or -errno.
  virtual int open(const std::string& path, int flags);
  virtual int close(int fd);
  /// ioctl(2), repeated while the kernel says EINTR or EAGAIN (bounded); result or -errno.
  virtual int ioctl(int fd, unsigned long request, void* argument);
  /// mmap(2); MAP_FAILED is never returned: *out holds the address on 0, else -errno.
  virtual int mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
                   void** out);
  virtual int munmap(void* address, size_t bytes);
  /// read(2), write(2): bytes or -errno. Never repeated.
  virtual ssize_t read(int fd, void* to, size_t bytes);
  virtual ssize_t write(int fd, const void* from, size_t bytes);
  virtual int poll(pollfd* fds, size_t count, int timeout_ms);
  /// Whole file (procfs and sysfs included, at most 1 MiB) into *out; 0 or -errno.
  virtual int read_file(const std::string& path, std::string* out);
  /// Names in a folder, sorted; 0 or -errno.
  virtual int list(const std::string& path, std::vector<std::string>* out);
  /// What the kernel's log buffer holds, where this user may read it; 0 or -errno.
  virtual int kernel_log(std::string* out);
  /// What a driver has to hold as long as the process lives, because the kernel gives it once: the
  /// same object for every caller of `driver`, made by the first. Thread: any.
  template <class Kept>
  std::shared_ptr<Kept> keep(const std::string& driver) {
    const std::lock_guard lock(kept_mutex_);
    std::shared_ptr<void>& kept = kept_[driver];
    if (kept == nullptr) kept = std::make_shared<Kept>();
    return std::static_pointer_cast<Kept>(kept);
  }

 private:
  std::mutex kept_mutex_;
  std::map<std::string, std::shared_ptr<void>> kept_;
};

/// The machine this runs on.
System& real_system();

}  // namespace bm
