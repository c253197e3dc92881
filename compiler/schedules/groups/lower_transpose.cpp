// Transposes through shared memory, padded against bank conflicts.
// Loads transposed through shared memory; see TransposePlan.
#include <bit>

#include "compiler/program/expr.h"
#include "compiler/schedules/groups/lowering.h"

namespace bm::compiler {

/// What a work-item does of a tile: adjacent elements along `near` are adjacent work-items'.
/// Iterations beyond the end neither load nor store.
Instances TransposeLowering::bind_transposed(const Env& env, const Node* near, const Node* far,
                                             BlockId block) {
  const auto offsets = [&](const Node* range, ValueId own) {
    const Node* extent = range->src[0];
    const bool is_whole = extent->is_const() && extent->imm % p_.tile == 0;
    const ValueId end = is_whole ? kNone : e_.emit(extent, env);
    return Offsets(e_, b_.add(e_.binding(env, range).base, own), block, end, false);
  };
  const auto bind = [&](Offsets& from, int64_t offset) {
    const Offsets::Position at = from.at(offset);
    e_.set_mask(at.binding, at.exists);
    return at.binding;
  };
  Offsets across = offsets(near, low_), along = offsets(far, high_);
  const Env row = e_.bound(env, near, bind(across, 0));
  Instances out;
  for (uint32_t c = 0; c < p_.unroll(); ++c)
    out.push_back(e_.bound(row, far, bind(along, int64_t{c} * p_.rows())));
  return out;
}

void TransposeLowering::lower_items(BlockId block, Instances instances, ValueId /*chunk*/) {
  const Env& env = instances[0];
  const Expr item(b_, b_.item()), low = item & (int64_t{p_.tile} - 1);
  const Expr high = item >> std::countr_zero(p_.tile);
  low_ = low;
  high_ = high;
  std::vector<uint32_t> arrays;
  std::vector<std::vector<ValueId>> values(p_.loads.size());
  const Instances sources = bind_transposed(env, p_.across, p_.along, block);
  // Everything is on its way before the first of it is waited for.
  for (size_t i = 0; i < p_.loads.size(); ++i) {
    arrays.push_back(b_.add_local(p_.loads[i]->dtype, uint64_t{p_.row(p_.loads[i])} * p_.tile));
    for (const Env& source : sources) values[i].push_back(e_.emit(p_.loads[i], source));
  }
  for (size_t i = 0; i < p_.loads.size(); ++i) {
    const int64_t row = p_.row(p_.loads[i]);
    const Expr first = high * row + low;
    for (uint32_t c = 0; c < p_.unroll(); ++c)
      b_.local_store(block, arrays[i], Expr(first + row * p_.rows() * c), values[i][c]);
  }
  b_.barrier(block);
  const Instances results = bind_transposed(env, p_.along, p_.across, block);
  for (size_t i = 0; i < p_.loads.size(); ++i) {
    const Expr first = low * p_.row(p_.loads[i]) + high;
    for (uint32_t c = 0; c < p_.unroll(); ++c)
      e_.set_known(p_.loads[i], results[c],
                   b_.local_load(block, arrays[i], Expr(first + int64_t{p_.rows()} * c)));
  }
  emit_loads(results);
  e_.emit_stores(block, results, e_.kernel().stores);
}

}  // namespace bm::compiler
