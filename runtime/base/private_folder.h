#pragma once
// A folder of temporary files that other programs must find by name.

#include <string>

#include "runtime/base/result.h"
#include "runtime/base/scoped_fd.h"

namespace bm {

/// Of mode 0700, in the folder of temporary files. It is removed with the object, and by a process
/// that waits for the end of this one where no destructor runs: SIGKILL, too. Prefer a file without
/// a name (O_TMPFILE, memfd_create) where a descriptor will do.
class PrivateFolder {
 public:
  /// Errors: kIo, kPermission, kOutOfMemory naming the folder; those of posix_spawn.
  static Result<PrivateFolder> create(const std::string& prefix);
  ~PrivateFolder();
  PrivateFolder(PrivateFolder&& other) noexcept;
  PrivateFolder& operator=(PrivateFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  PrivateFolder(std::string path, ScopedFd alive, int keeper)
      : path_(std::move(path)), alive_(std::move(alive)), keeper_(keeper) {}
  std::string path_;  ///< empty: moved from
  ScopedFd alive_;    ///< closed by the kernel when this process ends
  int keeper_ = -1;
};

}  // namespace bm
