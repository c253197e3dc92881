// Loads transposed through local memory; see TransposePlan.
#include <bit>

#include "compiler/lowering/emitter.h"

namespace bm::compiler {

/// Iterations beyond the end neither load nor store.
void Emitter::mask_binding(uint32_t binding, const Node* range, const Env& env) {
  const Node* extent = range->src[0];
  if (extent->is_const() && extent->imm % schedule_.transposed()->tile == 0) return;
  const ValueId end = emit(extent, env);
  const Binding at = bindings_[binding];
  bindings_[binding].mask = b_.lt(b_.add(at.base, b_.index(at.offset)), end);
}

/// What a work-item does of a tile: neighbours along `near` are neighbouring work-items.
Instances Emitter::bind_transposed(const Env& env, const Node* near, const Node* far,
                                   BlockId block) {
  const TransposePlan& p = *schedule_.transposed();
  const ValueId item = b_.item();
  const ValueId low = b_.bit_and(item, b_.index(int64_t{p.tile} - 1));
  const ValueId high = b_.shr(item, std::countr_zero(p.tile));
  const ValueId near_base = b_.add(bindings_[env[number_of(near)]].base, low);
  const ValueId far_base = b_.add(bindings_[env[number_of(far)]].base, high);
  const uint32_t at_near = make_bindings(near_base, block, 0, 1, 0);
  mask_binding(at_near, near, env);
  Instances out;
  uint32_t origin = 0;
  for (uint32_t c = 0; c < p.copies(); ++c) {
    const uint32_t at_far = make_bindings(far_base, block, int64_t{c} * p.rows(), 1, origin);
    origin = bindings_[at_far].origin;
    mask_binding(at_far, far, env);
    out.push_back(bound(bound(env, near, at_near), far, at_far));
  }
  return out;
}

void Emitter::lower_transposed(BlockId block, const Env& env) {
  const TransposePlan& p = *schedule_.transposed();
  const ValueId item = b_.item();
  const ValueId low = b_.bit_and(item, b_.index(int64_t{p.tile} - 1));
  const ValueId high = b_.shr(item, std::countr_zero(p.tile));
  std::vector<uint32_t> arrays;
  std::vector<std::vector<ValueId>> values(p.loads.size());
  const Instances sources = bind_transposed(env, p.across, p.along, block);
  // Everything is on its way before the first of it is waited for.
  for (size_t i = 0; i < p.loads.size(); ++i) {
    arrays.push_back(b_.add_local(p.loads[i]->dtype, uint64_t{p.row(p.loads[i])} * p.tile));
    for (const Env& source : sources) values[i].push_back(emit(p.loads[i], source));
  }
  for (size_t i = 0; i < p.loads.size(); ++i) {
    const int64_t row = p.row(p.loads[i]);
    const ValueId first = b_.add(b_.mul(high, b_.index(row)), low);
    for (uint32_t c = 0; c < p.copies(); ++c)
      b_.local_store(block, arrays[i], b_.add(first, b_.index(row * p.rows() * c)), values[i][c]);
  }
  b_.barrier(block);
  const Instances results = bind_transposed(env, p.along, p.across, block);
  for (size_t i = 0; i < p.loads.size(); ++i) {
    const ValueId first = b_.add(b_.mul(low, b_.index(p.row(p.loads[i]))), high);
    for (uint32_t c = 0; c < p.copies(); ++c)
      memo_[key(p.loads[i], results[c])] =
          b_.local_load(block, arrays[i], b_.add(first, b_.index(int64_t{p.rows()} * c)));
  }
  emit_loads(results);
  emit_stores(block, results, kernel_.stores);
}

}  // namespace bm::compiler
