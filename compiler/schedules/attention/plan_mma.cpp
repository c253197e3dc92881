// FlashAttention with MMA: which kernels, and with which tiles and causal load balancing.
// Attention by groups of work-items and matrix instructions: where it is taken, and with how many
// sub-groups.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "compiler/schedules/attention/attention_plan.h"
#include "compiler/schedules/gemm_gpu/contraction.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;

/// Elements of a query, key or value: results of more would not stay in registers.
constexpr int64_t kMostWidth = 256;
/// Of these one instruction takes so many, as two of 16 bytes.
constexpr int64_t kStep = 16, kChunk = 8;
/// Fewer queries would leave most of a sub-group's rows empty.
constexpr int64_t kLeastQueries = GroupAttentionPlan::kRows;
/// Sub-groups of a group, and with enough groups: keys and values are then read half as often.
constexpr uint32_t kSubGroups = 4, kManySubGroups = 8;
constexpr int64_t kKeyBlock = 64;
/// Elements of a query, key or value of which gfx11 keeps a second tile in registers.
constexpr int64_t kMostAhead = 64;
/// Of groups of unequal length, the longest first, in so many the shortest fill what is left.
constexpr double kManyRounds = 3;
/// Groups are worth it if they occupy one in so many compute units, or soon done.
constexpr double kLeastShare = 8;
constexpr int64_t kMostLonelyKeys = 1024;
constexpr double kLeastScale = 0x1p-60;  // of Builder::exp2_of_distance
/// Of row max, row sum, logits and P·V.
constexpr int kReductions = 4;

/// mma.sync, or instructions of 16 by 16 results along columns.
bool is_for_groups(const MatrixInfo& info, DType in) {
  if (info.in != in || !is_half_like(in) || info.sum != DType::kF32 || info.sub_groups != 1)
    return false;
  if (info.row_step != 0) return info.slot == 16 && info.a_slots == 1 && !info.is_part_low;
  return info.a_slots == 2 && info.parts == 4 && info.is_part_low && info.accumulators == 4;
}

/// Shared memory that a group may have: fragments of mma.sync come from where operands are staged.
int64_t shared_bytes(const TargetInfo& target, bool is_transposed) {
  return is_transposed ? target.shared_memory_bytes : target.pipe.group_memory_bytes;
}

/// Sub-groups of an instruction that reads its right operand in shared memory; 0: there is none.
uint32_t warpgroup_for(const TargetInfo& target, DType in) {
  for (const MatrixInfo& info : target.matrix)
    if (info.in == in && info.sum == DType::kF32 && info.sub_groups > 1) return info.sub_groups;
  return 0;
}

const MatrixInfo* info_for(const TargetInfo& target, DType in) {
  for (const MatrixInfo& info : target.matrix)
    if (is_for_groups(info, in)) return &info;
  return nullptr;
}

class GroupAttentionScheduler {
 public:
  GroupAttentionScheduler(AttentionParts parts, const TargetInfo& target, uint32_t units,
                          ScheduleLimits limits)
      : target_(target), units_(std::max(units, 1u)), limits_(limits) {
    p_.parts = std::move(parts);
  }

  std::optional<Schedule> run() {
    if (!find_factors() || parts().row->src[0]->hi < kLeastQueries) return std::nullopt;
    p_.sub_group = target_.sub_group;
    p_.scale = parts().scale ? parts().scale->fimm() : 1;
    take_scale();
    if (p_.scale < kLeastScale || p_.scale > 1 / kLeastScale) return std::nullopt;
    p_.has_loads = has_loads(parts().logit) || has_loads(parts().unmasked_logit);
    choose_blocks();
    choose_sub_groups();
    if (!has_room() || !has_lines() || has_few_groups()) return std::nullopt;
    return finish();
  }

 private:
  AttentionParts& parts() { return p_.parts; }

  /// Lines of 16 bytes of loads as they are.
  const Node* factor(const Node* n, const Node* along) {
    const int64_t extent = along->src[0]->is_const() ? along->src[0]->imm : 0;
    const Node* load = matrix_factor(n, DType::kF32);
    const bool has_lines = load && extent > 0 && extent <= kMostWidth && extent % kStep == 0 &&
                           is_half_like(load->dtype) &&
                           is_row(ir::linear(load->src[0]), along, kChunk);
    return has_lines ? load : nullptr;
  }

  /// Codes by their scales, rounded to float16: a load of int8 and the scale as float16.
  static AttentionLine codes(const Node* n, const Node* along) {
    const int64_t extent = along->src[0]->is_const() ? along->src[0]->imm : 0;
    const bool is_rounded = n->op == Op::kCast && n->dtype == DType::kF32 &&
                            n->src[0]->op == Op::kCast && n->src[0]->dtype == DType::kF16;
    if (!is_rounded || extent <= 0 || extent > kMostWidth || extent % kStep != 0) return {};
    AttentionLine line = find_attention_line(n->src[0]->src[0], along, GroupAttentionPlan::kCodes);
    const Node* scale = line.scale;
    // Then the product of the two is exact before it is rounded.
    if (!line.load || !scale || scale->op != Op::kCast || scale->src[0]->dtype != DType::kF16 ||
        !is_row(ir::linear(line.load->src[0]), along, GroupAttentionPlan::kCodes) ||
        (line.load->src.size() > 1 && ir::depends_on(line.load->src[1], along)))
      return {};
    line.scale = scale->src[0];
    return line;
  }

  /// A key or value.
  AttentionLine line(const Node* n, const Node* along) {
    if (const Node* load = factor(n, along)) return {load};
    return codes(n, along);
  }

  bool find_factors() {
    if (parts().pv->dtype != DType::kF32) return false;
    const AttentionLine keys = line(parts().keys, parts().head_dim),
                        values = line(parts().values, parts().column);
    p_.query = factor(parts().query, parts().head_dim);
    p_.keys = keys.load;
    p_.key_scale = keys.scale;
    p_.values = values.load;
    p_.value_scale = values.scale;
    const bool is_one_kind = (keys.scale != nullptr) == (values.scale != nullptr);
    if (!p_.query || !p_.keys || !p_.values || !is_one_kind) return false;
    const DType key_type = GroupAttentionPlan::staged_type(p_.keys),
                value_type = GroupAttentionPlan::staged_type(p_.values);
    if (p_.query->dtype != key_type) return false;
    // Numerators are rounded on their way into the second product: only where the formula says so.
    if (parts().weight != value_type) return false;
    const MatrixInfo* logit = info_for(target_, key_type);
    const MatrixInfo* value = info_for(target_, value_type);
    if (!logit || !value) return false;
    // Instructions take whole chunks of every part of K.
    const int64_t width = parts().head_dim->src[0]->imm;
    if (logit->row_step != 0 && width % (kChunk * logit->parts) != 0) return false;
    p_.logit_info = *logit;
    p_.value_info = *value;
    // The left operands stay in registers.
    p_.has_warpgroups = p_.keeps_queries() && warpgroup_for(target_, logit->in) == kSubGroups &&
                        warpgroup_for(target_, value->in) == kSubGroups;
    return true;
  }

  /// The factor of the products, where logits are these or -inf.
  const Node* scaled_product(const Node* n) const {
    if (n->op == Op::kSelect) {
      const auto is_masked = [](const Node* s) {
        return s->is_const() && is_float(s->dtype) && s->fimm() == -HUGE_VAL;
      };
      if (is_masked(n->src[1])) return scaled_product(n->src[2]);
      return is_masked(n->src[2]) ? scaled_product(n->src[1]) : nullptr;
    }
    if (n->op != Op::kMul) return nullptr;
    const bool is_first = n->src[0] == p_.parts.product;
    const Node* other = n->src[is_first ? 1 : 0];
    const bool is_scaled = n->src[is_first ? 0 : 1] == p_.parts.product && other->is_const() &&
                           std::isfinite(other->fimm()) && other->fimm() > 0;
    return is_scaled ? n : nullptr;
  }

  /// A positive factor of all logits may as well be one of their distances: one multiplication.
  void take_scale() {
    const Node* n = scaled_product(parts().logit);
    if (!n || (parts().unmasked_logit && scaled_product(parts().unmasked_logit) != n)) return;
    p_.scale *= n->src[n->src[0] == parts().product ? 1 : 0]->fimm();
    Graph& g = *parts().kernel->graph;
    const Node *from[] = {n}, *to[] = {parts().product};
    parts().logit = g.substitute(parts().logit, from, to);
    if (parts().unmasked_logit)
      parts().unmasked_logit = g.substitute(parts().unmasked_logit, from, to);
  }

  bool has_loads(const Node* root) const {
    std::vector<const Node*> stack;
    if (root) stack.push_back(root);
    std::unordered_set<const Node*> seen{p_.parts.product};
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      if (!seen.insert(n).second) continue;
      if (n->op == Op::kLoad) return true;
      stack.insert(stack.end(), n->src.begin(), n->src.end());
    }
    return false;
  }

  static double most(const Node* range) {
    return static_cast<double>(std::max<int64_t>(range->src[0]->hi, 1));
  }

  double heads() const {
    double product = 1;
    for (const Node* r : p_.parts.batch) product *= most(r);
    return product;
  }

  double groups() const {
    return heads() * std::ceil(most(p_.parts.row) / static_cast<double>(p_.rows()));
  }

  /// Sub-groups of the busiest compute unit.
  double busiest() const { return std::ceil(groups() / units_) * p_.sub_groups; }

  bool has_room() const { return p_.local_bytes() <= shared_bytes(target_, p_.is_transposed()); }

  /// Keys of a block, for four sub-groups.
  void choose_blocks() {
    if (p_.is_transposed()) {
      p_.key_block = GroupAttentionPlan::kWaveKeys;
      // Where lanes hold all of K, long queries and results leave no room for tiles on their way
      // and for the offsets of keys that may not be there.
      const bool has_room_ahead =
          p_.logit_info.parts > 1 || widest() <= kMostAhead || parts().key->src[0]->is_const();
      const bool is_short = p_.keeps_queries() && widest() <= GroupAttentionPlan::kMostKept;
      p_.stages = is_short && has_room_ahead ? 2 : 1;
      return;
    }
    p_.sub_groups = kSubGroups;
    p_.key_block = widest() <= GroupAttentionPlan::kMostKept ? kKeyBlock : kKeyBlock / 2;
    while (!has_room() && p_.key_block > kStep) p_.key_block /= 2;
  }

  int64_t widest() const {
    return std::max(p_.parts.head_dim->src[0]->imm, p_.parts.column->src[0]->imm);
  }

  /// All work-items copy lines of a block at once.
  bool has_lines() const {
    const int64_t in_line =
        p_.has_codes() ? GroupAttentionPlan::kLineBytes / 2 / GroupAttentionPlan::kCodes : kChunk;
    return p_.is_transposed() || p_.sub_groups * p_.sub_group / in_line <= p_.key_block;
  }

  void choose_sub_groups() {
    const double few = busiest();
    const bool is_uneven = parts().causal_bound != nullptr;
    p_.sub_groups = kManySubGroups;
    const bool is_whole = most(parts().row) >= static_cast<double>(p_.rows());
    const bool is_shared = is_uneven ? groups() >= kManyRounds * units_ : busiest() <= few;
    if (!is_whole || !is_shared || target_.max_block < p_.sub_groups * p_.sub_group ||
        !has_room() || !has_lines())
      p_.sub_groups = kSubGroups;
    take_asked();
    p_.is_paired = is_uneven && groups() > units_ && groups() <= 2 * units_;
  }

  /// As many sub-groups as a knob asks for, where the target has room for them.
  void take_asked() {
    const auto asked = limits_.knobs ? limits_.knobs->get("sub_groups") : std::nullopt;
    if (!asked) return;
    const uint32_t chosen = std::exchange(p_.sub_groups, static_cast<uint32_t>(*asked));
    if (!std::has_single_bit(p_.sub_groups) ||
        (p_.has_warpgroups && p_.sub_groups % kSubGroups != 0) ||
        p_.sub_groups * p_.sub_group > target_.max_block || !has_room() || !has_lines())
      p_.sub_groups = chosen;
  }

  /// Long rows of logits in few groups: other kernels share them out better.
  bool has_few_groups() const {
    return groups() * kLeastShare < units_ && p_.parts.key->src[0]->hi > kMostLonelyKeys;
  }

  std::optional<Schedule> finish() {
    const size_t row_axis = p_.is_paired ? 1 : 0, head_axis = 1 - row_axis;
    if (heads() > static_cast<double>(target_.max_groups[head_axis]) ||
        groups() / heads() > static_cast<double>(target_.max_groups[row_axis]))
      return std::nullopt;
    Schedule s;
    s.grid[0].constant = s.grid[1].constant = s.grid[2].constant = 1;
    s.grid[row_axis].divisor = p_.rows();
    bool is_linear = multiply(&s.grid[row_axis], parts().row->src[0], 1);
    for (const bool is_const : {true, false})
      for (const Node* r : parts().batch)
        if (r->src[0]->is_const() == is_const)
          is_linear = multiply(&s.grid[head_axis], r->src[0], 1) && is_linear;
    // Surplus groups would be ones of heads that do not exist.
    if (!is_linear) return std::nullopt;
    const int64_t width = parts().head_dim->src[0]->imm + parts().column->src[0]->imm;
    const double work =
        static_cast<double>(p_.rows()) * most(parts().key) * static_cast<double>(width);
    s.work_per_block = static_cast<uint64_t>(std::min(work, 1e18));
    s.block = p_.sub_group * p_.sub_groups;
    s.plan = std::make_shared<const GroupAttentionPlan>(std::move(p_));
    return s;
  }

  GroupAttentionPlan p_;
  const TargetInfo& target_;
  double units_;
  ScheduleLimits limits_;
};

/// Whether it is worth a closer look.
bool has_reductions(const ir::KernelIr& kernel) {
  if (kernel.stores.size() != 1) return false;
  const Node* root = kernel.stores[0].value;
  return std::ranges::count_if(ir::topological({&root, 1}),
                               [](const Node* n) { return n->op == Op::kReduce; }) >= kReductions;
}

/// Whether there are such instructions for some type, and room for tiles.
bool has_group_attention(const TargetInfo& target) {
  return target.has_groups && std::ranges::any_of(target.matrix, [&](const MatrixInfo& info) {
           return is_for_groups(info, info.in) && shared_bytes(target, info.row_step != 0) > 0;
         });
}

}  // namespace

std::optional<Schedule> make_group_attention_schedule(const ir::KernelIr& kernel,
                                                      const TargetInfo& target, uint32_t units,
                                                      ScheduleLimits limits) {
  if (!has_group_attention(target) || !has_reductions(kernel)) return std::nullopt;
  auto parts = find_attention_parts(kernel);
  if (!parts) return std::nullopt;
  return GroupAttentionScheduler(std::move(*parts), target, units, limits).run();
}

}  // namespace bm::compiler
