#include "drivers/memory/va_space.h"

#include "runtime/base/bits.h"

namespace bm::memory {

Result<VaSpace> VaSpace::create(uint64_t base, uint64_t size, uint64_t granule) {
  if (granule == 0 || !is_power_of_two(granule) || size == 0 || !is_aligned(base, granule) ||
      !is_aligned(size, granule) || !checked_add(base, size))
    return fail(Code::kInvalidArgument,
                "no address space of {:#x} bytes at {:#x} in steps of {:#x}", size, base, granule);
  return VaSpace(base, size, granule);
}

VaSpace::VaSpace(uint64_t base, uint64_t size, uint64_t granule)
    : base_(base), size_(size), granule_(granule) {
  add_gap(base, size);
}

void VaSpace::add_gap(uint64_t address, uint64_t size) {
  gaps_[address] = size;
  by_size_.emplace(size, address);
  free_bytes_ += size;
}

void VaSpace::remove_gap(std::map<uint64_t, uint64_t>::iterator gap) {
  by_size_.erase({gap->second, gap->first});
  free_bytes_ -= gap->second;
  gaps_.erase(gap);
}

void VaSpace::take(std::map<uint64_t, uint64_t>::iterator gap, uint64_t address, uint64_t size) {
  const uint64_t start = gap->first, end = start + gap->second;
  remove_gap(gap);
  if (address != start) add_gap(start, address - start);
  if (address + size != end) add_gap(address + size, end - address - size);
  taken_[address] = size;
}

uint64_t VaSpace::largest_gap() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

Result<uint64_t> VaSpace::allocate(uint64_t size, uint64_t alignment) {
  const std::optional<uint64_t> rounded = checked_align_up(size, granule_);
  if (size == 0 || !rounded || alignment == 0 || !is_power_of_two(alignment))
    return fail(Code::kInvalidArgument, "no addresses for {:#x} bytes aligned to {:#x}", size,
                alignment);
  for (auto at = by_size_.lower_bound({*rounded, 0}); at != by_size_.end(); ++at) {
    const auto& [gap_size, start] = *at;
    const std::optional<uint64_t> address = checked_align_up(start, alignment);
    if (!address || *address - start > gap_size - *rounded) continue;
    take(gaps_.find(start), *address, *rounded);
    return *address;
  }
  return fail(Code::kOutOfMemory,
              "no gap for {:#x} bytes aligned to {:#x}: {:#x} of {:#x} bytes are free, the largest "
              "gap has {:#x}",
              *rounded, alignment, free_bytes_, size_, largest_gap());
}

Status VaSpace::reserve(uint64_t address, uint64_t size) {
  const bool is_inside = size <= size_ && address >= base_ && address - base_ <= size_ - size;
  if (size == 0 || !is_inside || !is_aligned(address, granule_) || !is_aligned(size, granule_))
    return fail(Code::kInvalidArgument, "{:#x} bytes at {:#x} are no range of {:#x} bytes at {:#x}",
                size, address, size_, base_);
  auto gap = gaps_.upper_bound(address);
  if (gap != gaps_.begin()) {
    --gap;
    if (gap->first + gap->second >= address + size) {
      take(gap, address, size);
      return {};
    }
  }
  auto other = taken_.lower_bound(address + size);
  if (other == taken_.begin()) return fail(Code::kInternal, "{:#x} is in no range", address);
  --other;
  return fail(Code::kOutOfMemory, "{:#x} bytes at {:#x} meet a range of {:#x} bytes at {:#x}", size,
              address, other->second, other->first);
}

Status VaSpace::free(uint64_t address) {
  const auto found = taken_.find(address);
  if (found == taken_.end())
    return fail(Code::kInvalidArgument, "{:#x} is not the start of a taken range", address);
  uint64_t start = address, end = address + found->second;
  taken_.erase(found);
  auto after = gaps_.lower_bound(start);
  if (after != gaps_.end() && after->first == end) {
    end += after->second;
    const auto merged = after++;
    remove_gap(merged);
  }
  if (after != gaps_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == start) {
      start = before->first;
      remove_gap(before);
    }
  }
  add_gap(start, end - start);
  return {};
}

std::optional<uint64_t> VaSpace::size_of(uint64_t address) const {
  const auto found = taken_.find(address);
  if (found == taken_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::pair<uint64_t, uint64_t>> VaSpace::range_at(uint64_t address) const {
  auto found = taken_.upper_bound(address);
  if (found == taken_.begin()) return std::nullopt;
  --found;
  if (address - found->first >= found->second) return std::nullopt;
  return *found;
}

}  // namespace bm::memory
