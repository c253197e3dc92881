#pragma once
// Range allocator that only moves forward; freed all at once.

#include <cstdint>
#include <optional>

#include "runtime/base/bits.h"

namespace bm {

/// Hands out addresses of [base, base + size); no memory behind it. Not thread-safe.
class Bump {
 public:
  Bump() = default;
  /// `base + size` must not pass 2^64.
  Bump(uint64_t base, uint64_t size) : base_(base), end_(base + size), next_(base) {}

  /// Address aligned to `alignment` (a power of two), or nothing when the range is full.
  std::optional<uint64_t> allocate(uint64_t size, uint64_t alignment = 1) {
    const std::optional<uint64_t> start = checked_align_up(next_, alignment);
    if (!start || *start > end_ || end_ - *start < size) return std::nullopt;
    next_ = *start + size;
    return start;
  }
  void reset() { next_ = base_; }

  uint64_t base() const { return base_; }
  uint64_t used() const { return next_ - base_; }
  uint64_t available() const { return end_ - next_; }

 private:
  uint64_t base_ = 0, end_ = 0, next_ = 0;
};

}  // namespace bm
