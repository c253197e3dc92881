// Top-k along one loop, and sort. Few values (k ≤ 64) stay in registers, sorted; what is not below
// the largest of them, nearly everything, costs a comparison. More are sorted by digits in scratch.
#include <algorithm>
#include <array>

#include "compiler/lowering/epilogue.h"
#include "compiler/program/expr.h"
#include "compiler/schedules/loops/lowering.h"
#include "compiler/schedules/topk/lowering.h"

namespace bm::compiler {
namespace {

/// Vectors compared at once.
constexpr uint32_t kVectors = 4;
/// More values than this are sorted.
constexpr int64_t kMostInRegisters = 64;
/// Rows below this length are sorted by digits of 8 bits: their tables are cleared and summed for
/// each row. Longer ones by digits of 11 bits, whose tables still fit the first caches.
constexpr int64_t kShortRow = 4'096;

bool is_sort(const Node& least) {
  const Node* extent = least.src[1]->src[0];
  const int64_t count = least.src[2]->hi + 1;
  return extent->is_const() && count > kMostInRegisters && count <= extent->imm;
}

/// Finds the kernel's k smallest values of a loop in front of the loops that use them.
class TopK final : public EmitRule {
 public:
  explicit TopK(Emitter& e) : e_(e), b_(e.builder()), schedule_(e.schedule()) {}
  void find(BlockId block, const Env& env);
  std::optional<ValueId> compute(const Node* n, const Env& env) override;

 private:
  struct Selection {
    const Node* range = nullptr;
    uint32_t lanes = 1;
    std::vector<uint32_t> sorted;  // registers of `lanes` values each
    uint32_t bound = 0;            // register: largest value that counts
    uint64_t count = 1;            // of values that count
    uint32_t fresh = 0;            // local array: values that may be among the smallest
  };
  void sort(BlockId block, const Env& env);
  void compare_vectors(const Selection& s, const Builder::Loop& loop, const Env& env);
  void insert_if_less(const Selection& s, BlockId block, ValueId value);

  Emitter& e_;
  Builder& b_;
  const Schedule& schedule_;
  uint32_t array_ = 0;     // local one: what was found
  BlockId block_ = kNone;  // where it is filled
};

}  // namespace

void lower_topk(Emitter& e) {
  TopK topk(e);
  LoopLowering loops(e);
  e.add_rule(topk);
  loops.before_axis = [&](size_t axis, BlockId block, const Env& env) {
    if (axis == e.schedule().top_k_axis) topk.find(block, env);
  };
  loops.run();
}

/// Radix sort of a loop's values, least significant digit first: one pass over the loop counts the
/// digits of every position, then each position moves all keys between the two halves of an array.
/// Positions at which all keys have one digit are passed over. Keys are biased, so that their order
/// is that of unsigned numbers; the sign that an arithmetic shift leaves above the last digit keeps
/// it.
void TopK::sort(BlockId block, const Env& env) {
  Builder& b = b_;
  const Node* n = schedule_.top_k;
  const int64_t length = n->src[1]->src[0]->imm;
  const int64_t bits = length < kShortRow ? 8 : 11;
  const int64_t buckets = int64_t{1} << bits, digits = (64 + bits - 1) / bits;
  const uint32_t keys = b.add_local(DType::kI64, static_cast<uint64_t>(2 * length));
  const uint32_t counts = b.add_local(DType::kI32, static_cast<uint64_t>(digits * buckets));
  const uint32_t from = b.add_register({DType::kI64, 1});  // element at which the keys start
  const uint32_t sum = b.add_register({DType::kI32, 1});
  const ValueId begin = b.index(0), end = b.index(length), bias = b.index(INT64_MIN);
  const ValueId none = b.constant({DType::kI32, 1}, 0), one = b.constant({DType::kI32, 1}, 1);
  const auto digit = [&](ValueId key, ValueId shift) -> Expr {
    return (Expr(b, key) >> Expr(b, shift)) & (buckets - 1);
  };
  const auto count_up = [&](BlockId in, ValueId at) {
    const ValueId before = b.local_load(in, counts, at);
    b.local_store(in, counts, at, b.add(before, one));
    return before;
  };

  const Builder::Loop clear = b.open_loop(block);
  b.local_store(clear.body, counts, clear.index, none);
  b.close_loop(clear, begin, b.index(digits * buckets), 1);

  const Builder::Loop fill = b.open_loop(block);
  const uint32_t binding = e_.make_bindings(fill.index, fill.body, 0, 1, 0);
  const ValueId value = e_.emit(n->src[0], e_.bound(env, n->src[1], binding));
  const ValueId biased = b.bit_xor(value, bias);
  b.local_store(fill.body, keys, fill.index, biased);
  for (int64_t d = 0; d < digits; ++d) {
    const ValueId which = digit(biased, b.index(d * bits));
    count_up(fill.body, b.add(which, b.index(d * buckets)));
  }
  b.close_loop(fill, begin, end, 1);

  b.assign(block, from, begin);
  const Builder::Loop pass = b.open_loop(block);
  const ValueId source = b.read(pass.body, from), target = b.sub(end, source);
  const ValueId shift = b.mul(pass.index, b.index(bits));
  const ValueId table = b.mul(pass.index, b.index(buckets));
  const ValueId first = digit(b.local_load(pass.body, keys, source), shift);
  const ValueId alike = b.local_load(pass.body, counts, b.add(table, first));
  const BlockId move = b.open_block(pass.body);
  b.assign(move, sum, none);
  const Builder::Loop prefix = b.open_loop(move);
  const ValueId bucket = b.add(table, prefix.index);
  const ValueId count = b.local_load(prefix.body, counts, bucket);
  const ValueId before = b.read(prefix.body, sum);
  b.local_store(prefix.body, counts, bucket, before);
  b.assign(prefix.body, sum, b.add(before, count));
  b.close_loop(prefix, begin, b.index(buckets), 1);
  const Builder::Loop scatter = b.open_loop(move);
  const ValueId key = b.local_load(scatter.body, keys, b.add(source, scatter.index));
  const ValueId position = count_up(scatter.body, b.add(table, digit(key, shift)));
  const Expr to = Expr(b, target) + cast(Expr(b, position), DType::kI64);
  b.local_store(scatter.body, keys, to, key);
  b.close_loop(scatter, begin, end, 1);
  b.assign(move, from, target);
  b.close_if(move, b.ne(alike, b.constant({DType::kI32, 1}, length)));
  b.close_loop(pass, begin, b.index(digits), 1);

  const ValueId last = b.read(block, from);
  const Builder::Loop finish = b.open_loop(block);
  const ValueId sorted_key = b.local_load(finish.body, keys, b.add(last, finish.index));
  b.local_store(finish.body, keys, finish.index, b.bit_xor(sorted_key, bias));
  b.close_loop(finish, begin, end, 1);
  array_ = keys;
  block_ = block;
}

/// One pass over the loop of the kernel's kTopK node, in front of the loops that use what it
/// finds.
void TopK::find(BlockId block, const Env& env) {
  const Node* n = schedule_.top_k;
  if (is_sort(*n)) return sort(block, env);
  Selection s;
  s.range = n->src[1];
  s.count = static_cast<uint64_t>(std::max<int64_t>(n->src[2]->hi, 0)) + 1;
  s.lanes = std::max(b_.target().vector_bits / 64, 1u);
  const Type t{DType::kI64, s.lanes};
  for (uint64_t i = 0; i < s.count; i += s.lanes) {
    s.sorted.push_back(b_.add_register(t));
    b_.assign(block, s.sorted.back(), b_.constant(t, INT64_MAX));
  }
  s.bound = b_.add_register({DType::kI64, 1});
  b_.assign(block, s.bound, b_.index(INT64_MAX));
  s.fresh = b_.add_local(DType::kI64, uint64_t{kVectors} * s.lanes);
  array_ = b_.add_local(DType::kI64, s.sorted.size() * s.lanes);
  block_ = block;

  const ValueId extent = e_.emit(s.range->src[0], env);
  const ValueId length = e_.max_index(extent, b_.index(0));
  const int64_t step = int64_t{kVectors} * s.lanes;
  const Expr whole = whole_steps({b_, length}, step);
  const Builder::Loop wide = b_.open_loop(block);
  compare_vectors(s, wide, env);
  b_.close_loop(wide, b_.index(0), whole, step);
  const Builder::Loop single = b_.open_loop(block);
  const uint32_t binding = e_.make_bindings(single.index, single.body, 0, 1, 0);
  insert_if_less(s, single.body, e_.emit(n->src[0], e_.bound(env, s.range, binding)));
  b_.close_loop(single, whole, length, 1);
  spill_vectors(b_, block, array_, b_.index(0), s.sorted);
}

void TopK::compare_vectors(const Selection& s, const Builder::Loop& loop, const Env& env) {
  std::vector<ValueId> values;
  uint32_t origin = 0;
  ValueId least = kNone;
  for (uint32_t v = 0; v < kVectors; ++v) {
    const uint32_t binding =
        e_.make_bindings(loop.index, loop.body, int64_t{v} * s.lanes, s.lanes, origin);
    origin = e_.binding(binding).origin;
    const ValueId value = e_.emit(schedule_.top_k->src[0], e_.bound(env, s.range, binding));
    values.push_back(e_.splat(value, s.lanes));
    least = v == 0 ? values[0] : b_.reduce_step(ir::ReduceOp::kMin, least, values[v]);
  }
  const auto is_less = [&](ValueId value, BlockId block) {
    const ValueId most = e_.splat(b_.read(block, s.bound), s.lanes);
    return b_.any(b_.lt(value, most));
  };
  const BlockId some = b_.open_block(loop.body);
  store_vectors(b_, some, s.fresh, b_.index(0), values);
  const Builder::Loop vectors = b_.open_loop(some);
  const ValueId again = b_.local_load(vectors.body, s.fresh, vectors.index, s.lanes);
  const BlockId here = b_.open_block(vectors.body);
  const Builder::Loop lane = b_.open_loop(here);
  insert_if_less(s, lane.body, b_.local_load(lane.body, s.fresh, lane.index));
  b_.close_loop(lane, vectors.index, b_.add(vectors.index, b_.index(s.lanes)), 1);
  b_.close_if(here, is_less(again, vectors.body));
  b_.close_loop(vectors, b_.index(0), b_.index(int64_t{kVectors} * s.lanes), s.lanes);
  b_.close_if(some, is_less(least, loop.body));
}

/// Every register takes the new value, or the one before it, if that is larger than the new one.
void TopK::insert_if_less(const Selection& s, BlockId block, ValueId value) {
  const BlockId inside = b_.open_block(block);
  const Type t{DType::kI64, s.lanes};
  std::vector<ValueId> old, next;
  for (const uint32_t reg : s.sorted) old.push_back(b_.read(inside, reg));
  const ValueId fresh = e_.splat(value, s.lanes);
  for (size_t i = 0; i < old.size(); ++i) {
    const ValueId before = i > 0 ? old[i - 1] : b_.constant(t, INT64_MIN);
    const ValueId shifted = s.lanes > 1 ? b_.concat_shift(before, old[i], s.lanes - 1) : before;
    const ValueId lower = b_.reduce_step(ir::ReduceOp::kMin, old[i], fresh);
    next.push_back(b_.reduce_step(ir::ReduceOp::kMax, shifted, lower));
  }
  for (size_t i = 0; i < old.size(); ++i) b_.assign(inside, s.sorted[i], next[i]);
  const auto last = static_cast<uint32_t>((s.count - 1) % s.lanes);
  b_.assign(inside, s.bound, b_.extract(next.back(), last));
  const ValueId most = b_.read(block, s.bound);
  b_.close_if(inside, b_.lt(value, most));
}

std::optional<ValueId> TopK::compute(const Node* n, const Env& env) {
  if (n->op != Op::kTopK) return std::nullopt;
  const ValueId number = e_.emit(n->src[2], env);
  const BlockId block = b_.deeper(block_, e_.block_for(e_.dependencies(n->src[2]), env));
  return b_.local_load(block, array_, number);
}

}  // namespace bm::compiler
