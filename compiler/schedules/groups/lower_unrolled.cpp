// Unrolled iterations of a work-item.
// Iterations of a work-item unrolled: all loads, then arithmetic, then stores.
#include <algorithm>
#include <unordered_set>

#include "compiler/lowering/epilogue.h"
#include "compiler/program/expr.h"
#include "compiler/schedules/groups/lowering.h"

namespace bm::compiler {

/// Whatever is loaded for `instances` is on its way before the first of it is waited for;
/// indices that are loaded themselves come before what lies there.
void GroupLowering::emit_loads(const Instances& instances) {
  std::vector<const Node*> loads, stack;
  for (const ir::Store& s : e_.kernel().stores) {
    stack.push_back(s.value);
    if (s.gate) stack.push_back(s.gate);
  }
  std::unordered_set<const Node*> seen;
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    if (!seen.insert(n).second) continue;
    if (n->op == Op::kLoad) {
      if (e_.is_known(e_.key(n, instances[0]))) continue;
      loads.push_back(n);
    }
    stack.insert(stack.end(), n->src.begin(), n->src.end());
  }
  std::ranges::sort(loads, {}, &Node::id);
  for (const Node* n : loads)
    for (const Env& env : instances) e_.emit(n, env);
}

void GroupLowering::lower_item_loop(const ItemLoops& items, BlockId block) {
  const Builder::Loop loop = b_.open_loop(block, LoopKind::kItem);
  const Instances instances = split_index(loop.index, items.loops, items.counts, items.is_narrow,
                                          loop.body, items.instances);
  e_.emit_stores(loop.body, instances, e_.kernel().stores);
  const ValueId begin = b_.mul(items.chunk, b_.index(schedule_.chunk));
  b_.close_items(loop, begin, schedule_.is_exact ? kNone : items.total, schedule_.trip_count);
}

/// Unrolled iterations are as far apart as the block is wide, so that adjacent work-items stay
/// adjacent.
void GroupLowering::lower_unrolled(const ItemLoops& items, BlockId block) {
  const ValueId begin = b_.mul(items.chunk, b_.index(schedule_.chunk));
  const ValueId first = b_.add(begin, b_.item());
  const auto split = [&](ValueId index) {
    return split_index(index, items.loops, items.counts, items.is_narrow, block, items.instances);
  };
  Instances all;
  // A chunk that does not leave the innermost loop is taken apart once.
  const Node* last = schedule_.loops[items.loops.back()].range;
  const Node* extent = last->src[0];
  if (items.loops.size() == 1 || (extent->is_const() && extent->imm % schedule_.chunk == 0)) {
    for (const Env& env : split(first)) {
      const Binding at = e_.binding(env[e_.number_of(last)]);
      for (int64_t c = 0; c < schedule_.trip_count; ++c)
        all.push_back(e_.bound(
            env, last, e_.make_bindings(at.base, block, c * schedule_.block, 1, at.origin)));
    }
  } else {
    for (int64_t c = 0; c < schedule_.trip_count; ++c)
      for (const Env& env : split(b_.add(first, b_.index(c * schedule_.block)))) all.push_back(env);
  }
  emit_loads(all);
  e_.emit_stores(block, all, e_.kernel().stores);
}

/// Elements that follow each other are one work-item's, as many as 16 bytes hold. Where params do
/// not start at multiples of these, and in a chunk that is not whole, they are adjacent
/// work-items'.
void GroupLowering::lower_contiguous(const ItemLoops& items, BlockId block) {
  const int64_t count = schedule_.contiguous.count;
  const ValueId begin = b_.mul(items.chunk, b_.index(schedule_.chunk));
  ValueId is_whole = contiguous_.is_aligned();
  if (!schedule_.is_exact) {
    const Expr end = Expr(b_, begin) + schedule_.chunk;
    is_whole = Expr(Expr(b_, is_whole) & !(Expr(b_, items.total) < end));
  }
  const ValueId is_less = b_.negated(is_whole);
  const Node* last = schedule_.loops[items.loops.back()].range;
  e_.branch(is_whole, block, [&](BlockId body) {
    contiguous_.start();
    const Expr first = Expr(b_, begin) + Expr(b_, b_.item()) * count;
    Instances all;
    for (int64_t run = 0; run < schedule_.trip_count / count; ++run) {
      const ValueId index = b_.add(first, b_.index(run * count * schedule_.block));
      for (const Env& env :
           split_index(index, items.loops, items.counts, items.is_narrow, body, items.instances)) {
        const Binding at = e_.binding(env[e_.number_of(last)]);
        for (int64_t c = 0; c < count; ++c)
          all.push_back(e_.bound(env, last, e_.make_bindings(at.base, body, c, 1, at.origin)));
      }
    }
    emit_loads(all);
    contiguous_.emit_stores(body, all);
    contiguous_.stop();
  });
  e_.branch(is_less, block, [&](BlockId body) { lower_item_loop(items, body); });
}

/// `body` twice, with and without what is contiguous.
void GroupLowering::where_aligned(BlockId block, const std::function<void(BlockId)>& body) {
  const ValueId is_aligned = contiguous_.is_aligned();
  const ValueId is_not = b_.negated(is_aligned);
  for (const bool is_wide : {true, false})
    e_.branch(is_wide ? is_aligned : is_not, block, [&](BlockId inside) {
      const Confined confined(e_, inside);
      row_iterations_.clear();
      if (is_wide) contiguous_.start();
      body(inside);
      contiguous_.stop();
      row_iterations_.clear();
    });
}

/// The last chunk may be smaller.
void GroupLowering::split_chunks(const ItemLoops& items, BlockId block) {
  const ValueId begin = b_.mul(items.chunk, b_.index(schedule_.chunk));
  const ValueId end = b_.add(begin, b_.index(schedule_.chunk));
  const ValueId is_less = b_.lt(items.total, end);
  const ValueId is_whole = b_.negated(is_less);
  e_.branch(is_whole, block, [&](BlockId body) { lower_unrolled(items, body); });
  e_.branch(is_less, block, [&](BlockId body) { lower_item_loop(items, body); });
}

}  // namespace bm::compiler
