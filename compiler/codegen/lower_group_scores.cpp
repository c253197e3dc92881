// Attention by matrix instructions: what a sub-group does with a block of keys.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "compiler/codegen/lower_group_attention.h"

namespace bm::compiler {
namespace {

using Plan = GroupAttentionPlan;

constexpr int64_t kLine = Plan::kLineBytes, kPerLine = kLine / 2;
constexpr int64_t kStep = 16, kSteps = kPerLine / kStep;
/// Bytes between panels of keys or values, and between fragments of 16 rows.
constexpr int64_t kPanel = Plan::kKeys * kLine, kFragment = 16 * kLine;
constexpr uint32_t kPair = 2;

/// Pairwise, so that few of them wait for each other.
template <class F>
ValueId all_of(std::vector<ValueId> values, F&& join) {
  while (values.size() > 1) {
    std::vector<ValueId> next;
    for (size_t i = 0; i + 1 < values.size(); i += 2)
      next.push_back(join(values[i], values[i + 1]));
    if (values.size() % 2 != 0) next.push_back(values.back());
    values = std::move(next);
  }
  return values[0];
}

}  // namespace

/// Scores = queries · keys of the block in local memory from byte `stage` on.
void Lowerer::multiply_group_keys(const GroupAttention& s, ValueId stage, BlockId block) {
  const Plan& p = *schedule_.group_attention;
  const Type type{p.score_info.sum, 1};
  for (const uint32_t first : s.scores)
    for (uint32_t i = 0; i < p.score_info.sums; ++i)
      b_.assign(block, first + i, b_.constant(type, 0));
  // Of the four 8·8 tiles of a fragment: the next 16 bytes of depth, then the next eight keys.
  const ValueId matrix = b_.shr(s.lane, 3), odd = b_.bit_and(matrix, b_.index(1));
  const ValueId line = b_.bit_and(s.lane, b_.index(7));
  const ValueId lines = b_.add(line, scaled(b_.shr(matrix, 1), 8));
  const ValueId piece = b_.bit_xor(odd, line);
  for (size_t step = 0; step < s.queries.size(); ++step) {
    const auto number = static_cast<int64_t>(step);
    for (size_t n = 0; n < s.scores.size(); n += 2) {
      const int64_t offset = number / kSteps * kPanel + static_cast<int64_t>(n / 2) * kFragment;
      const std::vector<ValueId> keys =
          group_fragment(s, moved(stage, offset), lines, piece, number % kSteps * 2, false, block);
      for (size_t half = 0; half < 2; ++half) {
        std::vector<ValueId> operands = s.queries[step];
        operands.insert(operands.end(), {keys[2 * half], keys[2 * half + 1]});
        b_.matrix(block, p.score_info, s.scores[n + half], std::move(operands));
      }
    }
  }
}

/// Products become scores. Blocks of keys that are all there and that all queries of the group see
/// need no comparisons.
void Lowerer::finish_group_scores(const GroupAttention& s, ValueId first_key, BlockId block) {
  const AttentionParts& a = schedule_.group_attention->parts;
  const Node* extent = a.key->src[0];
  const bool has_tail = !extent->is_const() || extent->imm % Plan::kKeys != 0;
  if (!has_tail && !a.hidden_from) return write_group_scores(s, a.score, first_key, false, block);
  ValueId end = s.all_keys;
  if (a.seen_score) {
    // What the first query sees, all see.
    const uint32_t first = make_bindings(s.first_row, b_.block_of(s.first_row), 0, 1, 0);
    end = smaller(end, emit(a.hidden_from, bound(s.env, a.row, first)));
  }
  const ValueId last = moved(first_key, Plan::kKeys - 1);
  const ValueId is_inside = b_.lt(last, end);
  const ValueId is_edge = b_.raw(Op::kNot, DType::kBool, {is_inside});
  const Node* seen = a.seen_score ? a.seen_score : a.score;
  if (seen != a.product) {
    const BlockId inside = b_.open_block(block);
    write_group_scores(s, seen, first_key, false, inside);
    b_.close_if(inside, is_inside);
  }
  const BlockId edge = b_.open_block(block);
  write_group_scores(s, a.score, first_key, has_tail, edge);
  b_.close_if(edge, is_edge);
}

/// `has_tail`: keys may not be there; then what is read for them is read for the last one.
void Lowerer::write_group_scores(const GroupAttention& s, const Node* score, ValueId first_key,
                                 bool has_tail, BlockId block) {
  const Plan& p = *schedule_.group_attention;
  const AttentionParts& a = p.parts;
  if (score == a.product && !has_tail) return;
  const auto memo = memo_;
  const BlockId floor = b_.set_floor(block);
  is_guarded_ = true;
  const ValueId base = b_.add(first_key, scaled(s.part, kPair));
  const ValueId last = moved(s.all_keys, -1);
  struct Score {
    uint32_t reg = 0;
    ValueId gate = kNone;
  };
  std::vector<Score> scores;
  Instances instances;
  uint32_t origin = 0;
  for (size_t n = 0; n < s.scores.size(); ++n)
    for (uint32_t e = 0; e < kPair; ++e) {
      const auto offset = static_cast<int64_t>(n * p.score_info.slot + e);
      const ValueId index = moved(base, offset);
      const ValueId gate = has_tail ? b_.lt(index, s.all_keys) : kNone;
      uint32_t binding = 0;
      if (has_tail && p.has_loads) {
        binding = make_bindings(b_.select(gate, index, last), block, 0, 1, 0);
      } else {
        binding = make_bindings(base, block, offset, 1, origin);
        origin = bindings_[binding].origin;
      }
      for (size_t r = 0; r < s.rows.size(); ++r) {
        const auto reg = static_cast<uint32_t>(s.scores[n] + r * kPair + e);
        scores.push_back({reg, gate});
        instances.push_back(bound(bound(s.env, a.row, s.rows[r]), a.key, binding));
        memo_[key(a.product, instances.back())] = b_.read(block, reg);
      }
    }
  instances_ = &instances;
  for (size_t i = 0; i < scores.size(); ++i) {
    ValueId v = emit(score, instances[i]);
    if (scores[i].gate != kNone) v = b_.select(scores[i].gate, v, b_.like(v, -HUGE_VAL));
    b_.assign(block, scores[i].reg, v);
  }
  instances_ = nullptr;
  is_guarded_ = false;
  b_.set_floor(floor);
  memo_ = memo;
}

/// The largest score of every row so far, and what earlier sums are worth.
Lowerer::GroupPowers Lowerer::group_maxima(const GroupAttention& s, BlockId block) {
  const Plan& p = *schedule_.group_attention;
  // NaN need not take part: its power is NaN.
  const auto larger = [&](ValueId a, ValueId b) { return b_.raw(Op::kMax, DType::kF32, {a, b}); };
  GroupPowers out;
  for (size_t r = 0; r < s.rows.size(); ++r) {
    for (const uint32_t first : s.scores)
      for (uint32_t e = 0; e < kPair; ++e)
        out.scores[r].push_back(b_.read(block, static_cast<uint32_t>(first + r * kPair + e)));
    const ValueId before = b_.read(block, s.most[r]);
    ValueId most = larger(before, all_of(out.scores[r], larger));
    for (const uint32_t with : {1U, 2U}) most = larger(most, b_.shuffle(block, most, with));
    b_.assign(block, s.most[r], most);
    // Nothing but -inf so far: distances from -inf would be NaN.
    const ValueId is_empty = b_.eq(most, b_.like(most, -HUGE_VAL));
    out.from[r] = b_.select(is_empty, b_.like(most, 0), most);
    out.fade[r] = b_.exp2_of_distance(b_.sub(before, out.from[r]), p.scale);
  }
  return out;
}

/// Results so far fade by what the maxima have grown; then the values of these keys are added,
/// which lie in local memory from byte `stage` on.
void Lowerer::add_group_values(const GroupAttention& s, ValueId stage, BlockId block) {
  const Plan& p = *schedule_.group_attention;
  const GroupPowers powers = group_maxima(s, block);
  for (const uint32_t first : s.results)
    for (uint32_t i = 0; i < p.value_info.sums; ++i) {
      const ValueId before = b_.read(block, first + i);
      b_.assign(block, first + i, b_.mul(before, powers.fade[i / kPair]));
    }
  // Of the four 8·8 tiles of a fragment: the next eight keys, then the next eight elements.
  const ValueId matrix = b_.shr(s.lane, 3), odd = b_.bit_and(matrix, b_.index(1));
  const ValueId line = b_.bit_and(s.lane, b_.index(7));
  const ValueId lines = b_.add(line, scaled(odd, 8));
  const ValueId piece = b_.bit_xor(b_.shr(matrix, 1), line);
  std::array<ValueId, 2> totals = {kNone, kNone};
  for (int64_t step = 0; step * kStep < Plan::kKeys; ++step) {
    std::vector<ValueId> shares;
    for (size_t half = 0; half < 2; ++half)
      for (size_t r = 0; r < totals.size(); ++r) {
        std::array<ValueId, kPair> pair = {};
        for (size_t e = 0; e < kPair; ++e) {
          const size_t key = (2 * static_cast<size_t>(step) + half) * kPair + e;
          const ValueId distance = b_.sub(powers.scores[r][key], powers.from[r]);
          pair[e] = b_.exp2_of_distance(distance, p.scale);
        }
        const ValueId both = b_.add(pair[0], pair[1]);
        totals[r] = totals[r] == kNone ? both : b_.add(totals[r], both);
        shares.push_back(b_.two_halves(pair[0], pair[1], p.value_info.in));
      }
    for (size_t n = 0; n < s.results.size(); n += 2) {
      const auto number = static_cast<int64_t>(n / 2);
      const int64_t offset = step * kFragment + number / kSteps * kPanel;
      const std::vector<ValueId> values =
          group_fragment(s, moved(stage, offset), lines, piece, number % kSteps * 2, true, block);
      for (size_t half = 0; half < 2; ++half) {
        std::vector<ValueId> operands = shares;
        operands.insert(operands.end(), {values[2 * half], values[2 * half + 1]});
        b_.matrix(block, p.value_info, s.results[n + half], std::move(operands));
      }
    }
  }
  for (size_t r = 0; r < totals.size(); ++r) {
    const ValueId before = b_.read(block, s.totals[r]);
    b_.assign(block, s.totals[r], b_.mad(before, powers.fade[r], totals[r]));
  }
}

}  // namespace bm::compiler
