#include "drivers/memory/range_set.h"

#include <algorithm>
#include <iterator>

namespace bm::memory {

void RangeSet::add(uint64_t address, uint64_t bytes) {
  uint64_t start = address, end = address + bytes;
  auto at = ranges_.upper_bound(address);
  if (at != ranges_.begin() && std::prev(at)->second >= start) --at;
  while (at != ranges_.end() && at->first <= end) {
    start = std::min(start, at->first);
    end = std::max(end, at->second);
    at = ranges_.erase(at);
  }
  ranges_.emplace(start, end);
}

bool RangeSet::contains(uint64_t address, uint64_t bytes) const {
  const auto after = ranges_.upper_bound(address);
  return after != ranges_.begin() && std::prev(after)->second >= address + bytes;
}

}  // namespace bm::memory
