#include "drivers/transport/vfio_info.h"

#include <linux/vfio.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/bits.h"
#include "runtime/base/byte_reader.h"

namespace bm {
namespace {

/// More than the longest chain there is; one that leads back into itself is longer.
constexpr int kMaxCapabilities = 32;

// Both lists: a capability's header, a count, a word for alignment, the entries.
constexpr uint64_t kCount = sizeof(vfio_info_cap_header), kEntries = kCount + 8;
static_assert(sizeof(vfio_region_info_cap_sparse_mmap) == kEntries);
static_assert(sizeof(vfio_iommu_type1_info_cap_iova_range) == kEntries);

template <class T>
Result<T> read_at(std::span<const std::byte> info, uint64_t offset) {
  ByteReader reader(info);
  BM_TRY(reader.seek(offset));
  return reader.read<T>();
}

/// Calls `use(header, offset)` for each capability of the chain that begins at `offset`.
template <class Use>
Status each_capability(std::span<const std::byte> info, uint64_t offset, Use&& use) {
  for (int count = 0; offset != 0; ++count) {
    if (count == kMaxCapabilities)
      return fail(Code::kCorrupt, "a chain of capabilities does not end");
    const auto header = BM_TRY(read_at<vfio_info_cap_header>(info, offset));
    BM_TRY(use(header, offset));
    offset = header.next;
  }
  return {};
}

Result<std::vector<BusRange>> read_areas(std::span<const std::byte> info, uint64_t offset,
                                         uint64_t size) {
  const auto count = BM_TRY(read_at<uint32_t>(info, offset + kCount));
  std::vector<BusRange> areas;
  for (uint32_t i = 0; i < count; ++i) {
    const auto area = BM_TRY(read_at<vfio_region_sparse_mmap_area>(
        info, offset + kEntries + i * sizeof(vfio_region_sparse_mmap_area)));
    if (area.size == 0) continue;
    const std::optional<uint64_t> end = checked_add(uint64_t{area.offset}, area.size);
    if (!end || *end > size)
      return fail(Code::kCorrupt, "{:#x} bytes at {:#x} can be mapped of a region of {:#x}",
                  uint64_t{area.size}, uint64_t{area.offset}, size);
    areas.push_back({area.offset, area.size});
  }
  std::sort(areas.begin(), areas.end(),
            [](const BusRange& a, const BusRange& b) { return a.address < b.address; });
  for (size_t i = 1; i < areas.size(); ++i)
    if (areas[i - 1].address + areas[i - 1].bytes > areas[i].address)
      return fail(Code::kCorrupt, "parts of a region that can be mapped overlap at {:#x}",
                  areas[i].address);
  return areas;
}

/// Usable IOVAs: `bytes` is the last address, so that a range may end at 2^64.
Result<std::vector<BusRange>> read_ranges(std::span<const std::byte> info, uint64_t offset) {
  const auto count = BM_TRY(read_at<uint32_t>(info, offset + kCount));
  std::vector<BusRange> ranges;
  for (uint32_t i = 0; i < count; ++i) {
    const auto range =
        BM_TRY(read_at<vfio_iova_range>(info, offset + kEntries + i * sizeof(vfio_iova_range)));
    ranges.push_back({range.start, range.end});
  }
  return ranges;
}

/// What lies between and beyond the usable ranges, which come in any order.
Status reserve_rest(std::vector<BusRange> usable, DmaLimits& limits) {
  std::sort(usable.begin(), usable.end(),
            [](const BusRange& a, const BusRange& b) { return a.address < b.address; });
  uint64_t next = 0, last = 0;
  for (const BusRange& range : usable) {
    if (range.bytes < range.address || (last != 0 && range.address <= last))
      return fail(Code::kCorrupt, "usable IOVAs {:#x} to {:#x} cannot be", range.address,
                  range.bytes);
    if (range.address > next) limits.reserved.push_back({next, range.address - next});
    last = range.bytes;
    next = last + 1;
  }
  if (last == 0) return fail(Code::kCorrupt, "no IOVA is usable");
  limits.address_bits = static_cast<uint32_t>(std::bit_width(last));
  const uint64_t end = limits.address_bits == 64 ? 0 : uint64_t{1} << limits.address_bits;
  if (next != end) limits.reserved.push_back({next, end - next});
  return {};
}

}  // namespace

Result<VfioRegion> parse_vfio_region(std::span<const std::byte> info) {
  const auto header = BM_TRY(read_at<vfio_region_info>(info, 0));
  VfioRegion region{.size = header.size,
                    .offset = header.offset,
                    .is_readable = (header.flags & VFIO_REGION_INFO_FLAG_READ) != 0,
                    .is_writable = (header.flags & VFIO_REGION_INFO_FLAG_WRITE) != 0,
                    .is_mappable = (header.flags & VFIO_REGION_INFO_FLAG_MMAP) != 0};
  if (!checked_add(region.offset, region.size))
    return fail(Code::kCorrupt, "region {} has {:#x} bytes at {:#x}", header.index, region.size,
                region.offset);
  if ((header.flags & VFIO_REGION_INFO_FLAG_CAPS) == 0) return region;
  const Status status = each_capability(
      info, header.cap_offset, [&](const vfio_info_cap_header& cap, uint64_t offset) -> Status {
        if (cap.id != VFIO_REGION_INFO_CAP_SPARSE_MMAP) return {};
        region.areas = BM_TRY(read_areas(info, offset, region.size));
        region.is_mappable &= !region.areas.empty();
        return {};
      });
  BM_TRY(status);
  return region;
}

Result<VfioIommu> parse_vfio_iommu(std::span<const std::byte> info) {
  // The capabilities' offset came later than the rest (Linux 5.4).
  constexpr size_t kFixed = offsetof(vfio_iommu_type1_info, cap_offset);
  if (info.size() < kFixed) return fail(Code::kCorrupt, "{} bytes of IOMMU info", info.size());
  vfio_iommu_type1_info header{};
  std::memcpy(&header, info.data(), std::min(info.size(), sizeof header));
  VfioIommu iommu;
  iommu.limits.takes_iova = true;
  if (header.flags & VFIO_IOMMU_INFO_PGSIZES) {
    if (header.iova_pgsizes == 0) return fail(Code::kCorrupt, "the IOMMU has no page size");
    // Processes map whole pages of theirs, however small those of the IOMMU are.
    iommu.limits.page_bytes =
        std::max<uint64_t>(iommu.limits.page_bytes, header.iova_pgsizes & -header.iova_pgsizes);
  }
  if ((header.flags & VFIO_IOMMU_INFO_CAPS) == 0) return iommu;
  const Status status = each_capability(
      info, header.cap_offset, [&](const vfio_info_cap_header& cap, uint64_t offset) -> Status {
        if (cap.id == VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL) {
          iommu.limits.mappings =
              BM_TRY(read_at<vfio_iommu_type1_info_dma_avail>(info, offset)).avail;
        } else if (cap.id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE && !iommu.has_ranges) {
          iommu.has_ranges = true;
          return reserve_rest(BM_TRY(read_ranges(info, offset)), iommu.limits);
        }
        return {};
      });
  BM_TRY(status);
  return iommu;
}

}  // namespace bm
