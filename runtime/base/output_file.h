#pragma once
// A file that we write: all of it or nothing, and only over a regular file.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/base/scoped_fd.h"

namespace bm {

/// The new contents grow in a file without a name (O_TMPFILE), so that nothing is left over when
/// the process ends, whatever ends it. Where the file system or a hidden /proc does not allow that,
/// they grow under a random name beside the target (O_EXCL), which the destructor removes. commit()
/// syncs them and puts them in the target's place.
///
/// Thread: one at a time per object.
class OutputFile {
 public:
  struct Options {
    /// Its contents are executed later: never writable by group or others, whatever the umask and
    /// the file before it said (runtime/base/trust.h would refuse it).
    bool is_code = false;
  };
  /// A new file is as readable as the umask says, one that is there keeps its permissions. Follows
  /// symbolic links of root or the user; what they lead to is replaced, not they.
  /// Errors: kInvalidArgument when `path` is there and no regular file; kPermission for links of
  /// others; kNotFound, kPermission or kIo when nothing can be written beside it.
  static Result<OutputFile> create(const std::string& path, Options options);
  static Result<OutputFile> create(const std::string& path) { return create(path, Options()); }
  ~OutputFile();  ///< without commit(): the file is as before
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  /// Appends. Errors: kIo, kOutOfMemory (disk full) naming the target.
  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text) { return write(std::as_bytes(std::span(text))); }
  /// Afterwards the file is there, also after a power failure. Errors: kIo; the file is as before.
  Status commit();

 private:
  OutputFile(std::string target, std::string draft, ScopedFd fd)
      : target_(std::move(target)), draft_(std::move(draft)), fd_(std::move(fd)) {}
  Status give_name();

  std::string target_;
  std::string draft_;  ///< name of the contents; empty: none (yet, or any more)
  ScopedFd fd_;
};

/// Replaces `path` by a file with these contents. Errors: those of OutputFile.
Status replace_file(const std::string& path, std::span<const std::byte> bytes,
                    OutputFile::Options options = {});

}  // namespace bm
