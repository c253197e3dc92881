#pragma once
// Exact reads of a file at given offsets.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/result.h"
#include "runtime/base/scoped_fd.h"

namespace bm::runtime {

/// Thread: safe (positioned reads share no state).
class FileStream {
 public:
  /// Same meaning as pread(2); replaced in tests to give short reads and errors.
  using ReadAt = ssize_t (*)(int fd, void* out, size_t bytes, off_t offset);

  /// Errors: kNotFound, kPermission, kIo naming the path; kInvalidArgument for a directory.
  static Result<FileStream> open(std::string path, ReadAt read_at = nullptr);

  /// Fills `out` from byte `offset` on; short reads are continued, EINTR repeated.
  /// Errors: kIo naming path and the offset where the file ends or reading failed.
  Status read(std::span<std::byte> out, uint64_t offset) const;
  /// Bytes at the time of opening; 0 for devices and pipes.
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  FileStream(std::string path, ScopedFd fd, uint64_t size, ReadAt read_at)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size), read_at_(read_at) {}

  std::string path_;
  ScopedFd fd_;
  uint64_t size_ = 0;
  ReadAt read_at_ = nullptr;
};

}  // namespace bm::runtime
