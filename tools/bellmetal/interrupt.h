#pragma once
// Ctrl-C: the first asks the work to stop at the next safe place and ends the process where none
// comes in time, the second ends it at once.

#include <atomic>
#include <chrono>

namespace bm::cli {

/// How long work may take to its next safe place. Nobody should wait longer than 250 ms for Ctrl-C;
/// the rest is for the process to end. A process may end anywhere: what we write is unfinished
/// until it is renamed (runtime/base/output_file.h), and kernels of GPUs end with their process.
inline constexpr std::chrono::milliseconds kInterruptGrace{120};

enum class OnInterrupt {
  kEndSoon,  ///< the first Ctrl-C says so on stderr and sets the time limit
  kAskOnly,  ///< the first Ctrl-C only sets the flag: the program goes on
};

/// Installs the SIGINT handler for its lifetime and puts the old one back. One at a time.
class InterruptScope {
 public:
  InterruptScope();  ///< kEndSoon
  explicit InterruptScope(OnInterrupt mode);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

/// For the end of main(): after a Ctrl-C in an InterruptScope, what runs when the process exits is
/// bounded by the same time as the work was.
void bound_exit();

/// True once Ctrl-C was pressed inside an InterruptScope. Cheap: ask after every token or row.
bool is_interrupted();

/// Forgets a Ctrl-C of a kAskOnly scope: the next one is a first one again.
void clear_interrupt();

/// The flag itself, for loops below this layer that take a `const std::atomic<bool>&`.
const std::atomic<bool>& interrupt_flag();

}  // namespace bm::cli
