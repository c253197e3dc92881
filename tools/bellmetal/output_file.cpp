#include "tools/bellmetal/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdio>
#include <cstdlib>

namespace bm::cli {
namespace {

Error error_of(const std::string& path) {
  return Error(code_from_errno(errno), fmt::format("{}: {}", path, errno_text(errno)));
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "something else";
}

/// Permissions of new files. Thread: nobody else makes files meanwhile.
mode_t default_mode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

struct Place {
  std::string path;  ///< no symbolic link
  mode_t mode;       ///< of the file that is there, or of a new one
};

/// Where a file named `path` is or will be.
Result<Place> find_place(std::string path) {
  // Linux follows 40 links at most (path_resolution(7)); only dangling ones are followed here.
  for (int links = 0; links < 40; ++links) {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) {
      if (!S_ISREG(info.st_mode))
        return fail(Code::kInvalidArgument,
                    "{} is {}: only a regular file or a new name is written", path,
                    kind_of(info.st_mode));
      std::array<char, PATH_MAX> real{};
      if (::realpath(path.c_str(), real.data()) == nullptr)
        return tl::unexpected<Error>(error_of(path));
      return Place{real.data(), info.st_mode & 0777};
    }
    if (errno != ENOENT) return tl::unexpected<Error>(error_of(path));
    std::array<char, PATH_MAX> next{};
    const ssize_t length = ::readlink(path.c_str(), next.data(), next.size() - 1);
    if (length < 0) return Place{path, default_mode()};
    const std::string target(next.data(), static_cast<size_t>(length));
    const size_t slash = path.rfind('/');
    path = target.starts_with('/') || slash == std::string::npos
               ? target
               : path.substr(0, slash + 1) + target;
  }
  return fail(Code::kInvalidArgument, "{}: too many symbolic links", path);
}

}  // namespace

Result<OutputFile> OutputFile::create(const std::string& path) {
  const Place place = BM_TRY(find_place(path));
  std::string draft = place.path + ".XXXXXX";
  const int file = ::mkostemp(draft.data(), O_CLOEXEC);
  if (file < 0) return tl::unexpected<Error>(error_of(place.path));
  OutputFile out(place.path, draft);
  const bool is_open = ::fchmod(file, place.mode) == 0;
  const Error error = error_of(draft);
  ::close(file);
  if (!is_open) return tl::unexpected<Error>(error);
  return out;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : target_(std::move(other.target_)), draft_(std::exchange(other.draft_, {})) {}

OutputFile::~OutputFile() {
  if (!draft_.empty()) ::unlink(draft_.c_str());
}

Status OutputFile::commit() {
  // A name that points at contents not yet on disk could survive a power failure without them.
  const int file = ::open(draft_.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return tl::unexpected<Error>(error_of(draft_));
  const bool is_synced = ::fsync(file) == 0;
  const Error error = error_of(draft_);
  if ((::close(file) != 0) || !is_synced) return tl::unexpected<Error>(error);
  if (std::rename(draft_.c_str(), target_.c_str()) != 0)
    return tl::unexpected<Error>(error_of(target_));
  draft_.clear();
  return {};
}

}  // namespace bm::cli
