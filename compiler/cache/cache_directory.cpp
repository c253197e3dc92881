#include "compiler/cache/cache_directory.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>

#include "runtime/base/scoped_fd.h"
#include "runtime/base/trust.h"

namespace bm::compiler {
namespace {

Status make_directories(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      const int error = errno;
      struct stat info{};
      // A read-only file system answers EROFS for a directory that is there already.
      if (::stat(part.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
        return fail(code_from_errno(error), "make directory {}: {}", part, errno_text(error));
      }
    }
    if (end == std::string::npos) return {};
  }
}

}  // namespace

Result<std::string> prepare_cache_directory(const std::string& path) {
  if (!path.starts_with('/'))
    return fail(Code::kInvalidArgument,
                "cache folder \"{}\" is relative: what lies there is executed, so name it by its "
                "absolute path",
                path);
  BM_TRY(make_directories(path));
  return trusted_folder(path);
}

Status check_cache_file(const std::string& path) {
  // The log and the index of a database are as good as its rows.
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    const auto file = open_trusted(path + suffix);
    if (!file && file.error().code != Code::kNotFound) return tl::unexpected<Error>(file.error());
  }
  // SQLite would make it readable by everyone; its other files take their permissions from it.
  const ScopedFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.is_open() && errno != EEXIST)
    return fail(code_from_errno(errno), "create {}: {}", path, errno_text(errno));
  return {};
}

}  // namespace bm::compiler
