#pragma once
// A file without a name: it vanishes with its object or with the process, whatever ends that.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/result.h"
#include "runtime/base/scoped_fd.h"

namespace bm::cli {

class TemporaryFile {
 public:
  /// In memory or, when it is large, in the folder of temporary files. Errors: kIo.
  static Result<std::unique_ptr<TemporaryFile>> create(bool is_large = false);

  /// For this process and those it starts, as long as the object lives: a name in /proc.
  const std::string& path() const { return path_; }
  /// Appends. Errors: kIo.
  Status write(std::span<const std::byte> bytes);

 private:
  TemporaryFile(std::string path, ScopedFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  ScopedFd fd_;
};

}  // namespace bm::cli
