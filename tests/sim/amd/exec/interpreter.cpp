#include "tests/sim/amd/exec/interpreter.h"

#include <algorithm>
#include <cfenv>
#include <deque>

#include <fmt/format.h>

#include "tests/sim/amd/exec/tables.h"

namespace bm::sim::amd {
namespace {

constexpr uint32_t kMaxInstructionWords = 4;
constexpr uint32_t kMaxGroupItems = 1024;
constexpr uint64_t kTurn = 4096;          // instructions of a wave before the next one's turn
constexpr uint64_t kCancelEvery = 256;    // instructions between looks at the cancel flag
constexpr uint64_t kObserveEvery = 4096;  // instructions between calls of the observer

uint32_t field(uint32_t word, uint32_t first, uint32_t count) {
  return word >> first & ((1u << count) - 1);
}

/// Decoded instructions by address. Code is taken as it is when it is first reached; s_icache_inv
/// forgets it.
class Program {
 public:
  Program(Isa isa, Memory& memory, uint64_t entry, uint32_t vgprs, uint32_t first_acc)
      : isa_(isa), memory_(memory), base_(entry), vgprs_(vgprs), first_acc_(first_acc) {}

  /// Null after describing the fault.
  const Step* at(uint64_t pc, Fault& fault) {
    const uint64_t index = (pc - base_) / 4;
    if (pc >= base_ && index < near_.size() && near_[index]) return near_[index];
    return slow(pc, fault);
  }
  void forget() {
    near_.clear();
    far_.clear();
    steps_.clear();
  }

 private:
  static constexpr uint64_t kNearWords = 1 << 22;

  const Step* slow(uint64_t pc, Fault& fault) {
    if (const auto found = far_.find(pc); found != far_.end()) return found->second;
    const Step* step = decode_at(pc, fault);
    if (!step) return nullptr;
    const uint64_t index = (pc - base_) / 4;
    if (pc >= base_ && index < kNearWords) {
      if (index >= near_.size()) near_.resize(std::max<size_t>(index + 1, near_.size() * 2));
      near_[index] = step;
    } else {
      far_.emplace(pc, step);
    }
    return step;
  }

  const Step* decode_at(uint64_t pc, Fault& fault) {
    uint32_t words[kMaxInstructionWords];
    uint32_t count = 0;
    if (pc % 4) return refuse(fault, Fault::Kind::kMisaligned, pc, "program counter");
    for (; count < kMaxInstructionWords; ++count) {
      const Memory::Place p = memory_.at(pc + 4 * count, 4, Access::kExecute);
      if (!p.host && count == 0)
        return refuse(fault, p.is_permission ? Fault::Kind::kPermission : Fault::Kind::kUnmapped,
                      pc, "instruction fetch");
      if (!p.host) break;
      std::memcpy(&words[count], p.host, 4);
    }
    const auto decoded = decode({words, count}, isa_);
    if (!decoded)
      return refuse(fault, Fault::Kind::kIllegalOpcode, pc, fmt::format("word {:08x}", words[0]));
    Step& step = steps_.emplace_back();
    static_cast<Instruction&>(step) = *decoded;
    step.traffic = traffic_of(step, isa_);
    step.matrix_states = MatrixHazards::states_of(step);
    if (!bind(step)) {
      return refuse(fault, Fault::Kind::kIllegalOpcode, pc, to_text(*decoded, isa_));
    }
    if (!registers_exist(step))
      return refuse(fault, Fault::Kind::kRegisterOutOfRange, pc, to_text(*decoded, isa_));
    return &step;
  }

  const Step* refuse(Fault& fault, Fault::Kind kind, uint64_t pc, std::string detail) {
    fault.kind = kind;
    fault.access = Access::kExecute;
    fault.address = pc;
    fault.detail = std::move(detail);
    return nullptr;
  }

  static uint32_t row_index(const OpcodeRow* row) {
    return static_cast<uint32_t>(row - opcode_rows().data());
  }

  bool bind(Step& step) {
    step.count = row_index(step.row);
    if (step.row_y) {
      step.count_y = row_index(step.row_y);
      step.x = half(step, *step.row, step.dst, step.src);
      step.y = half(step, *step.row_y, step.dst_y, step.src_y);
      step.run = run_dual;
      return step.x && step.y;
    }
    const Bound bound = handler_for(*step.row);
    step.run = bound.run;
    step.detail = bound.detail;
    bind_operands(step);
    step.modifiers = modifiers_of(step);
    return step.run != nullptr;
  }
  const Step* half(const Step& whole, const OpcodeRow& row, const Slot& dst, const Slot* src) {
    Step& step = steps_.emplace_back();
    step.row = &row;
    step.dst = dst;
    std::copy_n(src, 3, step.src);
    step.literal = whole.literal;
    step.run = handler_for(row).run;
    bind_operands(step);
    return step.run ? &step : nullptr;
  }

  bool registers_exist(const Step& step) const {
    const auto exists = [&](const Slot& s) {
      if (!s.is_vgpr()) return true;
      // CDNA: tuples begin at even registers (CDNA3 ISA guide, "VGPR alignment").
      if (isa_ == Isa::kGfx9 && s.dwords > 1 && s.code % 2 != 0) return false;
      return s.code >= kAccVgpr
                 ? first_acc_ + s.code - kAccVgpr + s.dwords <= vgprs_
                 : uint32_t{s.code} - kVgpr + s.dwords <= std::min(vgprs_, first_acc_);
    };
    for (int i = 0; i < 3; ++i)
      if (!exists(step.src[i]) || !exists(step.src_y[i])) return false;
    return exists(step.dst) && exists(step.dst_y);
  }

  Isa isa_;
  Memory& memory_;
  uint64_t base_;
  uint32_t vgprs_, first_acc_;
  std::deque<Step> steps_;
  std::vector<const Step*> near_;
  std::unordered_map<uint64_t, const Step*> far_;
};

/// All of one run.
class Machine {
 public:
  Machine(const Dispatch& dispatch, Memory& memory)
      : d_(dispatch),
        memory_(memory),
        vgprs_((field(dispatch.rsrc1, 0, 6) + 1) *
               (dispatch.wave_size == 32 || dispatch.isa == Isa::kGfx9 ? 8 : 4)),
        // RSRC3.ACCUM_OFFSET
        first_acc_(dispatch.isa == Isa::kGfx9 ? (field(dispatch.rsrc3, 0, 6) + 1) * 4 : 256),
        program_(dispatch.isa, memory, dispatch.entry, vgprs_, first_acc_),
        counts_(opcode_rows().size()) {}

  tl::expected<Statistics, Fault> run() {
    if (const std::string why = problem(); !why.empty()) {
      Fault fault;
      fault.kind = Fault::Kind::kInvalidDispatch;
      fault.pc = fault.address = d_.entry;
      fault.detail = why;
      return tl::unexpected(fault);
    }
    for (uint32_t z = 0; z < d_.grid.z; ++z)
      for (uint32_t y = 0; y < d_.grid.y; ++y)
        for (uint32_t x = 0; x < d_.grid.x; ++x)
          if (!run_group({x, y, z})) return tl::unexpected(fault_);
    for (size_t i = 0; i < counts_.size(); ++i)
      if (counts_[i]) stats_.opcodes[opcode_rows()[i].name] += counts_[i];
    stats_.lds_conflicts = group_.lds_conflicts;
    return stats_;
  }

 private:
  /// What makes this launch one that hardware would not take; empty if nothing does.
  std::string problem() const {
    const uint64_t items = uint64_t{d_.group.x} * d_.group.y * d_.group.z;
    if (items == 0 || items > kMaxGroupItems || d_.group.x > kMaxGroupItems ||
        d_.group.y > kMaxGroupItems || d_.group.z > kMaxGroupItems)
      return fmt::format("work-group of {} x {} x {} items", d_.group.x, d_.group.y, d_.group.z);
    if (d_.entry % 256) return fmt::format("entry {:#x} is not aligned to 256", d_.entry);
    if (d_.wave_size != 32 && d_.wave_size != 64)
      return fmt::format("waves of {} lanes", d_.wave_size);
    if (d_.lds_bytes > 64 * 1024) return fmt::format("{} bytes of LDS", d_.lds_bytes);
    if (d_.scratch_per_lane && !d_.scratch_base) return "scratch is used but has no memory";
    if (d_.isa == Isa::kGfx9 && d_.wave_size != 64)
      return fmt::format("CDNA's waves have 64 lanes, not {}", d_.wave_size);
    if (vgprs_ > (d_.isa == Isa::kGfx9 ? 512u : 256u)) return fmt::format("{} VGPRs", vgprs_);
    if (field(d_.rsrc2, 1, 5) != d_.user_sgprs.size())
      return fmt::format("RSRC2 asks for {} user SGPRs, {} were given", field(d_.rsrc2, 1, 5),
                         d_.user_sgprs.size());
    return {};
  }

  Extent3 items_of(const Extent3& id) const {
    const auto axis = [](uint32_t at, uint32_t count, uint32_t whole, uint32_t last) {
      return at + 1 == count && last ? last : whole;
    };
    return {axis(id.x, d_.grid.x, d_.group.x, d_.last_group.x),
            axis(id.y, d_.grid.y, d_.group.y, d_.last_group.y),
            axis(id.z, d_.grid.z, d_.group.z, d_.last_group.z)};
  }

  bool run_group(Extent3 id) {
    group_.dispatch = &d_;
    group_.memory = &memory_;
    group_.id = id;
    group_.scratch = d_.scratch_base;
    group_.lds.assign(d_.lds_bytes, std::byte{0});
    group_.arrived = 0;
    const Extent3 items = items_of(id);
    const uint32_t count = items.x * items.y * items.z;
    const uint32_t waves = (count + d_.wave_size - 1) / d_.wave_size;
    group_.live_waves = waves;
    waves_.resize(waves);
    for (uint32_t i = 0; i < waves; ++i) start_wave(waves_[i], i, items, count, waves);
    ++stats_.groups;
    stats_.waves += waves;
    return turns();
  }

  void start_wave(Wave& w, uint32_t index, const Extent3& items, uint32_t count, uint32_t waves) {
    std::vector<uint32_t> registers = std::move(w.v);
    w = Wave();
    w.isa = d_.isa;
    w.lanes = d_.wave_size;
    w.group = &group_;
    w.index = index;
    w.pc = d_.entry;
    w.vgprs = vgprs_;
    w.first_acc = first_acc_;
    registers.assign(size_t{vgprs_} * w.lanes, 0);
    w.v = std::move(registers);
    // FLOAT_MODE is bits 19:12; DX10_CLAMP 21 and IEEE 23 are MODE's bits 8 and 9, which RDNA4 has
    // no more: both bits of RSRC1 mean something else there.
    w.mode = field(d_.rsrc1, 12, 8);
    if (d_.isa != Isa::kGfx12) w.mode |= field(d_.rsrc1, 21, 1) << 8 | field(d_.rsrc1, 23, 1) << 9;
    const uint32_t first = index * w.lanes, live = std::min(count - first, w.lanes);
    const uint64_t exec = live == 64 ? ~uint64_t{0} : (uint64_t{1} << live) - 1;
    w.s[kExecLo] = static_cast<uint32_t>(exec);
    w.s[kExecLo + 1] = static_cast<uint32_t>(exec >> 32);
    set_sgprs(w, waves);
    const uint32_t wanted = field(d_.rsrc2, 11, 2);
    for (uint32_t l = 0; l < live; ++l) {
      const uint32_t item = first + l, x = item % items.x, y = item / items.x % items.y,
                     z = item / (items.x * items.y);
      if (d_.isa == Isa::kGfx10) {  // a register each; from RDNA3 on 10 bits each of one
        w.reg(0)[l] = x;
        if (wanted >= 1) w.reg(1)[l] = y;
        if (wanted >= 2) w.reg(2)[l] = z;
        continue;
      }
      w.reg(0)[l] = x | (wanted >= 1 ? y << 10 : 0) | (wanted >= 2 ? z << 20 : 0);
    }
  }

  /// User SGPRs, then what RSRC2 enables; gfx12 has the work-group's place in TTMP registers.
  void set_sgprs(Wave& w, uint32_t waves) const {
    uint32_t next = 0;
    for (uint32_t value : d_.user_sgprs) w.s[next++] = value;
    if (d_.isa == Isa::kGfx12) {
      w.s[kTtmp0 + 9] = group_.id.x;
      w.s[kTtmp0 + 7] = (group_.id.y & 0xffff) | group_.id.z << 16;
      w.s[kTtmp0 + 8] = w.index << 25;
      return;
    }
    if (field(d_.rsrc2, 7, 1)) w.s[next++] = group_.id.x;
    if (field(d_.rsrc2, 8, 1)) w.s[next++] = group_.id.y;
    if (field(d_.rsrc2, 9, 1)) w.s[next++] = group_.id.z;
    if (field(d_.rsrc2, 10, 1)) w.s[next++] = (w.index == 0 ? 1u << 31 : 0) | w.index << 6 | waves;
  }

  /// Waves take turns until all have ended.
  bool turns() {
    while (group_.live_waves) {
      bool progress = false;
      for (Wave& w : waves_) {
        if (w.state == WaveState::kBarrier && group_.barrier_phase >= w.wait_phase)
          w.state = WaveState::kRunning;
        if (w.state != WaveState::kRunning) continue;
        progress = true;
        if (!run_turn(w)) return false;
      }
      if (!progress) {
        Wave& w = *std::find_if(waves_.begin(), waves_.end(),
                                [](const Wave& x) { return x.state == WaveState::kBarrier; });
        return stop(w, Fault::Kind::kBarrierDeadlock);
      }
    }
    return true;
  }

  bool run_turn(Wave& w) {
    w.yield = false;
    for (uint64_t i = 0; i < kTurn && w.state == WaveState::kRunning && !w.yield; ++i)
      if (!step(w)) return false;
    if (w.state == WaveState::kEnded) {
      // Waves that ended no longer count at barriers.
      --group_.live_waves;
      if (group_.live_waves && group_.arrived >= group_.live_waves) {
        group_.arrived = 0;
        ++group_.barrier_phase;
      }
    }
    return true;
  }

  /// `failed`: the wave whose fault ends the launch.
  void observe(const Wave* failed) const {
    std::vector<WaveView> views;
    for (const Wave& w : waves_)
      if (w.state != WaveState::kEnded)
        views.push_back({w.pc, w.exec(), w.state == WaveState::kBarrier, &w == failed});
    d_.observe(views);
  }

  bool step(Wave& w) {
    if (d_.max_instructions && stats_.instructions >= d_.max_instructions)
      return stop(w, Fault::Kind::kInstructionLimit);
    if (d_.cancel && stats_.instructions % kCancelEvery == 0 && *d_.cancel)
      return stop(w, Fault::Kind::kCancelled);
    if (d_.observe && stats_.instructions % kObserveEvery == 0) observe(nullptr);
    Fault fetch;
    const Step* in = program_.at(w.pc, fetch);
    if (!in) {
      w.fault = std::move(fetch);
      return stop(w, w.fault.kind, w.fault.detail);
    }
    ++stats_.instructions;
    ++w.steps;
    ++counts_[in->count];
    if (in->row_y) ++counts_[in->count_y];
    if (const auto why = w.waits.problem(*in, in->traffic))
      return stop(w, Fault::Kind::kNotWaited, fmt::format("{}: {}", to_text(*in, d_.isa), *why));
    w.waits.issue(*in, in->traffic);
    if (d_.isa == Isa::kGfx9) {
      if (const auto why = w.hazards.problem(*in, in->matrix_states))
        return stop(w, Fault::Kind::kNotWaited, fmt::format("{}: {}", to_text(*in, d_.isa), *why));
      w.hazards.issue(*in, in->matrix_states);
    }
    w.next_pc = w.pc + in->bytes;
    w.write_mask = ~uint64_t{0};
    execute(w, *in);
    if (w.failed) {
      std::string text = to_text(*in, d_.isa);
      if (const uint32_t left = unhonored(w, *in))
        text += " (" + modifier_names(left) + " is not modelled for it)";
      return stop(w, w.fault.kind, std::move(text));
    }
    w.pc = w.next_pc;
    if (w.flush_icache) {
      w.flush_icache = false;
      program_.forget();
    }
    return true;
  }

  /// MODE.FP_ROUND 0: nearest, 1: up, 2: down, 3: toward zero; 1:0 for 32 bits, 3:2 for 16 and 64.
  static void execute(Wave& w, const Step& in) {
    const uint32_t rounding = w.mode & 15;
    if (rounding == 0 || in.format() < Format::kVop1 || in.format() >= Format::kDs) {
      run_step(w, in);
      return;
    }
    constexpr int kModes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    const bool is_wide = in.row->name.ends_with("f64");
    std::fesetround(kModes[is_wide ? rounding >> 2 : rounding & 3]);
    run_step(w, in);
    std::fesetround(FE_TONEAREST);
  }

  bool stop(const Wave& w, Fault::Kind kind, std::string detail = {}) {
    fault_ = w.fault;
    fault_.kind = kind;
    fault_.pc = w.pc;
    fault_.group = group_.id;
    fault_.wave = w.index;
    fault_.detail = std::move(detail);
    if (d_.observe && kind != Fault::Kind::kCancelled) observe(&w);
    return false;
  }

  const Dispatch& d_;
  Memory& memory_;
  uint32_t vgprs_, first_acc_;
  Program program_;
  Group group_;
  std::vector<Wave> waves_;
  std::vector<uint64_t> counts_;
  Statistics stats_;
  Fault fault_;
};

constexpr std::string_view kFaultNames[] = {
    "invalid dispatch",    "illegal opcode",       "register out of range",
    "unmapped address",    "no permission",        "misaligned address",
    "LDS out of range",    "scratch out of range", "trap",
    "waves wait for ever", "instruction limit",    "cancelled",
    "not waited for"};
constexpr std::string_view kAccessNames[] = {"read", "write", "atomic", "execute"};

}  // namespace

std::string_view fault_name(Fault::Kind kind) { return kFaultNames[static_cast<size_t>(kind)]; }

std::string Fault::text() const {
  return fmt::format("{}: {} of {:#x} at pc {:#x}, work-group {},{},{} wave {} lane {}: {}",
                     fault_name(kind), kAccessNames[static_cast<size_t>(access)], address, pc,
                     group.x, group.y, group.z, wave, lane, detail);
}

tl::expected<Statistics, Fault> run(const Dispatch& dispatch, Memory& memory) {
  return Machine(dispatch, memory).run();
}

}  // namespace bm::sim::amd
