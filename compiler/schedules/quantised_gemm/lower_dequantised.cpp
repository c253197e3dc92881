// Quantised GEMM by instructions for float16: words of codes become fragments of the left operand
// in registers, vectors are staged in shared memory; see DequantisedPlan.
#include <array>
#include <bit>
#include <optional>
#include <set>
#include <span>

#include "compiler/ir/linear.h"
#include "compiler/lowering/contract.h"
#include "compiler/lowering/epilogue.h"
#include "compiler/program/expr.h"
#include "compiler/schedules/quantised_gemm/lowering.h"
#include "compiler/schedules/quantised_gemm/quantised_gemm.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

using Shape = DequantisedPlan;

constexpr int64_t kSteps = LineFragments::kPerLine;  ///< of 16 elements of K in a line
constexpr uint32_t kPairs = 2, kRowSlots = 2;
constexpr int64_t kTileRows = 16, kSlotRows = 8;

class DequantisedGemm {
 public:
  explicit DequantisedGemm(Emitter& e)
      : e_(e), b_(e.builder()), p_(*e.schedule().quantised()->dequantised) {}

  void run() {
    const auto bytes = static_cast<uint64_t>(p_.stages * p_.stage_bytes());
    array_ = b_.add_local(DType::kU8, bytes);
    e_.program().locals[array_].alignment = LineTile::kAlignment;
    e_.program().has_dynamic_shared = bytes > b_.target().shared_memory_bytes;
    const Builder::Loop groups = b_.open_loop(e_.root(), LoopKind::kGroup);
    body_ = groups.body;
    bind_tile(groups.index);
    const ValueId is_inside = b_.lt(first_vector_, extent_);
    const ValueId is_aligned = b_.bit_and(is_inside, params_aligned());
    const ValueId is_not = b_.bit_and(is_inside, b_.negated(params_aligned()));
    accumulators_ = clear_registers(b_, body_, {DType::kF32, 1}, count());
    for (const bool is_fast : {true, false}) {
      is_fast_ = is_fast;
      const BlockId block = b_.open_block(body_);
      run_pipeline(block);
      b_.close_if(block, is_fast ? is_aligned : is_not);
    }
    // In a block of its own behind the last product, as in lower_pipelined.cpp.
    const BlockId out = b_.open_block(body_);
    store(out);
    b_.close_if(out, is_inside);
    b_.close_groups(groups, 0, count_);
  }

 private:
  Expr expr(ValueId v) const { return {b_, v}; }
  size_t count() const { return size_t{p_.row_tiles} * p_.slots * p_.info.accumulators; }

  ValueId params_aligned() {
    std::set<int64_t> params{p_.terms[0].load->imm};
    for (const DequantisedTerm& t : p_.terms)
      for (const Node* n : ir::topological(std::vector{t.code}))
        if (n->op == Op::kLoad) params.insert(n->imm);
    ValueId out = kNone;
    for (const int64_t param : params) {
      const ValueId one = b_.is_aligned(static_cast<int>(param));
      out = out == kNone ? one : b_.bit_and(out, one);
    }
    return out;
  }

  void bind_tile(ValueId group) {
    ValueId rest = group;
    env_ = e_.unbound();
    const Node* vectors = p_.vectors->src[0];
    extent_ = e_.emit(vectors, env_);
    const Expr most = expr(extent_) + (p_.block_n() - 1);
    const ValueId tiles = e_.divide_index(Op::kDiv, most, b_.index(p_.block_n()), true);
    const Expr vector_tile(b_, e_.next_digit(&rest, tiles, false));
    const int64_t row_tiles = p_.row_count() / p_.block_m();
    const Expr row_tile(b_, e_.next_digit(&rest, b_.index(row_tiles), true));
    if (!vectors->is_const()) count_ = b_.mul(tiles, b_.index(row_tiles));
    const Expr item(b_, b_.item());
    const Expr sub_group = item >> log2_of(p_.sub_group);
    part_ = Expr(item & (p_.info.parts - 1));
    const Expr lane = item & (p_.sub_group - 1);
    lane_group_ = Expr(lane >> log2_of(p_.info.parts));
    first_vector_ = Expr(vector_tile * p_.block_n());
    const Expr first_row = row_tile * p_.block_m();
    const Expr own_row = first_row + sub_group * (kTileRows * p_.row_tiles);
    bind_rows(own_row);
    lane_binding_ = e_.make_bindings(part_, body_, 0, 1, 0);
    for (size_t i = 0; i < digits_.size(); ++i)
      digits_[i] = e_.make_bindings(b_.index(static_cast<int64_t>(i)), body_, 0, 1, 0);
  }

  /// Of every slot of eight rows.
  void bind_rows(const Expr& first) {
    const bool is_split = p_.rows.size() == 2;
    const Expr own = first + expr(lane_group_);
    Offsets merged(e_, own, body_), inner(e_, lane_group_, body_),
        outer(e_, Expr(first >> log2_of(kTileRows)), body_);
    for (uint32_t tile = 0; tile < p_.row_tiles; ++tile)
      for (uint32_t slot = 0; slot < kRowSlots; ++slot) {
        const int64_t offset = tile * kTileRows + slot * kSlotRows;
        if (!is_split) {
          rows_.push_back(e_.bound(env_, p_.rows[0], merged.at(offset).binding));
          continue;
        }
        const Env env = e_.bound(env_, p_.rows[0], outer.at(tile).binding);
        rows_.push_back(e_.bound(env, p_.rows[1], inner.at(slot * kSlotRows).binding));
      }
  }

  // --- vectors -----------------------------------------------------------------------------------

  ValueId stage_start(ValueId iteration) {
    const Expr stage(b_, e_.divide_index(Op::kMod, iteration, b_.index(p_.stages), true));
    return Expr(stage * p_.stage_bytes());
  }

  /// Lines of 64 elements of K; eight work-items copy a line.
  void copy_stage(ValueId iteration, ValueId stage, BlockId block) {
    const Expr item(b_, b_.item());
    const Expr chunk = item & (LineTile::kChunks - 1);
    const Expr line = item >> log2_of(LineTile::kChunks);
    const Expr swizzled = (chunk ^ (line & (LineTile::kChunks - 1))) * LineTile::kChunk;
    const Expr to = expr(stage) + (line * LineTile::kLine + swizzled);
    constexpr int64_t kPerBlock = Shape::kBlock * 2 / LineTile::kChunk;  // chunks
    const Expr block_of = expr(iteration) * Shape::kStageBlocks + (chunk >> log2_of(kPerBlock));
    const Expr inside = (chunk & (kPerBlock - 1)) * (LineTile::kChunk / 2);
    Env env = e_.bound_at(env_, p_.block, block_of, block);
    for (const Node* r : {p_.step, p_.lane, p_.pair, p_.element})
      if (r) env = e_.bound(env, r, digits_[0]);
    const bool has_tail =
        !p_.vectors->src[0]->is_const() || p_.vectors->src[0]->imm % p_.block_n() != 0;
    const Expr own = expr(first_vector_) + line;
    Offsets lines(e_, own, block, has_tail ? extent_ : kNone, false);
    const int64_t at_once = e_.schedule().block / LineTile::kChunks;
    const Node* load = p_.terms[0].load;
    // One address and constants: sixteen addresses would take the registers of the results.
    int64_t stride = 0;
    BM_CHECK(ir::affine_stride(load->src[0], p_.vectors, &stride));
    const ValueId index = e_.emit(load->src[0], e_.bound(env, p_.vectors, lines.at(0).binding));
    const Expr first = expr(index) + (inside - p_.terms[0].first);
    for (int64_t l = 0; l < p_.block_n(); l += at_once) {
      const Offsets::Position at = lines.at(l);
      const Expr from = first + l * stride;
      const Expr byte = to + l * LineTile::kLine;
      b_.copy(block, is_fast_ ? CopyKind::kAsync : CopyKind::kUnalignedWords,
              static_cast<int>(load->imm), from, array_, byte, at.exists);
    }
  }

  // --- rows --------------------------------------------------------------------------------------

  /// Two words of float16 that this work-item has of a step of K and a row.
  std::array<ValueId, kPairs> dequantised(const DequantisedTerm& t, const Env& env) {
    const auto at = [&](uint32_t pair, uint32_t element) {
      return e_.bound(e_.bound(env, p_.pair, digits_[pair]), p_.element, digits_[element]);
    };
    const Expr word(b_, bytes_of(e_, t.code->src[0], at(0, 0), is_fast_));
    std::array<ValueId, kPairs> out = {};
    for (uint32_t pair = 0; pair < kPairs; ++pair) {
      std::array<ValueId, kPairs> half = {};
      for (uint32_t element = 0; element < kPairs; ++element) {
        const Expr byte = (word >> int64_t{8 * (2 * pair + element)}) & 0xff;
        e_.set_known(t.code, at(pair, element), b_.convert(byte, DType::kF32));
        half[element] = e_.emit(t.weight, at(pair, element));
      }
      out[pair] = b_.pack_half2(half[0], half[1], DType::kF16);
    }
    return out;
  }

  /// Of the step `step` of block `number` (bound to it), for all rows: slots of eight, two words
  /// each.
  SlotWords left_fragments(uint32_t number, int64_t step, std::span<const Env> rows) {
    SlotWords out;
    for (const Env& row : rows)
      for (const DequantisedTerm& t : p_.terms) {
        const int64_t own = step - t.first / Shape::kStep;
        if (own < 0 || own >= (p_.step ? 2 : 1)) continue;
        Env env = e_.bound(e_.bound(row, p_.block, number), p_.lane, lane_binding_);
        if (p_.step) env = e_.bound(env, p_.step, digits_[static_cast<size_t>(own)]);
        const auto words = dequantised(t, env);
        out.emplace_back(words.begin(), words.end());
      }
    return out;
  }

  // --- products ----------------------------------------------------------------------------------

  /// Where a warpgroup multiplies beside its work-items.
  void multiply_group(std::span<const SlotWords> left, ValueId stage, BlockId block) {
    const auto registers = static_cast<uint32_t>(count());
    const TileOperand right{stage, 0, true, p_.stage_bytes()};
    contract_group_mma(b_, block, p_.group_mma, accumulators_[0], registers, array_, left, right,
                       false);
    b_.wait_wgmma(block, accumulators_[0], registers);
  }

  /// Tiles of rows from `first` on, as many as there are fragments of.
  void multiply_step(const SlotWords& left, uint32_t first, int64_t step, ValueId stage,
                     BlockId block) {
    const LineStage lines(e_, e_.schedule().block, array_);
    const LineFragments f{.is_k_major = true, .lines = p_.block_n()};
    for (uint32_t slot = 0; slot < p_.slots; slot += 2) {
      const auto [byte, offset] = lines.fragment_byte(f, int64_t{slot} * kSlotRows, step);
      const Expr at = expr(stage) + offset + expr(byte);
      const SlotWords right = lines.load_fragment(f, at, block);
      for (uint32_t tile = first; tile < first + left.size() / kRowSlots; ++tile) {
        const auto begin = left.begin() + (tile - first) * kRowSlots;
        const std::array<uint32_t, 2> registers{register_of(tile, slot, 0),
                                                register_of(tile, slot + 1, 0)};
        contract_mma(b_, block, p_.info, registers, SlotWords(begin, begin + kRowSlots), right);
      }
    }
  }

  uint32_t register_of(uint32_t tile, uint32_t slot, uint32_t i) const {
    return accumulators_[0] + (tile * p_.slots + slot) * p_.info.accumulators + i;
  }

  void run_pipeline(BlockId block) {
    const int64_t ahead = p_.stages - 1, iterations = p_.iterations();
    for (int64_t i = 0; i < ahead; ++i) {
      if (i < iterations) copy_stage(b_.index(i), b_.index(i * p_.stage_bytes()), block);
      if (is_fast_) b_.pipe(block, PipeOp::kCommitCopies);
    }
    const Builder::Loop loop = b_.open_loop(block);
    const ValueId stage = stage_start(loop.index);
    Offsets numbers(e_, Expr(expr(loop.index) * Shape::kStageBlocks), loop.body);
    const auto left = [&](int64_t step, std::span<const Env> rows) {
      return left_fragments(numbers.at(step / 2).binding, step % 2, rows);
    };
    // Before the wait: another group multiplies meanwhile. Instructions on registers want a step
    // at a time, so that no more than that is kept beside the results.
    std::vector<SlotWords> all;
    for (int64_t step = 0; step < kSteps && p_.has_group_mma(); ++step)
      all.push_back(left(step, rows_));
    if (is_fast_) b_.pipe(loop.body, PipeOp::kWaitCopies, static_cast<uint32_t>(ahead - 1));
    if (p_.has_group_mma()) b_.pipe(loop.body, PipeOp::kProxyFence);
    // Everybody's chunks of this stage are there, and nobody reads the one before any more.
    b_.barrier(loop.body);
    const Expr next = expr(loop.index) + ahead;
    const BlockId inner = b_.open_block(loop.body);
    copy_stage(next, stage_start(next), inner);
    b_.close_if(inner, b_.lt(next, b_.index(iterations)));
    if (is_fast_) b_.pipe(loop.body, PipeOp::kCommitCopies);
    if (p_.has_group_mma()) multiply_group(all, stage, loop.body);
    // Words that begin anywhere take more registers while they are put together, of two terms twice
    // as many: those of a tile of rows at a time.
    const uint32_t at_once = is_fast_ || p_.terms.size() == 1 ? p_.row_tiles : 1;
    for (int64_t step = 0; step < kSteps && !p_.has_group_mma(); ++step)
      for (uint32_t tile = 0; tile < p_.row_tiles; tile += at_once) {
        const auto rows =
            std::span<const Env>(rows_).subspan(tile * kRowSlots, at_once * kRowSlots);
        multiply_step(left(step, rows), tile, step, stage, loop.body);
      }
    b_.close_loop(loop, b_.index(0), b_.index(iterations), 1);
  }

  void store(BlockId block) {
    const Confined confined(e_, block);
    const bool has_tail =
        !p_.vectors->src[0]->is_const() || p_.vectors->src[0]->imm % p_.block_n() != 0;
    const Expr first = expr(first_vector_) + expr(part_) * kPairs;
    const bool is_clamped = has_other_loads(e_.kernel(), p_.reduce);
    Offsets vectors(e_, first, block, has_tail ? extent_ : kNone, is_clamped);
    // A param may be read where it is written: then all is read before. Else slot by slot: the
    // comparisons and positions of all would take the registers of the results.
    const bool is_at_once = std::ranges::any_of(
        e_.kernel().params, [](const ir::Param& p) { return p.is_read && p.is_written; });
    std::optional<Epilogue> out;
    for (uint32_t slot = 0; slot < p_.slots; ++slot) {
      if (!out) out.emplace(e_, p_.reduce);
      for (uint32_t e = 0; e < kPairs; ++e) {
        const Offsets::Position at = vectors.at(slot * kSlotRows + e);
        for (size_t row = 0; row < rows_.size(); ++row) {
          const auto tile = static_cast<uint32_t>(row / kRowSlots);
          const auto in_tile = static_cast<uint32_t>(row % kRowSlots);
          const ValueId sum = b_.read(block, register_of(tile, slot, in_tile * kPairs + e));
          out->add(e_.bound(rows_[row], p_.vectors, at.binding), sum, at.exists);
        }
      }
      if (is_at_once && slot + 1 < p_.slots) continue;
      out->store_pairs(block, p_.vectors, false);
      out.reset();
    }
  }

  Emitter& e_;
  Builder& b_;
  const Shape& p_;
  BlockId body_ = 0;
  Env env_;
  uint32_t array_ = 0;
  ValueId extent_ = kNone, first_vector_ = kNone, part_ = kNone, lane_group_ = kNone;
  ValueId count_ = kNone;  ///< of groups that have a tile; kNone: all
  std::vector<Env> rows_;  ///< by slot of eight rows
  uint32_t lane_binding_ = 0;
  std::array<uint32_t, 2> digits_ = {};  ///< bindings to 0 and 1
  std::vector<uint32_t> accumulators_;
  bool is_fast_ = true;
};

}  // namespace

void lower_dequantised_gemm(Emitter& e) {
  if (e.schedule().quantised()->dequantised->is_staged) return lower_staged_dequantised_gemm(e);
  DequantisedGemm(e).run();
}

}  // namespace bm::compiler
