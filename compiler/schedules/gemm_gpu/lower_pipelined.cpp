// GEMM by MMA, warpgroup MMA (wgmma) or tcgen05 with tiles staged in shared memory, in a multistage
// pipeline ahead of the instructions; see PipePlan and TileLayout.
//
// A stage is 128 bytes of K: the left tile, then the right one, each a LineTile. Where memory has
// contiguous along K, a line is a row (column) of the operand; else it is 64 rows (columns) of one
// step of K, and there are panels of as many lines as a stage has steps.
#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "compiler/schedules/gemm_gpu/lowering.h"

namespace bm::compiler {
namespace {

constexpr int64_t kLine = PipePlan::kLineBytes;
constexpr uint32_t kWord = 4, kChunk = LineTile::kChunk;  // bytes
/// Accumulators of a work-item that are adjacent in a row.
constexpr uint32_t kPair = 2;

bool is_uneven(const Node* range, int64_t step) {
  return !range->src[0]->is_const() || range->src[0]->imm % step != 0;
}

}  // namespace

/// First byte of the stage that iteration `iteration` of the loop over K uses.
ValueId PipelinedGemm::stage_start(ValueId iteration) {
  const Expr stage(b_, e_.divide_index(Op::kMod, iteration, b_.index(p_.pipe->stages), true));
  return Expr(stage * p_.stage_bytes());
}

LineTile PipelinedGemm::line_tile(const Pipe& pipe, const MatrixOperand& o, ValueId iteration,
                                  BlockId block) const {
  const bool is_left = &o == &p_.left;
  const int64_t rows = is_left ? p_.block_m() : p_.block_n(), k = p_.stage_k();
  const auto end = [&](const Node* range, int64_t step) {
    return is_uneven(range, step) ? e_.emit(range->src[0], pipe.tile.env) : kNone;
  };
  const TileAxis along{.loop = o.along,
                       .block = pipe.block,
                       .first = is_left ? pipe.tile.first_row : pipe.tile.first_column,
                       .end = end(o.along, rows)};
  const TileAxis along_k{
      .loop = p_.k, .block = block, .first = iteration, .step = k, .end = end(p_.k, k)};
  if (is_k_major(o)) return {.load = o.load, .across = along, .along = along_k, .lines = rows};
  return {.load = o.load, .across = along_k, .along = along, .lines = k, .panels = rows / k};
}

void PipelinedGemm::copy_stage(const Pipe& pipe, ValueId iteration, ValueId stage, BlockId block) {
  const auto copy = [&](const MatrixOperand& o, ValueId at) {
    const LineTile tile = line_tile(pipe, o, iteration, block);
    const auto words = [&](const LineCopy& c, int64_t count) {
      for (int64_t i = 0; i < count; ++i)
        b_.copy(block, CopyKind::kAsync, c.param, b_.add(c.from, b_.index(i)), pipe.stage.array(),
                b_.add(c.to, b_.index(i * kWord)), c.gate, kWord);
    };
    if (p_.has_words(o))
      return pipe.stage.for_words(tile, at, pipe.tile.env, [&](const LineCopy& c) { words(c, 1); });
    pipe.stage.for_chunks(tile, at, pipe.tile.env, [&](const LineCopy& c) {
      if (p_.has_rounding() && pipe.copy != CopyKind::kAsync) return words(c, kChunk / kWord);
      pipe.stage.issue(block, pipe.copy, c);
    });
  };
  copy(p_.left, stage);
  copy(p_.right, Expr(Expr(b_, stage) + p_.block_m() * kLine));
}

/// What this work-item copied to a stage, and waited for.
void PipelinedGemm::round_stage(const Pipe& pipe, ValueId iteration, ValueId stage, BlockId block) {
  const auto round = [&](const MatrixOperand& o, ValueId at) {
    const LineTile tile = line_tile(pipe, o, iteration, block);
    const bool has_words = p_.has_words(o);
    const auto one = [&](const LineCopy& c) {
      b_.round_tf32(block, pipe.stage.array(), c.to, has_words ? kWord : kChunk);
    };
    if (has_words)
      pipe.stage.for_words(tile, at, pipe.tile.env, one, true);
    else
      pipe.stage.for_chunks(tile, at, pipe.tile.env, one, true);
  };
  round(p_.left, stage);
  round(p_.right, Expr(Expr(b_, stage) + p_.block_m() * kLine));
}

/// The stage that will be multiplied `ahead` iterations later, if there is one.
void PipelinedGemm::prefetch_stage(const Pipe& pipe, ValueId iteration, BlockId block) {
  const int64_t trip_count = (p_.k->src[0]->imm + p_.stage_k() - 1) / p_.stage_k();
  const Expr next = Expr(b_, iteration) + p_.pipe->ahead;
  const ValueId has_next = b_.lt(next, b_.index(trip_count));
  const ValueId stage = stage_start(next);
  const BlockId inner = b_.open_block(block);
  copy_stage(pipe, next, stage, inner);
  b_.close_if(inner, has_next);
  if (is_async(pipe)) b_.pipe(block, PipeOp::kCommitCopies);
}

/// What the sub-group has of an operand at step `step` of K.
SlotWords PipelinedGemm::load_fragments(const Pipe& pipe, const MatrixOperand& o, uint32_t step,
                                        ValueId stage, BlockId block) const {
  const bool is_left = &o == &p_.left;
  const LineFragments f{.is_left = is_left,
                        .is_k_major = is_k_major(o),
                        .item_bytes = item_size(o.load->dtype),
                        .lines = p_.stage_k(),
                        .own = is_left ? pipe.tile.own_row : pipe.tile.own_column};
  const int64_t start = is_left ? 0 : p_.block_m() * kLine;
  SlotWords out;
  for (int64_t row = 0; row < o.rows(); row += LineFragments::kRows) {
    const auto [byte, offset] = pipe.stage.fragment_byte(f, row, step);
    const Expr at = Expr(b_, stage) + Expr(b_, byte) + (start + offset);
    for (std::vector<ValueId>& slot : pipe.stage.load_fragment(f, at, block))
      out.push_back(std::move(slot));
  }
  out.resize(o.slots);
  return out;
}

/// By instructions on registers.
void PipelinedGemm::multiply_stage(const Pipe& pipe, ValueId stage, BlockId block) {
  for (uint32_t step = 0; step < LineFragments::kPerLine; ++step) {
    const SlotWords left = load_fragments(pipe, p_.left, step, stage, block);
    const SlotWords right = load_fragments(pipe, p_.right, step, stage, block);
    contract_mma(b_, block, p_.info, pipe.tile.accumulators, left, right);
  }
}

/// By instructions that read shared memory. Four sub-groups have 64 rows and all columns.
void PipelinedGemm::multiply_warpgroup_stage(const Pipe& pipe, ValueId stage, BlockId block) {
  const int64_t panel = p_.stage_k() * kLine, items = int64_t{p_.sub_group} * p_.info.sub_groups;
  const int64_t rows = int64_t{p_.left.rows()} * p_.info.sub_groups;
  const Expr item(b_, b_.item()), start(b_, stage);
  const Expr number = item >> std::countr_zero(static_cast<uint64_t>(items));
  const int64_t own = is_k_major(p_.left) ? rows * kLine : rows / p_.stage_k() * panel;
  contract_group_mma(b_, block, p_.info, pipe.tile.accumulators[0],
                     p_.info.accumulators * p_.right.slots, pipe.stage.array(),
                     {TileOperand{Expr(start + number * own), 0, is_k_major(p_.left), panel},
                      TileOperand{stage, p_.block_m() * kLine, is_k_major(p_.right), panel}});
}

/// Stages in turn announce at two mbarriers that they were multiplied.
void PipelinedGemm::allocate_tensor_memory(const Pipe& pipe) {
  b_.allocate_tensor(pipe.block, pipe.stage.array(), b_.index(tensor_bytes()), tensor_columns());
}

void PipelinedGemm::multiply_tensor_stage(const Pipe& pipe, ValueId iteration, ValueId stage,
                                          BlockId block) {
  const int64_t panel = p_.stage_k() * kLine;
  const ValueId right = Expr(Expr(b_, stage) + p_.block_m() * kLine);
  b_.tensor_mma(block, p_.info, static_cast<uint32_t>(p_.block_n()), pipe.stage.array(),
                {stage, right},
                {TileLayout{!is_k_major(p_.left), static_cast<uint32_t>(panel)},
                 TileLayout{!is_k_major(p_.right), static_cast<uint32_t>(panel)}},
                mbarrier(iteration), b_.lt(b_.index(0), iteration));
}

/// Until the stage of `iteration`, which may be one of two that never were, has been multiplied:
/// the phase before the first of an mbarrier is complete.
void PipelinedGemm::wait_for_stage(const Pipe& pipe, ValueId iteration, BlockId block) {
  const Expr parity = (Expr(b_, iteration) >> 1) & 1;
  b_.wait_tensor(block, pipe.stage.array(), mbarrier(iteration), parity);
}

ValueId PipelinedGemm::mbarrier(ValueId iteration) {
  constexpr int64_t kBytes = 8;
  return Expr((Expr(b_, iteration) & 1) * kBytes + tensor_bytes());
}

/// A sub-group reaches the 32 lanes of tensor memory that its number modulo 4 says.
void PipelinedGemm::load_accumulators(const Pipe& pipe) {
  constexpr int64_t kLane = 1 << 16;
  const Expr at = Expr(b_, pipe.tile.own_row) * kLane + Expr(b_, pipe.tile.own_column);
  b_.load_tensor(pipe.block, pipe.tile.accumulators[0], p_.right.slots * p_.info.accumulators,
                 p_.left.slots / p_.info.a_slots, at);
  b_.free_tensor(pipe.block, tensor_columns());
}

void PipelinedGemm::run_pipeline(const Pipe& pipe) {
  const bool has_async = is_async(pipe), is_group = p_.info.sub_groups > 1;
  const bool has_tensor_memory = p_.info.has_tensor_memory;
  const int64_t trip_count = (p_.k->src[0]->imm + p_.stage_k() - 1) / p_.stage_k();
  if (has_tensor_memory) allocate_tensor_memory(pipe);
  for (int64_t stage = 0; stage < p_.pipe->ahead; ++stage) {
    if (stage < trip_count)
      copy_stage(pipe, b_.index(stage), b_.index(stage * p_.stage_bytes()), pipe.block);
    if (has_async) b_.pipe(pipe.block, PipeOp::kCommitCopies);
  }
  const Builder::Loop loop = b_.open_loop(pipe.block);
  const ValueId stage = stage_start(loop.index);
  if (has_async) b_.pipe(loop.body, PipeOp::kWaitCopies, p_.pipe->ahead - 1);
  if (p_.has_rounding()) round_stage(pipe, loop.index, stage, loop.body);
  // Of the iteration two before: mbarriers and parities repeat after four.
  if (has_tensor_memory) wait_for_stage(pipe, Expr(Expr(b_, loop.index) + 2), loop.body);
  if (p_.info.reads_shared_memory()) b_.pipe(loop.body, PipeOp::kProxyFence);
  // Everybody's chunks of this stage are there, and nobody reads the stage any more that the next
  // ones go to: it was multiplied in the last iteration, by group instructions and tcgen05 in the
  // one before.
  b_.barrier(loop.body);
  if (has_tensor_memory) {
    multiply_tensor_stage(pipe, loop.index, stage, loop.body);
    prefetch_stage(pipe, loop.index, loop.body);
  } else if (is_group && has_async) {
    multiply_warpgroup_stage(pipe, stage, loop.body);
    prefetch_stage(pipe, loop.index, loop.body);
    b_.pipe(loop.body, PipeOp::kWgmmaWait, 1);
  } else if (is_group) {
    // Nothing else while products go on: assemblers would put those in a row in the whole kernel.
    prefetch_stage(pipe, loop.index, loop.body);
    multiply_warpgroup_stage(pipe, stage, loop.body);
    b_.pipe(loop.body, PipeOp::kWgmmaWait, 0);
  } else {
    prefetch_stage(pipe, loop.index, loop.body);
    multiply_stage(pipe, stage, loop.body);
  }
  b_.close_loop(loop, b_.index(0), b_.index(trip_count), 1);
  if (has_tensor_memory) {
    wait_for_stage(pipe, b_.index(trip_count - 1), pipe.block);
    load_accumulators(pipe);
  }
  if (is_group)
    b_.wait_wgmma(pipe.block, pipe.tile.accumulators[0], p_.info.accumulators * p_.right.slots);
}

/// Columns after columns, so that what is loaded for one lives no longer than its results. Where
/// tiles reach beyond the results and something else is loaded, the last row or column stands for
/// those that are not there.
void PipelinedGemm::store_results(const Tile& tile, BlockId block, bool is_aligned) {
  // Whatever is computed here stays behind the product, where registers are free again.
  const Confined confined(e_, block);
  const bool is_clamped = has_other_loads(e_.kernel(), p_.reduce);
  const auto lines = [&](ValueId first, const Expr& own, const Node* range, int64_t step) {
    const ValueId end = is_uneven(range, step) ? e_.emit(range->src[0], tile.env) : kNone;
    return Offsets(e_, b_.add(first, own), block, end, is_clamped);
  };
  Offsets row_lines = lines(tile.row, {b_, tile.lane_group}, p_.left.along, p_.block_m());
  std::vector<Offsets::Position> rows;
  for (uint32_t slot = 0; slot < p_.left.slots; ++slot)
    rows.push_back(row_lines.at(int64_t{slot} * p_.left.slot));
  Offsets columns = lines(tile.column, Expr(b_, tile.part) * kPair, p_.right.along, p_.block_n());
  // A param may be read where it is written: then all is read before.
  const bool is_at_once = std::ranges::any_of(
      e_.kernel().params, [](const ir::Param& p) { return p.is_read && p.is_written; });
  std::optional<Epilogue> out;
  for (uint32_t j = 0; j < p_.right.slots; ++j) {
    if (!out) out.emplace(e_, p_.reduce);
    std::array<Offsets::Position, kPair> pair;
    for (uint32_t e = 0; e < kPair; ++e) pair[e] = columns.at(int64_t{j} * p_.right.slot + e);
    for (uint32_t i = 0; i < p_.left.slots; ++i)
      for (uint32_t e = 0; e < kPair; ++e) {
        const Offsets::Position &row = rows[i], &column = pair[e];
        ValueId gate = row.exists == kNone ? column.exists : row.exists;
        if (row.exists != kNone && column.exists != kNone)
          gate = b_.bit_and(row.exists, column.exists);
        const Env line = e_.bound(tile.env, p_.left.along, row.binding);
        const uint32_t first = tile.accumulators[i / p_.info.a_slots * p_.right.slots + j];
        const ValueId sum = b_.read(block, first + i % p_.info.a_slots * kPair + e);
        out->add(e_.bound(line, p_.right.along, column.binding), sum, gate);
      }
    if (is_at_once && j + 1 < p_.right.slots) continue;
    out->store_pairs(block, p_.right.along, is_aligned);
    out.reset();
  }
}

void lower_pipelined_gemm(Emitter& e) { PipelinedGemm(e).run(); }

void PipelinedGemm::run() {
  const uint64_t bytes = p_.shared_bytes();
  const uint32_t array = b_.add_local(DType::kU8, bytes);
  e_.program().locals[array].alignment = LineTile::kAlignment;
  e_.program().has_dynamic_shared = bytes > b_.target().shared_memory_bytes;
  const Builder::Loop groups = b_.open_loop(e_.root(), LoopKind::kGroup);
  const Tile at = tile_of_group(groups.index, groups.body);
  // Chunks of 16 bytes and stores of adjacent elements need params that start at multiples of 16;
  // memory that a program was given may not.
  ValueId is_aligned = operands_aligned();
  for (const ir::Store& s : e_.kernel().stores) {
    const ValueId out = b_.is_aligned(s.param);
    is_aligned = b_.bit_and(is_aligned, out);
  }
  ValueId is_not = b_.negated(is_aligned);
  // Extents that are known at launch only leave some groups without a tile.
  const auto is_inside = [&](const MatrixOperand& o, ValueId first) {
    const ValueId end = e_.emit(o.along->src[0], at.env);
    return b_.lt(first, end);
  };
  for (const MatrixOperand* o : {&p_.left, &p_.right})
    if (!o->along->src[0]->is_const()) {
      const ValueId has_tile = is_inside(*o, o == &p_.left ? at.first_row : at.first_column);
      is_aligned = b_.bit_and(is_aligned, has_tile);
      is_not = b_.bit_and(is_not, has_tile);
    }
  // True, but assemblers do not know: where the epilogue is in a basic block of its own, they leave
  // its instructions behind the last wait. Others among the products would put all these in a row.
  const bool is_group = p_.info.reads_shared_memory();
  const ValueId has_results = is_group ? is_inside(p_.right, at.first_column) : kNone;
  const bool has_async = b_.target().pipe.has_async_copies;
  for (const bool is_fast : {true, false}) {
    const BlockId block = b_.open_block(groups.body);
    Tile tile = at;
    clear_accumulators(&tile, block);
    const CopyKind fast = has_async ? CopyKind::kAsync : CopyKind::kWords;
    const LineStage stage(e_, e_.schedule().block, array);
    run_pipeline({tile, is_fast ? fast : CopyKind::kUnalignedWords, stage, block});
    const BlockId out = is_group ? b_.open_block(block) : block;
    store_results(tile, out, is_fast);
    if (is_group) b_.close_if(out, has_results);
    b_.close_if(block, is_fast ? is_aligned : is_not);
  }
  b_.close_groups(groups, 0, kNone);
}

}  // namespace bm::compiler
