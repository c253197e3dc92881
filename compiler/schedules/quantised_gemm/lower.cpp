// Quantised GEMM by int8 MMA: words of blocks become fragments, int32 tiles are scaled and added
// to float32 accumulators block by block.
#include <algorithm>
#include <bit>
#include <set>

#include "compiler/lowering/contract.h"
#include "compiler/lowering/epilogue.h"
#include "compiler/program/expr.h"
#include "compiler/schedules/gemm_gpu/lowering.h"
#include "compiler/schedules/quantised_gemm/lowering.h"
#include "compiler/schedules/quantised_gemm/quantised_gemm.h"

namespace bm::compiler {
namespace {

int64_t in_every_byte(int64_t byte) { return (byte & 0xff) * 0x01010101; }

class QuantisedGemm {
 public:
  explicit QuantisedGemm(Emitter& e)
      : e_(e), b_(e.builder()), p_(*e.schedule().quantised()), info_(p_.info()) {}

  void run() {
    const Builder::Loop groups = b_.open_loop(e_.root(), LoopKind::kGroup);
    body_ = groups.body;
    bind_tile(groups.index);
    bind_lanes();
    const size_t results = results_.size() * p_.reduces.size();
    accumulators_ = clear_registers(b_, body_, {DType::kF32, 1}, results);
    write_loop();
    store();
    b_.close_groups(groups, 0, count_);
  }

 private:
  /// A result of this work-item.
  struct Result {
    Env env;
    uint32_t row = 0, vector = 0;  ///< instruction of the tile
    uint32_t sum = 0;              ///< number among those of the instruction
    ValueId exists = kNone;
  };

  void bind_tile(ValueId group) {
    ValueId rest = group;
    const bool has_more = !e_.schedule().loops.empty();
    env_ = e_.unbound();
    extent_ = e_.emit(p_.vectors->src[0], env_);
    const Expr extent(b_, extent_);
    const ValueId tiles =
        e_.divide_index(Op::kDiv, Expr(extent + (p_.block_n() - 1)), b_.index(p_.block_n()), true);
    const Expr vector_tile(b_, e_.next_digit(&rest, tiles, false));
    const int64_t row_tiles = p_.rows->src[0]->imm / p_.block_m();
    const Expr row_tile(b_, e_.next_digit(&rest, b_.index(row_tiles), !has_more));
    env_ = bind_batch(e_, rest, std::move(env_), body_);
    if (!is_constant()) {
      int64_t others = row_tiles;
      for (const AxisPlan& loop : e_.schedule().loops) others *= loop.range->src[0]->imm;
      count_ = b_.mul(tiles, b_.index(others));
    }
    const ValueId item = b_.item(), warp = b_.shr(item, std::countr_zero(p_.sub_group));
    const ValueId lane = b_.bit_and(item, b_.index(p_.sub_group - 1));
    if (info_.is_part_low) {
      lane_group_ = b_.shr(lane, std::countr_zero(info_.parts));
      part_ = b_.bit_and(item, b_.index(info_.parts - 1));
    } else {
      lane_group_ = b_.bit_and(item, b_.index(info_.slot - 1));
      part_ = b_.shr(lane, std::countr_zero(info_.slot));
    }
    const Expr sub_group(b_, warp);
    const Expr warp_m = sub_group & (p_.warps_m - 1);
    const Expr warp_n(b_, b_.shr(warp, std::countr_zero(p_.warps_m)));
    const Expr first_row = row_tile * p_.block_m();
    const Expr own_row = warp_m * (p_.block_m() / p_.warps_m);
    row_ = Expr(first_row + own_row);
    first_vector_ = Expr(vector_tile * p_.block_n());
    // The last tile begins so that none of it lies outside: what it shares with the one before is
    // stored by that one.
    const Expr last(b_, e_.max_index(Expr(extent - p_.block_n()), b_.index(0)));
    const bool is_whole = is_constant() && p_.vectors->src[0]->imm % p_.block_n() == 0;
    const Expr start(b_, is_whole ? first_vector_ : e_.min_index(first_vector_, last));
    const Expr own_vector = warp_n * (p_.block_n() / p_.warps_n);
    vector_ = Expr(start + own_vector);
    is_shifted_ = !is_whole;
    // Fewer vectors than the least tile: the last one stands for those that are not there.
    is_clamped_ = !is_constant() || p_.vectors->src[0]->imm < p_.block_n();
  }

  bool is_constant() const { return p_.vectors->src[0]->is_const(); }

  Offsets vector_offsets(ValueId base) {
    return is_clamped_ ? Offsets(e_, base, body_, extent_, true) : Offsets(e_, base, body_);
  }

  /// Rows and vectors of fragments and of results; see StmtKind::kMma and MatrixInfo.
  void bind_lanes() {
    const Expr lane_group(b_, lane_group_), part(b_, part_), row(b_, row_), vector(b_, vector_);
    const uint32_t step = info_.slot;
    Offsets rows(e_, Expr(row + lane_group), body_);
    for (uint32_t slot = 0; slot < p_.row_tiles * info_.a_slots; ++slot)
      row_bindings_.push_back(rows.at(int64_t{slot} * step).binding);
    const Expr own = vector + lane_group;
    Offsets vectors = vector_offsets(own);
    std::vector<Offsets::Position> columns;
    for (uint32_t slot = 0; slot < p_.vector_tiles; ++slot)
      columns.push_back(vectors.at(int64_t{slot} * step));
    for (const Offsets::Position& c : columns) vector_bindings_.push_back(c.binding);
    const bool is_paired = info_.row_step == 0;
    const Expr pair = vector + part * 2;
    Offsets pairs = vector_offsets(pair);
    Offsets parts(e_, Expr(row + part * info_.row_part), body_);
    for (uint32_t i = 0; i < p_.row_tiles; ++i)
      for (uint32_t j = 0; j < p_.vector_tiles; ++j)
        for (uint32_t s = 0; s < info_.accumulators; ++s) {
          const int64_t offset = int64_t{j} * step + (is_paired ? s % 2 : 0);
          const Offsets::Position column = is_paired ? pairs.at(offset) : columns[j];
          const uint32_t line = is_paired
                                    ? row_bindings_[i * info_.a_slots + s / 2]
                                    : parts.at(int64_t{i} * step + s * info_.row_step).binding;
          Result r{.env = e_.bound(e_.bound(env_, p_.rows, line), p_.vectors, column.binding),
                   .row = i,
                   .vector = j,
                   .sum = s,
                   .exists = column.exists};
          if (is_shifted_) {
            const Expr at = (is_paired ? pair : own) + offset;
            const Expr is_own = !(at < Expr(b_, first_vector_));
            r.exists = r.exists == kNone ? ValueId{is_own} : b_.bit_and(r.exists, is_own);
          }
          results_.push_back(std::move(r));
        }
  }

  /// Words need params that begin at multiples of 4 bytes; memory that a program was given may
  /// begin anywhere, and gets the same loop with words put together from bytes.
  void write_loop() {
    std::set<int64_t> params;
    for (const auto& [node, dot] : e_.schedule().dots)
      for (const Node* n : ir::topological(std::vector{dot.left, dot.right}))
        if (n->op == Op::kLoad && item_size(n->dtype) == 1) params.insert(n->imm);
    ValueId is_aligned = kNone;
    for (const int64_t param : params) {
      const ValueId one = b_.is_aligned(static_cast<int>(param));
      is_aligned = is_aligned == kNone ? one : b_.bit_and(is_aligned, one);
    }
    const ValueId is_not = b_.negated(is_aligned);
    for (const bool is_fast : {true, false}) {
      is_fast_ = is_fast;
      const BlockId block = b_.open_block(body_);
      {
        const Confined inside(e_, block);
        const Builder::Loop loop = b_.open_loop(block);
        multiply_blocks(loop);
        b_.close_loop(loop, b_.index(0), b_.index(p_.blocks()), p_.unroll);
      }
      b_.close_if(block, is_fast ? is_aligned : is_not);
    }
  }

  /// Fragments of one sum.
  struct Fragments {
    SlotWords left, right;
  };
  /// Bindings of the loops over blocks.
  using BlockBindings = std::vector<std::pair<const Node*, uint32_t>>;

  Env at_block(Env env, const BlockBindings& block) const {
    for (const auto& [range, binding] : block) env = e_.bound(env, range, binding);
    return env;
  }

  void multiply_blocks(const Builder::Loop& loop) {
    std::vector<BlockBindings> blocks(p_.unroll);
    for (const Node* reduce : p_.reduces) {
      Offsets positions(e_, loop.index, loop.body);
      for (uint32_t u = 0; u < p_.unroll; ++u)
        blocks[u].emplace_back(reduce->src[1], positions.at(u).binding);
    }
    std::vector<std::vector<Fragments>> fragments;
    for (const BlockBindings& block : blocks) {
      const Env env = at_block(env_, block);
      std::vector<Fragments>& own = fragments.emplace_back();
      for (const BlockDot& sum : p_.block_dots) {
        SlotWords left = words(sum, true, env);
        own.push_back({std::move(left), words(sum, false, env)});
      }
    }
    for (uint32_t u = 0; u < p_.unroll; ++u)
      for (size_t first = 0; first < results_.size(); first += info_.accumulators)
        multiply_tile(loop.body, blocks[u], fragments[u], first);
  }

  /// One instruction's results, from number `first` on.
  void multiply_tile(BlockId body, const BlockBindings& block,
                     const std::vector<Fragments>& fragments, size_t first) {
    for (size_t n = 0; n < p_.block_dots.size(); ++n) {
      const BlockDot& sum = p_.block_dots[n];
      const Result& r = results_[first];
      std::vector<uint32_t> registers;
      for (uint32_t s = 0; s < info_.accumulators; ++s) {
        const ValueId begin = start(sum, at_block(results_[first + s].env, block));
        registers.push_back(b_.add_register({DType::kI32, 1}));
        b_.assign(body, registers.back(), begin);
      }
      const auto begin = fragments[n].left.begin() + r.row * info_.a_slots;
      contract_mma(b_, body, sum.info, std::array{registers[0]},
                   SlotWords(begin, begin + info_.a_slots),
                   SlotWords{fragments[n].right[r.vector]});
      for (uint32_t s = 0; s < info_.accumulators; ++s)
        e_.set_known(sum.node, at_block(results_[first + s].env, block),
                     b_.read(body, registers[s]));
    }
    for (size_t i = first; i < first + info_.accumulators; ++i)
      for (size_t n = 0; n < p_.reduces.size(); ++n) {
        const uint32_t reg = accumulator(i, n);
        const Env at = at_block(results_[i].env, block);
        const ValueId old = b_.read(body, reg);
        b_.assign(body, reg, e_.accumulate_one(p_.reduces[n], at, old));
      }
  }

  /// Terms that are no dot products are what the additions start from.
  ValueId start(const BlockDot& sum, const Env& env) {
    ValueId out = b_.constant({DType::kI32, 1}, 0);
    for (size_t i = 0; i < sum.others.size(); ++i) {
      const ValueId term = e_.emit(sum.others[i], env);
      out = i == 0 ? term : b_.add(out, term);
    }
    return out;
  }

  uint32_t accumulator(size_t result, size_t reduce) const {
    return accumulators_[result * p_.reduces.size() + reduce];
  }

  /// Words of this work-item by slot, instruction after instruction.
  SlotWords words(const BlockDot& sum, bool is_left, const Env& env) {
    const Node* range = is_left ? p_.rows : p_.vectors;
    SlotWords out;
    for (const uint32_t binding : is_left ? row_bindings_ : vector_bindings_) {
      const Env own = e_.bound(env, range, binding);
      std::vector<ValueId>& line = out.emplace_back();
      for (const QuantisedStep& step : sum.steps) line.push_back(word_of(step, is_left, own));
      while (line.size() % sum.info.words() != 0) line.push_back(b_.constant({DType::kU32, 1}, 0));
    }
    return out;
  }

  ValueId word_of(const QuantisedStep& step, bool is_left, const Env& env) {
    const bool is_one = step.dots.size() == 1;
    // Several short ones: lanes take them in turn.
    const ValueId own = is_one ? part_ : b_.bit_and(part_, b_.index(step.words - 1));
    const ValueId turn = is_one ? kNone : b_.shr(part_, std::countr_zero(uint64_t(step.words)));
    ValueId out = kNone;
    for (size_t i = 0; i < step.dots.size(); ++i) {
      const ValueId word = dot_word(step.dots[i], own, step.first, is_left, env);
      if (i == 0)
        out = word;
      else
        out = Expr(select(Expr(b_, turn) == i, Expr(b_, word), Expr(b_, out)));
    }
    return out;
  }

  ValueId dot_word(const Node* dot, ValueId lane, int64_t first, bool is_left, const Env& env) {
    const DotPlan& plan = e_.schedule().dots.at(dot);
    const Node* a = matrix_factor(plan, p_.rows);
    const Node* factor = is_left ? a : a == plan.left ? plan.right : plan.left;
    Env at = env;
    for (size_t i = 1; i < dot->src.size(); ++i) {
      const Node* range = dot->src[i];
      const int64_t width = range == plan.along ? 4 : 1;
      const bool has_steps = range->src[0]->imm > width;
      const Expr base(b_, has_steps ? lane : b_.index(0));
      // Lanes of one part all have the same word.
      const bool is_same = info_.parts == 1 || !has_steps;
      const ValueId from = is_same ? b_.index(0) : width == 1 ? ValueId(base) : Expr(base * width);
      at = e_.bound(at, range, e_.make_bindings(from, body_, has_steps ? first * width : 0, 1, 0));
    }
    return bytes_of(e_, factor, at, is_fast_);
  }

  void store() {
    Epilogue out(e_, p_.reduces[0]);
    for (size_t i = 0; i < results_.size(); ++i) {
      for (size_t n = 1; n < p_.reduces.size(); ++n)
        e_.set_known(p_.reduces[n], results_[i].env, b_.read(body_, accumulator(i, n)));
      out.add(results_[i].env, b_.read(body_, accumulator(i, 0)), results_[i].exists);
    }
    out.store_pairs(body_, p_.vectors, false);
  }

  Emitter& e_;
  Builder& b_;
  const QuantisedPlan& p_;
  const MatrixInfo& info_;
  BlockId body_ = 0;
  Env env_;  // loops besides rows and vectors
  ValueId extent_ = kNone, row_ = kNone, vector_ = kNone, first_vector_ = kNone;
  ValueId lane_group_ = kNone, part_ = kNone;
  ValueId count_ = kNone;  ///< of groups that have a tile; kNone: all
  bool is_shifted_ = false, is_clamped_ = false, is_fast_ = true;
  std::vector<uint32_t> row_bindings_, vector_bindings_, accumulators_;
  std::vector<Result> results_;
};

}  // namespace

ValueId bytes_of(Emitter& e, const Node* n, const Env& env, bool is_aligned) {
  Builder& b = e.builder();
  const auto of = [&](size_t i) { return bytes_of(e, n->src[i], env, is_aligned); };
  switch (n->op) {
    case Op::kConst: return b.constant({DType::kU32, 1}, in_every_byte(n->imm));
    case Op::kLoad: {
      const ValueId index = e.emit(n->src[0], env);
      return b.words(static_cast<int>(n->imm), 1, index, is_aligned);
    }
    case Op::kShl:
    case Op::kShr: {
      const ValueId word = of(0);
      const int64_t amount = n->src[1]->imm;
      const bool is_left = n->op == Op::kShl;
      const ValueId moved = is_left ? b.shl(word, amount) : b.shr(word, amount);
      const int64_t kept = is_left ? 0xff << amount : 0xff >> amount;
      return b.bit_and(moved, b.like_int(moved, in_every_byte(kept)));
    }
    case Op::kMul: {  // 1 becomes 255, and no byte carries into another
      const Expr bit(b, of(0));
      return Expr((bit << 8) - bit);
    }
    default: {
      const ValueId x = of(0), y = of(1);
      return b.raw(n->op, DType::kU32, {x, y});
    }
  }
}

void lower_quantised_gemm(Emitter& e) { QuantisedGemm(e).run(); }

}  // namespace bm::compiler
