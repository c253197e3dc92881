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
/// Exponent up to which a logit may be above the row max that numerators are shifted by: far from
/// float16's end.
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

/// 2^(distance · scale). Beside MMA the polynomial's instructions would take most of the time. What
/// is left of the result in 16 bits hides the difference: the instruction is within 2^-22 of it,
/// and the product before it within 2^-24 of a distance that is below 26 where float16 has more
/// than 0 (together 2^-19), below 134 where bfloat16 has (2^-17).
ValueId FlashAttention::exp2_of(ValueId distance) {
  if (!b_.target().has_exp2) return b_.exp2_of_distance(distance, p_.scale);
  return b_.fast_exp2(b_.mul(distance, b_.like(distance, p_.scale)));
}

/// Accumulators of a warpgroup, which are adjacent registers, = or (values) += `left` · the tile
/// from byte `start` on, all of it at once.
void FlashAttention::multiply_warpgroup(const MatrixInfo& info,
                                        std::span<const uint32_t> accumulators,
                                        std::span<const SlotWords> left, ValueId start,
                                        bool is_k_major, BlockId block) {
  const auto count = static_cast<uint32_t>(accumulators.size()) * info.accumulators;
  const TileOperand right{start, 0, is_k_major, p_.key_block * LineTile::kLine};
  contract_group_mma(b_, block, info, accumulators[0], count, stage_->array(), left, right,
                     is_k_major);
  b_.wait_wgmma(block, accumulators[0], count);
}

/// Logits = queries · keys of the block in shared memory from byte `stage` on.
void FlashAttention::multiply_keys(ValueId stage, BlockId block) {
  if (p_.has_warpgroups)
    return multiply_warpgroup(p_.logit_info, s_.logits, s_.queries, stage, true, block);
  const Type type{p_.logit_info.sum, 1};
  for (const uint32_t first : s_.logits)
    for (uint32_t i = 0; i < p_.logit_info.accumulators; ++i)
      b_.assign(block, first + i, b_.constant(type, 0));
  const LineFragments f{.is_k_major = true, .lines = p_.key_block};
  const auto steps = static_cast<size_t>(a_.head_dim->src[0]->imm / kStep);
  for (size_t step = 0; step < steps; ++step) {
    const SlotWords queries =
        p_.keeps_queries()
            ? s_.queries[step]
            : query_fragment(b_.index(query_start()), static_cast<int64_t>(step), block);
    for (size_t n = 0; n < s_.logits.size(); n += 2) {
      const SlotWords keys = fragment(f, stage, static_cast<int64_t>(n / 2) * LineFragments::kRows,
                                      static_cast<int64_t>(step), block);
      contract_mma(b_, block, p_.logit_info, std::span(s_.logits).subspan(n, 2), queries, keys);
    }
  }
}

/// `has_tail`: keys may not be there; then what is read for them is read for the last one.
void FlashAttention::write_block(const Node* logit, ValueId first_key, bool has_tail,
                                 BlockId block) {
  if (logit == a_.product && !has_tail) return;
  const Confined confined(e_, block);
  const Expr base = expr(first_key) + expr(s_.part) * kPair;
  std::vector<Logit> logits;
  Instances instances;
  Offsets keys(e_, base, block, has_tail ? g_.all_keys : kNone, p_.has_loads);
  for (size_t n = 0; n < s_.logits.size(); ++n)
    for (uint32_t e = 0; e < kPair; ++e) {
      const Offsets::Position key = keys.at(static_cast<int64_t>(n * p_.logit_info.slot + e));
      for (uint32_t r = 0; r < s_.rows.size(); ++r) {
        const uint32_t reg = s_.logits[n] + r * kPair + e;
        logits.push_back({reg, key.exists});
        const Env row = e_.bound(g_.env, a_.row, s_.rows[r].binding);
        instances.push_back(e_.bound(row, a_.key, key.binding));
        e_.set_known(a_.product, instances.back(), b_.read(block, reg));
      }
    }
  write_logits(logit, logits, instances, block);
}

/// The row max that numerators are shifted by: the largest logit that was met, until one is so far
/// above it that its numerator would not fit the type of the values. Then accumulators are
/// rescaled.
FlashAttention::RowLogits FlashAttention::update_row_max(BlockId block) {
  // Where one is NaN, so are its numerator and the row.
  const auto larger = [&](ValueId a, ValueId b) {
    return b_.reduce_step(ir::ReduceOp::kMax, a, b);
  };
  RowLogits out;
  std::array<ValueId, 2> before = {}, now = {};
  ValueId is_any = kNone;
  for (size_t r = 0; r < before.size(); ++r) {
    for (const uint32_t first : s_.logits)
      for (uint32_t e = 0; e < kPair; ++e)
        out.logits[r].push_back(b_.read(block, static_cast<uint32_t>(first + r * kPair + e)));
    ValueId largest = all_of(out.logits[r], larger);
    for (const uint32_t with : {1U, 2U})
      largest = larger(largest, b_.shuffle(block, largest, with));
    before[r] = b_.read(block, s_.row_max[r]);
    const Expr is_far = expr(before[r]) + kRoom / p_.scale < expr(largest);
    now[r] = b_.select(is_far, largest, before[r]);
    is_any = is_any == kNone ? ValueId{is_far} : b_.bit_or(is_any, is_far);
    // Nothing but -inf so far: distances from -inf would be NaN.
    const ValueId is_empty = b_.eq(now[r], b_.like(now[r], -HUGE_VAL));
    out.shift[r] = b_.select(is_empty, b_.like(now[r], 0), now[r]);
  }
  const BlockId inside = b_.open_block(block);
  rescale(before, now, inside);
  b_.close_if(inside, is_any);
  return out;
}

/// Accumulators, which were shifted by `before`, are by `now`; at least one of these is above -inf.
void FlashAttention::rescale(const std::array<ValueId, 2>& before,
                             const std::array<ValueId, 2>& now, BlockId block) {
  // Otherwise all of it would be done where nothing changes as well.
  const BlockId floor = b_.set_floor(block);
  const auto shrink = [&](uint32_t reg, ValueId by) {
    const Expr rescaled = expr(b_.read(block, reg)) * expr(by);
    b_.assign(block, reg, rescaled);
  };
  for (size_t r = 0; r < now.size(); ++r) {
    const ValueId is_empty = b_.eq(now[r], b_.like(now[r], -HUGE_VAL));
    const ValueId from = b_.select(is_empty, b_.like(now[r], 0), now[r]);
    const ValueId by = exp2_of(b_.sub(before[r], from));
    for (const uint32_t first : s_.results)
      for (uint32_t e = 0; e < kPair; ++e) shrink(static_cast<uint32_t>(first + r * kPair + e), by);
    shrink(s_.row_sums[r], by);
    b_.assign(block, s_.row_max[r], now[r]);
  }
  b_.set_floor(floor);
}

/// Adds the values of these keys, which lie in shared memory from byte `stage` on.
void FlashAttention::add_values(ValueId stage, BlockId block) {
  const RowLogits rows = update_row_max(block);
  const LineFragments f{.lines = p_.key_block};
  std::array<ValueId, 2> row_sums = {kNone, kNone};
  std::vector<SlotWords> all;
  for (int64_t step = 0; step * kStep < p_.key_block; ++step) {
    SlotWords shares(row_sums.size());
    for (size_t half = 0; half < 2; ++half)
      for (size_t r = 0; r < row_sums.size(); ++r) {
        std::array<ValueId, kPair> pair = {};
        for (size_t e = 0; e < kPair; ++e) {
          const size_t key = (2 * static_cast<size_t>(step) + half) * kPair + e;
          const ValueId distance = b_.sub(rows.logits[r][key], rows.shift[r]);
          pair[e] = exp2_of(distance);
        }
        const ValueId both = b_.add(pair[0], pair[1]);
        row_sums[r] = row_sums[r] == kNone ? both : b_.add(row_sums[r], both);
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
  for (size_t r = 0; r < row_sums.size(); ++r) {
    const ValueId before = b_.read(block, s_.row_sums[r]);
    b_.assign(block, s_.row_sums[r], b_.add(before, row_sums[r]));
  }
}

}  // namespace bm::compiler
