// Decode attention: which kernels, and how keys and values are partitioned over lanes.
#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "compiler/analysis/affine.h"
#include "compiler/schedules/attention/attention_plan.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Chunks of a lane, of a key and of a value; lanes of a team.
constexpr int64_t kMostChunks = 4, kMostTeam = 32;
/// Queries that a group has at once, and elements of queries and results in a work-item's
/// registers.
constexpr int64_t kMostRows = 8, kMostElements = 128;
/// Groups for the queries of one set of keys: more would read it too often.
constexpr int64_t kMostRowBlocks = 8;
constexpr uint32_t kDecodeBlock = 128;
/// Words of keys and values on their way to a work-item.
constexpr uint32_t kWordsAhead = 32;
constexpr int64_t kMostUnroll = 8;
constexpr double kLeastDecodeScale = 0x1p-60;  // of Builder::exp2_of_distance

/// A load of floats or of int8 codes, perhaps widened, perhaps of an index that is looked up and 0
/// where it is not there.
const Node* line_load(const Node* n) {
  if (n->op == Op::kCast && n->dtype == DType::kF32) n = n->src[0];
  if (n->op == Op::kSelect && n->src[2]->is_const() && n->src[2]->imm == 0 &&
      n->src[1]->op == Op::kLoad)
    n = n->src[1];
  const bool is_known = n->dtype == DType::kF32 || n->dtype == DType::kI8 || is_half_like(n->dtype);
  return n->op == Op::kLoad && is_known ? n : nullptr;
}

/// Whether `n` is the same for as many iterations of `along`, from any multiple of them on.
bool is_same_within(const Node* n, const Node* along, int64_t items) {
  if (!ir::depends_on(n, along)) return true;
  if (n == along || n->op == Op::kReduce) return false;
  if (n->op == Op::kDiv && n->src[1]->is_const() && n->src[1]->imm > 0 &&
      n->src[1]->imm % items == 0) {
    const ir::Linear inside = ir::linear(n->src[0]);
    if (inside.constant % items == 0 &&
        std::ranges::all_of(inside.terms, [&](const ir::Linear::Term& t) {
          return t.atom == along ? t.coefficient == 1
                                 : t.coefficient % items == 0 && !ir::depends_on(t.atom, along);
        }))
      return true;
  }
  return std::ranges::all_of(n->src,
                             [&](const Node* s) { return is_same_within(s, along, items); });
}

/// Whether chunks along `along` are adjacent in memory and aligned.
bool has_lines(const Node* load, const Node* along) {
  if (!load || !along->src[0]->is_const()) return false;
  const auto items = DecodeAttentionPlan::chunk_items(load);
  return along->src[0]->imm % items == 0 &&
         is_row(ir::linear(load->src[0]), along, static_cast<uint32_t>(items)) &&
         (load->src.size() == 1 || !ir::depends_on(load->src[1], along));
}

int64_t chunks_of(const Node* load, const Node* along) {
  return along->src[0]->imm / DecodeAttentionPlan::chunk_items(load);
}

uint32_t words_of(const Node* load) {
  return static_cast<uint32_t>(DecodeAttentionPlan::chunk_items(load) * item_size(load->dtype) / 4);
}

class DecodePlanner {
 public:
  DecodePlanner(AttentionParts parts, const TargetInfo& target, const Knobs* knobs)
      : target_(target), knobs_(knobs) {
    p_.parts = std::move(parts);
  }

  std::optional<Schedule> run() {
    const AttentionParts& a = p_.parts;
    if (a.pv->dtype != DType::kF32 || a.weight != DType::kF32 || !a.causal_bound || !a.row_max)
      return std::nullopt;
    const AttentionLine keys = find_attention_line(a.keys, a.head_dim, DecodeAttentionPlan::kCodes),
                        values =
                            find_attention_line(a.values, a.column, DecodeAttentionPlan::kCodes);
    p_.keys = keys.load;
    p_.values = values.load;
    p_.key_scale = keys.scale;
    p_.value_scale = values.scale;
    if (!has_lines(p_.keys, a.head_dim) || !has_lines(p_.values, a.column)) return std::nullopt;
    p_.scale = a.scale ? a.scale->fimm() : 1;
    if (p_.scale < kLeastDecodeScale || p_.scale > 1 / kLeastDecodeScale) return std::nullopt;
    if (a.row && (!a.row->src[0]->is_const() || ir::depends_on(a.causal_bound, a.row)))
      return std::nullopt;
    p_.sub_group = target_.sub_group;
    p_.block = static_cast<uint32_t>(knob("block").value_or(kDecodeBlock));
    if (!std::has_single_bit(p_.block) || p_.block < p_.sub_group) p_.block = kDecodeBlock;
    if (target_.max_block < p_.block || p_.sub_group < kMostTeam) return std::nullopt;
    if (!partition_chunks() || !choose_rows()) return std::nullopt;
    choose_unroll();
    return finish();
  }

 private:
  std::optional<int64_t> knob(std::string_view name) const {
    return knobs_ ? knobs_->get(name) : std::nullopt;
  }

  bool partition_chunks() {
    const AttentionParts& a = p_.parts;
    const int64_t keys = chunks_of(p_.keys, a.head_dim), values = chunks_of(p_.values, a.column);
    const auto most = static_cast<uint64_t>(std::max(keys, values));
    p_.team = static_cast<uint32_t>(std::min<uint64_t>(std::bit_ceil(most), kMostTeam));
    const auto up = [&](int64_t n) { return static_cast<uint32_t>((n + p_.team - 1) / p_.team); };
    p_.key_chunks = up(keys);
    p_.value_chunks = up(values);
    return std::max(p_.key_chunks, p_.value_chunks) <= kMostChunks;
  }

  int64_t elements() const {
    return p_.rows * (p_.key_chunks * DecodeAttentionPlan::chunk_items(p_.keys) +
                      p_.value_chunks * DecodeAttentionPlan::chunk_items(p_.values));
  }

  /// As many queries as fit, in blocks without a rest.
  bool choose_rows() {
    const int64_t all = p_.parts.row ? p_.parts.row->src[0]->imm : 1;
    const int64_t most = std::clamp<int64_t>(knob("tile_m").value_or(kMostRows), 1, kMostRows);
    for (p_.rows = std::min(all, most); p_.rows > 1; --p_.rows)
      if (all % p_.rows == 0 && elements() <= kMostElements &&
          p_.shared_bytes() <= target_.shared_memory_bytes)
        break;
    return all / p_.rows <= kMostRowBlocks && p_.shared_bytes() <= target_.shared_memory_bytes;
  }

  void choose_unroll() {
    const uint32_t words =
        words_of(p_.keys) * p_.key_chunks + words_of(p_.values) * p_.value_chunks;
    p_.unroll = std::clamp(kWordsAhead / words, 1u, 4u);
    if (const auto asked = knob("unroll"))
      p_.unroll = static_cast<uint32_t>(std::clamp<int64_t>(*asked, 1, kMostUnroll));
  }

  std::optional<Schedule> finish() {
    int64_t groups = p_.parts.row ? p_.parts.row->src[0]->imm / p_.rows : 1;
    for (const Node* r : p_.parts.batch) {
      if (!r->src[0]->is_const()) return std::nullopt;
      groups *= r->src[0]->imm;
    }
    if (groups < 1 || groups > target_.max_groups[0]) return std::nullopt;
    Schedule s;
    s.grid[0].constant = groups;
    s.grid[1].constant = s.grid[2].constant = 1;
    s.block = p_.block;
    s.work_per_block = static_cast<uint64_t>(
        p_.rows * std::max<int64_t>(p_.parts.key->src[0]->hi, 1) * (p_.head_dim() + p_.columns()));
    GroupAttentionPlan plan;
    plan.decode = std::make_shared<const DecodeAttentionPlan>(std::move(p_));
    s.plan = std::make_shared<const GroupAttentionPlan>(std::move(plan));
    return s;
  }

  DecodeAttentionPlan p_;
  const TargetInfo& target_;
  const Knobs* knobs_;
};

}  // namespace

AttentionLine find_attention_line(const Node* n, const Node* along, int64_t codes) {
  if (n->op != Op::kMul) {
    const Node* load = line_load(n);
    return {load && load->dtype != DType::kI8 ? load : nullptr};
  }
  for (const size_t side : {0u, 1u}) {
    const Node *load = line_load(n->src[side]), *scale = n->src[1 - side];
    if (load && load->dtype == DType::kI8 && is_same_within(scale, along, codes))
      return {load, scale};
  }
  return {};
}

std::optional<Schedule> make_decode_attention_schedule(const ir::KernelIr& kernel,
                                                       const TargetInfo& target, uint32_t /*units*/,
                                                       ScheduleLimits limits) {
  // Of a result and its log-sum-exp.
  if (!target.has_segments || kernel.stores.size() != 2) return std::nullopt;
  auto parts = find_attention_parts(kernel, true);
  return parts ? DecodePlanner(std::move(*parts), target, limits.knobs).run() : std::nullopt;
}

std::vector<Knobs> decode_attention_candidates(const ir::KernelIr& /*kernel*/,
                                               const TargetInfo& target, const Schedule& schedule,
                                               const Knobs& from) {
  const DecodeAttentionPlan& p = *schedule.group_attention()->decode;
  std::vector<Knobs> out;
  const auto add = [&](const char* name, int64_t value, int64_t now) {
    if (value == now) return;
    Knobs next = from;
    next.values[name] = value;
    if (next != from) out.push_back(std::move(next));
  };
  for (const uint32_t block : {64u, 128u, 256u})
    if (block >= target.sub_group && block <= target.max_block) add("block", block, p.block);
  for (const int64_t unroll : {1, 2, 4, 8}) add("unroll", unroll, p.unroll);
  for (const int64_t rows : {p.rows / 2, p.rows * 2})
    if (rows >= 1 && rows <= kMostRows) add("tile_m", rows, p.rows);
  return out;
}

std::string describe_decode_attention(const Schedule& schedule) {
  const DecodeAttentionPlan& p = *schedule.group_attention()->decode;
  return fmt::format(
      "decode attention over a part of the keys: {} queries a group, {} teams of {} lanes with a "
      "key each, {} keys in flight; {} + {} chunks a lane{}; joined in shared memory\n",
      p.rows, p.teams(), p.team, p.unroll, p.key_chunks, p.value_chunks,
      p.key_scale || p.value_scale ? ", of 8 int8 codes" : ", of 16 bytes");
}

}  // namespace bm::compiler
