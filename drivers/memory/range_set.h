#pragma once
// Which addresses have a property, as merged ranges: video memory that was cleared, for one.

#include <cstdint>
#include <map>

namespace bm::memory {

/// Union of [address, address + bytes) added so far. Not thread-safe.
class RangeSet {
 public:
  /// `bytes` is not 0, and the range ends within 64 bits.
  void add(uint64_t address, uint64_t bytes);
  /// Whether every byte of the range is in the set.
  bool contains(uint64_t address, uint64_t bytes) const;

 private:
  std::map<uint64_t, uint64_t> ranges_;  ///< end by start; none touches another
};

}  // namespace bm::memory
