// Transposes through shared memory, padded against bank conflicts.
// Loads transposed through local memory; see TransposePlan.
#include <bit>

#include "compiler/schedules/groups/lowering.h"

namespace bm::compiler {

/// Iterations beyond the end neither load nor store.
void TransposeLowering::mask_binding(uint32_t binding, const Node* range, const Env& env) {
  const Node* extent = range->src[0];
  if (extent->is_const() && extent->imm % p_.tile == 0) return;
  const ValueId end = e_.emit(extent, env);
  const Binding at = e_.binding(binding);
  e_.set_mask(binding, b_.lt(b_.add(at.base, b_.index(at.offset)), end));
}

/// What a work-item does of a tile: neighbours along `near` are neighbouring work-items.
Instances TransposeLowering::bind_transposed(const Env& env, const Node* near, const Node* far,
                                             BlockId block) {
  const ValueId item = b_.item();
  const ValueId low = b_.bit_and(item, b_.index(int64_t{p_.tile} - 1));
  const ValueId high = b_.shr(item, std::countr_zero(p_.tile));
  const ValueId near_base = b_.add(e_.binding(env[e_.number_of(near)]).base, low);
  const ValueId far_base = b_.add(e_.binding(env[e_.number_of(far)]).base, high);
  const uint32_t at_near = e_.make_bindings(near_base, block, 0, 1, 0);
  mask_binding(at_near, near, env);
  Instances out;
  uint32_t origin = 0;
  for (uint32_t c = 0; c < p_.copies(); ++c) {
    const uint32_t at_far = e_.make_bindings(far_base, block, int64_t{c} * p_.rows(), 1, origin);
    origin = e_.binding(at_far).origin;
    mask_binding(at_far, far, env);
    out.push_back(e_.bound(e_.bound(env, near, at_near), far, at_far));
  }
  return out;
}

void TransposeLowering::lower_items(BlockId block, Instances instances, ValueId /*chunk*/) {
  const Env& env = instances[0];
  const ValueId item = b_.item();
  const ValueId low = b_.bit_and(item, b_.index(int64_t{p_.tile} - 1));
  const ValueId high = b_.shr(item, std::countr_zero(p_.tile));
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
    const ValueId first = b_.add(b_.mul(high, b_.index(row)), low);
    for (uint32_t c = 0; c < p_.copies(); ++c)
      b_.local_store(block, arrays[i], b_.add(first, b_.index(row * p_.rows() * c)), values[i][c]);
  }
  b_.barrier(block);
  const Instances results = bind_transposed(env, p_.along, p_.across, block);
  for (size_t i = 0; i < p_.loads.size(); ++i) {
    const ValueId first = b_.add(b_.mul(low, b_.index(p_.row(p_.loads[i]))), high);
    for (uint32_t c = 0; c < p_.copies(); ++c)
      e_.set_known(
          p_.loads[i], results[c],
          b_.local_load(block, arrays[i], b_.add(first, b_.index(int64_t{p_.rows()} * c))));
  }
  emit_loads(results);
  e_.emit_stores(block, results, e_.kernel().stores);
}

}  // namespace bm::compiler
