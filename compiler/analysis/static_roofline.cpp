#include "compiler/analysis/static_roofline.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "compiler/program/program.h"
#include "compiler/schedules/schedule.h"
#include "compiler/targets/card.h"
#include "compiler/targets/target.h"

namespace bm::compiler {
namespace {

/// Slots of what is no single instruction. Source: machine code of ptxas 13.0 and LLVM 19, rounded.
constexpr double kIntegerDivision = 20, kFloatDivision = 9, kRoot = 9, kFloat64 = 2, kLoop = 3;

class Counter {
 public:
  Counter(const Program& program, const TargetInfo& target, std::span<const int64_t> vars)
      : p_(program), target_(target), vars_(vars), known_(program.values.size()) {}

  ProgramCount run() {
    block(p_.root, 1);
    return out_;
  }

 private:
  /// Value of an integer or bool, where the variables decide it.
  std::optional<int64_t> value(ValueId id) {
    if (id == kNone) return std::nullopt;
    if (known_[id]) return known_[id];
    const Value& v = p_.at(id);
    std::optional<int64_t> out;
    switch (v.op) {
      case ValueOp::kConst:
        if (!is_float(v.type.dtype)) out = v.imm;
        break;
      case ValueOp::kVar: out = variable(static_cast<size_t>(v.imm)); break;
      case ValueOp::kItem: out = 0; break;
      case ValueOp::kIsAligned: out = 1; break;
      case ValueOp::kConvert:
      case ValueOp::kSplat: out = value(v.args[0]); break;
      case ValueOp::kAlu: out = computed(v); break;
      default: break;
    }
    return out;
  }

  int64_t variable(size_t number) const {
    if (number < vars_.size()) return vars_[number];
    const auto& [least, most] = p_.var_ranges[number];
    return least + (most - least) / 2;
  }

  std::optional<int64_t> computed(const Value& v) {
    std::vector<int64_t> a;
    for (const ValueId arg : v.args) {
      const auto known = value(arg);
      if (!known) return std::nullopt;
      a.push_back(*known);
    }
    const bool is_divisor = a.size() == 2 && a[1] != 0;
    const bool is_shift = a.size() == 2 && a[0] >= 0 && a[1] >= 0 && a[1] < 32;
    switch (v.alu) {
      case Op::kAdd: return a[0] + a[1];
      case Op::kSub: return a[0] - a[1];
      case Op::kMul: return a[0] * a[1];
      case Op::kDiv: return is_divisor ? std::optional(a[0] / a[1]) : std::nullopt;
      case Op::kMod: return is_divisor ? std::optional(a[0] % a[1]) : std::nullopt;
      case Op::kMax: return std::max(a[0], a[1]);
      case Op::kMin: return std::min(a[0], a[1]);
      case Op::kLt: return a[0] < a[1] ? 1 : 0;
      case Op::kEq: return a[0] == a[1] ? 1 : 0;
      case Op::kNe: return a[0] != a[1] ? 1 : 0;
      case Op::kAnd: return a[0] & a[1];
      case Op::kOr: return a[0] | a[1];
      case Op::kXor: return a[0] ^ a[1];
      case Op::kShl: return is_shift ? std::optional(a[0] << a[1]) : std::nullopt;
      case Op::kShr: return is_shift ? std::optional(a[0] >> a[1]) : std::nullopt;
      case Op::kNot:
        return v.type.dtype == DType::kBool ? std::optional<int64_t>(!a[0]) : std::optional(~a[0]);
      case Op::kSelect: return a[0] ? a[1] : a[2];
      default: return std::nullopt;
    }
  }

  double slots_of(const Value& v) const {
    const double bytes =
        static_cast<double>(item_size(v.type.dtype)) * static_cast<double>(v.type.lanes);
    switch (v.op) {
      case ValueOp::kLoad: return std::max(1.0, bytes / 16);
      case ValueOp::kWords: return std::max(1.0, bytes / 16);
      case ValueOp::kUnalignedWords: return 2 * std::max(1.0, bytes / 4);
      case ValueOp::kTable:
      case ValueOp::kLocalLoad: return std::max(1.0, bytes / 16);
      case ValueOp::kFragment:
      case ValueOp::kShuffle:
      case ValueOp::kPackHalf2:
      case ValueOp::kExp2:
      case ValueOp::kRoundTf32:
      case ValueOp::kLdexp: return 1;
      case ValueOp::kDequantise2: return 3;
      case ValueOp::kDot: return static_cast<double>(v.type.lanes);
      case ValueOp::kConvert: return 0.5 * static_cast<double>(v.type.lanes);
      case ValueOp::kAlu: return slots_of_alu(v) * static_cast<double>(v.type.lanes);
      default: return 0;  // constants, indices, what names registers
    }
  }

  double slots_of_alu(const Value& v) const {
    const DType type = v.args.empty() ? v.type.dtype : p_.type(v.args[0]).dtype;
    const double wide = type == DType::kF64 || type == DType::kI64 ? kFloat64 : 1;
    switch (v.alu) {
      case Op::kDiv:
      case Op::kMod: {
        if (is_float(type)) return kFloatDivision * wide;
        const Value& divisor = p_.at(v.args[1]);
        const bool is_power = divisor.op == ValueOp::kConst && divisor.imm > 0 &&
                              (divisor.imm & (divisor.imm - 1)) == 0;
        return is_power ? 1 : divisor.op == ValueOp::kConst ? 4 : kIntegerDivision * wide;
      }
      case Op::kSqrt: return kRoot * wide;
      case Op::kBitcast: return 0;
      default: return wide;
    }
  }

  double iterations(const Stmt& s) {
    if (s.loop == LoopKind::kGroup || s.loop == LoopKind::kGrid) return 1;
    const auto begin = value(s.begin), end = value(s.end);
    if (s.loop == LoopKind::kItem) {
      if (!end || !begin) return static_cast<double>(std::max<int64_t>(s.trip_count, 1));
      const double count = static_cast<double>(*end - *begin) / std::max(p_.block, 1u);
      return s.trip_count > 0 ? std::min(std::ceil(count), static_cast<double>(s.trip_count))
                              : std::ceil(count);
    }
    if (!begin || !end) return 1;
    return std::ceil(static_cast<double>(*end - *begin) / static_cast<double>(s.step));
  }

  void block(BlockId id, double times) {
    ValueId before = kNone;  // a multiply-add that may share its instruction with the next one
    for (const Stmt& s : p_.blocks[id].stmts) {
      const bool is_fma =
          target_.has_dual_fma && s.kind == StmtKind::kLet && is_float32_fma(s.value);
      if (is_fma && before != kNone && is_independent(s.value, before)) {
        before = kNone;
        continue;
      }
      before = is_fma ? s.value : kNone;
      statement(s, times);
    }
  }

  bool is_float32_fma(ValueId id) const {
    const Value& v = p_.at(id);
    return v.op == ValueOp::kAlu && v.alu == Op::kFma && v.type == Type{DType::kF32, 1};
  }
  bool is_independent(ValueId id, ValueId before) const {
    return std::ranges::find(p_.at(id).args, before) == p_.at(id).args.end();
  }

  void statement(const Stmt& s, double times) {
    const auto slots = [&](double count) { out_.sub_group_slots += count * times; };
    switch (s.kind) {
      case StmtKind::kLet: {
        const Value& v = p_.at(s.value);
        known_[s.value] = value(s.value);
        if (v.op == ValueOp::kDot) out_.has_int8_dots = true;
        return slots(slots_of(v));
      }
      case StmtKind::kLoop: {
        const double count = std::max(iterations(s), 0.0);
        const auto begin = value(s.begin), end = value(s.end);
        if (s.value != kNone && begin)
          known_[s.value] = end && *end > *begin ? *begin + (*end - *begin) / 2 : *begin;
        if (s.loop == LoopKind::kGroup && s.value != kNone && end) known_[s.value] = *end / 2;
        if (count > 0) block(s.body, times * count);
        return s.loop == LoopKind::kGroup ? slots(1) : slots(kLoop * count);
      }
      case StmtKind::kIf: {
        const auto condition = value(s.value);
        slots(1);
        if (!condition || *condition != 0) block(s.body, times);
        return;
      }
      case StmtKind::kStore:
      case StmtKind::kLocalStore: return slots(1);
      case StmtKind::kCopy:
        if (s.copy == CopyKind::kRoundTf32) return slots(2.0 + static_cast<double>(s.step) / 4);
        return slots(s.copy == CopyKind::kAsync ? 1 : 2);
      case StmtKind::kMma:
      case StmtKind::kWarpgroupMma: return mma(s, times);
      case StmtKind::kTensor: return tensor(s, times);
      case StmtKind::kBarrier:
      case StmtKind::kPipe:
      case StmtKind::kPrefetch: return slots(1);
      case StmtKind::kAssign:
      case StmtKind::kFault: return;
    }
  }

  /// Slots of one sub-group; products are all that the group's have, so a share of them each.
  void tensor(const Stmt& s, double times) {
    const double sub_groups = std::max(1.0, static_cast<double>(p_.block) / target_.sub_group);
    const auto slots = [&](double all, double first) {
      out_.sub_group_slots += (all + first / sub_groups) * times;
    };
    switch (s.tensor) {
      case TensorOp::kAllocate: return slots(6, 6);
      case TensorOp::kMma: {
        constexpr double kBytesOfK = 128, kSteps = 4;
        const double k = kBytesOfK / static_cast<double>(item_size(s.matrix));
        out_.mma_ops += 2.0 * TensorMemory::kLanes * s.accumulators * k * times / sub_groups;
        out_.is_mma_tf32 = s.matrix == DType::kF32;
        return slots(2, 8 + 3 * kSteps);
      }
      case TensorOp::kWait: return slots(2, 0);
      case TensorOp::kLoad: return slots(3.0 + static_cast<double>(s.step), 0);
      case TensorOp::kFree: return slots(4, 2);
    }
  }

  void mma(const Stmt& s, double times) {
    const bool is_group = s.kind == StmtKind::kWarpgroupMma;
    const auto is_it = [&](const MatrixInfo& info) {
      return info.in == s.matrix && (info.sub_groups > 1) == is_group &&
             (is_group || info.accumulators == s.accumulators);
    };
    const MatrixInfo* info = nullptr;
    for (const auto* rows : {&target_.matrix, &target_.quantised})
      for (const MatrixInfo& row : *rows)
        if (info == nullptr && is_it(row)) info = &row;
    if (info == nullptr) return;
    const double m = info->slot * info->a_slots;
    const auto words =
        is_group ? info->k_words
                 : static_cast<uint32_t>(s.operands.size()) / (info->a_slots + 1) * info->parts;
    const double k = words * 4.0 / static_cast<double>(item_size(info->in));
    const double n = is_group ? s.accumulators * 32.0 / m : info->slot;
    out_.mma_ops += 2 * m * n * k * times;
    out_.is_mma_int8 = item_size(info->in) == 1;
    out_.is_mma_tf32 = info->in == DType::kF32;
    out_.sub_group_slots += times;
  }

  const Program& p_;
  const TargetInfo& target_;
  const std::span<const int64_t> vars_;
  std::vector<std::optional<int64_t>> known_;
  ProgramCount out_;
};

uint32_t round_up(uint32_t value, uint32_t step) { return (value + step - 1) / step * step; }

}  // namespace

ProgramCount count_program(const Program& program, const Schedule& schedule,
                           const TargetInfo& target, std::span<const int64_t> vars) {
  ProgramCount out = Counter(program, target, vars).run();
  std::vector<int64_t> values(vars.begin(), vars.end());
  for (size_t i = values.size(); i < program.var_ranges.size(); ++i)
    values.push_back(program.var_ranges[i].first +
                     (program.var_ranges[i].second - program.var_ranges[i].first) / 2);
  out.groups = 1;
  for (const hal::DimExpr& dim : schedule.grid)
    out.groups *= static_cast<double>(dim.evaluate(values));
  out.sub_groups = (std::max(program.block, 1u) + target.sub_group - 1) / target.sub_group;
  return out;
}

Occupancy occupancy(const TargetInfo& target, const CardInfo& card, uint32_t block,
                    uint32_t registers, uint64_t shared_bytes) {
  Occupancy out;
  const uint32_t waves = (std::max(block, 1u) + target.sub_group - 1) / target.sub_group;
  out.max_waves = card.simds * card.waves_per_simd;
  const uint32_t each = round_up(std::max(registers, 1u), card.register_granule);
  const uint32_t of_simd = std::min(card.waves_per_simd, card.simd_registers / each);
  out.groups = std::min(card.simds * of_simd / waves, target.pipe.cu_groups);
  const uint64_t memory =
      target.pipe.cu_memory_bytes ? target.pipe.cu_memory_bytes : target.shared_memory_bytes;
  const uint64_t share = shared_bytes + target.pipe.reserved_bytes;
  if (share > 0) out.groups = static_cast<uint32_t>(std::min<uint64_t>(out.groups, memory / share));
  out.waves = out.groups * waves;
  return out;
}

StaticRoof static_roof(const ProgramCount& count, const CardInfo& card, uint32_t units,
                       double flops, double bytes) {
  StaticRoof out;
  // The busiest unit; groups are handed out one at a time.
  const double waves = std::ceil(count.groups / units) * count.sub_groups;
  // tf32 is half of float16 wherever there is both. Source: NVIDIA's data sheets of A100, H100 and
  // B200, architecture white papers of GA102, AD102 and GB202.
  const double rate = count.is_mma_int8   ? card.mma_i8
                      : count.is_mma_tf32 ? card.mma_f16 / 2
                                          : card.mma_f16;
  const double issue = waves * count.sub_group_slots / card.issue / card.clock_hz;
  const double matrix = rate > 0 ? waves * count.mma_ops / rate / card.clock_hz : 0;
  const double memory = bytes / card.bytes_per_second;
  out.seconds = std::max({issue, matrix, memory});
  out.bound_by = out.seconds == memory ? "memory" : out.seconds == matrix ? "matrix" : "issue";
  const double best = count.mma_ops > 0 ? rate : count.has_int8_dots ? card.mma_i8 : card.f32;
  const double ideal = std::max(memory, flops / (units * card.clock_hz * std::max(best, card.f32)));
  out.of_roof = out.seconds > 0 ? std::min(1.0, ideal / out.seconds) : 0;
  return out;
}

}  // namespace bm::compiler
