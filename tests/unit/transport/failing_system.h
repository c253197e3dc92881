#pragma once
// A System whose n-th call fails, over another one, and which counts what stays open.

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "drivers/transport/system.h"

namespace bm::test {

class FailingSystem final : public System {
 public:
  explicit FailingSystem(System& inner, uint64_t nth = ~uint64_t{0}, int error = EIO)
      : inner_(inner), nth_(nth), error_(error) {}

  uint64_t calls() const { return calls_; }
  bool has_failed() const { return calls_ > nth_; }
  size_t open_files() const { return files_.size(); }
  size_t mappings() const { return mappings_.size(); }

  int open(const std::string& path, int flags) override {
    return fails() ? -error_ : opened(inner_.open(path, flags));
  }
  int create(const std::string& path, int flags, mode_t mode) override {
    return fails() ? -error_ : opened(inner_.create(path, flags, mode));
  }
  /// Never fails: nobody could do anything about it.
  int close(int fd) override {
    const std::lock_guard lock(mutex_);
    files_.erase(fd);
    return inner_.close(fd);
  }
  int ioctl(int fd, unsigned long request, void* argument) override {
    return fails() ? -error_ : inner_.ioctl(fd, request, argument);
  }
  int mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
           void** out) override {
    if (fails()) return -error_;
    const int result = inner_.mmap(address, bytes, protection, flags, fd, offset, out);
    const std::lock_guard lock(mutex_);
    if (result == 0) mappings_[*out] = bytes;
    return result;
  }
  int munmap(void* address, size_t bytes) override {
    const std::lock_guard lock(mutex_);
    mappings_.erase(address);
    return inner_.munmap(address, bytes);
  }
  ssize_t read(int fd, void* to, size_t bytes) override {
    return fails() ? -error_ : inner_.read(fd, to, bytes);
  }
  ssize_t write(int fd, const void* from, size_t bytes) override {
    return fails() ? -error_ : inner_.write(fd, from, bytes);
  }
  ssize_t pread(int fd, void* to, size_t bytes, uint64_t offset) override {
    return fails() ? -error_ : inner_.pread(fd, to, bytes, offset);
  }
  ssize_t pwrite(int fd, const void* from, size_t bytes, uint64_t offset) override {
    return fails() ? -error_ : inner_.pwrite(fd, from, bytes, offset);
  }
  int poll(pollfd* fds, size_t count, int timeout_ms) override {
    return fails() ? -error_ : inner_.poll(fds, count, timeout_ms);
  }
  int read_file(const std::string& path, std::string* out) override {
    return fails() ? -error_ : inner_.read_file(path, out);
  }
  int list(const std::string& path, std::vector<std::string>* out) override {
    return fails() ? -error_ : inner_.list(path, out);
  }
  int read_link(const std::string& path, std::string* out) override {
    return fails() ? -error_ : inner_.read_link(path, out);
  }
  int flock(int fd, int operation) override {
    return fails() ? -error_ : inner_.flock(fd, operation);
  }
  int unlink(const std::string& path) override { return fails() ? -error_ : inner_.unlink(path); }
  int eventfd() override { return fails() ? -error_ : opened(inner_.eventfd()); }
  int memory_file(const std::string& name, uint64_t bytes) override {
    return fails() ? -error_ : opened(inner_.memory_file(name, bytes));
  }
  int64_t file_size(int fd) override { return fails() ? -error_ : inner_.file_size(fd); }
  int madvise(void* address, size_t bytes, int advice) override {
    return fails() ? -error_ : inner_.madvise(address, bytes, advice);
  }
  uint64_t locked_memory_limit() override { return inner_.locked_memory_limit(); }
  int connect(const sockaddr* address, socklen_t bytes) override {
    return fails() ? -error_ : opened(inner_.connect(address, bytes));
  }
  int connect_result(int fd) override { return fails() ? -error_ : inner_.connect_result(fd); }
  ssize_t send(int fd, const msghdr& message) override {
    return fails() ? -error_ : inner_.send(fd, message);
  }
  ssize_t receive(int fd, msghdr& message) override {
    if (fails()) return -error_;
    const ssize_t got = inner_.receive(fd, message);
    for (cmsghdr* header = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header))
      for (size_t at = 0; at + CMSG_LEN(sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
        int brought = -1;
        __builtin_memcpy(&brought, CMSG_DATA(header) + at, sizeof brought);
        opened(brought);
      }
    return got;
  }

 private:
  bool fails() { return calls_++ == nth_; }
  int opened(int fd) {
    const std::lock_guard lock(mutex_);
    if (fd >= 0) files_.insert(fd);
    return fd;
  }
  System& inner_;
  const uint64_t nth_;
  const int error_;
  std::atomic<uint64_t> calls_{0};
  std::mutex mutex_;
  std::set<int> files_;
  std::map<void*, size_t> mappings_;
};

}  // namespace bm::test
