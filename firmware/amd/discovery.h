#pragma once
// The IP discovery table: what a GPU says of itself before any register's place is known. It lies
// in VRAM, 64 KiB below the top, 10 KiB (amdgpu_discovery.h). Layouts: drivers/gpu/drm/amd/include/
// discovery.h of Linux; what is checked and how: amdgpu_discovery.c. Field names are the kernel's.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "firmware/image.h"
#include "runtime/base/result.h"

namespace bm::firmware::amd {

/// amdgpu_discovery.h: DISCOVERY_TMR_SIZE, DISCOVERY_TMR_OFFSET; bytes.
inline constexpr uint64_t kDiscoveryTmrSize = 10 << 10;
inline constexpr uint64_t kDiscoveryTmrOffset = 64 << 10;

/// Hardware ids that drivers ask for (soc15_hw_ip.h).
enum HwId : uint16_t {
  kMp1HwId = 1,  ///< SMU
  kGcHwId = 11,  ///< graphics and compute
  kMmhubHwId = 34,
  kOsssysHwId = 40,  ///< interrupts
  kHdpHwId = 41,
  kSdma0HwId = 42,
  kNbifHwId = 108,
  kUmcHwId = 150,
  kMp0HwId = 255,  ///< PSP
};

struct IpBlock {
  uint16_t hw_id = 0;
  uint8_t instance_number = 0;
  uint8_t major = 0, minor = 0, revision = 0;
  uint8_t sub_revision = 0, variant = 0;  ///< tables from version 3 on
  uint8_t harvest = 0;                    ///< tables before version 3: 1, fused off
  uint16_t die = 0;
  std::vector<uint64_t> base_address = {};  ///< in dwords; 64 bits from tables that have them
};

struct HarvestInfo {
  uint16_t hw_id = 0;
  uint8_t number_instance = 0;
};

/// struct gc_info_v1_0 … v1_3 (RDNA, counts in WGPs) and v2_0, v2_1 (CDNA). What a version lacks is
/// 0.
struct GcInfo {
  uint16_t version_major = 0, version_minor = 0;
  uint32_t gc_num_se, gc_num_rb_per_se, gc_num_gprs, gc_num_max_gs_thds, gc_gs_table_depth,
      gc_gsprim_buff_depth, gc_parameter_cache_depth, gc_double_offchip_lds_buffer, gc_wave_size,
      gc_max_waves_per_simd, gc_max_scratch_slots_per_cu, gc_lds_size, gc_num_sc_per_se,
      gc_num_packer_per_sc, gc_num_sdp_interface, gc_tcp_size_per_cu,
      gc_instruction_cache_size_per_sqc, gc_scalar_data_cache_size_per_sqc, gc_tcc_size;
  // v1 only.
  uint32_t gc_num_wgp0_per_sa, gc_num_wgp1_per_sa, gc_num_gl2c, gc_num_sa_per_se, gc_num_gl2a,
      gc_num_tcp_per_sa, gc_num_tcps, gc_num_tcp_per_wpg, gc_tcp_l1_size, gc_num_sqc_per_wgp,
      gc_l1_instruction_cache_size_per_sqc, gc_l1_data_cache_size_per_sqc, gc_gl1c_per_sa,
      gc_gl1c_size_per_instance, gc_gl2c_per_gpu, gc_tcp_cache_line_size,
      gc_instruction_cache_line_size, gc_scalar_data_cache_line_size, gc_tcc_cache_line_size;
  // v2 only.
  uint32_t gc_num_cu_per_sh, gc_num_sh_per_se, gc_num_tccs, gc_num_tcp_per_sh, gc_num_cu_per_sqc;

  /// Compute units of a shader array before harvesting (amdgpu_discovery_get_gfx_info,
  /// max_cu_per_sh).
  uint64_t cus_per_array() const {
    return version_major == 1 ? 2 * (uint64_t{gc_num_wgp0_per_sa} + gc_num_wgp1_per_sa)
                              : gc_num_cu_per_sh;
  }
  uint32_t arrays_per_engine() const {
    return version_major == 1 ? gc_num_sa_per_se : gc_num_sh_per_se;
  }
};

/// struct mall_info_v1_0, v2_0: the cache behind the L2 ("Infinity Cache"); bytes.
struct MallInfo {
  uint16_t version_major = 0, version_minor = 0;
  uint32_t mall_size_per_umc = 0;
  uint32_t m_s_present = 0, m_half_use = 0;  ///< v1: bit n, twice or half as much at UMC n

  /// amdgpu_discovery_get_mall_info.
  uint64_t bytes(uint32_t umcs) const;
};

/// struct vcn_info_v1_0.
struct VcnInfo {
  struct Instance {
    uint32_t instance_num = 0;
    uint32_t fuse_data = 0;  ///< bits 0 to 3: AV1, VP9, HEVC, H.264 disabled
  };
  std::vector<Instance> instance_info;
};

/// struct nps_info_v1_0: how memory is divided among partitions.
struct NpsInfo {
  struct Range {
    uint64_t base_address = 0, limit_address = 0;
  };
  uint32_t nps_type = 0;
  std::vector<Range> instance_info;
};

struct Discovery {
  uint16_t version_major = 0, version_minor = 0;  ///< of the binary header
  uint16_t ip_discovery_version = 0;              ///< 1 to 4
  std::vector<IpBlock> ips;                       ///< in the order of the table
  /// Entries with a hardware id or instance that no kernel knows (HW_ID_MAX, HWIP_MAX_INSTANCE):
  /// left out.
  uint32_t unknown_ips = 0;
  std::vector<HarvestInfo> harvest;
  std::optional<GcInfo> gc;
  std::optional<MallInfo> mall;
  std::optional<VcnInfo> vcn;
  std::optional<NpsInfo> nps;
  /// Why there is no `nps` although the table names one: like the kernel, boot goes on without it.
  std::string nps_problem;
  /// Parts whose sum is 0, which is what a table has that nobody has summed up: read unchecked.
  std::vector<std::string> without_sum;

  const IpBlock* find(uint16_t hw_id, uint8_t instance = 0) const;
  /// By the harvest table, or by the entry of tables before version 3.
  bool is_harvested(uint16_t hw_id, uint8_t instance) const;
};

/// Bounded by the bytes given, whatever they say. Errors: kCorrupt naming table and offset
/// (signature, checksums that are not 0, counts, offsets); kUnsupported for versions newer than
/// those known here.
Result<Discovery> parse_discovery(const Image& table);

}  // namespace bm::firmware::amd
