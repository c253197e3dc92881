#pragma once
// The IP discovery binary at the top of video memory. Layout: Linux, include/discovery.h.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/sim/amd/chip/rows.h"

namespace bm::sim::amd {

/// amdgpu_discovery.h, DISCOVERY_TMR_OFFSET and DISCOVERY_TMR_SIZE: from the end of video memory.
inline constexpr uint64_t kDiscoveryFromEnd = 64 << 10, kDiscoveryBytes = 10 << 10;

/// `version`: of the IP table, 1 … 4; `has_sums`: false leaves sums and sizes that they need at 0.
std::vector<std::byte> make_discovery(const ChipRow& row, uint32_t version = 4,
                                      bool has_sums = true);

}  // namespace bm::sim::amd
