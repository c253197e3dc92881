// Lowering of split-K GEMM: partial sums in registers, a tree in shared memory, one epilogue.
#include <vector>

#include "compiler/program/expr.h"
#include "compiler/schedules/gemm_gpu/lowering.h"
#include "compiler/schedules/split_k/split_k.h"

namespace bm::compiler {
namespace {

class SplitKGemm {
 public:
  explicit SplitKGemm(Emitter& e) : e_(e), b_(e.builder()), p_(*e.schedule().split_k()) {}
  void run();

 private:
  void bind_tile(ValueId group, BlockId block);
  std::vector<uint32_t> bind(const SplitKSide& side, ValueId first, BlockId block);
  void accumulate(const Env& env, BlockId block);
  void step(const Env& env, ValueId first, uint32_t unroll, BlockId block);
  void add_partials(BlockId block);
  void store_result(BlockId block);

  Emitter& e_;
  Builder& b_;
  const SplitKPlan& p_;
  Env env_;                               // the batch
  ValueId row_ = kNone, column_ = kNone;  // first of the tile
  std::vector<uint32_t> rows_, columns_;  // bindings of the tile's rows and columns
  std::vector<uint32_t> accumulators_;    // registers, row by row
  uint32_t totals_ = 0;                   // shared array of the second pass
};

/// Rows of the last tile that do not exist are its last one once more: they are not stored.
std::vector<uint32_t> SplitKGemm::bind(const SplitKSide& side, ValueId first, BlockId block) {
  std::vector<uint32_t> out;
  Offsets lines(e_, first, block);
  for (uint32_t i = 0; i < side.tile; ++i) {
    if (!side.is_cut()) {
      out.push_back(lines.at(i).binding);
      continue;
    }
    const Expr at = min(Expr(b_, first) + i, side.extent() - 1);
    out.push_back(e_.make_bindings(at, block, 0, 1, 0));
  }
  return out;
}

void SplitKGemm::bind_tile(ValueId group, BlockId block) {
  ValueId rest = group;
  const Expr column(b_, e_.next_digit(&rest, b_.index(p_.n.tiles()), false));
  const bool is_last = e_.schedule().loops.empty();
  const Expr row(b_, e_.next_digit(&rest, b_.index(p_.m.tiles()), is_last));
  env_ = bind_batch(e_, rest, e_.unbound(), block);
  row_ = Expr(row * p_.m.tile);
  column_ = Expr(column * p_.n.tile);
  rows_ = bind(p_.m, row_, block);
  columns_ = bind(p_.n, column_, block);
  accumulators_ = clear_registers(b_, block, {p_.reduce->dtype, 1}, p_.results());
}

/// Steps `first`, first + splits, … of K for the whole tile, all loads in front.
void SplitKGemm::step(const Env& env, ValueId first, uint32_t unroll, BlockId block) {
  std::vector<Env> envs;
  Offsets steps(e_, first, block);
  for (uint32_t c = 0; c < unroll; ++c) {
    const uint32_t at = steps.at(int64_t{c} * p_.splits).binding;
    for (const uint32_t row : rows_)
      for (const uint32_t column : columns_) {
        const Env result = e_.bound(e_.bound(env, p_.m.along, row), p_.n.along, column);
        envs.push_back(e_.bound(result, p_.k, at));
      }
  }
  const Node* product = p_.reduce->src[0];
  for (const Env& at : envs)
    for (const Node* factor : product->src) e_.emit(factor, at);
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    ValueId sum = b_.read(block, accumulators_[i]);
    for (size_t c = 0; c < unroll; ++c)
      sum = e_.accumulate_one(p_.reduce, envs[c * accumulators_.size() + i], sum);
    b_.assign(block, accumulators_[i], sum);
  }
}

/// Work-item i has the steps i, i + splits, … of K: adjacent work-items read adjacent elements.
void SplitKGemm::accumulate(const Env& env, BlockId block) {
  const int64_t length = p_.k->src[0]->imm, stride = int64_t{p_.splits} * p_.unroll;
  const int64_t whole = length / stride * stride;
  if (whole > 0) {
    const Builder::Loop loop = b_.open_loop(block);
    step(env, b_.add(loop.index, b_.item()), p_.unroll, loop.body);
    b_.close_loop(loop, b_.index(0), b_.index(whole), stride);
  }
  if (whole == length) return;
  const Builder::Loop loop = b_.open_loop(block);
  step(env, loop.index, 1, loop.body);
  const Expr item(b_, b_.item());
  b_.close_loop(loop, Expr(item + whole), b_.index(length), p_.splits);
}

/// Two passes: `adders` work-items add a share each of a result's partial sums, then one adds
/// theirs. The order depends on the plan alone, so results are the same from launch to launch.
void SplitKGemm::add_partials(BlockId block) {
  const DType type = p_.reduce->dtype;
  const uint32_t partials = b_.add_local(type, uint64_t{p_.results()} * p_.row());
  totals_ = b_.add_local(type, uint64_t{p_.results()} * p_.short_row());
  const Expr item(b_, b_.item());
  for (uint32_t i = 0; i < p_.results(); ++i) {
    const Expr at = item + int64_t{i} * p_.row();
    b_.local_store(block, partials, at, b_.read(block, accumulators_[i]));
  }
  b_.barrier(block);
  const uint32_t adders = p_.adders(), busy = adders * p_.results();
  const auto add = [&](BlockId body) {
    const Expr result(b_, b_.shr(b_.item(), std::countr_zero(adders)));
    const Expr adder = item & int64_t{adders - 1};
    const Expr first = result * p_.row() + adder;
    const ValueId sum =
        reduce_shared(b_, body, ir::ReduceOp::kSum, partials, first, adders, p_.splits / adders);
    const Expr at = result * p_.short_row() + adder;
    b_.local_store(body, totals_, at, sum);
  };
  if (busy == p_.splits)
    add(block);
  else
    e_.branch(b_.lt(item, b_.index(busy)), block, add);
  b_.barrier(block);
}

/// Work-item i has result number i of the tile, and does what follows the sum.
void SplitKGemm::store_result(BlockId block) {
  const Expr item(b_, b_.item());
  const ValueId width = b_.index(p_.n.tile);
  const Expr row = Expr(b_, row_) + Expr(b_, e_.divide_index(Op::kDiv, item, width, true));
  const Expr column = Expr(b_, column_) + Expr(b_, e_.divide_index(Op::kMod, item, width, true));
  Expr exists = item < p_.results();
  const auto inside = [&](const SplitKSide& side, const Expr& at) {
    if (side.is_cut()) exists = exists & (at < side.extent());
  };
  inside(p_.m, row);
  inside(p_.n, column);
  e_.branch(exists, block, [&](BlockId body) {
    const Env at_row = e_.bound_at(env_, p_.m.along, row, body);
    const Env result = e_.bound_at(at_row, p_.n.along, column, body);
    const Expr first = item * p_.short_row();
    Epilogue out(e_, p_.reduce);
    out.add(result, reduce_shared(b_, body, ir::ReduceOp::kSum, totals_, first, 1, p_.adders()));
    out.store(body);
  });
}

void SplitKGemm::run() {
  const Builder::Loop groups = b_.open_loop(e_.root(), LoopKind::kGroup);
  bind_tile(groups.index, groups.body);
  OuterLoops outer(e_, p_.reduce, p_.k, env_, groups.body);
  accumulate(outer.env(), outer.body());
  outer.close();
  add_partials(groups.body);
  store_result(groups.body);
  b_.close_groups(groups, 0, kNone);
}

}  // namespace

void lower_split_k(Emitter& e) { SplitKGemm(e).run(); }

}  // namespace bm::compiler
