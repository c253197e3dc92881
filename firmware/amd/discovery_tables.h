#pragma once
// The tables beside IP_DISCOVERY, each inside the binary at an offset that its list names.

#include "firmware/amd/discovery.h"

namespace bm::firmware::amd {

/// struct table_info.
struct TableInfo {
  uint16_t offset = 0;  ///< 0: there is no such table
  uint16_t checksum = 0;
  uint16_t size = 0;
  uint16_t padding = 0;
};

/// The 16-bit sum of the bytes must be `expected` (amdgpu_discovery_verify_checksum).
Status check_sum(const Image& binary, uint64_t offset, uint64_t bytes, uint16_t expected,
                 std::string_view what);

Result<std::vector<HarvestInfo>> read_harvest(const Image& binary, const TableInfo& info);
Result<GcInfo> read_gc(const Image& binary, const TableInfo& info);
Result<MallInfo> read_mall(const Image& binary, const TableInfo& info);
Result<VcnInfo> read_vcn(const Image& binary, const TableInfo& info);
Result<NpsInfo> read_nps(const Image& binary, const TableInfo& info);

}  // namespace bm::firmware::amd
