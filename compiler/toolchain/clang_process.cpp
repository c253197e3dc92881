// clang as a process: no shell, files in a private folder, bounded time.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "compiler/toolchain/toolchain.h"
#include "runtime/base/env.h"
#include "runtime/base/scoped_fd.h"

extern char** environ;  // POSIX leaves its declaration to the program

namespace bm::compiler {
namespace {

// TIMEOUT: one kernel took 0.1 s at most on one core; a minute covers a loaded machine.
constexpr int kLimitMs = 60'000;

/// Folder that vanishes with its files.
class WorkFolder {
 public:
  static Result<WorkFolder> create() {
    const char* base = std::getenv("TMPDIR");
    std::string path = std::string(base && *base ? base : "/tmp") + "/bellmetal-XXXXXX";
    if (!mkdtemp(path.data()))
      return fail(code_from_errno(errno), "mkdtemp {}: {}", path, errno_text(errno));
    return WorkFolder(std::move(path));
  }
  explicit WorkFolder(std::string path) : path_(std::move(path)) {}
  WorkFolder(WorkFolder&& o) noexcept : path_(std::exchange(o.path_, {})) {}
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder() {
    if (path_.empty()) return;
    for (const char* name : {"k.c", "k.o", "log"}) unlink(file(name).c_str());
    rmdir(path_.c_str());
  }
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

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

std::string as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Waits for `pid` at most kLimitMs, then kills it. Result: wait status.
Result<int> wait_bounded(pid_t pid) {
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
    return fail(Code::kTimeout, "clang took longer than {} s and was stopped", kLimitMs / 1000);
  return status;
}

/// Runs `args` with stdout and stderr in `log`. Result: wait status.
Result<int> run(const std::vector<std::string>& args, const std::string& log) {
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
  return wait_bounded(pid);
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

Result<std::string> find_clang() {
  if (const std::string& wanted = settings().clang; !wanted.empty()) return find_program(wanted);
  for (const char* name : {"clang-22", "clang-19", "clang"})
    if (auto found = find_program(name)) return found;
  return fail(
      Code::kNotFound,
      "no clang in PATH (tried clang-22, clang-19, clang); install clang-19 or set BM_CLANG");
}

Result<std::string> ask_version(const std::string& program) {
  const WorkFolder folder = BM_TRY(WorkFolder::create());
  BM_TRY(run({program, "--version"}, folder.file("log")));
  const std::string text = as_text(BM_TRY(read_file(folder.file("log"))));
  return text.substr(0, text.find('\n'));
}

std::vector<std::string> command(const std::string& program, const TargetInfo& target,
                                 const WorkFolder& folder) {
  std::vector<std::string> args = {
      program, "--target=" + target.triple, "-x", "c", "-std=gnu11", "-O2", "-c", "-fPIC",
      "-ffreestanding", "-w",
      // Numerics and code shape were decided before: nothing may be contracted, reordered or
      // widened.
      "-fno-math-errno", "-ffp-contract=off", "-fno-vectorize", "-fno-slp-vectorize", "-fwrapv",
      "-fno-strict-aliasing", "-fno-stack-protector", "-fno-asynchronous-unwind-tables",
      "-fno-ident", "-mprefer-vector-width=512", "-Xclang", "-target-cpu", "-Xclang", target.cpu};
  std::istringstream features(target.features);
  for (std::string f; std::getline(features, f, ',');) {
    if (f.empty() || f == "-prefer-256-bit") continue;
    args.insert(args.end(), {"-Xclang", "-target-feature", "-Xclang", f});
  }
  args.insert(args.end(), {"-o", folder.file("k.o"), folder.file("k.c")});
  return args;
}

/// First error of a log with the source line it points at.
std::string describe_log(const std::string& log, std::string_view source) {
  const size_t at = log.find("k.c:");
  if (at == std::string::npos) return log;
  const int wanted = std::atoi(log.c_str() + at + 4);
  size_t begin = 0;
  for (int n = 1; n < wanted && begin != std::string_view::npos; ++n) {
    begin = source.find('\n', begin);
    if (begin != std::string_view::npos) ++begin;
  }
  if (wanted < 1 || begin == std::string_view::npos) return log;
  return fmt::format("{}\nsource line {}: {}", log, wanted,
                     source.substr(begin, source.find('\n', begin) - begin));
}

}  // namespace

Result<std::string> clang_version() {
  // One answer per process: the program does not change under us.
  static const Result<std::string> known = []() -> Result<std::string> {
    const std::string program = BM_TRY(find_clang());
    return program + " " + BM_TRY(ask_version(program));
  }();
  return known;
}

Result<std::vector<std::byte>> clang_compile(std::string_view source, const TargetInfo& target) {
  const std::string program = BM_TRY(find_clang());
  const WorkFolder folder = BM_TRY(WorkFolder::create());
  BM_TRY(write_file(folder.file("k.c"), source));
  const int status = BM_TRY(run(command(program, target, folder), folder.file("log")));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const std::string log = as_text(BM_TRY(read_file(folder.file("log"))));
    if (WIFSIGNALED(status))
      return fail(Code::kCompile, "{} died of signal {}: {}", program, WTERMSIG(status), log);
    return fail(Code::kCompile, "{}: {}", program, describe_log(log, source));
  }
  return read_file(folder.file("k.o"));
}

}  // namespace bm::compiler
