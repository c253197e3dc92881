// Packed GEMM by dot product instructions (VNNI and the like): words of several narrow elements
// along K.
#include <array>

#include "compiler/program/expr.h"
#include "compiler/schedules/gemm_cpu/lowering.h"

namespace bm::compiler {
namespace {

/// The upper bits of four bytes; see PanelDot::flips_left.
constexpr int64_t kUpperBits = 0x80808080;
/// Rows prefetched ahead of a copy: as long as memory takes.
constexpr int64_t kWordRowsAhead = 64;

}  // namespace

ValueId PackedGemm::dot(const PanelDot& dot, ValueId sum, ValueId left, ValueId right) {
  return dot.is_left_first ? b_.dot(dot.kind, sum, left, right)
                           : b_.dot(dot.kind, sum, right, left);
}

/// Steps of `length` iterations of K.
ValueId PackedGemm::steps_of(const PanelProduct& product, ValueId length) {
  const int64_t pack = product.pack();
  if (pack == 1) return length;
  return e_.divide_index(Op::kDiv, b_.add(length, b_.index(pack - 1)), b_.index(pack), false);
}

/// Whether no block of K ends inside a word.
bool PackedGemm::has_whole_words(const PanelProduct& product) const {
  const Node* extent = product.right_k[0]->src[0];
  return extent->is_const() && extent->imm % product.pack() == 0 &&
         product.block % product.pack() == 0;
}

/// Zeros up to the end of the last word of a row: of floats, anything times 0 may be no number.
void PackedGemm::fill_words(const Contraction& c, ValueId line, ValueId length, BlockId parent) {
  const PanelProduct& product = c.product;
  if (has_whole_words(product)) return;
  const Builder::Loop loop = b_.open_loop(parent);
  const DType t = product.left->dtype;
  b_.local_store(loop.body, c.left, b_.add(line, loop.index), b_.constant({t, 1}, 0));
  const ValueId end = b_.mul(steps_of(product, length), b_.index(product.pack()));
  b_.close_loop(loop, length, end, 1);
}

/// An element shifted to its bits of a word.
ValueId PackedGemm::shift_in_word(ValueId v, ValueId amount) {
  const DType bits = item_size(b_.type(v).dtype) == 1 ? DType::kU8 : DType::kU16;
  const Expr wide = convert(bitcast(Expr(b_, v), bits), DType::kU32);
  return Expr(wide << Expr(b_, e_.splat(amount, b_.type(wide).lanes)));
}

/// Of columns in lanes, or of one column.
void PackedGemm::pack_words(const Packing& state, const Instances& columns, BlockId parent) {
  const VectorStage& s = state.stage;
  const int64_t pack = state.c.product.pack();
  ValueId begin = b_.index(0);
  if (s.lanes > 1 && state.c.product.right_copy == PanelCopy::kTransposed)
    begin = transpose_words(state, columns, parent);
  const ValueId whole = e_.divide_index(Op::kDiv, s.count, b_.index(pack), false);
  const Builder::Loop loop = b_.open_loop(parent);
  const Expr first(b_, s.first), step(b_, loop.index);
  const Expr base = first + step * pack;
  const Instances all =
      e_.bind_axis(columns, s.k, base, loop.body, 1, static_cast<uint32_t>(pack), 1);
  const Expr at = Expr(b_, s.at) + step * p_.tile_columns();
  std::vector<ValueId> words(columns.size(), kNone);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto bits = static_cast<int64_t>(i) % pack * (32 / pack);
    const ValueId v = e_.splat(e_.emit(s.value, all[i]), s.lanes);
    const ValueId shifted = shift_in_word(v, b_.constant({DType::kU32, 1}, bits));
    ValueId& word = words[i / static_cast<size_t>(pack)];
    word = word == kNone ? shifted : b_.bit_or(word, shifted);
  }
  if (s.lanes > 1) prefetch_rows_ahead(s.value, all, s.k, kWordRowsAhead, loop.body);
  store_vectors(b_, loop.body, s.array, at, words);
  b_.close_loop(loop, begin, whole, 1);
  if (!has_whole_words(state.c.product)) pack_last_word(state, columns, whole, parent);
}

/// The word that K ends in: what is beyond counts as zero.
void PackedGemm::pack_last_word(const Packing& state, const Instances& columns, ValueId step,
                                BlockId parent) {
  const VectorStage& s = state.stage;
  const int64_t pack = state.c.product.pack();
  const BlockId block = b_.open_block(parent);
  const ValueId first = b_.mul(step, b_.index(pack));
  const std::vector<uint32_t> words =
      clear_registers(b_, block, {DType::kU32, s.lanes}, columns.size());
  const Builder::Loop loop = b_.open_loop(block);
  const ValueId base = b_.add(s.first, loop.index);
  const Instances all = e_.bind_axis(columns, s.k, base, loop.body, 1, 1, 1);
  const Expr shift = (Expr(b_, loop.index) - Expr(b_, first)) * (32 / pack);
  const ValueId amount = b_.convert(shift, DType::kU32);
  for (size_t v = 0; v < all.size(); ++v) {
    const ValueId number = e_.splat(e_.emit(s.value, all[v]), s.lanes);
    const ValueId shifted = shift_in_word(number, amount);
    const Expr word = Expr(b_, b_.read(loop.body, words[v])) | Expr(b_, shifted);
    b_.assign(loop.body, words[v], word);
  }
  b_.close_loop(loop, first, s.count, 1);
  const Expr at = Expr(b_, s.at) + Expr(b_, step) * p_.tile_columns();
  spill_vectors(b_, block, s.array, at, words);
  b_.close_if(block, b_.lt(first, s.count));
}

/// Words that lie along K in memory, a square of them at a time. Returns the first step
/// that is left over.
ValueId PackedGemm::transpose_words(const Packing& state, const Instances& columns,
                                    BlockId parent) {
  const VectorStage& s = state.stage;
  const uint32_t lanes = p_.lanes;
  const int64_t square_k = int64_t{lanes} * state.c.product.pack();
  const Node* load = s.value;
  const uint32_t number =
      e_.number_of(load == state.c.product.edge_right ? p_.edge_column : p_.column);
  const int64_t step = *e_.strides(number, lanes).stride(load->src[0]);
  const ValueId squares = e_.divide_index(Op::kDiv, s.count, b_.index(square_k), false);
  const Builder::Loop loop = b_.open_loop(parent);
  const Expr first(b_, s.first), square(b_, loop.index);
  const Expr base = first + square * square_k;
  const Instances all = e_.bind_axis(columns, s.k, base, loop.body, 1, 1, 1);
  const Expr line = square * (p_.tile_columns() * lanes);
  for (uint32_t v = 0; v < all.size(); ++v) {
    Env corner = all[v];
    corner[number] = e_.binding(corner[number]).first_lane;
    const ValueId from = e_.emit(load->src[0], corner);
    std::vector<ValueId> rows;
    for (uint32_t l = 0; l < lanes; ++l)
      rows.push_back(
          b_.words(static_cast<int>(load->imm), lanes, b_.add(from, b_.index(step * l)), false));
    e_.transpose(&rows);
    for (uint32_t l = 0; l < lanes; ++l) {
      const Expr at = (Expr(b_, s.at) + line) + (l * p_.tile_columns() + v * lanes);
      b_.local_store(loop.body, s.array, at, rows[l]);
    }
  }
  b_.close_loop(loop, b_.index(0), squares, 1);
  return b_.mul(squares, b_.index(lanes));
}

/// What PanelDot::flips_left adds to every column of a panel.
void PackedGemm::add_corrections(const Contraction& c, ValueId column, ValueId trip_count,
                                 BlockId parent) {
  const PanelProduct& product = c.product;
  const Type type{product.reduce->dtype, p_.lanes};
  const ValueId panel = b_.mul(column, b_.index(product.steps_block()));
  const std::vector<uint32_t> accumulators = clear_registers(b_, parent, type, p_.vectors);
  const Builder::Loop loop = b_.open_loop(parent);
  const Expr line = Expr(b_, panel) + Expr(b_, loop.index) * p_.tile_columns();
  for (uint32_t v = 0; v < p_.vectors; ++v) {
    const Expr at = line + v * p_.lanes;
    const ValueId words = b_.local_load(loop.body, c.right, at, p_.lanes);
    const ValueId sum = b_.read(loop.body, accumulators[v]);
    b_.assign(loop.body, accumulators[v],
              dot(*product.dot, sum, b_.like_int(words, kUpperBits), words));
  }
  b_.close_loop(loop, b_.index(0), steps_of(product, trip_count), 1);
  spill_vectors(b_, parent, c.corrections, column, accumulators);
}

}  // namespace bm::compiler
