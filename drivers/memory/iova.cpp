#include "drivers/memory/iova.h"

#include <algorithm>

#include "runtime/base/bits.h"

namespace bm::memory {
namespace {

constexpr uint64_t kFirst = 64_KiB;

}  // namespace

Result<IovaAllocator> IovaAllocator::create(const DmaLimits& limits, uint32_t device_bits) {
  const uint32_t bits = std::min(limits.address_bits, device_bits);
  const uint64_t page = limits.page_bytes;
  if (page == 0 || !is_power_of_two(page) || page > 1_GiB || bits < 20)
    return fail(Code::kInvalidArgument, "no IOVAs of {} bits in pages of {:#x} bytes", bits, page);
  const uint64_t first = std::max(kFirst, page);
  const uint64_t end = bits >= 64 ? align_down(~uint64_t{0}, page) : uint64_t{1} << bits;
  if (end <= first)
    return fail(Code::kInvalidArgument, "no IOVAs of {} bits in pages of {:#x} bytes", bits, page);
  VaSpace space = BM_TRY(VaSpace::create(first, end - first, page));
  // The machine's ranges may overlap, touch and reach beyond what is usable: merged, then clipped.
  std::vector<BusRange> ranges = limits.reserved;
  std::sort(ranges.begin(), ranges.end(),
            [](const BusRange& a, const BusRange& b) { return a.address < b.address; });
  std::vector<uint64_t> starts;
  uint64_t done = first;
  for (const BusRange& range : ranges) {
    const uint64_t start = std::max(align_down(range.address, page), done);
    const uint64_t last =
        checked_align_up(checked_add(range.address, range.bytes).value_or(end), page).value_or(end);
    const uint64_t stop = std::min(last, end);
    if (range.bytes == 0 || start >= stop) continue;
    BM_TRY(space.reserve(start, stop - start));
    starts.push_back(start);
    done = stop;
  }
  if (space.free_bytes() == 0)
    return fail(Code::kInvalidArgument,
                "the machine reserves all bus addresses that {} bits reach: no IOVA is left", bits);
  IovaAllocator allocator(std::move(space), page);
  allocator.reserved_ = std::move(starts);
  return allocator;
}

Result<uint64_t> IovaAllocator::allocate(uint64_t bytes) {
  uint64_t alignment = page_bytes_;
  for (const uint64_t larger : {64_KiB, 2_MiB, 1_GiB})
    if (bytes >= larger) alignment = std::max(alignment, larger);
  Result<uint64_t> address = space_.allocate(bytes, alignment);
  // Alignment beyond a page is a wish.
  if (!address && address.error().code == Code::kOutOfMemory && alignment != page_bytes_)
    return space_.allocate(bytes, page_bytes_);
  return address;
}

Status IovaAllocator::free(uint64_t address) {
  if (std::find(reserved_.begin(), reserved_.end(), address) != reserved_.end())
    return fail(Code::kInvalidArgument, "{:#x} is reserved by the machine", address);
  return space_.free(address);
}

}  // namespace bm::memory
