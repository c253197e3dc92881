#pragma once
// The headers of amdgpu_ucode.h as rows of data: where each part's position and size stand.

#include <cstdint>
#include <span>

#include "firmware/amd/ucode.h"

namespace bm::firmware::amd {

/// Offset in the file of a 32-bit field; 0 (the file's size, which no row needs): there is none.
using FieldAt = uint16_t;

/// A part lies `unit` × [offset_at] bytes behind [base_at] and has `unit` × [size_at] bytes.
struct PartRow {
  PartId id;
  FieldAt size_at;
  FieldAt offset_at = 0;
  FieldAt base_at = 0;
  uint8_t unit = 1;  ///< 4: both fields count dwords
  FieldAt version_at = 0;
  FieldAt feature_at = 0;
  bool is_aux = false;
};

/// Kinds whose parts are a list behind the header.
enum class PartList : uint8_t {
  kNone,
  kBinaries,     ///< count, then struct psp_fw_bin_desc
  kBinariesAux,  ///< count, index of the first of the second set, then the same
  kPptables,     ///< count, offset of struct smc_soft_pptable_entry
};

struct Format {
  Kind kind;
  uint16_t major;
  uint16_t minor;
  uint16_t header_bytes;  ///< sizeof of its struct
  std::span<const PartRow> parts;
  FieldAt feature_at = 0;
  FieldAt ucode_start_at = 0;  ///< low dword; the high one follows where the kind is not kSmu
  FieldAt data_start_at = 0;
  PartList list = PartList::kNone;
};

std::span<const Format> formats();
/// The part of a type number of SOS or TA files; kUnknown for newer ones.
PartId part_of_type(Kind kind, uint32_t type);
/// Whether the header's crc32 is what the file's bytes behind the common header give (CRC-32 of
/// IEEE 802.3). The kernel never checks it and AMD fills it in for some kinds only: true for those
/// of which every file of the packages of 2023 to 2026 agrees. Command processors of gfx8 do not.
bool has_crc(const CommonFirmwareHeader& header, Kind kind);

}  // namespace bm::firmware::amd
