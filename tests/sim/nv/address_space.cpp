#include "tests/sim/nv/address_space.h"

#include <iterator>

namespace bm::sim::nv {
namespace {

void cut(PageMap& map, uint64_t base, uint64_t size) {
  const uint64_t end = base + size;
  auto at = map.lower_bound(base);
  if (at != map.begin() && std::prev(at)->first + std::prev(at)->second.size > base) --at;
  while (at != map.end() && at->first < end) {
    const uint64_t start = at->first;
    const PageRange range = at->second;
    at = map.erase(at);
    if (start < base) {
      PageRange head = range;
      head.size = base - start;
      map.emplace(start, head);
    }
    if (start + range.size > end) {
      PageRange tail = range;
      tail.offset += end - start;
      tail.size = start + range.size - end;
      at = std::next(map.emplace(end, tail).first);
    }
  }
}

}  // namespace

const PageRange* find_pages(const PageMap& map, uint64_t address, uint64_t bytes,
                            uint64_t* offset_in_range) {
  auto at = map.upper_bound(address);
  if (at == map.begin()) return nullptr;
  --at;
  const uint64_t offset = address - at->first;
  if (offset >= at->second.size || bytes > at->second.size - offset) return nullptr;
  *offset_in_range = offset;
  return &at->second;
}

std::shared_ptr<const PageMap> AddressSpace::snapshot() const {
  const std::lock_guard lock(mutex_);
  return map_;
}

void AddressSpace::map(uint64_t base, PageRange range) {
  const std::lock_guard lock(mutex_);
  auto next = std::make_shared<PageMap>(*map_);
  cut(*next, base, range.size);
  (*next)[base] = std::move(range);
  map_ = std::move(next);
}

void AddressSpace::unmap(uint64_t base, uint64_t size) {
  const std::lock_guard lock(mutex_);
  auto next = std::make_shared<PageMap>(*map_);
  cut(*next, base, size);
  map_ = std::move(next);
}

}  // namespace bm::sim::nv
