// Branches, waits, barriers, messages, hardware registers, and scalar memory.

#include "tests/sim/amd/exec/memory_access.h"
#include "tests/sim/amd/exec/tables.h"

namespace bm::sim::amd {
namespace {

void nothing(Wave&, const Step&) {}

void branch(Wave& w, const Step& in) {
  w.next_pc = w.pc + 4 + static_cast<uint64_t>(int64_t{static_cast<int16_t>(in.imm)} * 4);
}
template <auto Condition>
void branch_if(Wave& w, const Step& in) {
  if (Condition(w)) branch(w, in);
}

void end_program(Wave& w, const Step&) { w.state = WaveState::kEnded; }

/// Counts this wave in; the last one opens the barrier for all.
void arrive(Wave& w) {
  Group& g = *w.group;
  if (++g.arrived >= g.live_waves) {
    g.arrived = 0;
    ++g.barrier_phase;
  }
}
void barrier(Wave& w, const Step&) {
  w.wait_phase = w.group->barrier_phase + 1;
  w.state = WaveState::kBarrier;
  arrive(w);
}
// The work-group's barrier is -1; named barriers are not modelled.
constexpr uint32_t kWorkgroupBarrier = ~0u;
void barrier_signal(Wave& w, const Step& in) {
  if (w.in32(in, 0) != kWorkgroupBarrier || w.signalled) return w.fail(Fault::Kind::kIllegalOpcode);
  w.signalled = true;
  w.wait_phase = w.group->barrier_phase + 1;
  arrive(w);
}
void barrier_wait(Wave& w, const Step& in) {
  if (in.imm != 0xffff) return w.fail(Fault::Kind::kIllegalOpcode);
  // A wait without a signal of its own waits for the next opening.
  if (!w.signalled) w.wait_phase = w.group->barrier_phase + 1;
  w.signalled = false;
  w.state = WaveState::kBarrier;
}

void trap(Wave& w, const Step& in) { w.fail(Fault::Kind::kTrap, in.imm & 0xff); }
void yield_turn(Wave& w, const Step&) { w.yield = true; }

// Hardware register numbers: LLVM AMDGPU, SIDefines.h (namespace Hwreg).
constexpr uint32_t kHwMode = 1, kHwStatus = 2, kHwFlatScratchLo = 20, kHwFlatScratchHi = 21,
                   kHwShaderCycles = 29;
// gfx940's of the same numbers: where a wave runs, and on which chiplet.
constexpr uint32_t kHwId = 4, kHwXccId = 20;

/// Nothing for registers that are not modelled.
std::optional<uint32_t> hardware_register(const Wave& w, uint32_t id) {
  if (w.isa == Isa::kGfx9 && id != kHwMode && id != kHwStatus)
    return id == kHwId || id == kHwXccId ? std::optional(0u) : std::nullopt;
  switch (id) {
    case kHwMode: return w.mode;
    case kHwStatus: return w.scc ? 1u : 0u;
    case kHwFlatScratchLo: return static_cast<uint32_t>(w.group->dispatch->scratch_base);
    case kHwFlatScratchHi: return static_cast<uint32_t>(w.group->dispatch->scratch_base >> 32);
    case kHwShaderCycles: return static_cast<uint32_t>(w.steps) & 0xfffff;
    default: return std::nullopt;
  }
}
struct Field {
  uint32_t id, offset, mask;
};
Field field_of(uint16_t imm) {
  const uint32_t size = (imm >> 11) + 1u;
  return {imm & 63u, imm >> 6 & 31u, size == 32 ? ~0u : (1u << size) - 1};
}
void get_register(Wave& w, const Step& in) {
  const Field f = field_of(in.imm);
  const auto value = hardware_register(w, f.id);
  if (!value) return w.fail(Fault::Kind::kIllegalOpcode);
  w.write32(in.dst.code, *value >> f.offset & f.mask);
}
void set_register(Wave& w, const Step& in) {
  const Field f = field_of(in.imm);
  const uint32_t value = in.dst.dwords ? w.read32(in.dst.code, 0, '1') : in.literal;
  if (f.id != kHwMode) return w.fail(Fault::Kind::kIllegalOpcode);
  w.mode = (w.mode & ~(f.mask << f.offset)) | (value & f.mask) << f.offset;
}

void call(Wave& w, const Step& in) {
  w.write64(in.dst.code, w.pc + 4);
  branch(w, in);
}
void set_pc(Wave& w, uint64_t target) { w.next_pc = target; }

// Messages that answer: LLVM AMDGPU, SIDefines.h (namespace SendMsg).
constexpr uint32_t kMessageRealtime = 0x83;
void message_return32(Wave& w, const Step& in) { w.write32(in.dst.code, 0); }
void message_return64(Wave& w, const Step& in) {
  w.write64(in.dst.code, in.src[0].code == kMessageRealtime ? w.steps : 0);
}

constexpr uint32_t kMessageDeallocate = 3;
/// Does nothing with this number, and there is no other.
template <uint32_t Number>
void only(Wave& w, const Step& in) {
  if (in.imm != Number) w.fail(Fault::Kind::kIllegalOpcode);
}

constexpr Semantics kControl[] = {
    {"s_nop", nothing},
    {"s_sethalt", only<0>},
    {"s_sleep", yield_turn},
    {"s_sleep_var", yield_turn},
    {"s_set_inst_prefetch_distance", nothing},
    {"s_clause", nothing},
    {"s_delay_alu", nothing},
    {"s_waitcnt_depctr", nothing},
    {"s_wait_alu", nothing},
    {"s_waitcnt", nothing},
    {"s_waitcnt_vscnt", nothing},
    {"s_waitcnt_vmcnt", nothing},
    {"s_waitcnt_expcnt", nothing},
    {"s_waitcnt_lgkmcnt", nothing},
    {"s_wait_idle", nothing},
    {"s_wait_loadcnt", nothing},
    {"s_wait_storecnt", nothing},
    {"s_wait_samplecnt", nothing},
    {"s_wait_expcnt", nothing},
    {"s_wait_dscnt", nothing},
    {"s_wait_kmcnt", nothing},
    {"s_wait_loadcnt_dscnt", nothing},
    {"s_wait_storecnt_dscnt", nothing},
    {"s_trap", trap},
    {"s_round_mode", [](Wave& w, const Step& in) { w.mode = (w.mode & ~0xfu) | (in.imm & 0xfu); }},
    {"s_denorm_mode",
     [](Wave& w, const Step& in) { w.mode = (w.mode & ~0xf0u) | (in.imm & 0xfu) << 4; }},
    {"s_branch", branch},
    {"s_cbranch_scc0", branch_if<[](const Wave& w) { return !w.scc; }>},
    {"s_cbranch_scc1", branch_if<[](const Wave& w) { return w.scc; }>},
    {"s_cbranch_vccz", branch_if<[](const Wave& w) { return w.read_mask(kVccLo) == 0; }>},
    {"s_cbranch_vccnz", branch_if<[](const Wave& w) { return w.read_mask(kVccLo) != 0; }>},
    {"s_cbranch_execz", branch_if<[](const Wave& w) { return w.exec() == 0; }>},
    {"s_cbranch_execnz", branch_if<[](const Wave& w) { return w.exec() != 0; }>},
    {"s_endpgm", end_program},
    {"s_wakeup", nothing},
    {"s_setprio", nothing},
    {"s_sendmsg", only<kMessageDeallocate>},  // gives registers back early
    {"s_icache_inv", [](Wave& w, const Step&) { w.flush_icache = true; }},
    {"s_barrier", barrier},
    {"s_barrier_signal", barrier_signal},
    {"s_barrier_wait", barrier_wait},
    {"s_getreg_b32", get_register},
    {"s_setreg_b32", set_register},
    {"s_setreg_imm32_b32", set_register},
    {"s_call_b64", call},
    {"s_getpc_b64", [](Wave& w, const Step& in) { w.write64(in.dst.code, w.pc + 4); }},
    {"s_setpc_b64", [](Wave& w, const Step& in) { set_pc(w, w.in64(in, 0)); }},
    {"s_swappc_b64",
     [](Wave& w, const Step& in) {
       const uint64_t target = w.in64(in, 0);
       w.write64(in.dst.code, w.pc + 4);
       set_pc(w, target);
     }},
    {"s_sendmsg_rtn_b32", message_return32},
    {"s_sendmsg_rtn_b64", message_return64},
};

// ---- scalar memory ----
uint64_t offset_of(const Wave& w, const Step& in) {
  return static_cast<uint64_t>(int64_t{in.mem.offset}) +
         (in.mem.soffset == kNull ? 0 : w.read32(in.mem.soffset, 0, '1'));
}
void load_dwords(Wave& w, const Step& in, uint64_t address, uint32_t available) {
  address &= ~uint64_t{3};  // hardware ignores the lower bits
  const uint32_t bytes = std::min<uint32_t>(in.dst.dwords * 4u, available & ~3u);
  uint32_t data[16] = {};
  if (bytes) {
    const HostPlace host = place(w, address, bytes, Access::kRead, 0);
    if (!host) return;
    host.read(data, bytes);
  }
  for (uint32_t i = 0; i < in.dst.dwords; ++i)
    w.write32(in.dst.code == kNull ? kNull : in.dst.code + i, data[i]);
}
void load(Wave& w, const Step& in) { load_dwords(w, in, w.in64(in, 0) + offset_of(w, in), ~3u); }
/// Base and bytes of the buffer a four-SGPR resource describes.
struct ScalarBuffer {
  uint64_t base;
  uint64_t bytes;
};
ScalarBuffer scalar_buffer(const Wave& w, const Step& in) {
  const uint32_t at = in.src[0].code;
  const uint64_t low = w.read64(at, 0, false), high = w.read64(at + 2u, 0, false);
  const uint64_t stride = low >> 48 & 0x3fff, records = high & 0xffffffffu;
  return {low & 0xffffffffffff, stride ? stride * records : records};
}
void buffer_load(Wave& w, const Step& in) {
  const ScalarBuffer b = scalar_buffer(w, in);
  const uint64_t offset = offset_of(w, in) & ~uint64_t{3};
  const uint64_t rest = offset < b.bytes ? b.bytes - offset : 0;
  load_dwords(w, in, b.base + offset, static_cast<uint32_t>(std::min<uint64_t>(rest, 64)));
}
template <class T>
void load_small_at(Wave& w, const Step& in, uint64_t address, bool in_range) {
  T value = 0;
  if (in_range) {
    const HostPlace host = place(w, address, sizeof(T), Access::kRead, 0);
    if (!host) return;
    host.read(&value, sizeof(T));
  }
  w.write32(in.dst.code, static_cast<uint32_t>(int32_t{value}));
}
template <class T>
void load_small(Wave& w, const Step& in) {
  load_small_at<T>(w, in, w.in64(in, 0) + offset_of(w, in), true);
}
template <class T>
void buffer_load_small(Wave& w, const Step& in) {
  const ScalarBuffer b = scalar_buffer(w, in);
  const uint64_t offset = offset_of(w, in);
  load_small_at<T>(w, in, b.base + offset, offset + sizeof(T) <= b.bytes);
}

constexpr Semantics kMemory[] = {
    {"s_load_b32", load},
    {"s_load_b64", load},
    {"s_load_b96", load},
    {"s_load_b128", load},
    {"s_load_b256", load},
    {"s_load_b512", load},
    {"s_load_u8", load_small<uint8_t>},
    {"s_load_i8", load_small<int8_t>},
    {"s_load_u16", load_small<uint16_t>},
    {"s_load_i16", load_small<int16_t>},
    {"s_buffer_load_b32", buffer_load},
    {"s_buffer_load_b64", buffer_load},
    {"s_buffer_load_b96", buffer_load},
    {"s_buffer_load_b128", buffer_load},
    {"s_buffer_load_b256", buffer_load},
    {"s_buffer_load_b512", buffer_load},
    {"s_buffer_load_u8", buffer_load_small<uint8_t>},
    {"s_buffer_load_i8", buffer_load_small<int8_t>},
    {"s_buffer_load_u16", buffer_load_small<uint16_t>},
    {"s_buffer_load_i16", buffer_load_small<int16_t>},
    {"s_dcache_inv", nothing},
    {"s_gl1_inv", nothing},
    {"s_dcache_wb", nothing},
    {"s_dcache_inv_vol", nothing},
    {"s_dcache_wb_vol", nothing},
    // Clocks count instructions here.
    {"s_memtime", [](Wave& w, const Step& in) { w.write64(in.dst.code, w.steps); }},
    {"s_memrealtime", [](Wave& w, const Step& in) { w.write64(in.dst.code, w.steps); }},
};

}  // namespace

std::span<const Semantics> scalar_control_ops() { return kControl; }
std::span<const Semantics> scalar_memory_ops() { return kMemory; }

}  // namespace bm::sim::amd
