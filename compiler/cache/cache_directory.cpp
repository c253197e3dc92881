#include "compiler/cache/cache_directory.h"

#include <cerrno>
#include <sys/stat.h>
#include <unistd.h>

namespace bm::compiler {
namespace {

Status make_directories(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      const int error = errno;
      struct stat info {};
      // A read-only file system answers EROFS for a directory that is there already.
      if (::stat(part.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
        return fail(code_from_errno(error), "make directory {}: {}", part, errno_text(error));
      }
    }
    if (end == std::string::npos) return {};
  }
}

}  // namespace

Status prepare_cache_directory(const std::string& path) {
  BM_TRY(make_directories(path));
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return fail(code_from_errno(errno), "{}: {}", path, errno_text(errno));
  }
  if (!S_ISDIR(info.st_mode)) return fail(Code::kIo, "{} is not a directory", path);
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return fail(Code::kPermission, "{} belongs to user {}, not to user {}", path, info.st_uid,
                ::geteuid());
  }
  if ((info.st_mode & S_IWOTH) != 0) {
    return fail(Code::kPermission, "{} is writable by everyone (mode {:o}); chmod o-w it", path,
                info.st_mode & 07777);
  }
  return {};
}

}  // namespace bm::compiler
