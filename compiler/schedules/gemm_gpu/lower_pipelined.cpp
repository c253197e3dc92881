// GEMM by MMA or warpgroup MMA (wgmma) with tiles staged in shared memory, in a multistage pipeline
// ahead of the instructions; see PipePlan and TileLayout.
//
// A stage is 128 bytes deep: the left tile, then the right one, in lines of 128 bytes. Where memory
// has neighbours in depth, a line is a row (column) of the operand; else it is 64 rows (columns) of
// one step of depth, and there are panels of as many lines as a stage has steps. The
// 128-byte swizzle (chunk ^= line % 8, chunks of 16 bytes), as wgmma descriptors and ldmatrix want
// it, puts the same chunk of eight lines into different banks: no bank conflicts.
#include <algorithm>
#include <bit>

#include "compiler/schedules/gemm_gpu/lowering.h"

namespace bm::compiler {
namespace {

constexpr int64_t kLine = PipePlan::kLineBytes, kChunk = 16, kChunks = kLine / kChunk;
/// Depth of one instruction.
constexpr int64_t kStepBytes = 32;
constexpr uint32_t kSteps = kLine / kStepBytes;
/// Local memory at which TileLayout's lines repeat.
constexpr uint32_t kAlignment = kLine * kChunks;
/// Rows of one fragment.
constexpr int64_t kFragmentRows = 16;

/// Rows or columns of an operand that lie in one line.
int64_t line_rows(const MatrixOperand& o) { return kLine / item_size(o.load->dtype); }

/// Lines between panels of an operand that is not deep: steps of depth in a stage.
int64_t panel_lines(const MatrixPlan& p) { return p.stage_k(); }

bool is_uneven(const Node* range, int64_t step) { return range->src[0]->imm % step != 0; }

}  // namespace

/// First byte of the stage that trip `trip` of the loop over depth uses.
ValueId PipelinedGemm::stage_start(ValueId trip) {
  const ValueId stage = e_.divide_index(Op::kMod, trip, b_.index(p_.pipe->stages), true);
  return b_.mul(stage, b_.index(p_.stage_bytes()));
}

/// This work-item's share of an operand's tile, to byte `at` on. Eight neighbouring work-items copy
/// a line.
void PipelinedGemm::stage_operand(const Pipe& pipe, const MatrixOperand& o, ValueId trip,
                                  ValueId at, BlockId block) {
  const bool is_left = &o == &p_.left;
  const int64_t lines = is_left ? p_.block_m() : p_.block_n(),
                at_once = e_.schedule().block / kChunks;
  const ValueId item = b_.item();
  const ValueId piece = b_.bit_and(item, b_.index(kChunks - 1));
  const ValueId line = b_.shr(item, std::countr_zero(static_cast<uint64_t>(kChunks)));
  const ValueId in_line = b_.mul(piece, b_.index(o.per_load()));
  const ValueId place = b_.raw(Op::kXor, DType::kI64, {piece, b_.bit_and(line, b_.index(7))});
  const ValueId byte = b_.add(b_.mul(line, b_.index(kLine)), b_.mul(place, b_.index(kChunk)));
  const ValueId first = is_left ? pipe.tile.first_row : pipe.tile.first_column;
  const ValueId depth = b_.mul(trip, b_.index(p_.stage_k()));
  const ValueId along_base = b_.add(first, o.is_k_major ? line : in_line);
  const ValueId depth_base = b_.add(depth, o.is_k_major ? in_line : line);
  const bool has_tail = is_uneven(o.along, is_left ? p_.block_m() : p_.block_n());
  const bool has_depth_tail = is_uneven(p_.k, p_.stage_k());
  uint32_t along_origin = 0, depth_origin = 0;
  for (int64_t l = 0; l < lines; l += at_once) {
    const int64_t along_offset = o.is_k_major ? l : l / panel_lines(p_) * line_rows(o);
    const int64_t depth_offset = o.is_k_major ? 0 : l % panel_lines(p_);
    const uint32_t along = e_.make_bindings(along_base, pipe.block, along_offset, 1, along_origin);
    const uint32_t deep = e_.make_bindings(depth_base, block, depth_offset, 1, depth_origin);
    along_origin = e_.binding(along).origin;
    depth_origin = e_.binding(deep).origin;
    const Env here = e_.bound(e_.bound(pipe.tile.env, o.along, along), p_.k, deep);
    ValueId gate = kNone;
    const auto require = [&](ValueId base, int64_t offset, const Node* range) {
      const ValueId index = b_.add(base, b_.index(offset));
      const ValueId is_there = b_.lt(index, b_.index(range->src[0]->imm));
      gate = gate == kNone ? is_there : b_.bit_and(gate, is_there);
    };
    if (has_tail) require(along_base, along_offset, o.along);
    if (has_depth_tail) require(depth_base, depth_offset, p_.k);
    const ValueId to = b_.add(b_.add(at, byte), b_.index(l * kLine));
    const ValueId from = e_.emit(o.load->src[0], here);
    b_.copy(block, pipe.copy, static_cast<int>(o.load->imm), from, pipe.array, to, gate);
  }
}

void PipelinedGemm::copy_stage(const Pipe& pipe, ValueId trip, ValueId stage, BlockId block) {
  stage_operand(pipe, p_.left, trip, stage, block);
  stage_operand(pipe, p_.right, trip, b_.add(stage, b_.index(p_.block_m() * kLine)), block);
}

/// The stage that will be multiplied `ahead` trips later, if there is one.
void PipelinedGemm::prefetch_stage(const Pipe& pipe, ValueId trip, BlockId block) {
  const int64_t trips = (p_.k->src[0]->imm + p_.stage_k() - 1) / p_.stage_k();
  const ValueId next = b_.add(trip, b_.index(p_.pipe->ahead));
  const ValueId has_next = b_.lt(next, b_.index(trips));
  const ValueId stage = stage_start(next);
  const BlockId inner = b_.open_block(block);
  copy_stage(pipe, next, stage, inner);
  b_.close_if(inner, has_next);
  if (pipe.copy == CopyKind::kAsync) b_.pipe(block, PipeOp::kCommitCopies);
}

/// Where this work-item's line of every fragment of an operand starts, `step` instructions deep:
/// one fragment for every 16 rows or columns of the sub-group.
std::vector<ValueId> PipelinedGemm::fragment_addresses(const Pipe& pipe, const MatrixOperand& o,
                                                       uint32_t step, ValueId stage) {
  const bool is_left = &o == &p_.left;
  const ValueId own = is_left ? pipe.tile.own_row : pipe.tile.own_column;
  const ValueId lane = b_.bit_and(b_.item(), b_.index(p_.sub_group - 1));
  const ValueId line = b_.bit_and(lane, b_.index(7)), matrix = b_.shr(lane, 3);
  const ValueId odd = b_.bit_and(matrix, b_.index(1)), upper = b_.shr(matrix, 1);
  // Of the four 8·8 tiles: the next eight rows, the next 16 bytes of depth.
  const ValueId next_rows = is_left ? odd : upper, next_depth = is_left ? upper : odd;
  const int64_t start = is_left ? 0 : p_.block_m() * kLine;
  const auto swapped = [&](ValueId piece, int64_t with) {
    const ValueId at = b_.raw(Op::kXor, DType::kI64, {piece, line});
    return b_.mul(b_.raw(Op::kXor, DType::kI64, {at, b_.index(with)}), b_.index(kChunk));
  };
  std::vector<ValueId> out;
  for (int64_t row = 0; row < o.rows(); row += kFragmentRows) {
    ValueId byte = kNone;
    int64_t offset = start;
    if (o.is_k_major) {
      const ValueId lines = b_.add(b_.add(own, line), b_.mul(next_rows, b_.index(8)));
      const ValueId piece = swapped(next_depth, step * (kStepBytes / kChunk));
      byte = b_.add(b_.mul(lines, b_.index(kLine)), piece);
      offset += row * kLine;
    } else {
      const int64_t panel = panel_lines(p_) * kLine;
      const ValueId lines = b_.add(line, b_.mul(next_depth, b_.index(8)));
      // Sub-groups start at multiples of their own size within a panel, a power of two.
      const ValueId own_piece = b_.bit_and(b_.shr(own, 3), b_.index(kChunks - 1));
      const ValueId piece =
          swapped(b_.bit_or(own_piece, next_rows), row % line_rows(o) / o.per_load());
      const ValueId panels = b_.shr(own, std::countr_zero(static_cast<uint64_t>(line_rows(o))));
      byte = b_.add(b_.mul(lines, b_.index(kLine)), b_.mul(panels, b_.index(panel)));
      byte = b_.add(byte, piece);
      offset += row / line_rows(o) * panel + int64_t{step} * (panel / kSteps);
    }
    out.push_back(b_.add(b_.add(stage, byte), b_.index(offset)));
  }
  return out;
}

/// By instructions on registers, from fragments of 16 rows or columns.
void PipelinedGemm::multiply_stage(const Pipe& pipe, ValueId stage, BlockId block) {
  const uint32_t each = p_.info.words();
  for (uint32_t step = 0; step < kSteps; ++step) {
    const auto load = [&](const MatrixOperand& o) {
      std::vector<std::vector<ValueId>> out;
      for (const ValueId place : fragment_addresses(pipe, o, step, stage)) {
        const ValueId words = b_.fragment(block, pipe.array, place, !o.is_k_major);
        std::vector<ValueId>& four = out.emplace_back();
        for (uint32_t w = 0; w < 4; ++w) four.push_back(b_.extract(words, w));
      }
      return out;
    };
    const auto left = load(p_.left), right = load(p_.right);
    for (uint32_t w = 0; w < 2; w += each)
      for (size_t i = 0; i < left.size(); ++i)
        for (size_t j = 0; j < p_.right.slots; ++j) {
          std::vector<ValueId> operands(left[i].begin() + 2 * w, left[i].begin() + 2 * (w + each));
          const auto column = right[j / 2].begin() + static_cast<int64_t>(j % 2 * 2 + w);
          operands.insert(operands.end(), column, column + each);
          b_.matrix(block, p_.info, pipe.tile.accumulators[i * p_.right.slots + j],
                    std::move(operands));
        }
  }
}

/// By instructions that read local memory. Four sub-groups have 64 rows and all columns.
void PipelinedGemm::multiply_warpgroup_stage(const Pipe& pipe, ValueId stage, BlockId block) {
  const int64_t panel = panel_lines(p_) * kLine;
  const int64_t items = int64_t{p_.sub_group} * p_.info.sub_groups;
  const ValueId number = b_.shr(b_.item(), std::countr_zero(static_cast<uint64_t>(items)));
  const int64_t rows = int64_t{p_.left.rows()} * p_.info.sub_groups;
  const int64_t own = p_.left.is_k_major ? rows * kLine : rows / line_rows(p_.left) * panel;
  const std::array<TileLayout, 2> tiles = {
      TileLayout{!p_.left.is_k_major, static_cast<uint32_t>(panel)},
      TileLayout{!p_.right.is_k_major, static_cast<uint32_t>(panel)}};
  b_.pipe(block, PipeOp::kOpenProducts);
  for (uint32_t step = 0; step < kSteps; ++step) {
    const auto place = [&](const MatrixOperand& o, ValueId base, int64_t offset) {
      return b_.add(base, b_.index(offset + step * (o.is_k_major ? kStepBytes : panel / kSteps)));
    };
    const ValueId left = place(p_.left, b_.add(stage, b_.mul(number, b_.index(own))), 0);
    const ValueId right = place(p_.right, stage, p_.block_m() * kLine);
    b_.group_matrix(block, p_.info, pipe.tile.accumulators[0], p_.info.sums * p_.right.slots,
                    pipe.array, {left, right}, tiles);
  }
  b_.pipe(block, PipeOp::kCommitProducts);
}

void PipelinedGemm::run_pipeline(const Pipe& pipe) {
  const bool is_async = pipe.copy == CopyKind::kAsync, is_group = p_.info.sub_groups > 1;
  const int64_t trips = (p_.k->src[0]->imm + p_.stage_k() - 1) / p_.stage_k();
  for (int64_t stage = 0; stage < p_.pipe->ahead; ++stage) {
    if (stage < trips)
      copy_stage(pipe, b_.index(stage), b_.index(stage * p_.stage_bytes()), pipe.block);
    if (is_async) b_.pipe(pipe.block, PipeOp::kCommitCopies);
  }
  const Builder::Loop loop = b_.open_loop(pipe.block);
  const ValueId stage = stage_start(loop.index);
  if (is_async) b_.pipe(loop.body, PipeOp::kWaitCopies, p_.pipe->ahead - 1);
  if (is_group) b_.pipe(loop.body, PipeOp::kPublish);
  // Everybody's copies of this stage are there, and nobody reads the stage any more that the next
  // copies go to: it was multiplied in the last trip, by group instructions in the one before.
  b_.barrier(loop.body);
  if (is_group && is_async) {
    multiply_warpgroup_stage(pipe, stage, loop.body);
    prefetch_stage(pipe, loop.index, loop.body);
    b_.pipe(loop.body, PipeOp::kWaitProducts, 1);
  } else if (is_group) {
    // Nothing else while products go on: assemblers would put those in a row in the whole kernel.
    prefetch_stage(pipe, loop.index, loop.body);
    multiply_warpgroup_stage(pipe, stage, loop.body);
    b_.pipe(loop.body, PipeOp::kWaitProducts, 0);
  } else {
    prefetch_stage(pipe, loop.index, loop.body);
    multiply_stage(pipe, stage, loop.body);
  }
  b_.close_loop(loop, b_.index(0), b_.index(trips), 1);
  if (is_group)
    b_.wait_products(pipe.block, pipe.tile.accumulators[0], p_.info.sums * p_.right.slots);
}

void lower_pipelined_gemm(Emitter& e) { PipelinedGemm(e).run(); }

void PipelinedGemm::run() {
  const uint64_t bytes = uint64_t{p_.stage_bytes()} * p_.pipe->stages;
  const uint32_t array = b_.add_local(DType::kU8, bytes);
  e_.program().locals[array].alignment = kAlignment;
  e_.program().has_launch_locals = bytes > b_.target().local_memory_bytes;
  const Builder::Loop groups = b_.open_loop(e_.root(), LoopKind::kGroup);
  const Tile place = place_tile(groups.index, groups.body);
  // Copies of 16 bytes and stores of neighbours need params that start at multiples of 16; memory
  // that a program was given may not.
  ValueId is_aligned = operands_aligned();
  for (const ir::Store& s : e_.kernel().stores) {
    const ValueId out = b_.is_aligned(s.param);
    is_aligned = b_.bit_and(is_aligned, out);
  }
  const ValueId is_not = e_.negated(is_aligned);
  const bool has_async = b_.target().pipe.has_async_copies;
  for (const bool is_fast : {true, false}) {
    const BlockId block = b_.open_block(groups.body);
    Tile tile = place;
    clear_accumulators(&tile, block);
    const CopyKind fast = has_async ? CopyKind::kAsync : CopyKind::kWords;
    run_pipeline({tile, is_fast ? fast : CopyKind::kAnyWords, array, block});
    store_results(&tile, block, is_fast);
    b_.close_if(block, is_fast ? is_aligned : is_not);
  }
  b_.close_groups(groups, 0, kNone);
}

}  // namespace bm::compiler
