#pragma once
// Programs of toolchains as processes. Private to this folder.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/result.h"
#include "runtime/base/scoped_fd.h"

namespace bm::compiler {

/// A file without a name in any folder: it vanishes with the last process that has it open,
/// whatever ends that.
class MemoryFile {
 public:
  /// Programs read it from its start. Errors: kOutOfMemory; kIo (no descriptor left).
  static Result<MemoryFile> create(const char* name, std::span<const std::byte> contents = {});
  Result<std::vector<std::byte>> contents() const;
  int fd() const { return fd_.get(); }
  /// Its name in a program that has it open under the same number.
  std::string name() const { return fmt::format("/dev/fd/{}", fd()); }

 private:
  explicit MemoryFile(ScopedFd fd) : fd_(std::move(fd)) {}
  ScopedFd fd_;
};

std::string as_text(std::span<const std::byte> bytes);

/// What a program has open.
struct ProgramFiles {
  const MemoryFile& output;                  ///< stdout
  const MemoryFile& errors;                  ///< stderr; may be the same
  const MemoryFile* input = nullptr;         ///< stdin; nullptr: empty
  const MemoryFile* third = nullptr;         ///< for programs that want a name: kThird
  std::span<const MemoryFile> named = {};    ///< more of them, under their name() here
  std::vector<std::byte>* stream = nullptr;  ///< instead of `output`, what is written to a pipe
};
inline constexpr const char* kThird = "/dev/fd/3";

/// Runs args[0], out of reach of the terminal's Ctrl-C. Result: wait status.
/// Errors: kTimeout after 60 s.
Result<int> run_program(const std::vector<std::string>& args, const ProgramFiles& files);

/// `name` itself if it is a path, else its place in PATH, whose relative folders are passed over.
/// Errors: kNotFound; those of trusted_target: it is about to be run.
Result<std::string> find_program(std::string_view name);

}  // namespace bm::compiler
