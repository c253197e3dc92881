#pragma once
// Ctrl-C: the first asks the work to stop at the next safe place, the second ends the process.

#include <atomic>

namespace bm::cli {

/// Installs the SIGINT handler for its lifetime and puts the old one back. One at a time.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

/// True once Ctrl-C was pressed inside an InterruptScope. Cheap: ask after every token or row.
bool is_interrupted();

/// The flag itself, for loops below this layer that take a `const std::atomic<bool>&`.
const std::atomic<bool>& interrupt_flag();

}  // namespace bm::cli
