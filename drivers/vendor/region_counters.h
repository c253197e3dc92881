#pragma once
// What the regions of a device's memory add up to.

#include <atomic>
#include <cstdint>

namespace bm::vendor {

/// Base of a driver's memory. Thread: safe.
class RegionCounters {
 public:
  /// Changes whenever a region goes: what was resolved before must be resolved again.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 protected:
  RegionCounters() = default;
  ~RegionCounters() = default;
  /// Bytes of the regions that count.
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  void count(uint64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  void discount(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  void note_loss() { generation_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  std::atomic<uint64_t> used_{0}, generation_{0};
};

}  // namespace bm::vendor
