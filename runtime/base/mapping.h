#pragma once
// Read-only memory mapping of a file.

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/result.h"

namespace bm {

/// Unmapped on destruction. The file may be replaced (rename) while mapped; truncating it in place
/// makes access past the new end a bus error, so files we write ourselves are replaced by rename.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  /// Maps the whole file of somebody else.
  /// Errors: kNotFound, kPermission, kIo naming the path; kInvalidArgument for anything but a
  /// regular file; kCorrupt for an empty one.
  static Result<Mapping> open_file(const std::string& path);
  /// Maps the whole of an open file, which may be closed afterwards; an empty one gives an empty
  /// span. `path` is for errors.
  static Result<Mapping> of(int fd, const std::string& path);

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Whole pages of `part` leave the process's memory, and are read again when they are touched.
  /// What of `part` is not of this mapping stays as it is.
  void release(std::span<const std::byte> part) const;

 private:
  explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace bm
