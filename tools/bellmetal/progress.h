#pragma once
// One line of progress on stderr: bar, bytes, rate, time left. Silent when stderr is no terminal.

#include <chrono>
#include <cstdint>
#include <string>

namespace bm::cli {

/// What the line says; a pure function of its inputs. `width`: terminal columns; the line is never
/// longer. `total_bytes` 0: unknown, no bar and no time left.
std::string progress_line(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
                          double seconds, int width);

/// Thread: one at a time. Update as often as you like; it draws at most ten times a second.
class Progress {
 public:
  /// `what`: a short phrase, "loading weights".
  Progress(std::string what, uint64_t total_bytes);
  /// Removes the line, so that what follows starts clean.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(uint64_t done_bytes);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  uint64_t total_bytes_;
  bool is_terminal_;
  bool has_drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_draw_;
};

}  // namespace bm::cli
