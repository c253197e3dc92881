#pragma once
// Counts the system calls a piece of code makes, by tracing a forked child. Linux; needs ptrace.

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

namespace bm::test {

struct SyscallCount {
  bool supported = false;  ///< false: the system allows no tracing; see `problem`
  std::string problem;
  int exit_code = -1;             ///< what `work` returned
  std::vector<uint64_t> numbers;  ///< of the calls between prepare and the end of work, in order
};

namespace detail {
/// No such call exists: the kernel answers ENOSYS, the tracer sees the number.
inline constexpr long kMarker = 0x7ab1e;

/// Runs the child to its end. False if the child vanished.
inline bool trace_child(pid_t child, SyscallCount& result) {
  bool inside = false, entering = true;
  for (;;) {
    if (ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) != 0) return false;
    int status = 0;
    if (waitpid(child, &status, 0) != child) return false;
    if (WIFEXITED(status)) {
      result.exit_code = WEXITSTATUS(status);
      return true;
    }
    if (WIFSIGNALED(status)) return false;
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != (SIGTRAP | 0x80))
      continue;  // other signals are dropped
    if (entering) {
      __ptrace_syscall_info info{};
      if (ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info) <= 0) return false;
      const uint64_t number = info.entry.nr;
      if (number == static_cast<uint64_t>(kMarker)) {
        inside = !inside;
      } else if (inside) {
        result.numbers.push_back(number);
      }
    }
    entering = !entering;
  }
}
}  // namespace detail

/// Calls `make()` in a child, then `work(made)` between two markers. `work` returns the child's
/// exit code. The child is a fork: threads of the caller do not exist in it.
template <class Make, class Work>
SyscallCount count_syscalls(const Make& make, const Work& work) {
  SyscallCount result;
  const pid_t child = fork();
  if (child < 0) {
    result.problem = "fork failed";
    return result;
  }
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(250);
    ::raise(SIGSTOP);
    auto made = make();
    syscall(detail::kMarker);
    const int code = work(made);
    syscall(detail::kMarker);
    _exit(code);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
    result.problem = "the child may not be traced";
    return result;
  }
  if (ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    result.problem = "PTRACE_SETOPTIONS is refused";
    return result;
  }
  result.supported = detail::trace_child(child, result);
  if (!result.supported) {
    result.problem = "tracing ended early";
    kill(child, SIGKILL);
    waitpid(child, &status, WNOHANG);
  }
  return result;
}

}  // namespace bm::test
