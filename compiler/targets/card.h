#pragma once
// Cards as data sheets describe them: what a roofline needs when no card is there.

#include <cstdint>
#include <string_view>

namespace bm::compiler {

struct CardInfo {
  std::string_view arch;        ///< "sm_90", "gfx1100"
  std::string_view card;        ///< whose numbers these are
  uint32_t units = 0;           ///< compute units
  double clock_hz = 0;          ///< boost
  double bytes_per_second = 0;  ///< of memory
  /// Instructions of sub-groups that a compute unit begins in a cycle.
  double issue = 1;
  /// Operations (a multiply-add is two) of a compute unit in a cycle: of float32, and of matrix
  /// instructions on 16-bit floats and on int8; 0: it has none.
  double f32 = 0, mma_f16 = 0, mma_i8 = 0;
  /// Registers of 32 bits of a work-item that are handed out together.
  uint32_t register_granule = 8;
  uint32_t simds = 4;  ///< of a compute unit, among which its waves are divided
  uint32_t waves_per_simd = 16;
  uint32_t simd_registers = 512;  ///< of a lane, for all waves of a SIMD
};

/// nullptr: nobody wrote that one's row yet.
const CardInfo* find_card(std::string_view arch);

}  // namespace bm::compiler
