// The sequencer's indexed registers, through which a debugger sees resident waves.
//
// Sources: Linux 6.12, gfx_v11_0.c and gfx_v12_0.c (wave_read_ind(), *_read_wave_data(),
// *_select_se_sh()), gc_11_0_0_offset.h and gc_12_0_0_offset.h (ixSQ_WAVE_*), their _sh_mask.h
// (fields); umr, scan_waves.c: the instance is WGP << 2 | SIMD. gfx_v9_4_3.c and gc_9_4_3_*.h: the
// instance is a compute unit, SQ_IND_INDEX has the SIMD and is read with FORCE_READ alone.

#include <fmt/format.h>

#include "tests/sim/amd/chip/gfx.h"

namespace bm::sim::amd {
namespace {

constexpr uint32_t kStatus = 0x102, kTrapStatus = 0x103, kStatePrivate = 0x104, kHardwareId = 0x117,
                   kException = 0x111, kExecLow = 0x27e, kExecHigh = 0x27f;
// The program counter lies elsewhere on gfx12.
constexpr uint32_t kPcLow11 = 0x108, kPcHigh11 = 0x109, kPcLow12 = 0x140, kPcHigh12 = 0x141;
// SQ_WAVE_STATUS; on gfx12 barrier and halt are no bits of it.
constexpr uint32_t kInBarrier11 = 1u << 12, kHalt11 = 1u << 13, kTrap = 1u << 14, kValid = 1u << 16;
// SQ_WAVE_STATE_PRIV.
constexpr uint32_t kHalt12 = 1u << 14;
// SQ_WAVE_TRAPSTS; SQ_WAVE_EXCP_FLAG_PRIV.
constexpr uint32_t kMemoryViolation11 = 1u << 8, kIllegal11 = 1u << 11;
constexpr uint32_t kMemoryViolation12 = 1u << 4, kIllegal12 = 1u << 6;
// gfx9: a numbering of its own, with gfx11's bits.
constexpr uint32_t kStatus9 = 0x12, kTrapStatus9 = 0x13, kHardwareId9 = 0x14, kPcLow9 = 0x18,
                   kPcHigh9 = 0x19;
constexpr uint32_t kSimds = 4;

}  // namespace

void Gfx::declare_waves() {
  gfx_index_ = &room_.bus.declare(Ip::kGc, "GRBM_GFX_INDEX");
  wave_index_ = &room_.bus.declare(Ip::kGc, "SQ_IND_INDEX");
  room_.bus.declare(Ip::kGc, "SQ_IND_DATA",
                    {.read = [this] { return wave_register(); }, .is_read_only = true});
}

uint32_t Gfx::wave_register() const {
  const ChipRow& row = room_.bus.row();
  const auto selected = [&](const char* name) {
    return room_.bus.field(Ip::kGc, "GRBM_GFX_INDEX", name).of(*gfx_index_);
  };
  const auto asked = [&](const char* name) {
    return room_.bus.field(Ip::kGc, "SQ_IND_INDEX", name).of(*wave_index_);
  };
  const bool is_gfx9 = row.generation == 9;
  const char* const array = is_gfx9 ? "SH_INDEX" : "SA_INDEX";
  const char* const arrays = is_gfx9 ? "SH_BROADCAST_WRITES" : "SA_BROADCAST_WRITES";
  const uint32_t instance = selected("INSTANCE_INDEX"),
                 unit = is_gfx9 ? instance : instance / kSimds,
                 simd = is_gfx9 ? asked("SIMD_ID") : instance % kSimds;
  if (selected("SE_BROADCAST_WRITES") != 0 || selected(arrays) != 0 ||
      selected("INSTANCE_BROADCAST_WRITES") != 0 || selected("SE_INDEX") >= row.shader_engines ||
      selected(array) >= row.arrays || unit >= row.wgps) {
    room_.bus.violations().add(
        fmt::format("GFX: SQ_IND_DATA with GRBM_GFX_INDEX {:#x}", *gfx_index_));
    return 0;
  }
  if (is_gfx9 && asked("FORCE_READ") == 0) {
    room_.bus.violations().add(
        fmt::format("GFX: SQ_IND_DATA with SQ_IND_INDEX {:#x}: no FORCE_READ", *wave_index_));
    return 0;
  }
  // The n-th queue that runs has the n-th shader engine's first WGP, or compute unit, to itself.
  if (selected(array) != 0 || unit != 0) return 0;
  uint32_t engine = 0;
  std::vector<ResidentWave> waves;
  for (const Pipe& pipe : pipes_)
    for (const Hqd& hqd : pipe.queues)
      if (hqd.queue && engine++ == selected("SE_INDEX")) waves = hqd.queue->waves().waves();
  const uint32_t slot = asked("WAVE_ID"), index = slot * kSimds + simd;
  if (index >= waves.size()) return 0;
  const ResidentWave& wave = waves[index];
  const bool is_gfx12 = row.generation == 12;
  const auto bit = [](bool is_set, uint32_t mask) { return is_set ? mask : 0; };
  if (is_gfx9) {
    switch (asked("INDEX")) {
      case kStatus9:
        return kValid | bit(wave.has_trapped, kTrap) | bit(wave.is_in_barrier, kInBarrier11) |
               bit(wave.is_halted, kHalt11);
      case kTrapStatus9:
        return bit(wave.has_memory_violation, kMemoryViolation11) |
               bit(wave.has_illegal_instruction, kIllegal11);
      case kHardwareId9: return slot | simd << 4;
      case kPcLow9: return static_cast<uint32_t>(wave.pc);
      case kPcHigh9: return static_cast<uint32_t>(wave.pc >> 32);
      case kExecLow: return static_cast<uint32_t>(wave.exec);
      case kExecHigh: return static_cast<uint32_t>(wave.exec >> 32);
      default: return 0;
    }
  }
  switch (asked("INDEX")) {
    case kStatus:
      return kValid | bit(wave.has_trapped, kTrap) |
             (is_gfx12 ? 0 : bit(wave.is_in_barrier, kInBarrier11) | bit(wave.is_halted, kHalt11));
    case kStatePrivate: return is_gfx12 ? bit(wave.is_halted, kHalt12) : 0;
    case kTrapStatus:
      return is_gfx12 ? 0
                      : bit(wave.has_memory_violation, kMemoryViolation11) |
                            bit(wave.has_illegal_instruction, kIllegal11);
    case kException:
      return is_gfx12 ? bit(wave.has_memory_violation, kMemoryViolation12) |
                            bit(wave.has_illegal_instruction, kIllegal12)
                      : 0;
    case kHardwareId: return slot | simd << 8;
    case kPcLow11: return is_gfx12 ? 0 : static_cast<uint32_t>(wave.pc);
    case kPcHigh11: return is_gfx12 ? 0 : static_cast<uint32_t>(wave.pc >> 32);
    case kPcLow12: return is_gfx12 ? static_cast<uint32_t>(wave.pc) : 0;
    case kPcHigh12: return is_gfx12 ? static_cast<uint32_t>(wave.pc >> 32) : 0;
    case kExecLow: return static_cast<uint32_t>(wave.exec);
    case kExecHigh: return static_cast<uint32_t>(wave.exec >> 32);
    default: return 0;
  }
}

}  // namespace bm::sim::amd
