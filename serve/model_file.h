#pragma once
// Whether the file of a model is still the one that was loaded.

#include <cstdint>
#include <optional>
#include <string>

namespace bm::serve {

/// What the system says of a file: one that was written to since, or put in its place, has another.
struct FileMark {
  uint64_t device = 0, inode = 0, size = 0;
  int64_t seconds = 0, nanoseconds = 0;  ///< of the last write
  bool operator==(const FileMark&) const = default;
  /// The same file with other contents, which whoever mapped it reads now, too.
  bool is_overwritten(const FileMark& now) const {
    return *this != now && device == now.device && inode == now.inode;
  }
};

/// Nothing where there is no such file. Of a split model and of a folder the path alone is looked
/// at. Source: stat(2).
std::optional<FileMark> mark_of(const std::string& path);

/// Looks at a path now and then. Thread: one.
class FileWatch {
 public:
  explicit FileWatch(std::string path) : path_(std::move(path)), known_(mark_of(path_)) {}
  /// Whether there is another file, or other contents, that did not change between two looks: who
  /// copies a file over this one is given the time to end. Told once for each change.
  bool has_changed();

 private:
  std::string path_;
  std::optional<FileMark> known_, last_;
};

}  // namespace bm::serve
