#include "drivers/transport/system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/mman.h>
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
