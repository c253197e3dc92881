#pragma once
// Process-wide counters of launched work, and the line printed per launch when DEBUG >= 2.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace bm::runtime {

/// Snapshot of the counters. `seconds` only grows while launches are timed (DEBUG >= 2 or
/// profiling).
struct Counters {
  uint64_t kernels = 0;      ///< launches, copies included; a graph counts its calls
  uint64_t operations = 0;   ///< estimated arithmetic operations
  uint64_t bytes = 0;        ///< estimated bytes read plus written
  uint64_t memory_used = 0;  ///< bytes allocated on the opened devices now
  double seconds = 0;
};
Counters counters();
void reset_counters();

/// One finished or submitted piece of work.
struct Launch {
  enum class Kind : uint8_t { kKernel, kCopy, kGraph, kHost };
  Kind kind = Kind::kKernel;
  std::string_view device, name;
  uint64_t calls = 1;  ///< > 1: a graph of that many
  size_t num_args = 0;
  double flops = 0, bytes = 0;
  int64_t duration_ns = -1;  ///< negative: not measured
};

/// Adds to the counters: three relaxed atomic additions. Prints the line when DEBUG >= 2.
/// Thread: any.
void update_stats(const Launch& launch);
/// Counts launches of the same work while is_timing() is false: an addition of its own, where
/// update_stats takes three atomic ones.
class LaunchCounter {
 public:
  LaunchCounter() = default;
  ~LaunchCounter();
  LaunchCounter(const LaunchCounter&) = delete;
  LaunchCounter& operator=(const LaunchCounter&) = delete;
  /// What one launch counts for. Call once, before the first add().
  void start(const Launch& launch);
  /// Thread: one at a time.
  void add() {
    count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

 private:
  friend Counters counters();
  friend void reset_counters();
  friend void update_stats(const Launch& launch);
  Counters sum() const;

  Counters each_;
  std::atomic<uint64_t> count_{0};
  uint64_t counted_ = 0;  ///< at the last reset; under the lock of all counters
};

/// True when launches are to be waited for and measured: DEBUG >= 2 or the profiler is on.
bool is_timing();

/// The DEBUG >= 2 line without its newline. `sequence`: running number on the device; `total_ns`:
/// time of all measured launches including this one; `is_first`: this name was not seen before.
std::string format_launch(const Launch& launch, uint64_t sequence, int64_t total_ns,
                          uint64_t memory_used, bool is_first, bool use_color);

}  // namespace bm::runtime
