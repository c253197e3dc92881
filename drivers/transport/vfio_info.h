#pragma once
// What VFIO says of a device and its IOMMU in chains of capabilities, read with every offset
// checked: the kernel's answers, and those of a vfio-user server, which nobody vouches for.
// Source: Linux include/uapi/linux/vfio.h (vfio_info_cap_header and what follows it).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm {

/// A region of a device: BARs are 0 to 5, configuration space is 7.
struct VfioRegion {
  uint64_t size = 0;    ///< bytes; 0: not there
  uint64_t offset = 0;  ///< in the device's file
  bool is_readable = false, is_writable = false, is_mappable = false;
  /// Parts that can be mapped, ascending and apart; none: all of it where it is mappable at all.
  std::vector<BusRange> areas = {};
};

/// A struct vfio_region_info with what follows it. Errors: kCorrupt.
Result<VfioRegion> parse_vfio_region(std::span<const std::byte> info);

/// A struct vfio_iommu_type1_info with what follows it, as limits: usable IOVAs turned into
/// reserved ranges. `has_ranges` is false where a kernel before 5.4 does not say which are usable.
/// Errors: kCorrupt.
struct VfioIommu {
  DmaLimits limits;
  bool has_ranges = false;
};
Result<VfioIommu> parse_vfio_iommu(std::span<const std::byte> info);

}  // namespace bm
