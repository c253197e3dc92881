#pragma once
// Waves that are resident on compute units, by the sequencer's indexed registers.

#include <cstdint>
#include <string>
#include <vector>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/card.h"

namespace bm::amd::am {

struct WaveState {
  uint8_t chiplet = 0, engine = 0, array = 0;
  uint8_t unit = 0;  ///< WGP of the array; gfx9: compute unit
  uint8_t simd = 0, slot = 0;
  bool is_gfx9 = false;
  uint32_t status = 0;      ///< SQ_WAVE_STATUS
  uint32_t exceptions = 0;  ///< SQ_WAVE_TRAPSTS; from gfx12 on SQ_WAVE_EXCP_FLAG_PRIV
  uint64_t pc = 0, exec = 0;
  bool is_halted = false, is_in_trap = false, is_in_barrier = false;
  bool has_illegal_instruction = false, has_memory_violation = false;

  uint32_t place() const {
    return uint32_t{chiplet} << 28 | uint32_t{engine} << 24 | uint32_t{array} << 20 |
           uint32_t{unit} << 12 | uint32_t{simd} << 8 | slot;
  }
  /// "SE0 SA0 WGP0 SIMD1 wave 0: PC 0x…, EXEC 0x…, at a barrier"; gfx9: "XCC0 SE0 SH0 CU0 …".
  std::string text() const;
};

struct WaveScan {
  std::vector<WaveState> waves;
  bool is_whole = true;  ///< false: time or room ran out before every slot was looked at
};

/// Selects one SIMD after the other, of every chiplet, and reads the status of each slot. Writes
/// GRBM_GFX_INDEX and SQ_IND_INDEX, and leaves GRBM_GFX_INDEX at "all of them", as every driver
/// does between uses. Sources: gfx_v11_0_read_wave_data(), gfx_v12_0_read_wave_data(),
/// *_select_se_sh(); umr's scan_waves.c, which numbers a SIMD's instance WGP << 2 | SIMD. gfx9:
/// wave_read_ind(), gfx_v9_4_3_read_wave_data() and gfx_v9_4_3_xcc_select_se_sh() of gfx_v9_4_3.c,
/// where the instance is a compute unit and SQ_IND_INDEX has the SIMD.
WaveScan scan_waves(Bus& bus, const Card& card, size_t most, uint64_t limit_us);

}  // namespace bm::amd::am
