#include "tools/bellmetal/interrupt.h"

#include <csignal>
#include <string_view>
#include <unistd.h>

#include "tools/bellmetal/exit_code.h"

namespace bm::cli {
namespace {

// A signal handler can only reach globals; lock-free atomics are allowed in it.
std::atomic<bool>& flag() {
  static constinit std::atomic<bool> value{false};
  static_assert(std::atomic<bool>::is_always_lock_free);
  return value;
}

struct sigaction& previous_action() {
  static constinit struct sigaction action {};
  return action;
}

void on_interrupt(int /*signal*/) {
  if (flag().exchange(true)) ::_exit(kInterrupted);
  // Without a word a long step would look like Ctrl-C being ignored.
  constexpr std::string_view kText = "\nstopping; Ctrl-C again to end at once\n";
  (void)!::write(STDERR_FILENO, kText.data(), kText.size());
}

}  // namespace

InterruptScope::InterruptScope() {
  flag() = false;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  // No SA_RESTART: a read that waits for the user must return.
  ::sigaction(SIGINT, &action, &previous_action());
}

InterruptScope::~InterruptScope() { ::sigaction(SIGINT, &previous_action(), nullptr); }

bool is_interrupted() { return flag().load(std::memory_order_relaxed); }

const std::atomic<bool>& interrupt_flag() { return flag(); }

}  // namespace bm::cli
