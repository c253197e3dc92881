// FlashAttention (tiled attention) with MMA: loads of Q, K and V, epilogue.
// Attention by matrix instructions: how queries, keys and values come to a group, and how its
// results leave it; see GroupAttentionPlan.
//
// A row of a factor is one line of 128 bytes in each panel. Pieces of 16 bytes change places within
// their line with the line's number, so that the same piece of eight lines is in different banks.
#include <algorithm>
#include <bit>
#include <cmath>

#include "compiler/schedules/attention/lower_mma.h"
#include "compiler/schedules/gemm_gpu/contraction.h"

namespace bm::compiler {
namespace {

using Plan = GroupAttentionPlan;

constexpr int64_t kLine = Plan::kLineBytes, kPiece = 16, kPieces = kLine / kPiece;
/// 16-bit numbers of these.
constexpr int64_t kPerLine = kLine / 2, kPerPiece = kPiece / 2;
/// Numbers of one instruction's depth, and how many of them a line has.
constexpr int64_t kStep = 16, kSteps = kPerLine / kStep;
/// Results of an instruction that lie in one row of a work-item.
constexpr uint32_t kPair = 2;
/// Local memory at which the places of pieces repeat.
constexpr uint32_t kAlignment = kLine * kPieces;

bool is_uneven(const Node* extent, int64_t step) {
  return !extent->is_const() || extent->imm % step != 0;
}

}  // namespace

void FlashAttention::place(ValueId row_block, ValueId head, BlockId block) {
  s_.env = e_.unbound();
  ValueId rest = head;
  for (size_t i = a_.batch.size(); i-- > 0;) {
    const ValueId count = e_.emit(a_.batch[i]->src[0], s_.env);
    const ValueId digit = e_.next_digit(&rest, count, i == 0);
    s_.env = e_.bound(s_.env, a_.batch[i], e_.make_bindings(digit, block, 0, 1, 0));
  }
  s_.row_extent = e_.emit(a_.row->src[0], s_.env);
  s_.all_keys = e_.emit(a_.key->src[0], s_.env);
  // Later queries see more keys: groups that take longer start first.
  if (a_.hidden_from) {
    const ValueId size = b_.index(p_.rows()), most = moved(s_.row_extent, p_.rows() - 1);
    const ValueId blocks = e_.divide_index(Op::kDiv, most, size, true);
    const ValueId longest = b_.sub(moved(blocks, -1), row_block);
    if (p_.is_paired) {
      const ValueId half = b_.shr(moved(blocks, 1), 1);
      const ValueId is_long = b_.lt(row_block, half);
      const ValueId shortest = b_.sub(row_block, half);
      row_block = b_.select(is_long, longest, shortest);
    } else {
      row_block = longest;
    }
  }
  s_.first_row = scaled(row_block, p_.rows());
  const ValueId item = b_.item();
  s_.lane = b_.bit_and(item, b_.index(p_.sub_group - 1));
  s_.part = b_.bit_and(item, b_.index(p_.score_info.parts - 1));
  const ValueId sub_group = b_.shr(item, std::countr_zero(p_.sub_group));
  s_.own_lines = scaled(sub_group, Plan::kRows);
  const ValueId place = b_.shr(s_.lane, std::countr_zero(p_.score_info.parts));
  const ValueId own = b_.add(b_.add(s_.first_row, s_.own_lines), place);
  const bool has_tail = is_uneven(a_.row->src[0], p_.rows());
  for (size_t r = 0; r < s_.rows.size(); ++r) {
    const auto offset = static_cast<int64_t>(r) * p_.score_info.slot;
    ValueId row = moved(own, offset);
    if (has_tail) {
      // Where something is loaded for queries that are not there, the last one stands for them.
      s_.has_row[r] = b_.lt(row, s_.row_extent);
      const ValueId last = moved(s_.row_extent, -1);
      row = b_.select(s_.has_row[r], row, last);
    }
    s_.rows[r] = e_.make_bindings(row, block, 0, 1, 0);
  }
  s_.visible_keys = s_.all_keys;
  if (!a_.hidden_from) return;
  const ValueId end = moved(s_.first_row, p_.rows());
  const ValueId last = moved(e_.min_index(end, s_.row_extent), -1);
  const ValueId hidden =
      e_.emit(a_.hidden_from, e_.bound(s_.env, a_.row, e_.make_bindings(last, block, 0, 1, 0)));
  s_.visible_keys = e_.min_index(s_.all_keys, hidden);
}

void FlashAttention::clear_sums(BlockId block) {
  const Type type{DType::kF32, 1};
  const auto add = [&](double start) {
    const uint32_t reg = b_.add_register(type);
    b_.assign(block, reg, b_.constant_f(type, start));
    return reg;
  };
  const auto tiles = [&](int64_t columns, uint32_t sums, std::vector<uint32_t>* out) {
    for (int64_t c = 0; c < columns; c += p_.score_info.slot) {
      out->push_back(add(0));
      for (uint32_t i = 1; i < sums; ++i) add(0);
    }
  };
  tiles(Plan::kKeys, p_.score_info.sums, &s_.scores);
  tiles(p_.parts.column->src[0]->imm, p_.value_info.sums, &s_.results);
  for (uint32_t& reg : s_.from) reg = add(-HUGE_VAL);
  for (uint32_t& reg : s_.totals) reg = add(0);
}

// --- copies -------------------------------------------------------------------------------------

/// Eight neighbouring work-items copy a line. What is not there becomes zeros.
void FlashAttention::copy_tiles(std::span<const Tile> tiles, BlockId block) {
  struct Copy {
    int param = 0;
    ValueId from = kNone, to = kNone, gate = kNone;
  };
  std::vector<Copy> copies;
  const ValueId item = b_.item();
  const ValueId piece = b_.bit_and(item, b_.index(kPieces - 1));
  const ValueId line = b_.shr(item, std::countr_zero(static_cast<uint64_t>(kPieces)));
  const ValueId turn = b_.bit_and(line, b_.index(kPieces - 1));
  const ValueId place = scaled(b_.bit_xor(piece, turn), kPiece);
  const ValueId byte = b_.add(scaled(line, kLine), place);
  const ValueId column = scaled(piece, kPerPiece);
  const int64_t at_once = e_.schedule().block / kPieces;
  for (const Tile& t : tiles) {
    const ValueId row = b_.add(t.first, line), start = b_.add(t.at, byte);
    const int64_t width = t.inner->src[0]->imm;
    uint32_t row_origin = 0, column_origin = 0;
    for (int64_t panel = 0; panel * kPerLine < width; ++panel) {
      const uint32_t inner = e_.make_bindings(column, block, panel * kPerLine, 1, column_origin);
      column_origin = e_.binding(inner).origin;
      ValueId has_piece = kNone;
      if ((panel + 1) * kPerLine > width)
        has_piece = b_.lt(moved(column, panel * kPerLine), b_.index(width));
      for (int64_t l = 0; l < t.lines; l += at_once) {
        const uint32_t along = e_.make_bindings(row, block, l, 1, row_origin);
        row_origin = e_.binding(along).origin;
        Copy c{.param = static_cast<int>(t.load->imm), .gate = has_piece};
        if (t.extent != kNone) {
          const ValueId has_line = b_.lt(moved(row, l), t.extent);
          c.gate = c.gate == kNone ? has_line : b_.bit_and(c.gate, has_line);
        }
        c.from =
            e_.emit(t.load->src[0], e_.bound(e_.bound(s_.env, t.along, along), t.inner, inner));
        c.to = moved(start, (panel * t.lines + l) * kLine);
        copies.push_back(c);
      }
    }
  }
  for (const bool is_fast : {true, false}) {
    const BlockId inside = b_.open_block(block);
    const CopyKind kind = is_fast ? CopyKind::kAsync : CopyKind::kAnyWords;
    for (const Copy& c : copies) b_.copy(inside, kind, c.param, c.from, s_.array, c.to, c.gate);
    b_.close_if(inside, is_fast ? s_.is_aligned : s_.is_not);
  }
}

/// A block of keys and values, to byte `stage` on.
std::array<FlashAttention::Tile, 2> FlashAttention::stage_tiles(ValueId first_key, ValueId stage) {
  const ValueId extent = is_uneven(a_.key->src[0], Plan::kKeys) ? s_.all_keys : kNone;
  const Tile keys{p_.keys, a_.key, a_.depth, first_key, extent, Plan::kKeys, stage};
  const ValueId second = moved(stage, p_.keys_bytes());
  return {keys, Tile{p_.values, a_.key, a_.column, first_key, extent, Plan::kKeys, second}};
}

/// Queries come to where the second stage will be, and from there into registers.
void FlashAttention::read_queries(BlockId block) {
  const ValueId start = b_.index(p_.stage_bytes());
  const ValueId extent = is_uneven(a_.row->src[0], p_.rows()) ? s_.row_extent : kNone;
  const auto stage = stage_tiles(b_.index(0), b_.index(0));
  const std::array tiles{Tile{p_.query, a_.row, a_.depth, s_.first_row, extent, p_.rows(), start},
                         stage[0], stage[1]};
  copy_tiles(tiles, block);
  b_.pipe(block, PipeOp::kCommitCopies);
  b_.pipe(block, PipeOp::kWaitCopies, 0);
  b_.barrier(block);
  // Of the four 8·8 tiles of a fragment: the next eight rows, then the next 16 bytes of depth.
  const ValueId matrix = b_.shr(s_.lane, 3), odd = b_.bit_and(matrix, b_.index(1));
  const ValueId line = b_.bit_and(s_.lane, b_.index(7));
  const ValueId lines = b_.add(b_.add(s_.own_lines, line), scaled(odd, 8));
  const ValueId piece = b_.bit_xor(b_.shr(matrix, 1), line);
  for (int64_t step = 0; step * kStep < a_.depth->src[0]->imm; ++step) {
    const int64_t panel = step / kSteps * p_.rows() * kLine;
    s_.queries.push_back(
        fragment(moved(start, panel), lines, piece, step % kSteps * 2, false, block));
  }
}

/// Words of a fragment whose lines start at byte `start`; `piece` of the first one in its panel is
/// exchanged with another by `exchange`.
std::vector<ValueId> FlashAttention::fragment(ValueId start, ValueId lines, ValueId piece,
                                              int64_t exchange, bool is_turned, BlockId block) {
  const ValueId place = scaled(b_.bit_xor(piece, b_.index(exchange)), kPiece);
  const ValueId byte = b_.add(scaled(lines, kLine), place);
  const ValueId words = b_.fragment(block, s_.array, b_.add(start, byte), is_turned);
  std::vector<ValueId> out;
  for (uint32_t w = 0; w < 4; ++w) out.push_back(b_.extract(words, w));
  return out;
}

// --- the kernel ---------------------------------------------------------------------------------

void FlashAttention::run_keys(BlockId block) {
  const Builder::Loop loop = b_.open_loop(block);
  // Everybody's copies are there, and nobody reads the stage any more that the next ones go to.
  b_.pipe(loop.body, PipeOp::kWaitCopies, 0);
  b_.barrier(loop.body);
  const int shift = std::countr_zero(static_cast<uint64_t>(Plan::kKeys));
  const ValueId number = b_.bit_and(b_.shr(loop.index, shift), b_.index(Plan::kStages - 1));
  const ValueId stage = scaled(number, p_.stage_bytes());
  const ValueId other = b_.sub(b_.index(p_.stage_bytes()), stage);
  const ValueId next = moved(loop.index, Plan::kKeys);
  const BlockId ahead = b_.open_block(loop.body);
  copy_tiles(stage_tiles(next, other), ahead);
  b_.close_if(ahead, b_.lt(next, s_.visible_keys));
  b_.pipe(loop.body, PipeOp::kCommitCopies);
  multiply_keys(stage, loop.body);
  finish_scores(loop.index, loop.body);
  add_values(moved(stage, p_.keys_bytes()), loop.body);
  b_.close_loop(loop, b_.index(0), s_.visible_keys, Plan::kKeys);
}

void FlashAttention::store_results(BlockId block) {
  const ir::Store& store = e_.kernel().stores[0];
  const bool has_pairs = !store.gate && is_row(ir::linear(store.index), a_.column, kPair);
  struct Result {
    std::array<ValueId, kPair> at = {}, value = {}, gate = {};
  };
  std::vector<Result> results;
  const ValueId first = scaled(s_.part, kPair);
  Instances instances;
  for (size_t r = 0; r < s_.rows.size(); ++r) {
    // The sum of what the four work-items of a row have.
    ValueId total = b_.read(block, s_.totals[r]);
    for (const uint32_t with : {1U, 2U}) total = b_.add(total, b_.shuffle(block, total, with));
    const Env row = e_.bound(s_.env, a_.row, s_.rows[r]);
    e_.set_known(a_.total, row, total);
    uint32_t origin = 0;
    for (size_t n = 0; n < s_.results.size(); ++n)
      for (uint32_t e = 0; e < kPair; ++e) {
        const auto offset = static_cast<int64_t>(n * p_.value_info.slot + e);
        const uint32_t column = e_.make_bindings(first, block, offset, 1, origin);
        origin = e_.binding(column).origin;
        instances.push_back(e_.bound(row, a_.column, column));
        const auto reg = static_cast<uint32_t>(s_.results[n] + r * kPair + e);
        e_.set_known(a_.mix, instances.back(), b_.read(block, reg));
      }
  }
  e_.set_instances(&instances);
  for (size_t i = 0; i < instances.size(); i += kPair) {
    Result& out = results.emplace_back();
    const ValueId has_row = s_.has_row[i / (instances.size() / s_.rows.size())];
    for (size_t e = 0; e < kPair; ++e) {
      const Env& env = instances[i + e];
      out.value[e] = e_.emit(store.value, env);
      out.at[e] = e_.emit(store.index, env);
      out.gate[e] = has_row;
      if (!store.gate) continue;
      const ValueId own = e_.emit(store.gate, env);
      out.gate[e] = has_row == kNone ? own : b_.bit_and(has_row, own);
    }
  }
  e_.set_instances(nullptr);
  for (const bool is_fast : {true, false}) {
    const BlockId inside = b_.open_block(block);
    for (const Result& out : results) {
      if (is_fast && has_pairs) {
        b_.store_together(inside, store.param, out.at[0], {out.value[0], out.value[1]},
                          out.gate[0]);
        continue;
      }
      for (size_t e = 0; e < kPair; ++e)
        b_.store(inside, store.param, out.at[e], out.value[e], out.gate[e]);
    }
    b_.close_if(inside, is_fast ? s_.is_aligned : s_.is_not);
  }
}

void FlashAttention::run() {
  const auto bytes = static_cast<uint64_t>(p_.local_bytes());
  s_.array = b_.add_local(DType::kU8, bytes);
  e_.program().locals[s_.array].alignment = kAlignment;
  e_.program().has_launch_locals = bytes > b_.target().local_memory_bytes;
  const Builder::Loop first = b_.open_loop(e_.root(), LoopKind::kGroup);
  const Builder::Loop second = b_.open_loop(first.body, LoopKind::kGroup);
  const BlockId body = second.body;
  if (p_.is_paired)
    place(second.index, first.index, body);
  else
    place(first.index, second.index, body);
  s_.is_aligned = b_.is_aligned(e_.kernel().stores[0].param);
  for (const Node* load : {p_.query, p_.keys, p_.values}) {
    const ValueId one = b_.is_aligned(static_cast<int>(load->imm));
    s_.is_aligned = b_.bit_and(s_.is_aligned, one);
  }
  s_.is_not = b_.raw(Op::kNot, DType::kBool, {s_.is_aligned});
  clear_sums(body);
  read_queries(body);
  run_keys(body);
  store_results(body);
  b_.close_groups(second, 1, kNone);
  b_.close_groups(first, 0, kNone);
}

void lower_flash_attention(Emitter& e) { FlashAttention(e).run(); }

}  // namespace bm::compiler
