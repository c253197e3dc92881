#pragma once
// A file that vanishes with its object.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace bm::cli {

class TemporaryFile {
 public:
  /// In /dev/shm, where there is one, else, and when it is large, in the folder of temporary files.
  /// Errors: kIo.
  static Result<std::unique_ptr<TemporaryFile>> create(bool is_large = false);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }
  /// Appends. Errors: kIo.
  Status write(std::span<const std::byte> bytes);

 private:
  TemporaryFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
};

}  // namespace bm::cli
