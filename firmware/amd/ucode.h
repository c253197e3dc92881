#pragma once
// AMD's microcode files (amdgpu/*.bin): a common header, the header of a kind and version behind
// it, then parts for different engines and memories. Read in Linux, drivers/gpu/drm/amd/amdgpu:
// amdgpu_ucode.h for the headers; which function takes which part is said in ucode_formats.cpp.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "firmware/image.h"
#include "runtime/base/result.h"

namespace bm::firmware::amd {

/// struct common_firmware_header. Little-endian, like every number of these files.
struct CommonFirmwareHeader {
  uint32_t size_bytes = 0;         ///< of the file
  uint32_t header_size_bytes = 0;  ///< without the lists that some kinds have behind it
  uint16_t header_version_major = 0;
  uint16_t header_version_minor = 0;
  uint16_t ip_version_major = 0;
  uint16_t ip_version_minor = 0;
  uint32_t ucode_version = 0;
  uint32_t ucode_size_bytes = 0;
  uint32_t ucode_array_offset_bytes = 0;  ///< from the start of the file
  uint32_t crc32 = 0;                     ///< see has_crc
};
static_assert(sizeof(CommonFirmwareHeader) == 32);

/// Files do not say what they are: their names do.
enum class Kind : uint8_t {
  kSos,   ///< PSP bootloader components and secure OS
  kTa,    ///< trusted applications of the PSP
  kToc,   ///< table of contents of the PSP's protected memory
  kSmu,   ///< power management, with tables for boards
  kSdma,  ///< copy engines
  kCp,    ///< command processors: PFP, ME, MEC
  kRlc,   ///< run list controller
  kImu,   ///< what starts the graphics block
  kMes,   ///< the hardware scheduler
};
/// "sos", "rlc", …
std::string_view kind_name(Kind kind);
/// By the name: "amdgpu/gc_11_0_0_mec.bin" → kCp; nullopt for blocks that are not read here (video,
/// display, memory controllers of old chips).
std::optional<Kind> kind_of(std::string_view file_name);

enum class PartId : uint8_t {
  kUcode,
  kJumpTable,  ///< inside kUcode
  kData,       ///< of RISC-V processors
  // Components of a SOS file, enum psp_fw_type.
  kSos,
  kSysDrv,
  kKdb,
  kToc,
  kSpl,
  kRl,
  kSocDrv,
  kIntfDrv,
  kDbgDrv,
  kRasDrv,
  kIpkeymgrDrv,
  kSpdmDrv,
  kRes,
  // Trusted applications, enum ta_fw_type.
  kAsd,
  kXgmi,
  kRas,
  kHdcp,
  kDtm,
  kRap,
  kSecuredisplay,
  kXgmiAux,  ///< 13.0.6 only
  kPptable,  ///< of the SMU; Part::type is the board's id
  // Both threads of an SDMA engine.
  kCtxUcode,
  kCtxJumpTable,
  kCtlUcode,
  kCtlJumpTable,
  // RLC.
  kRegListFormat,
  kRegList,
  kRegListFormatSeparate,
  kRegListSeparate,
  kSaveRestoreListCntl,
  kSaveRestoreListGpm,
  kSaveRestoreListSrm,
  kRlcIram,
  kRlcDram,
  kRlcp,
  kRlcv,
  kGlobalTapDelays,
  kSe0TapDelays,
  kSe1TapDelays,
  kSe2TapDelays,
  kSe3TapDelays,
  kRlc1Iram,
  kRlc1Dram,
  kImuIram,
  kImuDram,
  kUnknown,  ///< of a SOS or TA file, newer than this list; Part::type says which
};
/// As amdgpu_ucode.h spells it: "save_restore_list_gpm".
std::string_view part_name(PartId id);

/// One part, inside its file.
struct Part {
  PartId id = PartId::kUnknown;
  bool is_aux = false;  ///< of a SOS file's second set
  uint32_t type = 0;    ///< fw_type of SOS and TA, id of a pptable
  uint32_t version = 0;
  uint32_t feature_version = 0;
  uint64_t offset = 0;  ///< from the start of the file
  std::span<const std::byte> bytes = {};
};

struct Ucode {
  std::string name;  ///< for messages
  Kind kind = Kind::kCp;
  CommonFirmwareHeader header;
  uint32_t feature_version = 0;      ///< ucode_feature_version, where the kind has one
  uint64_t ucode_start_address = 0;  ///< RISC-V processors and the SMU, in bytes
  uint64_t data_start_address = 0;   ///< MES
  std::vector<Part> parts;           ///< those with bytes, in the order of the header

  /// The part, or nullptr. `type` matters for pptables and unknown parts only.
  const Part* find(PartId id, bool is_aux = false, uint32_t type = 0) const;
  /// The same, or kUnsupported naming file and part.
  Result<std::span<const std::byte>> need(PartId id, bool is_aux = false, uint32_t type = 0) const;
};

/// Reads `file` as `kind`; the parts are views into its bytes. Checked: the file's size, the
/// header's version, that every part lies inside the file and behind the headers, that no two of a
/// set overlap (a jump table lies inside its code), and the CRC where AMD fills it in. Errors are
/// one line with file, part, offset and remedy: kCorrupt, or kUnsupported for a header newer than
/// any known here.
Result<Ucode> parse(Kind kind, const Image& file);

/// Code of a command processor without its jump table, which the PSP takes as a file of its own
/// (AMDGPU_UCODE_ID_CP_MEC1, amdgpu_ucode_init_single_fw). kCorrupt unless the table is the code's
/// end.
Result<std::span<const std::byte>> code_before_jump_table(const Ucode& ucode);

/// Whether a MI300 needs the second set of a SOS file: its power management firmware is older than
/// 85.115.0 (psp_v13_0_is_aux_sos_load_required reads the version from regMP1_PUB_SCRATCH0).
constexpr bool needs_aux_sos(uint32_t pmfw_version) { return pmfw_version < 0x557300; }

}  // namespace bm::firmware::amd
