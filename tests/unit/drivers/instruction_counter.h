#pragma once
// Counts the instructions a piece of code executes, by stepping through it in a forked child. Linux
// on x86-64; needs ptrace.

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <string>

namespace bm::test {

struct InstructionCount {
  bool supported = false;  ///< false: the system allows no tracing; see `problem`
  std::string problem;
  uint64_t instructions = 0;  ///< between make and the end of work, a handful of ours included
};

namespace detail {
inline void mark_for_tracer() {
#if defined(__x86_64__)
  asm volatile("int3" ::: "memory");
#endif
}

/// Steps from the first marker to the second, then lets the child end. False if it vanished.
inline bool step_child(pid_t child, InstructionCount& result) {
  bool inside = false;
  for (int markers = 0; markers < 2;) {
    if (ptrace(inside ? PTRACE_SINGLESTEP : PTRACE_CONT, child, nullptr, nullptr) != 0)
      return false;
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return false;
    siginfo_t info{};
    if (WSTOPSIG(status) != SIGTRAP || ptrace(PTRACE_GETSIGINFO, child, nullptr, &info) != 0)
      return false;
    // The kernel raises it for int3; a step has its own code.
    const bool is_marker = info.si_code == SI_KERNEL;
    if (!is_marker && !inside) return false;
    if (is_marker) {
      inside = !inside;
      ++markers;
    } else {
      ++result.instructions;
    }
  }
  return true;
}
}  // namespace detail

/// Calls `make()` in a child and counts what `work(made)` takes. The child is a fork: threads of
/// the caller do not exist in it.
template <class Make, class Work>
InstructionCount count_instructions(const Make& make, const Work& work) {
  InstructionCount result;
#if !defined(__x86_64__)
  result.problem = "no breakpoint instruction is known here";
  return result;
#endif
  const pid_t child = fork();
  if (child < 0) {
    result.problem = "fork failed";
    return result;
  }
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(250);
    ::raise(SIGSTOP);
    auto made = make();
    detail::mark_for_tracer();
    work(made);
    detail::mark_for_tracer();
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
    result.problem = "the child may not be traced";
    return result;
  }
  result.supported = detail::step_child(child, result);
  if (!result.supported) result.problem = "tracing ended early";
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return result;
}

}  // namespace bm::test
