#include "tools/bellmetal/process_setup.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>

#include "runtime/base/out_of_memory.h"
#include "runtime/base/stuck_call.h"
#include "runtime/base/thread.h"
#include "tools/bellmetal/exit_code.h"

namespace bm::cli {
namespace {

/// The command for handlers, which can only reach globals.
std::atomic<const char*>& command_name() {
  static constinit std::atomic<const char*> name{"start-up"};
  return name;
}

/// Memory ran out in a destructor, a thread or before main. Every other exception is a mistake of
/// ours and aborts.
[[noreturn]] void on_terminate() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      end_out_of_memory(command_name().load());
    } catch (const std::exception& e) {
      const char* const what = e.what();
      (void)!::write(STDERR_FILENO, "bellmetal: internal error: ", 27);
      (void)!::write(STDERR_FILENO, what, std::strlen(what));
      (void)!::write(STDERR_FILENO, "\n", 1);
    } catch (...) {  // NOLINT(bugprone-empty-catch): aborts below like the others
    }
  }
  // g++ calls std::terminate() straight from a landing pad where it has put a destructor inline:
  // the exception is on its way, nobody has caught it, and nothing tells its type.
  if (std::uncaught_exceptions() > 0 && failed_allocation_bytes() != 0)
    end_out_of_memory(command_name().load());
  std::abort();
}

/// The thread that is in the call cannot be taken back, so neither can what it holds.
void on_stuck_call(std::string_view why) {
  (void)!::write(STDERR_FILENO, "bellmetal: ", 11);
  (void)!::write(STDERR_FILENO, why.data(), why.size());
  (void)!::write(STDERR_FILENO, "\n", 1);
  ::_exit(kDeviceFailed);
}

/// Stack of the thread that runs the command.
struct Stack {
  std::atomic<uintptr_t> low{0}, high{0};
};
Stack& command_stack() {
  static constinit Stack stack;
  return stack;
}

struct sigaction& previous_segv() {
  static constinit struct sigaction action{};
  return action;
}

/// Below the stack lie guard pages; a frame may skip some.
constexpr uintptr_t kGuard = uintptr_t{1} << 20;

void on_segv(int number, siginfo_t* info, void* /*context*/) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  const uintptr_t low = command_stack().low.load();
  if (low != 0 && at < low + 4096 && at + kGuard >= low) {
    constexpr char kText[] =
        "bellmetal: out of stack: the input is nested too deeply for the stack of this process; "
        "`ulimit -s` bounds it\n";
    (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
    ::_exit(kFailure);
  }
  // Not ours: the access repeats and meets whoever was there before.
  ::sigaction(number, &previous_segv(), nullptr);
}

constexpr size_t kAlternateStack = size_t{64} << 10;

/// Signal handlers of this thread get a stack of their own, as its own may be full.
void give_alternate_stack() {
  void* const memory =
      ::mmap(nullptr, kAlternateStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  const stack_t stack{.ss_sp = memory, .ss_flags = 0, .ss_size = kAlternateStack};
  ::sigaltstack(&stack, nullptr);
}

void note_command_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  void* low = nullptr;
  size_t size = 0;
  if (pthread_attr_getstack(&attributes, &low, &size) == 0) {
    command_stack().low = reinterpret_cast<uintptr_t>(low);
    command_stack().high = reinterpret_cast<uintptr_t>(low) + size;
  }
  pthread_attr_destroy(&attributes);
}

struct MainCall {
  int (*function)(int, const char* const*);
  int argc;
  const char* const* argv;
  int result = kFailure;
};

void* run_main(void* argument) {
  give_alternate_stack();
  note_command_stack();
  auto* const call = static_cast<MainCall*>(argument);
  call->result = call->function(call->argc, call->argv);
  return nullptr;
}

}  // namespace

void name_command(const char* command) { command_name() = command; }

void set_up_process() {
  std::set_terminate(on_terminate);
  set_stuck_call_handler(on_stuck_call);
  // write() then says EFBIG, and the error names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  struct sigaction action{};
  action.sa_sigaction = on_segv;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGSEGV, &action, &previous_segv());
  // What compilers that we run get for their stack, as far as the hard limit allows.
  rlimit stack{};
  if (::getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < kThreadStack) {
    stack.rlim_cur = std::min<rlim_t>(kThreadStack, stack.rlim_max);
    ::setrlimit(RLIMIT_STACK, &stack);
  }
  // Threads made by libraries get what `ulimit -s` says otherwise.
  pthread_attr_t attributes;
  size_t size = 0;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  if (pthread_attr_getstacksize(&attributes, &size) == 0 && size < kThreadStack &&
      pthread_attr_setstacksize(&attributes, kThreadStack) == 0)
    pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

int run_on_large_stack(int (*main_function)(int, const char* const*), int argc,
                       const char* const* argv) {
  MainCall call{main_function, argc, argv};
  rlimit limit{};
  const bool is_large = ::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kThreadStack;
  pthread_t thread{};
  if (is_large || create_thread(&thread, run_main, &call) != 0)
    run_main(&call);
  else
    pthread_join(thread, nullptr);
  return call.result;
}

}  // namespace bm::cli
