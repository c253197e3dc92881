// Programs of toolchains: no shell, files in memory, bounded time.
#include "compiler/toolchain/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <sstream>

#include "runtime/base/trust.h"

extern char** environ;  // POSIX leaves its declaration to the program

namespace bm::compiler {
namespace {

// TIMEOUT: one kernel took 0.1 s at most on one core; a minute covers a loaded machine.
constexpr int kLimitMs = 60'000;

constexpr int kFirstFree = 4;

/// Above the descriptors that run_program() lays files on.
ScopedFd raised(ScopedFd low) {
  return ScopedFd(low.is_open() ? ::fcntl(low.get(), F_DUPFD_CLOEXEC, kFirstFree) : -1);
}

/// What comes out of a pipe until its writers are gone, within kLimitMs. Result: ms that are left.
int read_all(int fd, std::vector<std::byte>* out) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(kLimitMs);
  std::array<std::byte, 65536> chunk{};
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    const int left_ms = std::max(0, static_cast<int>(left.count()));
    pollfd p{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&p, 1, left_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return left_ms;
    const ssize_t n = ::read(fd, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return left_ms;
    out->insert(out->end(), chunk.begin(), chunk.begin() + n);
  }
}

/// Waits for `pid` at most `limit_ms`, then kills it. Result: wait status.
Result<int> wait_bounded(pid_t pid, const std::string& program, int limit_ms) {
  const ScopedFd handle(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  bool is_late = false;
  if (handle.get() >= 0) {
    pollfd p{.fd = handle.get(), .events = POLLIN, .revents = 0};
    int ready = 0;
    do ready = poll(&p, 1, limit_ms);
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

Result<MemoryFile> MemoryFile::create(const char* name, std::span<const std::byte> contents) {
  ScopedFd fd = raised(ScopedFd(::memfd_create(name, MFD_CLOEXEC)));
  if (!fd.is_open())
    return fail(code_from_errno(errno), "a file in memory for {}: {}", name, errno_text(errno));
  while (!contents.empty()) {
    const ssize_t n = ::write(fd.get(), contents.data(), contents.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(code_from_errno(errno), "write {}: {}", name, errno_text(errno));
    contents = contents.subspan(static_cast<size_t>(n));
  }
  if (::lseek(fd.get(), 0, SEEK_SET) != 0)
    return fail(code_from_errno(errno), "rewind {}: {}", name, errno_text(errno));
  return MemoryFile(std::move(fd));
}

Result<std::vector<std::byte>> MemoryFile::contents() const {
  std::vector<std::byte> out;
  std::array<std::byte, 16384> chunk{};
  for (;;) {
    const ssize_t n =
        ::pread(fd_.get(), chunk.data(), chunk.size(), static_cast<off_t>(out.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(code_from_errno(errno), "read a file in memory: {}", errno_text(errno));
    if (n == 0) return out;
    out.insert(out.end(), chunk.begin(), chunk.begin() + n);
  }
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<int> run_program(const std::vector<std::string>& args, const ProgramFiles& files) {
  std::vector<char*> argv;
  for (const std::string& a : args) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  ScopedFd reader, writer;
  if (std::array<int, 2> ends{}; files.stream != nullptr) {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      return fail(code_from_errno(errno), "a pipe for {}: {}", args[0], errno_text(errno));
    reader.reset(ends[0]);
    writer = raised(ScopedFd(ends[1]));
    if (!writer.is_open())
      return fail(code_from_errno(errno), "a pipe for {}: {}", args[0], errno_text(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (files.input == nullptr)
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  else
    posix_spawn_file_actions_adddup2(&actions, files.input->fd(), 0);
  posix_spawn_file_actions_adddup2(&actions, writer.is_open() ? writer.get() : files.output.fd(),
                                   1);
  posix_spawn_file_actions_adddup2(&actions, files.errors.fd(), 2);
  if (files.third != nullptr) posix_spawn_file_actions_adddup2(&actions, files.third->fd(), 3);
  // Onto itself: it stays open.
  for (const MemoryFile& file : files.named)
    posix_spawn_file_actions_adddup2(&actions, file.fd(), file.fd());
  // A group of its own: Ctrl-C is ours to answer, not an error of the compiler.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int failed =
      posix_spawn(&pid, args[0].c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed) return fail(code_from_errno(failed), "run {}: {}", args[0], errno_text(failed));
  writer.reset();
  const int left_ms = reader.is_open() ? read_all(reader.get(), files.stream) : kLimitMs;
  return wait_bounded(pid, args[0], left_ms);
}

Result<std::string> find_program(std::string_view name) {
  if (name.find('/') != std::string_view::npos) {
    const std::string path(name);
    if (path.starts_with('/') && access(path.c_str(), X_OK) != 0)
      return fail(Code::kNotFound, "{} cannot be run", path);
    BM_TRY(trusted_target(path));
    return path;
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = folder + "/" + std::string(name);
    if (!folder.starts_with('/') || access(candidate.c_str(), X_OK) != 0) continue;
    BM_TRY(trusted_target(candidate));
    return candidate;
  }
  return fail(Code::kNotFound, "{} is not in PATH", name);
}

}  // namespace bm::compiler
