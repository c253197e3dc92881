// Products of matrices whose factors go through local memory; see StagedPlan.
#include <array>
#include <bit>

#include "compiler/lowering/emitter.h"

namespace bm::compiler {

/// Where a group's tile is, and what a work-item has of it.
struct Emitter::Staged {
  Env env;                                        // loops besides rows and columns
  ValueId row = kNone, column = kNone;            // first of the group's tile
  ValueId item_row = kNone, item_column = kNone;  // first of the work-item's, in the tile
  std::vector<uint32_t> rows, columns;            // bindings of its results
  std::vector<uint32_t> sums;                     // registers, row by row
  uint32_t left = 0, right = 0;                   // local arrays: steps × tile
};

namespace {

/// Elements that one access of local memory takes.
uint32_t quad(const Node* n) { return 16 / static_cast<uint32_t>(item_size(n->dtype)); }

/// Distance of a work-item's result `i` from its first: whole accesses are spread over the tile, so
/// that neighbouring work-items read neighbouring ones.
int64_t spread_out(const StagedOperand& o, uint32_t i) {
  const uint32_t width = quad(o.value), parts = o.per_item / width;
  return int64_t{i / width} * (o.tile / parts) + i % width;
}

}  // namespace

Emitter::Staged Emitter::place_staged(ValueId group, BlockId block) {
  const StagedPlan& p = *schedule_.staged();
  Staged s;
  s.env = Env(ranges_.size(), 0);
  ValueId rest = group;
  const ValueId column =
      next_digit(&rest, b_.index(p.right.along->src[0]->imm / p.right.tile), false);
  const ValueId row =
      next_digit(&rest, b_.index(p.left.along->src[0]->imm / p.left.tile), schedule_.loops.empty());
  for (size_t i = 0; i < schedule_.loops.size(); ++i) {
    const Node* range = schedule_.loops[i].range;
    const ValueId count = emit(range->src[0], s.env);
    const ValueId digit = next_digit(&rest, count, i + 1 == schedule_.loops.size());
    s.env = bound(s.env, range, make_bindings(digit, block, 0, 1, 0));
  }
  s.row = b_.mul(row, b_.index(p.left.tile));
  s.column = b_.mul(column, b_.index(p.right.tile));
  const uint32_t across = p.right.tile / p.right.per_item, width = quad(p.reduce);
  const ValueId item = b_.item();
  const ValueId x = b_.bit_and(item, b_.index(across - 1)),
                y = b_.shr(item, std::countr_zero(across));
  s.item_row = b_.mul(y, b_.index(width));
  s.item_column = b_.mul(x, b_.index(width));
  const auto bind = [&](const StagedOperand& o, ValueId first, ValueId own,
                        std::vector<uint32_t>* out) {
    const ValueId base = b_.add(first, own);
    uint32_t origin = 0;
    for (uint32_t i = 0; i < o.per_item; ++i) {
      out->push_back(make_bindings(base, block, spread_out(o, i), 1, origin));
      origin = bindings_[out->front()].origin;
    }
  };
  bind(p.left, s.row, s.item_row, &s.rows);
  bind(p.right, s.column, s.item_column, &s.columns);
  const Type type{p.reduce->dtype, 1};
  for (uint32_t i = 0; i < p.left.per_item * p.right.per_item; ++i) {
    s.sums.push_back(b_.add_register(type));
    b_.assign(block, s.sums.back(), b_.constant(type, 0));
  }
  s.left = b_.add_local(p.reduce->dtype, p.left.row() * p.steps);
  s.right = b_.add_local(p.reduce->dtype, p.right.row() * p.steps);
  return s;
}

/// This work-item's share of a factor, and where it goes. Neighbouring work-items take what are
/// neighbours in memory.
std::vector<std::pair<ValueId, ValueId>> Emitter::staged_share(const StagedOperand& o,
                                                               ValueId first, const Env& env,
                                                               ValueId depth, BlockId block) {
  const StagedPlan& p = *schedule_.staged();
  const uint32_t items = p.items();
  // Element e = item + n·items of the factor, counted along `inner` first.
  const uint32_t inner = o.is_deep ? p.steps : o.tile;
  const ValueId item = b_.item();
  const ValueId low = b_.bit_and(item, b_.index(std::min(inner, items) - 1));
  const ValueId high = b_.shr(item, std::countr_zero(std::min(inner, items)));
  const ValueId along_own = o.is_deep ? high : low, depth_own = o.is_deep ? low : high;
  const ValueId along_base = b_.add(first, along_own), depth_base = b_.add(depth, depth_own);
  const ValueId place =
      b_.add(b_.mul(depth_own, b_.index(static_cast<int64_t>(o.row()))), along_own);
  uint32_t along_origin = 0, depth_origin = 0;
  std::vector<std::pair<ValueId, ValueId>> out;
  for (uint32_t e = 0; e < o.tile * p.steps; e += items) {
    const int64_t low_offset = e % inner, high_offset = e / inner;
    const int64_t along_offset = o.is_deep ? high_offset : low_offset;
    const int64_t depth_offset = o.is_deep ? low_offset : high_offset;
    const uint32_t at_along = make_bindings(along_base, block, along_offset, 1, along_origin);
    const uint32_t at_depth = make_bindings(depth_base, block, depth_offset, 1, depth_origin);
    along_origin = bindings_[at_along].origin;
    depth_origin = bindings_[at_depth].origin;
    const Env here = bound(bound(env, o.along, at_along), p.depth, at_depth);
    const int64_t offset = depth_offset * static_cast<int64_t>(o.row()) + along_offset;
    out.emplace_back(b_.add(place, b_.index(offset)), emit(o.value, here));
  }
  return out;
}

void Emitter::multiply_staged(const Staged& s, BlockId block) {
  const StagedPlan& p = *schedule_.staged();
  const uint32_t width = quad(p.reduce);
  std::vector<ValueId> sums;
  for (const uint32_t reg : s.sums) sums.push_back(b_.read(block, reg));
  const auto load = [&](const StagedOperand& o, uint32_t array, ValueId own, uint32_t step) {
    std::vector<ValueId> out;
    for (uint32_t i = 0; i < o.per_item; i += width) {
      const int64_t offset = int64_t{step} * static_cast<int64_t>(o.row()) + spread_out(o, i);
      const ValueId words = b_.local_load(block, array, b_.add(own, b_.index(offset)), width);
      for (uint32_t lane = 0; lane < width; ++lane) out.push_back(b_.extract(words, lane));
    }
    return out;
  };
  for (uint32_t step = 0; step < p.steps; ++step) {
    const std::vector<ValueId> left = load(p.left, s.left, s.item_row, step);
    const std::vector<ValueId> right = load(p.right, s.right, s.item_column, step);
    for (size_t i = 0; i < left.size(); ++i)
      for (size_t j = 0; j < right.size(); ++j) {
        ValueId& sum = sums[i * right.size() + j];
        sum = is_float(p.reduce->dtype) ? b_.mad(left[i], right[j], sum)
                                        : b_.add(sum, b_.mul(left[i], right[j]));
      }
  }
  for (size_t i = 0; i < sums.size(); ++i) b_.assign(block, s.sums[i], sums[i]);
}

void Emitter::lower_staged(BlockId root) {
  const StagedPlan& p = *schedule_.staged();
  const Builder::Loop groups = b_.open_loop(root, LoopKind::kGroup);
  const Staged s = place_staged(groups.index, groups.body);
  struct Open {
    Builder::Loop loop;
    ValueId end;
  };
  std::vector<Open> open;
  BlockId block = groups.body;
  Env env = s.env;
  for (size_t i = 1; i < p.reduce->src.size(); ++i) {
    const Node* range = p.reduce->src[i];
    if (range == p.depth) continue;
    const ValueId end = emit(range->src[0], env);
    open.push_back({b_.open_loop(block), end});
    block = open.back().loop.body;
    env = bound(env, range, make_bindings(open.back().loop.index, block, 0, 1, 0));
  }
  const Builder::Loop loop = b_.open_loop(block);
  const auto left = staged_share(p.left, s.row, env, loop.index, loop.body);
  const auto right = staged_share(p.right, s.column, env, loop.index, loop.body);
  b_.barrier(loop.body);  // all have read what was there
  for (const auto& [at, value] : left) b_.local_store(loop.body, s.left, at, value);
  for (const auto& [at, value] : right) b_.local_store(loop.body, s.right, at, value);
  b_.barrier(loop.body);
  multiply_staged(s, loop.body);
  b_.close_loop(loop, b_.index(0), b_.index(p.depth->src[0]->imm), p.steps);
  for (size_t i = open.size(); i-- > 0;) b_.close_loop(open[i].loop, b_.index(0), open[i].end, 1);

  Instances instances;
  for (size_t i = 0; i < s.rows.size(); ++i)
    for (size_t j = 0; j < s.columns.size(); ++j) {
      const Env row = bound(s.env, p.left.along, s.rows[i]);
      instances.push_back(bound(row, p.right.along, s.columns[j]));
      memo_[key(p.reduce, instances.back())] =
          b_.read(groups.body, s.sums[i * s.columns.size() + j]);
    }
  emit_stores(groups.body, instances, kernel_.stores);
  b_.close_groups(groups, 0, kNone);
}

}  // namespace bm::compiler
