#include "runtime/base/trust.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <deque>

namespace bm {
namespace {

using Stat = struct stat;

constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

tl::unexpected<Error> failed(const std::string& path) {
  return fail(code_from_errno(errno), "{}: {}", path, errno_text(errno));
}

/// "its group", "everyone".
const char* writers(mode_t mode) { return (mode & S_IWOTH) != 0 ? "everyone" : "its group"; }
const char* remedy(mode_t mode) {
  const bool has_group = (mode & S_IWGRP) != 0, has_others = (mode & S_IWOTH) != 0;
  return has_group && has_others ? "chmod go-w" : has_group ? "chmod g-w" : "chmod o-w";
}

std::deque<std::string> split(std::string_view path) {
  std::deque<std::string> out;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    if (!part.empty() && part != ".") out.emplace_back(part);
    path.remove_prefix(std::min(part.size() + 1, path.size()));
  }
  return out;
}

/// Resolves a path as the kernel would and looks at every folder on the way.
class Walk {
 public:
  Walk(const std::string& asked, const TrustOptions& options) : asked_(asked), options_(options) {}

  enum class Last { kRefuseLink, kFollowLink };

  /// The path without symbolic links; of its last component only that it is there and, for
  /// kRefuseLink, no link.
  Result<std::string> resolve(Last last) {
    if (!asked_.starts_with('/'))
      return fail(Code::kInvalidArgument,
                  "\"{}\" is relative: it would be executed, so name it by its absolute path",
                  asked_);
    Stat root{};
    if (::stat("/", &root) != 0) return failed("/");
    stand_in_ = root.st_uid;
    std::deque<std::string> left = split(asked_);
    // Folders of `at` and what was seen of them; "/" is the empty text.
    std::string at;
    Stat folder = root;
    // Linux follows 40 links at most (path_resolution(7)).
    int links = 0;
    while (!left.empty()) {
      const std::string part = std::move(left.front());
      left.pop_front();
      if (part == "..") {
        at.resize(at.empty() ? 0 : at.rfind('/'));
        if (::lstat(at.empty() ? "/" : at.c_str(), &folder) != 0) return failed(at);
        continue;
      }
      BM_TRY(check_folder(at, folder, /*is_last=*/false));
      const std::string next = at + "/" + part;
      Stat info{};
      if (::lstat(next.c_str(), &info) != 0) return failed(asked_);
      if (S_ISLNK(info.st_mode)) {
        std::array<char, PATH_MAX> text{};
        const ssize_t length = ::readlink(next.c_str(), text.data(), text.size() - 1);
        if (length <= 0) return failed(next);
        const std::string target(text.data(), static_cast<size_t>(length));
        if (left.empty() && last == Last::kRefuseLink)
          return fail(Code::kInvalidArgument,
                      "{} is a symbolic link: it would be executed, so name the file it leads to, "
                      "{}",
                      next, target);
        // In a sticky folder anybody may have put the link there.
        BM_TRY(check_owner(next, info));
        if (++links > 40)
          return fail(Code::kInvalidArgument, "{}: too many symbolic links", asked_);
        std::deque<std::string> first = split(target);
        left.insert(left.begin(), std::make_move_iterator(first.begin()),
                    std::make_move_iterator(first.end()));
        if (target.starts_with('/')) {
          at.clear();
          folder = root;
        }
        continue;
      }
      if (!left.empty() && !S_ISDIR(info.st_mode))
        return fail(Code::kNotFound, "{}: {} is not a folder", asked_, next);
      at = next;
      folder_of_last_ = folder;
      folder = info;
    }
    return at.empty() ? "/" : at;
  }

  /// The folder `path` (of resolve()), in which files are opened by name.
  Status check_last_folder(const std::string& path, const Stat& info) const {
    return check_folder(path, info, /*is_last=*/true);
  }
  /// The folder of what resolve() gave.
  Status check_folder_of(const std::string& path) const {
    return check_folder(path.substr(0, path.rfind('/')), folder_of_last_, /*is_last=*/true);
  }

  Status check_file(const std::string& path, const Stat& info) const {
    if (!S_ISREG(info.st_mode))
      return fail(Code::kInvalidArgument, "{} is not a regular file", path);
    BM_TRY(check_owner(path, info));
    if ((info.st_mode & kOthersWrite) != 0)
      return fail(Code::kPermission,
                  "{} is writable by {} (mode {:o}) and would be executed; {} it if you know who "
                  "wrote it",
                  path, writers(info.st_mode), info.st_mode & 07777, remedy(info.st_mode));
    return {};
  }

 private:
  bool is_trusted(uid_t owner) const {
    return owner == 0 || owner == options_.user || owner == options_.also;
  }

  Status check_owner(const std::string& path, const Stat& info) const {
    if (is_trusted(info.st_uid)) return {};
    return fail(Code::kPermission,
                "{} belongs to user {}, who is neither root nor you (user {}), and would be "
                "executed; use a copy of your own",
                path, info.st_uid, options_.user);
  }

  Status check_folder(const std::string& at, const Stat& info, bool is_last) const {
    const std::string path = at.empty() ? "/" : at;
    if (!is_trusted(info.st_uid) && info.st_uid != stand_in_)
      return fail(Code::kPermission,
                  "{}: the folder {} belongs to user {}, who is neither root nor you (user {}) and "
                  "could put something else there to be executed; use a folder of your own",
                  asked_, path, info.st_uid, options_.user);
    if ((info.st_mode & kOthersWrite) == 0) return {};
    const bool is_sticky = (info.st_mode & S_ISVTX) != 0;
    if (is_sticky && !is_last) return {};
    return fail(Code::kPermission,
                "{}: the folder {} is writable by {} (mode {:o}), who could put something else "
                "there to be executed; {}",
                asked_, path, writers(info.st_mode), info.st_mode & 07777,
                is_sticky ? std::string("use a folder that only you can write")
                          : fmt::format("{} {}", remedy(info.st_mode), path));
  }

  const std::string& asked_;
  const TrustOptions& options_;
  uid_t stand_in_ = 0;  ///< for root, of folders: the owner of "/"
  Stat folder_of_last_{};
};

}  // namespace

Result<TrustedFile> open_trusted(const std::string& path, const TrustOptions& options) {
  Walk walk(path, options);
  TrustedFile file;
  file.path = BM_TRY(walk.resolve(Walk::Last::kRefuseLink));
  // O_NONBLOCK: a pipe in place of the file must not block.
  file.fd.reset(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.fd.is_open()) return failed(file.path);
  Stat info{};
  if (::fstat(file.fd.get(), &info) != 0) return failed(file.path);
  BM_TRY(walk.check_file(file.path, info));
  BM_TRY(walk.check_folder_of(file.path));
  return file;
}

Result<std::string> trusted_folder(const std::string& path, const TrustOptions& options) {
  Walk walk(path, options);
  std::string real = BM_TRY(walk.resolve(Walk::Last::kFollowLink));
  Stat info{};
  if (::lstat(real.c_str(), &info) != 0) return failed(real);
  if (!S_ISDIR(info.st_mode)) return fail(Code::kIo, "{} is not a directory", path);
  BM_TRY(walk.check_last_folder(real, info));
  return real;
}

Result<std::string> trusted_target(const std::string& path, const TrustOptions& options) {
  Walk walk(path, options);
  std::string real = BM_TRY(walk.resolve(Walk::Last::kFollowLink));
  Stat info{};
  if (::lstat(real.c_str(), &info) != 0) return failed(real);
  BM_TRY(walk.check_file(real, info));
  BM_TRY(walk.check_folder_of(real));
  return real;
}

Status check_library(const std::string& name) {
  if (name.find('/') != std::string::npos) BM_TRY(trusted_target(name));
  return {};
}

Result<std::string> absolute_path(std::string_view name) {
  if (name.starts_with('/')) return std::string(name);
  std::array<char, PATH_MAX> folder{};
  if (::getcwd(folder.data(), folder.size()) == nullptr || folder[0] != '/')
    return fail(Code::kNotFound, "the current folder is gone, and \"{}\" is relative", name);
  return fmt::format("{}/{}", folder[0] == '/' && folder[1] == 0 ? "" : folder.data(), name);
}

}  // namespace bm
