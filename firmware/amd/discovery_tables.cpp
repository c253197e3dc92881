#include "firmware/amd/discovery_tables.h"

#include <algorithm>
#include <array>

namespace bm::firmware::amd {
namespace {

// discovery.h.
constexpr uint32_t kGcTableId = 0x4347;
constexpr uint32_t kHarvestSignature = 0x56524148;
constexpr uint32_t kVcnTableId = 0x004e4356;
constexpr uint32_t kMallTableId = 0x4c4c414d;
constexpr uint32_t kNpsTableId = 0x0053504e;
constexpr uint32_t kHarvestEntries = 32;
constexpr uint32_t kVcnInstances = 4;   // VCN_INFO_TABLE_MAX_NUM_INSTANCES
constexpr uint32_t kNpsInstances = 12;  // NPS_INFO_TABLE_MAX_NUM_INSTANCES

/// struct gpu_info_header, mall_info_header, vcn_info_header and nps_info_header are one.
struct TableHeader {
  uint32_t table_id;
  uint16_t version_major, version_minor;
  uint32_t size_bytes;  ///< with the header
};
static_assert(sizeof(TableHeader) == 12);

/// Header and contents of a table; `has_sum`: whether its checksum is filled in.
Result<Image> open(const Image& binary, const TableInfo& info, uint32_t id, uint16_t newest,
                   bool has_sum, std::string_view what) {
  const auto header = BM_TRY(binary.at<TableHeader>(info.offset, what));
  // Who sums nothing up need not know the id either: tinygrad's model has its index there.
  if (header.table_id != id && info.checksum != 0)
    return fail(Code::kCorrupt, "{}: {} table at {:#x} begins with {:#x} instead of {:#x}",
                binary.name(), what, info.offset, header.table_id, id);
  if (header.version_major == 0 || header.version_major > newest)
    return fail(Code::kUnsupported, "{}: {} table at {:#x} has version {}.{}, known up to {}",
                binary.name(), what, info.offset, header.version_major, header.version_minor,
                newest);
  if (header.size_bytes < sizeof(TableHeader))
    return fail(Code::kCorrupt, "{}: {} table at {:#x} has {} bytes, its header alone {}",
                binary.name(), what, info.offset, header.size_bytes, sizeof(TableHeader));
  if (has_sum) BM_TRY(check_sum(binary, info.offset, header.size_bytes, info.checksum, what));
  return binary.part(info.offset, header.size_bytes, what);
}

using GcField = uint32_t GcInfo::*;
// The fields in the order of gc_info_v1_3; earlier ones end before.
constexpr GcField kGcV1[] = {
    &GcInfo::gc_num_se, &GcInfo::gc_num_wgp0_per_sa, &GcInfo::gc_num_wgp1_per_sa,
    &GcInfo::gc_num_rb_per_se, &GcInfo::gc_num_gl2c, &GcInfo::gc_num_gprs,
    &GcInfo::gc_num_max_gs_thds, &GcInfo::gc_gs_table_depth, &GcInfo::gc_gsprim_buff_depth,
    &GcInfo::gc_parameter_cache_depth, &GcInfo::gc_double_offchip_lds_buffer, &GcInfo::gc_wave_size,
    &GcInfo::gc_max_waves_per_simd, &GcInfo::gc_max_scratch_slots_per_cu, &GcInfo::gc_lds_size,
    &GcInfo::gc_num_sc_per_se, &GcInfo::gc_num_sa_per_se, &GcInfo::gc_num_packer_per_sc,
    &GcInfo::gc_num_gl2a,
    // v1.1
    &GcInfo::gc_num_tcp_per_sa, &GcInfo::gc_num_sdp_interface, &GcInfo::gc_num_tcps,
    // v1.2
    &GcInfo::gc_num_tcp_per_wpg, &GcInfo::gc_tcp_l1_size, &GcInfo::gc_num_sqc_per_wgp,
    &GcInfo::gc_l1_instruction_cache_size_per_sqc, &GcInfo::gc_l1_data_cache_size_per_sqc,
    &GcInfo::gc_gl1c_per_sa, &GcInfo::gc_gl1c_size_per_instance, &GcInfo::gc_gl2c_per_gpu,
    // v1.3
    &GcInfo::gc_tcp_size_per_cu, &GcInfo::gc_tcp_cache_line_size,
    &GcInfo::gc_instruction_cache_size_per_sqc, &GcInfo::gc_instruction_cache_line_size,
    &GcInfo::gc_scalar_data_cache_size_per_sqc, &GcInfo::gc_scalar_data_cache_line_size,
    &GcInfo::gc_tcc_size, &GcInfo::gc_tcc_cache_line_size};
constexpr GcField kGcV2[] = {
    &GcInfo::gc_num_se, &GcInfo::gc_num_cu_per_sh, &GcInfo::gc_num_sh_per_se,
    &GcInfo::gc_num_rb_per_se, &GcInfo::gc_num_tccs, &GcInfo::gc_num_gprs,
    &GcInfo::gc_num_max_gs_thds, &GcInfo::gc_gs_table_depth, &GcInfo::gc_gsprim_buff_depth,
    &GcInfo::gc_parameter_cache_depth, &GcInfo::gc_double_offchip_lds_buffer, &GcInfo::gc_wave_size,
    &GcInfo::gc_max_waves_per_simd, &GcInfo::gc_max_scratch_slots_per_cu, &GcInfo::gc_lds_size,
    &GcInfo::gc_num_sc_per_se, &GcInfo::gc_num_packer_per_sc,
    // v2.1
    &GcInfo::gc_num_tcp_per_sh, &GcInfo::gc_tcp_size_per_cu, &GcInfo::gc_num_sdp_interface,
    &GcInfo::gc_num_cu_per_sqc, &GcInfo::gc_instruction_cache_size_per_sqc,
    &GcInfo::gc_scalar_data_cache_size_per_sqc, &GcInfo::gc_tcc_size};
/// How many of them minor version n has; a later one has at least the last.
constexpr size_t kGcV1Fields[] = {19, 22, 30, 38};
constexpr size_t kGcV2Fields[] = {17, 24};
static_assert(std::size(kGcV1) == 38 && std::size(kGcV2) == 24);

}  // namespace

Status check_sum(const Image& binary, uint64_t offset, uint64_t bytes, uint16_t expected,
                 std::string_view what) {
  uint16_t sum = 0;
  for (const std::byte byte : BM_TRY(binary.section(offset, bytes, what)))
    sum = static_cast<uint16_t>(sum + static_cast<uint8_t>(byte));
  if (expected == 0) return {};  // nobody has filled it in: Discovery::without_sum
  if (sum != expected)
    return fail(Code::kCorrupt,
                "{}: sum of {} ({:#x} bytes at {:#x}) is {:#06x}, listed as {:#06x}", binary.name(),
                what, bytes, offset, sum, expected);
  return {};
}

Result<std::vector<HarvestInfo>> read_harvest(const Image& binary, const TableInfo& info) {
  // struct harvest_table: a header of two words, then {hw_id, instance} up to an id of 0.
  const auto signature = BM_TRY(binary.at<uint32_t>(info.offset, "HARVEST_INFO"));
  if (signature != kHarvestSignature)
    return fail(Code::kCorrupt,
                "{}: HARVEST_INFO table at {:#x} begins with {:#x} instead of {:#x}", binary.name(),
                info.offset, signature, kHarvestSignature);
  BM_TRY(check_sum(binary, info.offset, 8 + 4 * kHarvestEntries, info.checksum, "HARVEST_INFO"));
  const auto words =
      BM_TRY(binary.table<uint32_t>(info.offset + 8u, kHarvestEntries, "HARVEST_INFO"));
  std::vector<HarvestInfo> harvest;
  for (const uint32_t word : words) {
    if ((word & 0xffff) == 0) break;
    harvest.push_back({.hw_id = static_cast<uint16_t>(word),
                       .number_instance = static_cast<uint8_t>(word >> 16)});
  }
  return harvest;
}

Result<GcInfo> read_gc(const Image& binary, const TableInfo& info) {
  const Image table = BM_TRY(open(binary, info, kGcTableId, 2, true, "GC"));
  GcInfo gc{};
  gc.version_major = BM_TRY(table.at<uint16_t>(4, "version"));
  gc.version_minor = BM_TRY(table.at<uint16_t>(6, "version"));
  const bool is_v1 = gc.version_major == 1;
  const std::span<const size_t> counts =
      is_v1 ? std::span<const size_t>(kGcV1Fields) : std::span<const size_t>(kGcV2Fields);
  const std::span<const GcField> fields =
      is_v1 ? std::span<const GcField>(kGcV1) : std::span<const GcField>(kGcV2);
  const size_t count = counts[std::min<size_t>(gc.version_minor, counts.size() - 1)];
  const auto words = BM_TRY(table.table<uint32_t>(sizeof(TableHeader), count, "gc_info"));
  for (size_t i = 0; i < count; ++i) gc.*fields[i] = words[i];
  return gc;
}

Result<MallInfo> read_mall(const Image& binary, const TableInfo& info) {
  // The kernel has its check of this sum switched off ("if (0 && offset)" in
  // amdgpu_discovery_init).
  const Image table = BM_TRY(open(binary, info, kMallTableId, 2, false, "MALL_INFO"));
  MallInfo mall;
  mall.version_major = BM_TRY(table.at<uint16_t>(4, "version"));
  mall.version_minor = BM_TRY(table.at<uint16_t>(6, "version"));
  mall.mall_size_per_umc = BM_TRY(table.at<uint32_t>(12, "mall_size_per_umc"));
  if (mall.version_major == 1) {
    mall.m_s_present = BM_TRY(table.at<uint32_t>(16, "m_s_present"));
    mall.m_half_use = BM_TRY(table.at<uint32_t>(20, "m_half_use"));
  }
  return mall;
}

Result<VcnInfo> read_vcn(const Image& binary, const TableInfo& info) {
  const Image table = BM_TRY(open(binary, info, kVcnTableId, 1, true, "VCN_INFO"));
  const auto count = BM_TRY(table.at<uint32_t>(12, "num_of_instances"));
  if (count > kVcnInstances)
    return fail(Code::kCorrupt, "{}: {} instances, at most {}", table.name(), count, kVcnInstances);
  VcnInfo vcn;
  for (uint32_t i = 0; i < count; ++i) {
    const auto words = BM_TRY(table.table<uint32_t>(16 + i * 16, 4, "instance_info"));
    vcn.instance_info.push_back({.instance_num = words[0], .fuse_data = words[1]});
  }
  return vcn;
}

Result<NpsInfo> read_nps(const Image& binary, const TableInfo& info) {
  const Image table = BM_TRY(open(binary, info, kNpsTableId, 1, true, "NPS_INFO"));
  NpsInfo nps;
  nps.nps_type = BM_TRY(table.at<uint32_t>(12, "nps_type"));
  const auto count = BM_TRY(table.at<uint32_t>(16, "count"));
  if (count > kNpsInstances)
    return fail(Code::kCorrupt, "{}: {} ranges, at most {}", table.name(), count, kNpsInstances);
  for (uint32_t i = 0; i < count; ++i) {
    const auto range = BM_TRY(table.table<uint64_t>(20 + i * 16, 2, "instance_info"));
    nps.instance_info.push_back({.base_address = range[0], .limit_address = range[1]});
  }
  return nps;
}

uint64_t MallInfo::bytes(uint32_t umcs) const {
  uint64_t total = 0;
  for (uint32_t i = 0; i < umcs; ++i) {
    const uint32_t bit = version_major == 1 && i < 32 ? 1u << i : 0;
    if ((m_s_present & bit) != 0)
      total += uint64_t{mall_size_per_umc} * 2;
    else if ((m_half_use & bit) != 0)
      total += mall_size_per_umc / 2;
    else
      total += mall_size_per_umc;
  }
  return total;
}

}  // namespace bm::firmware::amd
