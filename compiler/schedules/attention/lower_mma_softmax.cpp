// Online softmax between the two MMA of attention: logits Q·Kᵀ, row max and row sum, P·V.
// Attention by matrix instructions: what a sub-group does with a block of keys.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "compiler/schedules/attention/lower_mma.h"

namespace bm::compiler {
namespace {

using Plan = GroupAttentionPlan;

constexpr int64_t kLine = Plan::kLineBytes, kPerLine = kLine / 2;
constexpr int64_t kStep = 16, kSteps = kPerLine / kStep;
/// Bytes between panels of keys or values, and between fragments of 16 rows.
constexpr int64_t kPanel = Plan::kKeys * kLine, kFragment = 16 * kLine;
constexpr uint32_t kPair = 2;
/// Largest power of two that a score may be above what powers count from: far from float16's end.
constexpr double kRoom = 8;

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
void FlashAttention::multiply_keys(ValueId stage, BlockId block) {
  const Type type{p_.score_info.sum, 1};
  for (const uint32_t first : s_.scores)
    for (uint32_t i = 0; i < p_.score_info.sums; ++i)
      b_.assign(block, first + i, b_.constant(type, 0));
  // Of the four 8·8 tiles of a fragment: the next 16 bytes of depth, then the next eight keys.
  const ValueId matrix = b_.shr(s_.lane, 3), odd = b_.bit_and(matrix, b_.index(1));
  const ValueId line = b_.bit_and(s_.lane, b_.index(7));
  const ValueId lines = b_.add(line, scaled(b_.shr(matrix, 1), 8));
  const ValueId piece = b_.bit_xor(odd, line);
  for (size_t step = 0; step < s_.queries.size(); ++step) {
    const auto number = static_cast<int64_t>(step);
    for (size_t n = 0; n < s_.scores.size(); n += 2) {
      const int64_t offset = number / kSteps * kPanel + static_cast<int64_t>(n / 2) * kFragment;
      const std::vector<ValueId> keys =
          fragment(moved(stage, offset), lines, piece, number % kSteps * 2, false, block);
      for (size_t half = 0; half < 2; ++half) {
        std::vector<ValueId> operands = s_.queries[step];
        operands.insert(operands.end(), {keys[2 * half], keys[2 * half + 1]});
        b_.matrix(block, p_.score_info, s_.scores[n + half], std::move(operands));
      }
    }
  }
}

/// Products become scores. Blocks of keys that are all there and that all queries of the group see
/// need no comparisons.
void FlashAttention::finish_scores(ValueId first_key, BlockId block) {
  const Node* extent = a_.key->src[0];
  const bool has_tail = !extent->is_const() || extent->imm % Plan::kKeys != 0;
  if (!has_tail && !a_.hidden_from) return write_scores(a_.score, first_key, false, block);
  ValueId end = s_.all_keys;
  if (a_.seen_score) {
    // What the first query sees, all see.
    const uint32_t first = e_.make_bindings(s_.first_row, b_.block_of(s_.first_row), 0, 1, 0);
    end = e_.min_index(end, e_.emit(a_.hidden_from, e_.bound(s_.env, a_.row, first)));
  }
  const ValueId last = moved(first_key, Plan::kKeys - 1);
  const ValueId is_inside = b_.lt(last, end);
  const ValueId is_edge = b_.raw(Op::kNot, DType::kBool, {is_inside});
  const Node* seen = a_.seen_score ? a_.seen_score : a_.score;
  if (seen != a_.product) {
    const BlockId inside = b_.open_block(block);
    write_scores(seen, first_key, false, inside);
    b_.close_if(inside, is_inside);
  }
  const BlockId edge = b_.open_block(block);
  write_scores(a_.score, first_key, has_tail, edge);
  b_.close_if(edge, is_edge);
}

/// `has_tail`: keys may not be there; then what is read for them is read for the last one.
void FlashAttention::write_scores(const Node* score, ValueId first_key, bool has_tail,
                                  BlockId block) {
  if (score == a_.product && !has_tail) return;
  const Memo memo = e_.save();
  const BlockId floor = b_.set_floor(block);
  e_.set_confined(true);
  const ValueId base = b_.add(first_key, scaled(s_.part, kPair));
  const ValueId last = moved(s_.all_keys, -1);
  struct Score {
    uint32_t reg = 0;
    ValueId gate = kNone;
  };
  std::vector<Score> scores;
  Instances instances;
  uint32_t origin = 0;
  for (size_t n = 0; n < s_.scores.size(); ++n)
    for (uint32_t e = 0; e < kPair; ++e) {
      const auto offset = static_cast<int64_t>(n * p_.score_info.slot + e);
      const ValueId index = moved(base, offset);
      const ValueId gate = has_tail ? b_.lt(index, s_.all_keys) : kNone;
      uint32_t binding = 0;
      if (has_tail && p_.has_loads) {
        binding = e_.make_bindings(b_.select(gate, index, last), block, 0, 1, 0);
      } else {
        binding = e_.make_bindings(base, block, offset, 1, origin);
        origin = e_.binding(binding).origin;
      }
      for (size_t r = 0; r < s_.rows.size(); ++r) {
        const auto reg = static_cast<uint32_t>(s_.scores[n] + r * kPair + e);
        scores.push_back({reg, gate});
        instances.push_back(e_.bound(e_.bound(s_.env, a_.row, s_.rows[r]), a_.key, binding));
        e_.set_known(a_.product, instances.back(), b_.read(block, reg));
      }
    }
  e_.set_instances(&instances);
  for (size_t i = 0; i < scores.size(); ++i) {
    ValueId v = e_.emit(score, instances[i]);
    if (scores[i].gate != kNone) v = b_.select(scores[i].gate, v, b_.like(v, -HUGE_VAL));
    b_.assign(block, scores[i].reg, v);
  }
  e_.set_instances(nullptr);
  e_.set_confined(false);
  b_.set_floor(floor);
  e_.restore(memo);
}

/// What powers count from: the largest score that was met, until one is so far above it that its
/// power would not fit the type of the values. Then sums so far fade.
FlashAttention::Powers FlashAttention::take_maxima(BlockId block) {
  // Where one is NaN, so are its power and the row.
  const auto larger = [&](ValueId a, ValueId b) { return b_.raw(Op::kMax, DType::kF32, {a, b}); };
  Powers out;
  std::array<ValueId, 2> before = {}, now = {};
  ValueId is_any = kNone;
  for (size_t r = 0; r < before.size(); ++r) {
    for (const uint32_t first : s_.scores)
      for (uint32_t e = 0; e < kPair; ++e)
        out.scores[r].push_back(b_.read(block, static_cast<uint32_t>(first + r * kPair + e)));
    ValueId most = all_of(out.scores[r], larger);
    for (const uint32_t with : {1U, 2U}) most = larger(most, b_.shuffle(block, most, with));
    before[r] = b_.read(block, s_.from[r]);
    const ValueId room = b_.like(most, kRoom / p_.scale);
    const ValueId is_far = b_.lt(b_.add(before[r], room), most);
    now[r] = b_.select(is_far, most, before[r]);
    is_any = is_any == kNone ? is_far : b_.bit_or(is_any, is_far);
    // Nothing but -inf so far: distances from -inf would be NaN.
    const ValueId is_empty = b_.eq(now[r], b_.like(now[r], -HUGE_VAL));
    out.from[r] = b_.select(is_empty, b_.like(now[r], 0), now[r]);
  }
  const BlockId inside = b_.open_block(block);
  fade(before, now, inside);
  b_.close_if(inside, is_any);
  return out;
}

/// Sums, which count from `before`, count from `now`; at least one of these is above -inf.
void FlashAttention::fade(const std::array<ValueId, 2>& before, const std::array<ValueId, 2>& now,
                          BlockId block) {
  // Otherwise all of it would be done where nothing changes as well.
  const BlockId floor = b_.set_floor(block);
  const auto shrink = [&](uint32_t reg, ValueId by) {
    b_.assign(block, reg, b_.mul(b_.read(block, reg), by));
  };
  for (size_t r = 0; r < now.size(); ++r) {
    const ValueId is_empty = b_.eq(now[r], b_.like(now[r], -HUGE_VAL));
    const ValueId from = b_.select(is_empty, b_.like(now[r], 0), now[r]);
    const ValueId by = b_.exp2_of_distance(b_.sub(before[r], from), p_.scale);
    for (const uint32_t first : s_.results)
      for (uint32_t e = 0; e < kPair; ++e) shrink(static_cast<uint32_t>(first + r * kPair + e), by);
    shrink(s_.totals[r], by);
    b_.assign(block, s_.from[r], now[r]);
  }
  b_.set_floor(floor);
}

/// Adds the values of these keys, which lie in local memory from byte `stage` on.
void FlashAttention::add_values(ValueId stage, BlockId block) {
  const Powers powers = take_maxima(block);
  // Of the four 8·8 tiles of a fragment: the next eight keys, then the next eight elements.
  const ValueId matrix = b_.shr(s_.lane, 3), odd = b_.bit_and(matrix, b_.index(1));
  const ValueId line = b_.bit_and(s_.lane, b_.index(7));
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
          pair[e] = b_.exp2_of_distance(distance, p_.scale);
        }
        const ValueId both = b_.add(pair[0], pair[1]);
        totals[r] = totals[r] == kNone ? both : b_.add(totals[r], both);
        shares.push_back(b_.two_halves(pair[0], pair[1], p_.value_info.in));
      }
    for (size_t n = 0; n < s_.results.size(); n += 2) {
      const auto number = static_cast<int64_t>(n / 2);
      const int64_t offset = step * kFragment + number / kSteps * kPanel;
      const std::vector<ValueId> values =
          fragment(moved(stage, offset), lines, piece, number % kSteps * 2, true, block);
      for (size_t half = 0; half < 2; ++half) {
        std::vector<ValueId> operands = shares;
        operands.insert(operands.end(), {values[2 * half], values[2 * half + 1]});
        b_.matrix(block, p_.value_info, s_.results[n + half], std::move(operands));
      }
    }
  }
  for (size_t r = 0; r < totals.size(); ++r) {
    const ValueId before = b_.read(block, s_.totals[r]);
    b_.assign(block, s_.totals[r], b_.add(before, totals[r]));
  }
}

}  // namespace bm::compiler
