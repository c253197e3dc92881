#pragma once
// Programs of toolchains as processes. Private to this folder.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.h"

namespace bm::compiler {

/// Private folder that vanishes with `files`.
class WorkFolder {
 public:
  static Result<WorkFolder> create(std::vector<std::string> files);
  WorkFolder(WorkFolder&& o) noexcept
      : path_(std::exchange(o.path_, {})), files_(std::move(o.files_)) {}
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder();
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  WorkFolder(std::string path, std::vector<std::string> files)
      : path_(std::move(path)), files_(std::move(files)) {}
  std::string path_;
  std::vector<std::string> files_;
};

Status write_file(const std::string& path, std::string_view text);
Result<std::vector<std::byte>> read_file(const std::string& path);
std::string as_text(std::span<const std::byte> bytes);

/// Runs args[0] with stdout and stderr in the file `log`. Result: wait status.
/// Errors: kTimeout after 60 s.
Result<int> run_program(const std::vector<std::string>& args, const std::string& log);

/// `name` itself if it is a path, else its place in PATH. Errors: kNotFound.
Result<std::string> find_program(std::string_view name);

}  // namespace bm::compiler
