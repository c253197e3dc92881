#pragma once
// A file that commands write: all of it or nothing, and only over a regular file.

#include <string>

#include "runtime/base/result.h"

namespace bm::cli {

/// The new contents grow in a draft beside the file; commit() puts it in the file's place.
class OutputFile {
 public:
  /// Follows symbolic links; what they lead to is replaced, not they.
  /// Errors: kInvalidArgument when `path` is there and no regular file; kNotFound, kPermission or
  /// kIo when nothing can be written beside it.
  static Result<OutputFile> create(const std::string& path);
  ~OutputFile();  ///< without commit(): the draft goes, the file is as before
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  const std::string& draft() const { return draft_; }  ///< to be written and closed
  /// Errors: kIo; the file is as before.
  Status commit();

 private:
  OutputFile(std::string target, std::string draft)
      : target_(std::move(target)), draft_(std::move(draft)) {}
  std::string target_, draft_;  ///< no draft: done
};

}  // namespace bm::cli
