// Programs of toolchains: no shell, files in a private folder, bounded time.
#include "compiler/toolchain/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <sstream>

#include "runtime/base/scoped_fd.h"

extern char** environ;  // POSIX leaves its declaration to the program

namespace bm::compiler {
namespace {

// TIMEOUT: one kernel took 0.1 s at most on one core; a minute covers a loaded machine.
constexpr int kLimitMs = 60'000;

/// Waits for `pid` at most kLimitMs, then kills it. Result: wait status.
Result<int> wait_bounded(pid_t pid, const std::string& program) {
  const ScopedFd handle(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  bool is_late = false;
  if (handle.get() >= 0) {
    pollfd p{.fd = handle.get(), .events = POLLIN, .revents = 0};
    int ready = 0;
    do ready = poll(&p, 1, kLimitMs);
    while (ready < 0 && errno == EINTR);
    is_late = ready == 0;
  }
  if (is_late) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  if (is_late)
    return fail(Code::kTimeout, "{} took longer than {} s and was stopped", program,
                kLimitMs / 1000);
  return status;
}

}  // namespace

Result<WorkFolder> WorkFolder::create(std::vector<std::string> files) {
  const char* base = std::getenv("TMPDIR");
  std::string path = std::string(base && *base ? base : "/tmp") + "/bellmetal-XXXXXX";
  if (!mkdtemp(path.data()))
    return fail(code_from_errno(errno), "mkdtemp {}: {}", path, errno_text(errno));
  return WorkFolder(std::move(path), std::move(files));
}

WorkFolder::~WorkFolder() {
  if (path_.empty()) return;
  for (const std::string& name : files_) unlink(file(name).c_str());
  rmdir(path_.c_str());
}

Status write_file(const std::string& path, std::string_view text) {
  const ScopedFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  for (size_t done = 0; fd.get() >= 0 && done < text.size();) {
    const ssize_t n = write(fd.get(), text.data() + done, text.size() - done);
    if (n < 0) return fail(code_from_errno(errno), "write {}: {}", path, errno_text(errno));
    done += static_cast<size_t>(n);
  }
  if (fd.get() < 0) return fail(code_from_errno(errno), "create {}: {}", path, errno_text(errno));
  return {};
}

Result<std::vector<std::byte>> read_file(const std::string& path) {
  const ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return fail(code_from_errno(errno), "open {}: {}", path, errno_text(errno));
  std::vector<std::byte> out;
  std::array<std::byte, 16384> chunk{};
  for (;;) {
    const ssize_t n = read(fd.get(), chunk.data(), chunk.size());
    if (n < 0) return fail(code_from_errno(errno), "read {}: {}", path, errno_text(errno));
    if (n == 0) return out;
    out.insert(out.end(), chunk.begin(), chunk.begin() + n);
  }
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<int> run_program(const std::vector<std::string>& args, const std::string& log) {
  std::vector<char*> argv;
  for (const std::string& a : args) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, args[0].c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed) return fail(code_from_errno(failed), "run {}: {}", args[0], errno_text(failed));
  return wait_bounded(pid, args[0]);
}

Result<std::string> find_program(std::string_view name) {
  if (name.find('/') != std::string_view::npos) {
    const std::string path(name);
    if (access(path.c_str(), X_OK) == 0) return path;
    return fail(Code::kNotFound, "{} cannot be run", path);
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = folder + "/" + std::string(name);
    if (!folder.empty() && access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return fail(Code::kNotFound, "{} is not in PATH", name);
}

}  // namespace bm::compiler
