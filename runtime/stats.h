#pragma once
// Process-wide counters of launched work, and the line printed per launch when DEBUG >= 2.

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

/// True when launches are to be waited for and measured: DEBUG >= 2 or the profiler is on.
bool is_timing();

/// The DEBUG >= 2 line without its newline. `sequence`: running number on the device; `total_ns`:
/// time of all measured launches including this one; `is_first`: this name was not seen before.
std::string format_launch(const Launch& launch, uint64_t sequence, int64_t total_ns,
                          uint64_t memory_used, bool is_first, bool use_color);

}  // namespace bm::runtime
