#pragma once
// The operating system as a driver sees it: the seam at which kernel drivers can be replaced,
// recorded or made to fail.

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace bm {

/// Whose a file is and who may use it; links are followed.
struct FileStatus {
  uint32_t mode = 0;  ///< st_mode: kind and permissions
  uint32_t user = 0, group = 0;
};

/// Who this process acts as.
struct ProcessUser {
  uint32_t user = 0;
  std::vector<uint32_t> groups = {};  ///< the effective and the supplementary ones
};

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
  /// pread(2), pwrite(2): bytes or -errno; repeated only after EINTR.
  virtual ssize_t pread(int fd, void* to, size_t bytes, uint64_t offset);
  virtual ssize_t pwrite(int fd, const void* from, size_t bytes, uint64_t offset);
  virtual int poll(pollfd* fds, size_t count, int timeout_ms);
  /// As open(), with the permissions of a file that O_CREAT makes (the umask applies).
  virtual int create(const std::string& path, int flags, mode_t mode);
  virtual int flock(int fd, int operation);
  virtual int unlink(const std::string& path);
  /// Where a symbolic link leads, as it is written there; 0 or -errno.
  virtual int read_link(const std::string& path, std::string* out);
  /// eventfd(2), not blocking.
  virtual int eventfd();
  /// A file in memory of so many zeros (memfd_create(2)); it cannot shrink any more.
  virtual int memory_file(const std::string& name, uint64_t bytes);
  /// Bytes that a file holds, or -errno.
  virtual int64_t file_size(int fd);
  virtual int madvise(void* address, size_t bytes, int advice);
  /// Bytes this process may lock (RLIMIT_MEMLOCK); all ones: no limit.
  virtual uint64_t locked_memory_limit();
  /// A stream socket that is connected to `address` or is getting there: -EINPROGRESS is success,
  /// poll() says when. It never blocks.
  virtual int connect(const sockaddr* address, socklen_t bytes);
  /// What became of a connect() that was in progress: 0 or -errno.
  virtual int connect_result(int fd);
  /// shutdown(2) of both directions: whoever waits on it, on any thread, sees the end.
  virtual int shutdown(int fd);
  /// sendmsg(2) and recvmsg(2) without SIGPIPE, with close-on-exec: bytes or -errno. Never
  /// repeated.
  virtual ssize_t send(int fd, const msghdr& message);
  virtual ssize_t receive(int fd, msghdr& message);
  /// Whole file (procfs and sysfs included, at most 1 MiB) into *out; 0 or -errno.
  virtual int read_file(const std::string& path, std::string* out);
  /// Names in a folder, sorted; 0 or -errno.
  virtual int list(const std::string& path, std::vector<std::string>* out);
  /// stat(2): 0 or -errno.
  virtual int status(const std::string& path, FileStatus* out);
  virtual ProcessUser user();
  /// Whether the dynamic linker finds and loads a library of that name; it stays loaded.
  virtual bool has_library(const std::string& name);
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

/// A descriptor that is closed through the System it came from.
class SystemFd {
 public:
  SystemFd() = default;
  SystemFd(System& system, int fd) : system_(&system), fd_(fd) {}
  SystemFd(SystemFd&& other) noexcept : system_(other.system_), fd_(std::exchange(other.fd_, -1)) {}
  SystemFd& operator=(SystemFd&& other) noexcept {
    if (this != &other) {
      reset();
      system_ = other.system_;
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  SystemFd(const SystemFd&) = delete;
  SystemFd& operator=(const SystemFd&) = delete;
  ~SystemFd() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void reset() {
    if (fd_ >= 0) system_->close(std::exchange(fd_, -1));
  }

 private:
  System* system_ = nullptr;
  int fd_ = -1;
};

/// Mapped pages that are unmapped through the System they came from.
class SystemMapping {
 public:
  SystemMapping() = default;
  SystemMapping(System& system, void* address, size_t bytes)
      : system_(&system), address_(address), bytes_(bytes) {}
  SystemMapping(SystemMapping&& other) noexcept
      : system_(other.system_),
        address_(std::exchange(other.address_, nullptr)),
        bytes_(other.bytes_) {}
  SystemMapping& operator=(SystemMapping&&) = delete;
  ~SystemMapping() {
    if (address_ != nullptr) system_->munmap(address_, bytes_);
  }

  void* address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  System* system_ = nullptr;
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

/// The machine this runs on.
System& real_system();

}  // namespace bm
