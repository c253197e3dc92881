#pragma once
// Which earlier calls a call must wait for, found from the byte ranges they read and write.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace bm::runtime {

/// One access of a call: bytes [begin, end) of the memory `base` identifies. Views of one
/// allocation share `base`, so that overlaps between them are seen.
struct Access {
  const void* base = nullptr;
  uint64_t begin = 0, end = 0;
  bool is_read = true;
  bool is_written = false;
};

/// Read-after-write, write-after-read and write-after-write between calls added in order.
/// Thread: one owner.
class DependencyTracker {
 public:
  /// Replaces `dependencies` with the calls that `call` must come after, ascending, each once, then
  /// records its accesses. All reads and writes of the call are looked up before any is recorded,
  /// so a call never depends on itself. `call` must be larger than every earlier one. Empty ranges
  /// are ignored.
  void add(uint32_t call, std::span<const Access> accesses, std::vector<uint32_t>& dependencies);

 private:
  // Intervals of one allocation: sorted, disjoint, only where something was touched. A flat vector
  // beats a tree here: allocations have few live intervals and adjacent ones are visited together.
  struct Interval {
    uint64_t begin = 0, end = 0;
    uint32_t writer = kNone;             ///< last call that wrote these bytes
    std::vector<uint32_t> readers = {};  ///< calls that read them since, ascending
  };
  using Intervals = std::vector<Interval>;
  static constexpr uint32_t kNone = UINT32_MAX;

  static size_t first_ending_after(const Intervals& intervals, uint64_t offset);
  static size_t split(Intervals& intervals, uint64_t offset);
  static void find(const Intervals& intervals, const Access& access, std::vector<uint32_t>& found);
  static void record_read(Intervals& intervals, uint32_t call, const Access& access);
  static void record_write(Intervals& intervals, uint32_t call, const Access& access);

  std::unordered_map<const void*, Intervals> bases_;
};

}  // namespace bm::runtime
