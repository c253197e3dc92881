#include "drivers/transport/system.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/base/scoped_fd.h"

namespace bm {
namespace {

/// A driver that never stops saying "again" is broken; the caller gets its last word.
constexpr int kMaxRepeats = 10'000;
constexpr size_t kMaxFile = 1 << 20;

int or_errno(int result) { return result < 0 ? -errno : result; }

}  // namespace

int System::open(const std::string& path, int flags) {
  int fd = -1;
  // With a mode, which no flag here needs: else FORTIFY calls __open_2(), which tools that stand in
  // for open() do not see.
  do fd = ::open(path.c_str(), flags | O_CLOEXEC, 0);
  while (fd < 0 && errno == EINTR);
  return or_errno(fd);
}

int System::status(const std::string& path, FileStatus* out) {
  struct stat seen{};
  if (::stat(path.c_str(), &seen) < 0) return -errno;
  *out = {.mode = seen.st_mode, .user = seen.st_uid, .group = seen.st_gid};
  return 0;
}

ProcessUser System::user() {
  ProcessUser result{.user = ::geteuid(), .groups = {::getegid()}};
  if (const int count = ::getgroups(0, nullptr); count > 0) {
    std::vector<gid_t> groups(static_cast<size_t>(count));
    if (const int got = ::getgroups(count, groups.data()); got > 0)
      result.groups.insert(result.groups.end(), groups.begin(), groups.begin() + got);
  }
  return result;
}

bool System::has_library(const std::string& name) {
  return ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE) != nullptr;
}

int System::close(int fd) { return or_errno(::close(fd)); }

int System::ioctl(int fd, unsigned long request, void* argument) {
  int result = -1;
  for (int i = 0; i < kMaxRepeats; ++i) {
    result = ::ioctl(fd, request, argument);
    if (result >= 0 || (errno != EINTR && errno != EAGAIN)) break;
  }
  return or_errno(result);
}

int System::mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
                 void** out) {
  void* const result = ::mmap(address, bytes, protection, flags, fd, offset);
  if (result == MAP_FAILED) return -errno;
  *out = result;
  return 0;
}

int System::munmap(void* address, size_t bytes) { return or_errno(::munmap(address, bytes)); }

ssize_t System::read(int fd, void* to, size_t bytes) {
  const ssize_t got = ::read(fd, to, bytes);
  return got < 0 ? -errno : got;
}

ssize_t System::write(int fd, const void* from, size_t bytes) {
  const ssize_t put = ::write(fd, from, bytes);
  return put < 0 ? -errno : put;
}

int System::poll(pollfd* fds, size_t count, int timeout_ms) {
  return or_errno(::poll(fds, static_cast<nfds_t>(count), timeout_ms));
}

ssize_t System::pread(int fd, void* to, size_t bytes, uint64_t offset) {
  ssize_t got = -1;
  do got = ::pread(fd, to, bytes, static_cast<off_t>(offset));
  while (got < 0 && errno == EINTR);
  return got < 0 ? -errno : got;
}

ssize_t System::pwrite(int fd, const void* from, size_t bytes, uint64_t offset) {
  ssize_t put = -1;
  do put = ::pwrite(fd, from, bytes, static_cast<off_t>(offset));
  while (put < 0 && errno == EINTR);
  return put < 0 ? -errno : put;
}

int System::create(const std::string& path, int flags, mode_t mode) {
  int fd = -1;
  do fd = ::open(path.c_str(), flags | O_CREAT | O_CLOEXEC, mode);
  while (fd < 0 && errno == EINTR);
  return or_errno(fd);
}

int System::flock(int fd, int operation) {
  int result = -1;
  do result = ::flock(fd, operation);
  while (result < 0 && errno == EINTR);
  return or_errno(result);
}

int System::unlink(const std::string& path) { return or_errno(::unlink(path.c_str())); }

int System::read_link(const std::string& path, std::string* out) {
  std::array<char, 4096> text;
  const ssize_t bytes = ::readlink(path.c_str(), text.data(), text.size());
  if (bytes < 0) return -errno;
  out->assign(text.data(), static_cast<size_t>(bytes));
  return 0;
}

int System::eventfd() { return or_errno(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

int System::memory_file(const std::string& name, uint64_t bytes) {
  ScopedFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.is_open() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) < 0) return -errno;
  // Whoever gets the descriptor must not be able to make our own accesses bus errors.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) < 0) return -errno;
  return fd.release();
}

int64_t System::file_size(int fd) {
  struct stat status{};
  return ::fstat(fd, &status) < 0 ? -errno : int64_t{status.st_size};
}

int System::madvise(void* address, size_t bytes, int advice) {
  return or_errno(::madvise(address, bytes, advice));
}

uint64_t System::locked_memory_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
    return ~uint64_t{0};
  return limit.rlim_cur;
}

int System::connect(const sockaddr* address, socklen_t bytes) {
  ScopedFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open()) return -errno;
  if (address->sa_family != AF_UNIX) {
    const int is_on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &is_on, sizeof is_on);
  }
  if (::connect(fd.get(), address, bytes) < 0 && errno != EINPROGRESS && errno != EINTR)
    return -errno;
  return fd.release();
}

int System::connect_result(int fd) {
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0) return -errno;
  return -error;
}

int System::shutdown(int fd) { return or_errno(::shutdown(fd, SHUT_RDWR)); }

ssize_t System::send(int fd, const msghdr& message) {
  const ssize_t put = ::sendmsg(fd, &message, MSG_NOSIGNAL);
  return put < 0 ? -errno : put;
}

ssize_t System::receive(int fd, msghdr& message) {
  const ssize_t got = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  return got < 0 ? -errno : got;
}

int System::read_file(const std::string& path, std::string* out) {
  const int opened = System::open(path, O_RDONLY);
  if (opened < 0) return opened;
  const ScopedFd fd(opened);
  out->clear();
  std::array<char, 4096> chunk;
  while (out->size() < kMaxFile) {
    const ssize_t got = ::read(fd.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -errno;
    if (got == 0) return 0;
    out->append(chunk.data(), static_cast<size_t>(got));
  }
  return -EFBIG;
}

int System::list(const std::string& path, std::vector<std::string>* out) {
  DIR* const folder = ::opendir(path.c_str());
  if (folder == nullptr) return -errno;
  out->clear();
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") out->emplace_back(name);
  }
  ::closedir(folder);
  std::sort(out->begin(), out->end());
  return 0;
}

int System::kernel_log(std::string* out) {
  constexpr int kReadAll = 3;  // syslog(2), SYSLOG_ACTION_READ_ALL: the newest bytes, none consumed
  out->resize(kMaxFile);
  const int got = ::klogctl(kReadAll, out->data(), static_cast<int>(out->size()));
  const int error = errno;
  out->resize(got < 0 ? 0 : static_cast<size_t>(got));
  return got < 0 ? -error : 0;
}

System& real_system() {
  static System system;
  return system;
}

}  // namespace bm
