#include "runtime/base/output_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace bm {
namespace {

Error error_of(const std::string& path) {
  const int error = errno;
  return Error{code_from_errno(error), fmt::format("{}: {}", path, errno_text(error))};
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "something else";
}

struct Place {
  std::string path;       ///< no symbolic link
  bool is_there = false;  ///< a file already, with
  mode_t mode = 0666;     ///< these permissions; of a new file: before the umask
};

/// Links of others are no wish of the user's: where fs.protected_symlinks is 0, one planted in /tmp
/// would choose what we overwrite.
Status check_link(const std::string& path, const struct stat& link) {
  if (link.st_uid == 0 || link.st_uid == ::geteuid()) return {};
  return fail(Code::kPermission,
              "{} is a symbolic link of user {}, who is neither root nor you; remove it or write "
              "elsewhere",
              path, link.st_uid);
}

/// Where a file named `path` is or will be.
Result<Place> find_place(std::string path) {
  // Linux follows 40 links at most (path_resolution(7)).
  for (int links = 0; links < 40; ++links) {
    struct stat info{};
    if (::lstat(path.c_str(), &info) != 0) {
      if (errno == ENOENT) return Place{path};
      return tl::unexpected<Error>(error_of(path));
    }
    if (!S_ISLNK(info.st_mode)) {
      if (S_ISREG(info.st_mode)) return Place{path, true, info.st_mode & 0777};
      return fail(Code::kInvalidArgument, "{} is {}: only a regular file or a new name is written",
                  path, kind_of(info.st_mode));
    }
    BM_TRY(check_link(path, info));
    std::array<char, PATH_MAX> next{};
    const ssize_t length = ::readlink(path.c_str(), next.data(), next.size() - 1);
    if (length < 0) return tl::unexpected<Error>(error_of(path));
    const std::string target(next.data(), static_cast<size_t>(length));
    const size_t slash = path.rfind('/');
    path = target.starts_with('/') || slash == std::string::npos
               ? target
               : path.substr(0, slash + 1) + target;
  }
  return fail(Code::kInvalidArgument, "{}: too many symbolic links", path);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

/// `path` with a random ending: nobody can plant a file of that name beforehand.
Result<std::string> random_name(const std::string& path) {
  std::array<unsigned char, 12> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return tl::unexpected<Error>(error_of("getrandom"));
  std::string name = path + ".";
  for (const unsigned char b : bytes) name += fmt::format("{:02x}", b);
  return name;
}

std::string name_of(const ScopedFd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

constexpr int kAttempts = 8;  // names of 96 random bits do not collide; an enemy's would not either

}  // namespace

Result<OutputFile> OutputFile::create(const std::string& path, Options options) {
  const Place place = BM_TRY(find_place(path));
  const mode_t mask = options.is_code ? mode_t{0755} : mode_t{0777};
  // The kernel applies the umask to new files: reading it here would change it for other threads.
  const mode_t mode = place.mode & mask;
  std::string draft;
  ScopedFd fd(::open(folder_of(place.path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode));
  // linkat() needs the descriptor's name in /proc.
  if (fd.is_open() && ::access(name_of(fd).c_str(), F_OK) != 0) fd.reset();
  for (int i = 0; i < kAttempts && !fd.is_open(); ++i) {
    draft = BM_TRY(random_name(place.path));
    fd.reset(::open(draft.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, mode));
    if (!fd.is_open() && errno != EEXIST) return tl::unexpected<Error>(error_of(place.path));
  }
  if (!fd.is_open()) return tl::unexpected<Error>(error_of(place.path));
  OutputFile out(place.path, std::move(draft), std::move(fd));
  if (place.is_there && ::fchmod(out.fd_.get(), mode) != 0)
    return tl::unexpected<Error>(error_of(place.path));
  return out;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : target_(std::move(other.target_)),
      draft_(std::exchange(other.draft_, {})),
      fd_(std::move(other.fd_)) {}

OutputFile::~OutputFile() {
  if (!draft_.empty()) ::unlink(draft_.c_str());
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return tl::unexpected<Error>(error_of(target_));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status OutputFile::give_name() {
  for (int i = 0; i < kAttempts; ++i) {
    std::string name = BM_TRY(random_name(target_));
    if (::linkat(AT_FDCWD, name_of(fd_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      draft_ = std::move(name);
      return {};
    }
    if (errno != EEXIST) break;
  }
  return tl::unexpected<Error>(error_of(target_));
}

Status OutputFile::commit() {
  // A name that points at contents not yet on disk could survive a power failure without them.
  if (::fsync(fd_.get()) != 0) return tl::unexpected<Error>(error_of(target_));
  if (draft_.empty()) BM_TRY(give_name());
  // What close() reports (a quota of a network file system) is an error too.
  if (::close(fd_.release()) != 0) return tl::unexpected<Error>(error_of(target_));
  if (::rename(draft_.c_str(), target_.c_str()) != 0)
    return tl::unexpected<Error>(error_of(target_));
  draft_.clear();
  const ScopedFd folder(::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A folder that may be written but not read cannot be synced; the file is there all the same.
  if (folder.is_open() && ::fsync(folder.get()) != 0 && errno != EINVAL)
    return tl::unexpected<Error>(error_of(folder_of(target_)));
  return {};
}

Status replace_file(const std::string& path, std::span<const std::byte> bytes,
                    OutputFile::Options options) {
  OutputFile file = BM_TRY(OutputFile::create(path, options));
  BM_TRY(file.write(bytes));
  return file.commit();
}

}  // namespace bm
