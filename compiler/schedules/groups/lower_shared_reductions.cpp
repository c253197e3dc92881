// Work-group reductions through shared memory and sub-group shuffles.
// Reductions that the work-items of a group share. Where a work-item has few iterations they are
// written out, and later passes over the same loops find what was loaded and computed in its
// registers.
#include <algorithm>
#include <array>
#include <bit>

#include "compiler/program/expr.h"
#include "compiler/schedules/groups/lowering.h"

namespace bm::compiler {
namespace {

constexpr int64_t kMax32 = 0xffffffff;
/// Partial results that every work-item reads by itself: a second barrier would cost more.
constexpr uint32_t kFewParts = 8;
/// Partial results that a work-item has in registers at once: a group of 1024 leaves it 64 on
/// RDNA2, whose kernels may not spill.
constexpr uint32_t kMostLoads = 32;

int64_t up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

}  // namespace

/// Which of the iterations that a group does side by side this work-item has.
ValueId GroupLowering::output_index() {
  if (!schedule_.is_output_major)
    return b_.bit_and(b_.item(), b_.index(schedule_.group_outputs - 1));
  return b_.shr(b_.item(), std::countr_zero(parts()));
}

/// Its number among the work-items that have the same.
ValueId GroupLowering::part_number() {
  if (schedule_.group_outputs == 1) return b_.item();
  if (schedule_.is_output_major) return b_.bit_and(b_.item(), b_.index(parts() - 1));
  return b_.shr(b_.item(), std::countr_zero(schedule_.group_outputs));
}

/// The first of its iterations.
ValueId GroupLowering::first_index() {
  const int64_t count = contiguous_.count();
  return count > 1 ? b_.mul(part_number(), b_.index(count)) : part_number();
}

/// The last group may have fewer iterations than work-items side by side.
void GroupLowering::mask_outputs(const Node* range, ValueId number, const Env& env) {
  const int64_t extent = range->src[0]->imm;
  if (extent % schedule_.group_outputs == 0) return;
  e_.set_mask(env[e_.number_of(range)], b_.lt(number, b_.index(extent)));
}

GroupLowering::Distributed GroupLowering::distributed_loops(const std::vector<const Node*>& loops,
                                                            const Env& env) {
  Distributed d{.loops = loops, .counts = {}, .total = b_.index(1), .known_total = {}};
  for (const Node* range : loops) {
    const Node* extent = range->src[0];
    ValueId count = e_.emit(extent, env);
    if (extent->lo < 0) {
      count = e_.max_index(count, b_.index(0));
    }
    d.counts.push_back(count);
    d.total = b_.mul(d.total, count);
    if (__builtin_mul_overflow(d.most, std::max<int64_t>(extent->hi, 1), &d.most))
      d.most = INT64_MAX;
  }
  const Value& total = e_.program().at(d.total);
  if (total.op == ValueOp::kConst) d.known_total = total.imm;
  return d;
}

/// The loops at iteration `index` of all of them.
GroupLowering::Iteration GroupLowering::bind_iteration(const Distributed& d, ValueId index,
                                                       BlockId block) {
  Iteration one{.bindings = std::vector<uint32_t>(d.loops.size()), .mask = kNone};
  ValueId rest = index;
  const bool is_narrow = d.most <= kMax32;
  for (size_t i = d.loops.size(); i-- > 0;) {
    const ValueId digit = i == 0 ? rest : e_.divide_index(Op::kMod, rest, d.counts[i], is_narrow);
    if (i > 0) rest = e_.divide_index(Op::kDiv, rest, d.counts[i], is_narrow);
    one.bindings[i] = e_.make_bindings(digit, block, 0, 1, 0);
  }
  return one;
}

/// Iterations `first`, which is this work-item's, and those that follow it, as far apart as there
/// are work-items to share them. `is_masked`: the last ones may be beyond the end.
std::vector<GroupLowering::Iteration> GroupLowering::bind_iterations(const Distributed& d,
                                                                     ValueId first, BlockId block,
                                                                     uint32_t unroll,
                                                                     bool is_masked) {
  std::vector<Iteration> out;
  Offsets positions(e_, first, block);
  const int64_t count = contiguous_.count(), run = count * parts();
  for (uint32_t c = 0; c < unroll; ++c) {
    const int64_t start = c / count * run, offset = start + c % count;
    const ValueId index = b_.add(first, b_.index(offset));
    Iteration one;
    if (d.loops.size() == 1)
      one.bindings = {positions.at(offset).binding};
    else
      one = bind_iteration(d, index, block);
    if (is_masked && (!d.known_total || start + run > *d.known_total)) {
      // Runs end with the loop: one comparison for all of one.
      one.mask = c % count == 0 ? b_.lt(index, d.total) : out.back().mask;
      for (const uint32_t b : one.bindings) e_.set_mask(b, one.mask);
    }
    out.push_back(std::move(one));
  }
  return out;
}

/// All iterations of this work-item, the same bindings for every pass over the loops; nullptr if
/// there may be more than `most`.
const std::vector<GroupLowering::Iteration>* GroupLowering::row_unroll(const Distributed& d,
                                                                       uint32_t most) {
  if (!d.known_total || *d.known_total > int64_t{most} * parts()) return nullptr;
  const auto [it, is_new] = row_iterations_.try_emplace(d.loops);
  const int64_t count = contiguous_.count();
  const BlockId block = count > 1 ? e_.builder().floor() : e_.program().root;
  if (is_new)
    it->second =
        bind_iterations(d, first_index(), block,
                        static_cast<uint32_t>(up(*d.known_total, count * parts()) * count), true);
  return &it->second;
}

/// Item loops, written out; without any the first of those that share a number stores.
void GroupLowering::lower_row(BlockId block, const Env& env) {
  std::vector<const Node*> loops;
  for (size_t i = schedule_.grid_loops; i < schedule_.loops.size(); ++i)
    loops.push_back(schedule_.loops[i].range);
  if (loops.empty()) {
    const BlockId body = b_.open_block(block);
    e_.emit_stores(body, {env}, e_.kernel().stores);
    return b_.close_if(body, b_.lt(part_number(), b_.index(1)));
  }
  const Distributed d = distributed_loops(loops, env);
  const std::vector<Iteration>* iterations = row_unroll(d, schedule_.item_unroll);
  Instances instances;
  for (const Iteration& one : *iterations) {
    instances.push_back(env);
    for (size_t i = 0; i < loops.size(); ++i)
      instances.back()[e_.number_of(loops[i])] = one.bindings[i];
  }
  if (instances.empty()) return;
  if (contiguous_.count() > 1)
    contiguous_.emit_stores(block, instances);
  else
    e_.emit_stores(block, instances, e_.kernel().stores);
}

bool GroupLowering::write_loops(ReduceState& s, BlockId block) {
  if (s.plan.is_shared) distribute(s, block);
  return s.plan.is_shared;
}

void GroupLowering::reduce(ReduceState& s, BlockId block,
                           const std::function<void(BlockId)>& inner) {
  inner(block);
  if (s.plan.is_shared) combine_partials(s, block);
}

/// Every work-item reduces as many of the iterations as there are work-items for a result.
void GroupLowering::distribute(ReduceState& s, BlockId block) {
  const Distributed d = distributed_loops(s.loops, s.envs[0]);
  const uint32_t unroll = s.plan.item_unroll;
  if (const auto* row = unroll > 0 ? row_unroll(d, unroll) : nullptr)
    return accumulate_unrolled(s, block, *row);
  const int64_t step = int64_t{unroll} * parts();
  if (unroll < 2 || step > d.most) return distribute_singly(s, d, b_.index(0), 0, block);
  const ValueId whole = d.known_total ? b_.index(*d.known_total / step * step)
                                      : ValueId{whole_steps({b_, d.total}, step)};
  const Builder::Loop loop = b_.open_loop(block);
  const ValueId first = b_.add(loop.index, first_index());
  accumulate_unrolled(s, loop.body, bind_iterations(d, first, loop.body, unroll, false));
  b_.close_loop(loop, b_.index(0), whole, step);
  if (!d.known_total || *d.known_total % step != 0) distribute_singly(s, d, whole, unroll, block);
}

/// Loads go before what waits for them.
void GroupLowering::accumulate_unrolled(ReduceState& s, BlockId block,
                                        const std::vector<Iteration>& iterations) {
  const std::vector<Env> before = s.envs;
  std::vector<std::vector<Env>> envs;
  for (const Iteration& one : iterations) {
    envs.push_back(before);
    for (Env& env : envs.back())
      for (size_t i = 0; i < s.loops.size(); ++i) env[e_.number_of(s.loops[i])] = one.bindings[i];
    for (const Node* reduce : s.group)
      for (const Node* load : e_.body_loads(reduce))
        for (const Env& env : envs.back()) e_.emit(load, env);
  }
  for (size_t m = 0; m < s.members(); ++m) {
    const uint32_t reg = s.vector_registers[m][0];
    ValueId sum = b_.read(block, reg);
    for (size_t c = 0; c < iterations.size(); ++c) {
      s.envs = envs[c];
      const ValueId next = e_.accumulate_one(s.reduce(m), s.env(m), sum);
      sum = iterations[c].mask == kNone ? next : b_.select(iterations[c].mask, next, sum);
    }
    b_.assign(block, reg, sum);
  }
  s.envs = before;
}

/// One iteration per iteration, from `begin` on. `iterations`: most of a work-item, 0 if not known.
void GroupLowering::distribute_singly(ReduceState& s, const Distributed& d, ValueId begin,
                                      int64_t trip_count, BlockId block) {
  const std::vector<Env> before = s.envs;
  const bool is_high = schedule_.is_output_major;
  is_single_ = true;
  const Builder::Loop loop = b_.open_loop(block, is_high ? LoopKind::kSerial : LoopKind::kItem);
  ValueId index = loop.index;
  const ValueId side = b_.index(is_high ? 1 : schedule_.group_outputs);
  if (!is_high && schedule_.group_outputs > 1)
    index = e_.divide_index(Op::kDiv, index, side, d.most <= kMax32 / schedule_.group_outputs);
  const Iteration one = bind_iteration(d, index, loop.body);
  for (Env& env : s.envs)
    for (size_t i = 0; i < s.loops.size(); ++i) env[e_.number_of(s.loops[i])] = one.bindings[i];
  e_.begin_step(s, s.loops[0], one.bindings[0]);
  std::vector<ValueId> partial;
  for (size_t m = 0; m < s.members(); ++m) {
    const uint32_t reg = s.vector_registers[m][0];
    partial.push_back(e_.accumulate_one(s.reduce(m), s.env(m), b_.read(loop.body, reg)));
  }
  for (size_t m = 0; m < s.members(); ++m)
    b_.assign(loop.body, s.vector_registers[m][0], partial[m]);
  s.envs = before;
  is_single_ = false;
  if (is_high) return b_.close_loop(loop, b_.add(begin, part_number()), d.total, int64_t{parts()});
  bool is_exact = false;
  if (const Value& from = e_.program().at(begin); d.known_total && from.op == ValueOp::kConst) {
    const int64_t left = *d.known_total - from.imm;
    is_exact = left > 0 && left % parts() == 0;
    if (is_exact) trip_count = left / parts();
  }
  const ValueId first = b_.mul(begin, side), total = b_.mul(d.total, side);
  b_.close_items(loop, first, is_exact ? kNone : total, trip_count);
}

/// Partial results of member number `member`: `count` elements of a shared array.
ValueId GroupLowering::reduce_parts(ReduceState& s, size_t member, uint32_t array, ValueId first,
                                    int64_t apart, uint32_t count, BlockId block) {
  const auto size = static_cast<uint32_t>(item_size(e_.program().locals[array].dtype));
  const uint32_t width = apart == 1 && size >= 4 ? std::min(16 / size, count) : 1;
  const ir::ReduceOp op = s.reduce(member)->reduce_op();
  return reduce_shared(b_, block, op, array, first, apart, count, width);
}

/// Whether lanes of a sub-group may read each other's partial results: they are of one result and
/// of 32 bits.
bool GroupLowering::can_shuffle(const ReduceState& s) const {
  const uint32_t lanes = b_.target().sub_group;
  if (!b_.target().has_shuffles || parts() < lanes) return false;
  if (schedule_.group_outputs > 1 && !schedule_.is_output_major) return false;
  for (size_t m = 0; m < s.members(); ++m)
    if (item_size(e_.program().registers[s.vector_registers[m][0]].dtype) != 4) return false;
  return true;
}

/// Results of all work-items: of a sub-group by shuffles, in a tree, then of all sub-groups through
/// shared memory, where every work-item adds them up by itself. One barrier, none for one
/// sub-group.
void GroupLowering::combine_by_shuffles(ReduceState& s, BlockId block) {
  const uint32_t lanes = b_.target().sub_group, count = parts() / lanes;
  std::vector<ValueId> partials;
  for (size_t m = 0; m < s.members(); ++m) {
    ValueId sum = b_.read(block, s.vector_registers[m][0]);
    for (uint32_t with = lanes / 2; with > 0; with /= 2)
      sum = b_.reduce_step(s.reduce(m)->reduce_op(), sum, b_.shuffle(block, sum, with));
    partials.push_back(sum);
  }
  if (count == 1) {
    s.shared.insert(s.shared.end(), partials.begin(), partials.end());
    return;
  }
  const ValueId item = b_.item();
  const ValueId number = b_.shr(item, std::countr_zero(lanes));
  std::vector<uint32_t> arrays;
  const BlockId body = b_.open_block(block), floor = b_.set_floor(body);
  for (size_t m = 0; m < s.members(); ++m) {
    arrays.push_back(b_.add_local(b_.type(partials[m]).dtype, schedule_.block / lanes));
    b_.local_store(body, arrays[m], number, partials[m]);
  }
  b_.set_floor(floor);
  const Expr is_first = (Expr(b_, item) & (lanes - 1)) < 1;
  b_.close_if(body, is_first);
  b_.barrier(block);
  ValueId first = b_.index(0);
  if (schedule_.group_outputs > 1) first = b_.mul(output_index(), b_.index(count));
  for (size_t m = 0; m < s.members(); ++m)
    s.shared.push_back(reduce_parts(s, m, arrays[m], first, 1, count, block));
}

/// Results of all work-items in two steps through shared memory: a few work-items reduce a share of
/// them each, then all read what these have made. The order depends on the block size alone. In the
/// first step a work-item overwrites only what no other one reads.
void GroupLowering::combine_partials(ReduceState& s, BlockId block) {
  if (can_shuffle(s)) return combine_by_shuffles(s, block);
  const ValueId item = b_.item(), part = part_number();
  const uint32_t side = schedule_.group_outputs;
  const int64_t apart = schedule_.is_output_major ? 1 : side;  // of parts with one number
  std::vector<uint32_t> arrays;
  for (size_t m = 0; m < s.members(); ++m) {
    const uint32_t reg = s.vector_registers[m][0];
    arrays.push_back(b_.add_local(e_.program().registers[reg].dtype, schedule_.block));
    b_.local_store(block, arrays[m], item, b_.read(block, reg));
  }
  b_.barrier(block);
  uint32_t left = parts();
  if (left > kFewParts) {
    // What is left is read by all, so less of it than the few read before.
    left = std::max(uint32_t{1} << (std::countr_zero(left) - 1) / 2, left / kMostLoads);
    const BlockId body = b_.open_block(block), floor = b_.set_floor(body);
    for (size_t m = 0; m < s.members(); ++m)
      b_.local_store(body, arrays[m], item,
                     reduce_parts(s, m, arrays[m], item, apart * left, parts() / left, body));
    b_.set_floor(floor);
    b_.close_if(body, b_.lt(part, b_.index(left)));
    b_.barrier(block);
  }
  ValueId first = b_.index(0);
  if (side > 1) first = schedule_.is_output_major ? b_.sub(item, part) : output_index();
  for (size_t m = 0; m < s.members(); ++m)
    s.shared.push_back(reduce_parts(s, m, arrays[m], first, apart, left, block));
}

}  // namespace bm::compiler
