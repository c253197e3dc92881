#pragma once
// Tables of the VBIOS, NVIDIA's x86 image: the BIOS information table (BIT) and the table of
// falcons' microcode that it leads to.
// Source: open-gpu-kernel-modules 570.144, kernel_gsp_fwsec.c.

#include <cstdint>
#include <optional>
#include <vector>

#include "firmware/nvidia/rom.h"
#include "runtime/base/result.h"

namespace bm::firmware::nvidia {

inline constexpr uint8_t kBiosDataToken = 0x42, kFalconDataToken = 0x70;

struct BitToken {
  uint8_t id = 0;
  uint8_t version = 0;
  uint16_t size = 0;     ///< of its data
  uint32_t pointer = 0;  ///< from the first image
};

struct Bit {
  uint32_t offset = 0;  ///< from the first image
  std::vector<BitToken> tokens;
};

/// The first whose header's bytes add up to 0. Errors: kCorrupt.
Result<Bit> find_bit(const Rom& rom);

/// "94.02.71.00.5e" of a token kBiosDataToken; empty where there is none.
std::string vbios_version(const Rom& rom, const Bit& bit);

/// One program in the ROM.
struct FalconUcodeEntry {
  uint8_t application = 0;
  uint8_t target = 0;
  uint32_t descriptor = 0;  ///< from the first image, moved by Rom::expansion_offset
};

/// The PMU lookup table. Unused entries (all 0) are left out. Errors: kCorrupt; kUnsupported (no
/// table of a version that is known).
Result<std::vector<FalconUcodeEntry>> falcon_ucodes(const Rom& rom, const Bit& bit);

}  // namespace bm::firmware::nvidia
