#include "runtime/base/private_folder.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

extern char** environ;  // POSIX leaves its declaration to the program

namespace bm {
namespace {

/// The process that reads until `alive` is closed, then removes the folder.
Result<int> start_keeper(const ScopedFd& read_end, const std::string& path) {
  std::array<std::string, 5> words = {"sh", "-c", "cat >/dev/null; exec rm -rf -- \"$1\"", "sh",
                                      path};
  std::array<char*, 6> argv{};
  for (size_t i = 0; i < words.size(); ++i) argv[i] = words[i].data();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, read_end.get(), 0);
  // It must hold neither a terminal nor a pipe somebody reads to its end.
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  // Out of reach of Ctrl-C and of what a shell sends to its job.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, "/bin/sh", &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return fail(code_from_errno(failed), "run /bin/sh: {}", errno_text(failed));
  return pid;
}

}  // namespace

Result<PrivateFolder> PrivateFolder::create(const std::string& prefix) {
  std::error_code error;
  const std::filesystem::path base = std::filesystem::temp_directory_path(error);
  if (error) return fail(Code::kIo, "TMPDIR: {}", error.message());
  std::string path = (base / (prefix + "-XXXXXX")).string();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return fail(code_from_errno(errno), "pipe: {}", errno_text(errno));
  const ScopedFd read_end(ends[0]);
  ScopedFd alive(ends[1]);
  if (::mkdtemp(path.data()) == nullptr)
    return fail(code_from_errno(errno), "make a folder {}: {}", path, errno_text(errno));
  const Result<int> keeper = start_keeper(read_end, path);
  if (!keeper) {
    ::rmdir(path.c_str());
    return tl::unexpected<Error>(keeper.error());
  }
  return PrivateFolder(std::move(path), std::move(alive), *keeper);
}

PrivateFolder::PrivateFolder(PrivateFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      alive_(std::move(other.alive_)),
      keeper_(other.keeper_) {}

PrivateFolder::~PrivateFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  alive_.reset();
  while (::waitpid(keeper_, nullptr, 0) < 0 && errno == EINTR) {}
}

}  // namespace bm
