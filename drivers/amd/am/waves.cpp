#include "drivers/amd/am/waves.h"

#include <fmt/format.h>

namespace bm::amd::am {
namespace {

// ixSQ_WAVE_* of gc_9_4_3_offset.h, gc_11_0_0_offset.h and gc_12_0_0_offset.h, and bits of their
// _sh_mask.h; MEM_VIOL of gfx9, which lies within EXCP there: cwsr_trap_handler_gfx9.asm. gfx12 has
// moved the program counter, and what a wave may not change itself into registers of its own.
struct WaveRegisters {
  uint32_t status, pc_low, pc_high, exceptions;
  uint32_t illegal, violation;   ///< bits of `exceptions`
  uint32_t halt_register, halt;  ///< where HALT is
  uint32_t barrier;              ///< bit of STATUS; 0: it has none
};
constexpr uint32_t kStatus9 = 0x12, kStatus = 0x102, kStatePrivate = 0x104, kExecLow = 0x27e,
                   kExecHigh = 0x27f;
constexpr uint32_t kTrap = 1u << 14, kWaveValid = 1u << 16;  // of SQ_WAVE_STATUS
constexpr WaveRegisters kGfx9{.status = kStatus9,
                              .pc_low = 0x18,
                              .pc_high = 0x19,
                              .exceptions = 0x13,
                              .illegal = 1u << 11,
                              .violation = 1u << 8,
                              .halt_register = kStatus9,
                              .halt = 1u << 13,
                              .barrier = 1u << 12};
constexpr WaveRegisters kGfx11{.status = kStatus,
                               .pc_low = 0x108,
                               .pc_high = 0x109,
                               .exceptions = 0x103,
                               .illegal = 1u << 11,
                               .violation = 1u << 8,
                               .halt_register = kStatus,
                               .halt = 1u << 13,
                               .barrier = 1u << 12};
constexpr WaveRegisters kGfx12{.status = kStatus,
                               .pc_low = 0x140,
                               .pc_high = 0x141,
                               .exceptions = 0x111,
                               .illegal = 1u << 6,
                               .violation = 1u << 4,
                               .halt_register = kStatePrivate,
                               .halt = 1u << 14,
                               .barrier = 0};
constexpr uint32_t kSimds = 4;  // of a WGP; of a compute unit of gfx9

class Scan {
 public:
  Scan(Bus& bus, const Card& card)
      : bus_(bus),
        is_gfx9_(card.is_gfx9()),
        registers_(is_gfx9_          ? kGfx9
                   : card.is_gfx12() ? kGfx12
                                     : kGfx11) {}

  void select(uint32_t engine, uint32_t array, uint32_t unit, uint32_t simd) {
    using enum Field;
    simd_ = simd;
    if (is_gfx9_) {
      bus_.write_fields(Block::kGc, {{GRBM_GFX_INDEX_se_index, engine},
                                     {GRBM_GFX_INDEX_sh_index, array},
                                     {GRBM_GFX_INDEX_instance_index, unit}});
      return;
    }
    bus_.write_fields(Block::kGc, {{GRBM_GFX_INDEX_se_index, engine},
                                   {GRBM_GFX_INDEX_sa_index, array},
                                   {GRBM_GFX_INDEX_instance_index, unit << 2 | simd}});
  }
  void select_all() {
    using enum Field;
    const Field arrays =
        is_gfx9_ ? GRBM_GFX_INDEX_sh_broadcast_writes : GRBM_GFX_INDEX_sa_broadcast_writes;
    bus_.write_fields(Block::kGc, {{GRBM_GFX_INDEX_se_broadcast_writes, 1},
                                   {arrays, 1},
                                   {GRBM_GFX_INDEX_instance_broadcast_writes, 1}});
  }
  uint32_t status(uint32_t slot) { return read(slot, registers_.status); }
  void fill(uint32_t slot, WaveState* wave) {
    wave->exceptions = read(slot, registers_.exceptions);
    wave->pc = uint64_t{read(slot, registers_.pc_high)} << 32 | read(slot, registers_.pc_low);
    wave->exec = uint64_t{read(slot, kExecHigh)} << 32 | read(slot, kExecLow);
    const uint32_t halt = registers_.halt_register == registers_.status
                              ? wave->status
                              : read(slot, registers_.halt_register);
    wave->is_halted = (halt & registers_.halt) != 0;
    wave->is_in_trap = (wave->status & kTrap) != 0;
    wave->is_in_barrier = (wave->status & registers_.barrier) != 0;
    wave->has_illegal_instruction = (wave->exceptions & registers_.illegal) != 0;
    wave->has_memory_violation = (wave->exceptions & registers_.violation) != 0;
  }

 private:
  uint32_t read(uint32_t slot, uint32_t index) {
    using enum Field;
    if (is_gfx9_)
      bus_.write_fields(Block::kGc, {{SQ_IND_INDEX_wave_id, slot},
                                     {SQ_IND_INDEX_simd_id, simd_},
                                     {SQ_IND_INDEX_force_read, 1},
                                     {SQ_IND_INDEX_index, index}});
    else
      bus_.write_fields(Block::kGc, {{SQ_IND_INDEX_wave_id, slot}, {SQ_IND_INDEX_index, index}});
    return bus_.read({Block::kGc, Reg::SQ_IND_DATA});
  }

  Bus& bus_;
  const bool is_gfx9_;
  const WaveRegisters& registers_;
  uint32_t simd_ = 0;
};

}  // namespace

std::string WaveState::text() const {
  std::string text = is_gfx9 ? fmt::format("XCC{} SE{} SH{} CU{}", chiplet, engine, array, unit)
                             : fmt::format("SE{} SA{} WGP{}", engine, array, unit);
  text += fmt::format(" SIMD{} wave {}: PC {:#x}, EXEC {:#x}", simd, slot, pc, exec);
  if (is_in_barrier) text += ", at a barrier";
  if (has_illegal_instruction) text += ", illegal instruction";
  if (has_memory_violation) text += ", memory violation";
  if (is_in_trap) text += ", in a trap";
  if (is_halted) text += ", halted";
  return text;
}

WaveScan scan_waves(Bus& bus, const Card& card, size_t most, uint64_t limit_us) {
  WaveScan scan;
  if (!card.discovery.gc) return scan;
  Scan waves(bus, card);
  const uint64_t end = bus.clock().now_us() + limit_us;
  const uint32_t engines = card.discovery.gc->gc_num_se,
                 arrays = card.discovery.gc->arrays_per_engine();
  const auto cus = static_cast<uint32_t>(card.discovery.gc->cus_per_array());
  const uint32_t units = card.is_gfx9() ? cus : (cus + 1) / 2;
  const auto look = [&](uint32_t chiplet) {
    for (uint32_t simd = 0; simd < kSimds; ++simd)
      for (uint32_t unit = 0; unit < units; ++unit)
        for (uint32_t at = 0; at < engines * arrays; ++at) {
          if (bus.clock().now_us() > end || scan.waves.size() >= most || !bus.status()) {
            scan.is_whole = false;
            return;
          }
          waves.select(at / arrays, at % arrays, unit, simd);
          for (uint32_t slot = 0; slot < card.chip->waves_per_simd; ++slot) {
            const uint32_t status = waves.status(slot);
            if ((status & kWaveValid) == 0 || status == UINT32_MAX) continue;
            WaveState wave{.chiplet = static_cast<uint8_t>(chiplet),
                           .engine = static_cast<uint8_t>(at / arrays),
                           .array = static_cast<uint8_t>(at % arrays),
                           .unit = static_cast<uint8_t>(unit),
                           .simd = static_cast<uint8_t>(simd),
                           .slot = static_cast<uint8_t>(slot),
                           .is_gfx9 = card.is_gfx9(),
                           .status = status};
            waves.fill(slot, &wave);
            scan.waves.push_back(wave);
          }
        }
  };
  for (uint32_t chiplet = 0; chiplet < bus.instances(Block::kGc) && scan.is_whole; ++chiplet)
    bus.with_instance(Block::kGc, chiplet, [&] {
      look(chiplet);
      waves.select_all();
    });
  return scan;
}

}  // namespace bm::amd::am
