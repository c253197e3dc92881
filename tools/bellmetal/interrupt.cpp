#include "tools/bellmetal/interrupt.h"

#include <csignal>
#include <ctime>
#include <string_view>
#include <unistd.h>

#include "tools/bellmetal/exit_code.h"

namespace bm::cli {
namespace {

/// What the handlers reach: they may use nothing but globals and async-signal-safe calls
/// (signal-safety(7): write, clock_gettime, timer_settime, _exit).
struct State {
  std::atomic<bool> is_interrupted{false};
  std::atomic<bool> has_timer{false};
  std::atomic<bool> asks_only{false};
  timer_t timer{};
  timespec deadline{};
  struct sigaction previous{};
  static_assert(std::atomic<bool>::is_always_lock_free);
};

State& state() {
  static constinit State value;
  return value;
}

// Not SIGALRM, which `timeout` and libraries use.
int deadline_signal() { return SIGRTMAX - 1; }

template <size_t N>
void say(const char (&text)[N]) {
  (void)!::write(STDERR_FILENO, text, N - 1);
}

void on_deadline(int /*signal*/) {
  say("stopped in the middle of a step\n");
  ::_exit(kInterrupted);
}

/// Ends the process at state().deadline.
void arm() {
  if (!state().has_timer) return;
  itimerspec when{};
  when.it_value = state().deadline;
  ::timer_settime(state().timer, TIMER_ABSTIME, &when, nullptr);
}

void make_timer() {
  struct sigaction action{};
  action.sa_handler = on_deadline;
  ::sigaction(deadline_signal(), &action, nullptr);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = deadline_signal();
  // Without a timer (RLIMIT_SIGPENDING) the second Ctrl-C is the way out of a long step.
  state().has_timer = ::timer_create(CLOCK_MONOTONIC, &event, &state().timer) == 0;
}

void on_interrupt(int /*signal*/) {
  if (state().is_interrupted.exchange(true)) ::_exit(kInterrupted);
  if (state().asks_only) return;
  // Without a word a long step would look like Ctrl-C being ignored.
  say("\nstopping; Ctrl-C again to end at once\n");
  constexpr long kSecond = 1'000'000'000;
  timespec& when = state().deadline;
  ::clock_gettime(CLOCK_MONOTONIC, &when);
  when.tv_nsec += static_cast<long>(std::chrono::nanoseconds(kInterruptGrace).count());
  when.tv_sec += when.tv_nsec / kSecond;
  when.tv_nsec %= kSecond;
  arm();
}

}  // namespace

InterruptScope::InterruptScope() : InterruptScope(OnInterrupt::kEndSoon) {}

InterruptScope::InterruptScope(OnInterrupt mode) {
  state().is_interrupted = false;
  state().asks_only = mode == OnInterrupt::kAskOnly;
  make_timer();
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  // No SA_RESTART: a read that waits for the user must return.
  ::sigaction(SIGINT, &action, &state().previous);
}

InterruptScope::~InterruptScope() {
  ::sigaction(SIGINT, &state().previous, nullptr);
  if (state().has_timer.exchange(false)) ::timer_delete(state().timer);
}

void bound_exit() {
  if (!is_interrupted()) return;
  make_timer();
  arm();
}

void clear_interrupt() { state().is_interrupted = false; }

bool is_interrupted() { return state().is_interrupted.load(std::memory_order_relaxed); }

const std::atomic<bool>& interrupt_flag() { return state().is_interrupted; }

}  // namespace bm::cli
