// Online softmax between the two MMA of attention: logits Q·Kᵀ, row max and row sum, P·V.
// Attention by matrix instructions: what a sub-group does with a block of keys.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "compiler/schedules/attention/lower_mma.h"

namespace bm::compiler {
namespace {

constexpr int64_t kStep = 16;
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

/// 2^(distance · scale). Beside products that go on by themselves, powers of the polynomial would
/// take most of the time; both are nearer than what is left of them in 16 bits.
ValueId FlashAttention::power(ValueId distance) {
  if (!p_.has_warpgroups || !b_.target().has_exp2) return b_.exp2_of_distance(distance, p_.scale);
  return b_.fast_exp2(b_.mul(distance, b_.like(distance, p_.scale)));
}

/// Sums of a warpgroup, which are adjacent registers, = or (values) += `left` · the tile from byte
/// `start` on, all of it at once.
void FlashAttention::multiply_warpgroup(const MatrixInfo& info, std::span<const uint32_t> sums,
                                        std::span<const SlotWords> left, ValueId start,
                                        bool is_k_major, BlockId block) {
  const auto count = static_cast<uint32_t>(sums.size()) * info.sums;
  const TileOperand right{start, 0, is_k_major, p_.key_block * LineTile::kLine};
  contract_group_mma(b_, block, info, sums[0], count, stage_->array(), left, right, is_k_major);
  b_.wait_wgmma(block, sums[0], count);
}

/// Scores = queries · keys of the block in shared memory from byte `stage` on.
void FlashAttention::multiply_keys(ValueId stage, BlockId block) {
  if (p_.has_warpgroups)
    return multiply_warpgroup(p_.score_info, s_.scores, s_.queries, stage, true, block);
  const Type type{p_.score_info.sum, 1};
  for (const uint32_t first : s_.scores)
    for (uint32_t i = 0; i < p_.score_info.sums; ++i)
      b_.assign(block, first + i, b_.constant(type, 0));
  const LineFragments f{.is_k_major = true, .lines = p_.key_block};
  const auto steps = static_cast<size_t>(a_.head_dim->src[0]->imm / kStep);
  for (size_t step = 0; step < steps; ++step) {
    const SlotWords queries =
        p_.keeps_queries()
            ? s_.queries[step]
            : query_fragment(b_.index(query_start()), static_cast<int64_t>(step), block);
    for (size_t n = 0; n < s_.scores.size(); n += 2) {
      const SlotWords keys = fragment(f, stage, static_cast<int64_t>(n / 2) * LineFragments::kRows,
                                      static_cast<int64_t>(step), block);
      contract_mma(b_, block, p_.score_info, std::span(s_.scores).subspan(n, 2), queries, keys);
    }
  }
}

/// `has_tail`: keys may not be there; then what is read for them is read for the last one.
void FlashAttention::write_block(const Node* score, ValueId first_key, bool has_tail,
                                 BlockId block) {
  if (score == a_.product && !has_tail) return;
  const Confined confined(e_, block);
  const Index base = index(first_key) + index(s_.part) * kPair;
  std::vector<Score> scores;
  Instances instances;
  Offsets keys(e_, base, block, has_tail ? g_.all_keys : kNone, p_.has_loads);
  for (size_t n = 0; n < s_.scores.size(); ++n)
    for (uint32_t e = 0; e < kPair; ++e) {
      const Offsets::Position key = keys.at(static_cast<int64_t>(n * p_.score_info.slot + e));
      for (uint32_t r = 0; r < s_.rows.size(); ++r) {
        const uint32_t reg = s_.scores[n] + r * kPair + e;
        scores.push_back({reg, key.exists});
        const Env row = e_.bound(g_.env, a_.row, s_.rows[r].binding);
        instances.push_back(e_.bound(row, a_.key, key.binding));
        e_.set_known(a_.product, instances.back(), b_.read(block, reg));
      }
    }
  write_scores(score, scores, instances, block);
}

/// What powers count from: the largest score that was met, until one is so far above it that its
/// power would not fit the type of the values. Then sums so far fade.
FlashAttention::Powers FlashAttention::take_maxima(BlockId block) {
  // Where one is NaN, so are its power and the row.
  const auto larger = [&](ValueId a, ValueId b) {
    return b_.reduce_step(ir::ReduceOp::kMax, a, b);
  };
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
    const ValueId by = power(b_.sub(before[r], from));
    for (const uint32_t first : s_.results)
      for (uint32_t e = 0; e < kPair; ++e) shrink(static_cast<uint32_t>(first + r * kPair + e), by);
    shrink(s_.totals[r], by);
    b_.assign(block, s_.from[r], now[r]);
  }
  b_.set_floor(floor);
}

/// Adds the values of these keys, which lie in shared memory from byte `stage` on.
void FlashAttention::add_values(ValueId stage, BlockId block) {
  const Powers powers = take_maxima(block);
  const LineFragments f{.lines = p_.key_block};
  std::array<ValueId, 2> totals = {kNone, kNone};
  std::vector<SlotWords> all;
  for (int64_t step = 0; step * kStep < p_.key_block; ++step) {
    SlotWords shares(totals.size());
    for (size_t half = 0; half < 2; ++half)
      for (size_t r = 0; r < totals.size(); ++r) {
        std::array<ValueId, kPair> pair = {};
        for (size_t e = 0; e < kPair; ++e) {
          const size_t key = (2 * static_cast<size_t>(step) + half) * kPair + e;
          const ValueId distance = b_.sub(powers.scores[r][key], powers.from[r]);
          pair[e] = power(distance);
        }
        const ValueId both = b_.add(pair[0], pair[1]);
        totals[r] = totals[r] == kNone ? both : b_.add(totals[r], both);
        shares[r].push_back(b_.pack_half2(pair[0], pair[1], p_.value_info.in));
      }
    all.push_back(shares);
    for (size_t n = 0; n < s_.results.size() && !p_.has_warpgroups; n += 2) {
      const SlotWords values =
          fragment(f, stage, static_cast<int64_t>(n / 2) * LineFragments::kRows, step, block);
      contract_mma(b_, block, p_.value_info, std::span(s_.results).subspan(n, 2), shares, values);
    }
  }
  if (p_.has_warpgroups) multiply_warpgroup(p_.value_info, s_.results, all, stage, false, block);
  for (size_t r = 0; r < totals.size(); ++r) {
    const ValueId before = b_.read(block, s_.totals[r]);
    b_.assign(block, s_.totals[r], b_.add(before, totals[r]));
  }
}

}  // namespace bm::compiler
