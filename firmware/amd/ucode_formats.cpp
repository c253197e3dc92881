#include "firmware/amd/ucode_formats.h"

#include <array>

namespace bm::firmware::amd {
namespace {

using enum PartId;

// struct common_firmware_header.
constexpr FieldAt kUcodeSize = 20, kArray = 24;

// struct psp_fw_legacy_bin_desc {fw_version, offset_bytes, size_bytes}: all offsets count from the
// ucode array (psp_init_sos_microcode; sys.start_addr is the array's start).
constexpr PartRow legacy(PartId id, FieldAt at, bool is_aux = false) {
  return {.id = id,
          .size_at = static_cast<FieldAt>(at + 8),
          .offset_at = static_cast<FieldAt>(at + 4),
          .base_at = kArray,
          .version_at = at,
          .is_aux = is_aux};
}
// psp_firmware_header_v1_0: the system driver reaches from the array's start to the SOS.
constexpr PartRow kSysDrvV1{.id = kSysDrv, .size_at = 36, .base_at = kArray};
constexpr std::array kSosV10{kSysDrvV1, legacy(kSos, 32)};
constexpr std::array kSosV11{kSysDrvV1, legacy(kSos, 32), legacy(kToc, 44), legacy(kKdb, 56)};
constexpr std::array kSosV12{kSysDrvV1, legacy(kSos, 32), legacy(kRes, 44), legacy(kKdb, 56)};
constexpr std::array kSosV13{
    kSysDrvV1,        legacy(kSos, 32), legacy(kToc, 44),          legacy(kKdb, 56),
    legacy(kSpl, 68), legacy(kRl, 80),  legacy(kSysDrv, 92, true), legacy(kSos, 104, true)};

// ta_firmware_header_v1_0; parse_ta_v1_microcode: XGMI (servers) and HDCP (displays) both begin at
// the array and no file has both.
constexpr std::array kTaV10{
    PartRow{.id = kXgmi, .size_at = 40, .base_at = kArray, .version_at = 32}, legacy(kRas, 44),
    PartRow{.id = kHdcp, .size_at = 64, .base_at = kArray, .version_at = 56}, legacy(kDtm, 68),
    legacy(kSecuredisplay, 80)};

constexpr PartRow kWhole{.id = kUcode, .size_at = kUcodeSize, .base_at = kArray};
constexpr std::array kOnlyUcode{kWhole};

// smc_firmware_header_v2_0; smu_v13_0_set_pptable_v2_0.
constexpr std::array kSmuV20{kWhole, PartRow{.id = kPptable, .size_at = 40, .offset_at = 36}};

// gfx_firmware_header_v1_0, sdma_firmware_header_v1_0: tables in dwords behind the array.
constexpr std::array kCpV10{
    kWhole,
    PartRow{.id = kJumpTable, .size_at = 40, .offset_at = 36, .base_at = kArray, .unit = 4}};
constexpr std::array kSdmaV10{
    kWhole,
    PartRow{.id = kJumpTable, .size_at = 44, .offset_at = 40, .base_at = kArray, .unit = 4}};
// gfx_firmware_header_v2_0 (RS64); AMDGPU_UCODE_ID_CP_RS64_MEC takes the code at the array.
constexpr std::array kCpV20{PartRow{.id = kUcode, .size_at = 36, .base_at = kArray},
                            PartRow{.id = kData, .size_at = 44, .offset_at = 48}};
// sdma_firmware_header_v2_0; AMDGPU_UCODE_ID_SDMA_UCODE_TH0 and _TH1. sdma_v6_0.c reads the tables'
// fields as bytes in a path that nobody takes; as dwords, like v1, they end where the code does.
constexpr std::array kSdmaV20{
    PartRow{.id = kCtxUcode, .size_at = 36, .base_at = kArray},
    PartRow{.id = kCtxJumpTable, .size_at = 44, .offset_at = 40, .base_at = kArray, .unit = 4},
    PartRow{.id = kCtlUcode, .size_at = 52, .offset_at = 48},
    PartRow{.id = kCtlJumpTable, .size_at = 60, .offset_at = 56, .base_at = 48, .unit = 4}};
// sdma_firmware_header_v3_0; AMDGPU_UCODE_ID_SDMA_RS64.
constexpr std::array kSdmaV30{PartRow{.id = kUcode, .size_at = 40, .base_at = kArray}};

// rlc_firmware_header_v2_0 … v2_5, each a longer one; amdgpu_gfx_rlc_init_microcode.
constexpr PartRow list(PartId id, FieldAt size_at) {
  return {.id = id, .size_at = size_at, .offset_at = static_cast<FieldAt>(size_at + 4)};
}
/// {version, feature version, size, offset}
constexpr PartRow versioned(PartId id, FieldAt at) {
  return {.id = id,
          .size_at = static_cast<FieldAt>(at + 8),
          .offset_at = static_cast<FieldAt>(at + 12),
          .version_at = at,
          .feature_at = static_cast<FieldAt>(at + 4)};
}
constexpr std::array kRlcParts{
    kWhole,
    // v2.0
    list(kRegListFormat, 72), list(kRegList, 80), list(kRegListFormatSeparate, 88),
    list(kRegListSeparate, 96),
    // v2.1, behind reg_list_format_direct_reg_list_length
    versioned(kSaveRestoreListCntl, 108), versioned(kSaveRestoreListGpm, 124),
    versioned(kSaveRestoreListSrm, 140),
    // v2.2
    list(kRlcIram, 156), list(kRlcDram, 164),
    // v2.3
    versioned(kRlcp, 172), versioned(kRlcv, 188),
    // v2.4
    list(kGlobalTapDelays, 204), list(kSe0TapDelays, 212), list(kSe1TapDelays, 220),
    list(kSe2TapDelays, 228), list(kSe3TapDelays, 236)};
constexpr std::span kRlc(kRlcParts);
// v2.5 goes on from v2.2.
constexpr std::array kRlcV25{kRlcParts[0], kRlcParts[1],         kRlcParts[2],
                             kRlcParts[3], kRlcParts[4],         kRlcParts[5],
                             kRlcParts[6], kRlcParts[7],         kRlcParts[8],
                             kRlcParts[9], list(kRlc1Iram, 172), list(kRlc1Dram, 180)};

// imu_firmware_header_v1_0. Its offset fields are not used: AMDGPU_UCODE_ID_IMU_D lies behind
// IMU_I.
constexpr std::array kImuV10{
    PartRow{.id = kImuIram, .size_at = 32, .base_at = kArray},
    PartRow{.id = kImuDram, .size_at = 40, .offset_at = 32, .base_at = kArray}};
// mes_firmware_header_v1_0; AMDGPU_UCODE_ID_CP_MES and _MES_DATA.
constexpr std::array kMesV10{
    PartRow{.id = kUcode, .size_at = 36, .offset_at = 40, .version_at = 32},
    PartRow{.id = kData, .size_at = 48, .offset_at = 52, .version_at = 44}};

constexpr Format kFormats[] = {
    {Kind::kSos, 1, 0, 44, kSosV10},
    {Kind::kSos, 1, 1, 68, kSosV11},
    {Kind::kSos, 1, 2, 68, kSosV12},
    {Kind::kSos, 1, 3, 116, kSosV13},
    {.kind = Kind::kSos,
     .major = 2,
     .minor = 0,
     .header_bytes = 36,
     .parts = {},
     .list = PartList::kBinaries},
    {.kind = Kind::kSos,
     .major = 2,
     .minor = 1,
     .header_bytes = 40,
     .parts = {},
     .list = PartList::kBinariesAux},
    {Kind::kTa, 1, 0, 92, kTaV10},
    {.kind = Kind::kTa,
     .major = 2,
     .minor = 0,
     .header_bytes = 36,
     .parts = {},
     .list = PartList::kBinaries},
    // psp_firmware_header_v1_0 and longer ones; psp_init_toc_microcode takes the array whole.
    {Kind::kToc, 1, 0, 44, kOnlyUcode, 32},
    {.kind = Kind::kSmu,
     .major = 1,
     .minor = 0,
     .header_bytes = 36,
     .parts = kOnlyUcode,
     .ucode_start_at = 32},
    {.kind = Kind::kSmu,
     .major = 2,
     .minor = 0,
     .header_bytes = 44,
     .parts = kSmuV20,
     .ucode_start_at = 32},
    {.kind = Kind::kSmu,
     .major = 2,
     .minor = 1,
     .header_bytes = 44,
     .parts = kOnlyUcode,
     .ucode_start_at = 32,
     .list = PartList::kPptables},
    {Kind::kSdma, 1, 0, 48, kSdmaV10, 32},
    {Kind::kSdma, 1, 1, 52, kSdmaV10, 32},
    {Kind::kSdma, 2, 0, 64, kSdmaV20, 32},
    {Kind::kSdma, 3, 0, 44, kSdmaV30, 32},
    {Kind::kCp, 1, 0, 44, kCpV10, 32},
    {Kind::kCp, 2, 0, 60, kCpV20, 32, 52},
    {Kind::kRlc, 2, 0, 104, kRlc.first(5), 32},
    {Kind::kRlc, 2, 1, 156, kRlc.first(8), 32},
    {Kind::kRlc, 2, 2, 172, kRlc.first(10), 32},
    {Kind::kRlc, 2, 3, 204, kRlc.first(12), 32},
    {Kind::kRlc, 2, 4, 244, kRlc, 32},
    {Kind::kRlc, 2, 5, 188, kRlcV25, 32},
    {Kind::kImu, 1, 0, 48, kImuV10},
    {.kind = Kind::kMes,
     .major = 1,
     .minor = 0,
     .header_bytes = 72,
     .parts = kMesV10,
     .ucode_start_at = 56,
     .data_start_at = 64},
};

// enum psp_fw_type and enum ta_fw_type, from 1 on.
constexpr PartId kSosTypes[] = {kSos,    kSysDrv,  kKdb,    kToc,    kSpl,         kRl,
                                kSocDrv, kIntfDrv, kDbgDrv, kRasDrv, kIpkeymgrDrv, kSpdmDrv};
constexpr PartId kTaTypes[] = {kAsd, kXgmi, kRas, kHdcp, kDtm, kRap, kSecuredisplay, kXgmiAux};

}  // namespace

std::span<const Format> formats() { return kFormats; }

PartId part_of_type(Kind kind, uint32_t type) {
  const std::span<const PartId> types =
      kind == Kind::kSos ? std::span<const PartId>(kSosTypes) : std::span<const PartId>(kTaTypes);
  return type == 0 || type > types.size() ? kUnknown : types[type - 1];
}

bool has_crc(const CommonFirmwareHeader& header, Kind kind) {
  switch (kind) {
    case Kind::kSos:
    case Kind::kTa: return header.header_version_major >= 2;
    case Kind::kCp: return header.ip_version_major >= 9;
    case Kind::kSdma:
    case Kind::kImu:
    case Kind::kMes: return true;
    case Kind::kToc:
    case Kind::kSmu:
    case Kind::kRlc: return false;
  }
  return false;
}

}  // namespace bm::firmware::amd
