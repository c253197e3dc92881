// FlashAttention (tiled attention) with MMA: loads of Q, K and V, epilogue.
// Attention by matrix instructions: how queries, keys and values come to a group, and how its
// results leave it; see GroupAttentionPlan.
// A row of a factor is one line in each panel of a LineTile.
#include <algorithm>
#include <bit>
#include <cmath>

#include "compiler/schedules/attention/lower_mma.h"
#include "compiler/schedules/gemm_gpu/contraction.h"

namespace bm::compiler {
namespace {

using Plan = GroupAttentionPlan;

/// Elements along one instruction's K.
constexpr int64_t kStep = 16;
/// Results of an instruction that lie in one row of a work-item.
constexpr uint32_t kPair = 2;

bool is_uneven(const Node* extent, int64_t step) {
  return !extent->is_const() || extent->imm % step != 0;
}

}  // namespace

/// Loops over heads, the group's queries and the keys they see.
void GroupAttention::bind_queries(ValueId row_block, ValueId head, BlockId block) {
  g_.env = e_.unbound();
  ValueId rest = head;
  for (size_t i = a_.batch.size(); i-- > 0;) {
    const ValueId count = e_.emit(a_.batch[i]->src[0], g_.env);
    const ValueId digit = e_.next_digit(&rest, count, i == 0);
    g_.env = e_.bound(g_.env, a_.batch[i], e_.make_bindings(digit, block, 0, 1, 0));
  }
  g_.row_extent = e_.emit(a_.row->src[0], g_.env);
  g_.all_keys = e_.emit(a_.key->src[0], g_.env);
  // Later queries see more keys: groups that take longer start first.
  if (a_.causal_bound) {
    const Expr most = expr(g_.row_extent) + (p_.rows() - 1);
    const Expr blocks = expr(e_.divide_index(Op::kDiv, most, b_.index(p_.rows()), true));
    const Expr longest = blocks + -1 - expr(row_block);
    if (p_.is_paired) {
      const Expr half = (blocks + 1) >> 1;
      const ValueId is_long = b_.lt(row_block, half);
      const Expr shortest = expr(row_block) - half;
      row_block = b_.select(is_long, longest, shortest);
    } else {
      row_block = longest;
    }
  }
  g_.first_row = Expr(expr(row_block) * p_.rows());
}

void GroupAttention::find_visible_keys(BlockId block) {
  g_.visible_keys = g_.all_keys;
  if (!a_.causal_bound) return;
  const Expr last = min(expr(g_.first_row) + p_.rows(), expr(g_.row_extent)) + -1;
  const ValueId bound =
      e_.emit(a_.causal_bound, e_.bound(g_.env, a_.row, e_.make_bindings(last, block, 0, 1, 0)));
  g_.visible_keys = e_.min_index(g_.all_keys, bound);
}

void GroupAttention::open_groups(
    const std::function<void(ValueId row_block, ValueId head, BlockId body)>& run) {
  const Builder::Loop first = b_.open_loop(e_.root(), LoopKind::kGroup);
  const Builder::Loop second = b_.open_loop(first.body, LoopKind::kGroup);
  const ValueId row_block = p_.is_paired ? second.index : first.index;
  run(row_block, p_.is_paired ? first.index : second.index, second.body);
  b_.close_groups(second, 1, kNone);
  b_.close_groups(first, 0, kNone);
}

/// Blocks of keys that are all there and that all queries of the group see need no comparisons.
void GroupAttention::finish_logits(
    ValueId first_key, BlockId block,
    const std::function<void(const Node* logit, bool has_tail, BlockId block)>& write) {
  const bool has_tail = is_uneven(a_.key->src[0], p_.key_block);
  if (!has_tail && !a_.causal_bound) return write(a_.logit, false, block);
  ValueId end = g_.all_keys;
  if (a_.unmasked_logit) {
    // What the first query sees, all see.
    const uint32_t first = e_.make_bindings(g_.first_row, b_.block_of(g_.first_row), 0, 1, 0);
    end = e_.min_index(end, e_.emit(a_.causal_bound, e_.bound(g_.env, a_.row, first)));
  }
  const Expr last = expr(first_key) + (p_.key_block - 1);
  const ValueId is_inside = b_.lt(last, end);
  const ValueId is_edge = b_.negated(is_inside);
  const Node* unmasked = a_.unmasked_logit ? a_.unmasked_logit : a_.logit;
  if (unmasked != a_.product) {
    const BlockId inside = b_.open_block(block);
    write(unmasked, false, inside);
    b_.close_if(inside, is_inside);
  }
  const BlockId edge = b_.open_block(block);
  write(a_.logit, has_tail, edge);
  b_.close_if(edge, is_edge);
}

void GroupAttention::write_logits(const Node* logit, std::span<const Logit> logits,
                                  const Instances& instances, BlockId block) {
  e_.set_instances(&instances);
  for (size_t i = 0; i < logits.size(); ++i) {
    ValueId v = e_.emit(logit, instances[i]);
    if (logits[i].gate != kNone) v = b_.select(logits[i].gate, v, b_.like(v, -HUGE_VAL));
    b_.assign(block, logits[i].reg, v);
  }
  e_.set_instances(nullptr);
}

std::vector<ValueId> GroupAttention::dequantised(std::span<const ValueId> codes,
                                                 ValueId scale) const {
  const Expr bits = convert(bitcast(expr(scale), DType::kU16), DType::kU32);
  const ValueId scales = Expr(bits | (bits << 16));
  std::vector<ValueId> out;
  for (const ValueId word : codes)
    for (const ValueId pair : b_.dequantise(word, scales)) out.push_back(pair);
  return out;
}

void FlashAttention::bind_group(ValueId row_block, ValueId head, BlockId block) {
  bind_queries(row_block, head, block);
  const Expr item = expr(b_.item());
  const Expr lane = item & (p_.sub_group - 1);
  s_.part = Expr(item & (p_.logit_info.parts - 1));
  g_.own_lines = Expr((item >> std::countr_zero(p_.sub_group)) * Plan::kRows);
  const Expr line = lane >> std::countr_zero(p_.logit_info.parts);
  const Expr own = expr(g_.first_row) + expr(g_.own_lines) + line;
  // Where something is loaded for queries that are not there, the last one stands for them.
  const bool has_tail = is_uneven(a_.row->src[0], p_.rows());
  for (size_t r = 0; r < s_.rows.size(); ++r) {
    const Expr row = own + static_cast<int64_t>(r) * p_.logit_info.slot;
    s_.rows[r] = Offsets(e_, row, block, has_tail ? g_.row_extent : kNone, true).at(0);
  }
  find_visible_keys(block);
}

void FlashAttention::clear_accumulators(BlockId block) {
  const Type type{DType::kF32, 1};
  const auto add = [&](double start) {
    const uint32_t reg = b_.add_register(type);
    b_.assign(block, reg, b_.constant_f(type, start));
    return reg;
  };
  const auto tiles = [&](int64_t columns, uint32_t accumulators, std::vector<uint32_t>* out) {
    for (int64_t c = 0; c < columns; c += p_.logit_info.slot)
      out->push_back(clear_registers(b_, block, type, accumulators).front());
  };
  tiles(p_.key_block, p_.logit_info.accumulators, &s_.logits);
  tiles(p_.parts.column->src[0]->imm, p_.value_info.accumulators, &s_.results);
  for (uint32_t& reg : s_.row_max) reg = add(-HUGE_VAL);
  for (uint32_t& reg : s_.row_sums) reg = add(0);
}

// --- staging ------------------------------------------------------------------------------------

LineTile FlashAttention::tile(const Node* load, const Node* line, const Node* inner, ValueId first,
                              ValueId extent, int64_t step, BlockId block) const {
  const bool has_tail = is_uneven(line->src[0], step);
  const int64_t width = inner->src[0]->imm;
  return {.load = load,
          .across = {line, block, first, 1, has_tail ? extent : kNone},
          .along = {.loop = inner, .block = block, .end = b_.index(width)},
          .lines = step,
          .panels = Plan::panels(load, inner)};
}

/// A block of keys and values, to byte `stage` on.
std::array<FlashAttention::Copy, 2> FlashAttention::stage_tiles(ValueId first_key, ValueId stage,
                                                                BlockId block) const {
  const auto keys = [&](const Node* load, const Node* inner) {
    return tile(load, a_.key, inner, first_key, g_.all_keys, p_.key_block, block);
  };
  const Expr second = expr(stage) + p_.keys_bytes();
  return {Copy{keys(p_.keys, a_.head_dim), stage}, Copy{keys(p_.values, a_.column), second}};
}

/// What is not there becomes zeros.
void FlashAttention::copy_tiles(std::span<const Copy> tiles, BlockId block) {
  std::vector<LineCopy> chunks;
  for (const auto& [tile, at] : tiles)
    stage_->for_chunks(tile, at, g_.env, [&](const LineCopy& c) { chunks.push_back(c); });
  const BlockId fast = b_.open_block(block);
  for (const LineCopy& c : chunks)
    stage_->issue(fast, has_async() ? CopyKind::kAsync : CopyKind::kWords, c);
  b_.close_if(fast, s_.is_aligned);
  const BlockId slow = b_.open_block(block);
  for (const auto& [tile, at] : tiles) copy_unaligned(tile, at, slow);
  b_.close_if(slow, s_.is_not);
}

/// In a loop over lines: elements of all of them on their way at once, through registers, would
/// take those of the results.
void FlashAttention::copy_unaligned(LineTile tile, ValueId at, BlockId block) {
  const int64_t step = stage_->at_once();
  const Builder::Loop loop = b_.open_loop(block);
  tile.across.first = Expr(expr(tile.across.first) + expr(loop.index));
  tile.across.block = loop.body;
  tile.panel_lines = std::exchange(tile.lines, step);
  const Expr to = expr(at) + expr(loop.index) * LineTile::kLine;
  stage_->for_chunks(tile, to, g_.env, [&](const LineCopy& c) {
    stage_->issue(loop.body, CopyKind::kUnalignedWords, c);
  });
  b_.close_loop(loop, b_.index(0), b_.index(tile.panel_lines), step);
}

/// Loads of a block of keys or values that are codes: nothing waits for them yet. The last key
/// stands for those that are not there, whose logits are -inf.
std::vector<FlashAttention::CodeChunk> FlashAttention::gather_codes(bool is_keys, ValueId first_key,
                                                                    BlockId block) {
  constexpr int64_t kInLine = LineTile::kLine / 2 / Plan::kCodes, kWords = Plan::kCodes / 4;
  const Node *load = is_keys ? p_.keys : p_.values,
             *scale = is_keys ? p_.key_scale : p_.value_scale,
             *along = is_keys ? a_.head_dim : a_.column;
  const int64_t start = is_keys ? 0 : p_.keys_bytes(), width = along->src[0]->imm / Plan::kCodes;
  const Expr item = expr(b_.item());
  const Expr pair = item & (kInLine - 1), line = item >> log2_of(kInLine);
  const Expr at_chunk = ((pair * 2) ^ (line & (LineTile::kChunks - 1))) * LineTile::kChunk;
  s_.first_chunk = Expr(line * LineTile::kLine + at_chunk);
  const bool has_tail = is_uneven(a_.key->src[0], p_.key_block);
  const ValueId last = e_.max_index(b_.sub(g_.all_keys, b_.index(1)), b_.index(0));
  std::vector<CodeChunk> out;
  for (int64_t l = 0; l < p_.key_block; l += e_.schedule().block / kInLine) {
    ValueId key = Expr(expr(first_key) + line + l);
    if (has_tail) key = e_.min_index(key, last);
    const Env env = e_.bound_at(g_.env, a_.key, key, block);
    Offsets inside(e_, Expr(pair * Plan::kCodes), block);
    for (int64_t panel = 0; panel * kInLine < width; ++panel) {
      const int64_t first = panel * kInLine;
      Env at = env;
      if (first + kInLine <= width) {
        at = e_.bound(env, along, inside.at(first * Plan::kCodes).binding);
      } else {
        // What lies behind the width is never read.
        const Expr number = min(pair + first, expr(b_.index(width - 1)));
        at = e_.bound_at(env, along, Expr(number * Plan::kCodes), block);
      }
      CodeChunk c{.to = start + (panel * p_.key_block + l) * LineTile::kLine};
      c.from = e_.emit(load->src[0], at);
      if (load->src.size() > 1) {
        c.gate = e_.emit(load->src[1], at);
        c.from = b_.select(c.gate, c.from, b_.index(0));
      }
      c.scale = e_.emit(scale, at);
      out.push_back(c);
    }
  }
  while (s_.codes.size() < kWords * out.size())
    s_.codes.push_back(b_.add_register({DType::kU32, 1}));
  for (const bool is_aligned : {true, false})
    e_.branch(is_aligned ? s_.is_aligned : s_.is_not, block, [&](BlockId body) {
      for (size_t i = 0; i < out.size(); ++i) {
        const ValueId words =
            b_.words(static_cast<int>(load->imm), kWords, out[i].from, is_aligned);
        for (uint32_t w = 0; w < kWords; ++w)
          b_.assign(body, s_.codes[kWords * i + w], b_.extract(words, w));
      }
    });
  return out;
}

/// Their float16, to the stage that starts at byte `stage`: two adjacent chunks of a line.
void FlashAttention::keep_codes(std::span<const CodeChunk> chunks, const Expr& stage,
                                BlockId block) {
  constexpr size_t kWords = Plan::kCodes / 4;
  if (chunks.empty()) return;
  const Expr first = expr(s_.first_chunk), second = first ^ LineTile::kChunk;
  const std::array starts{Expr(stage + first), Expr(stage + second)};
  for (size_t i = 0; i < chunks.size(); ++i) {
    std::array<ValueId, kWords> codes = {};
    for (size_t w = 0; w < kWords; ++w) {
      codes[w] = b_.read(block, s_.codes[kWords * i + w]);
      if (chunks[i].gate != kNone)
        codes[w] = b_.select(chunks[i].gate, codes[w], b_.like_int(codes[w], 0));
    }
    const std::vector<ValueId> words = dequantised(codes, chunks[i].scale);
    for (size_t half = 0; half < starts.size(); ++half) {
      const auto from = words.begin() + static_cast<std::ptrdiff_t>(half * kWords);
      b_.local_store_together(block, stage_->array(), Expr(starts[half] + chunks[i].to),
                              {from, from + kWords});
    }
  }
}

/// Of a tile from byte `start` on.
SlotWords FlashAttention::fragment(const LineFragments& f, ValueId start, int64_t row, int64_t step,
                                   BlockId block) const {
  const auto [byte, offset] = stage_->fragment_byte(f, row, step);
  const Expr at = expr(start) + offset + expr(byte);
  return stage_->load_fragment(f, at, block);
}

/// Queries come to where the second stage will be and from there into registers, or stay behind the
/// stages.
void FlashAttention::read_queries(BlockId block) {
  const ValueId start = b_.index(p_.keeps_queries() ? p_.stage_bytes() : query_start());
  std::vector tiles{Copy{
      tile(p_.query, a_.row, a_.head_dim, g_.first_row, g_.row_extent, p_.rows(), block), start}};
  if (!p_.has_codes())
    for (const Copy& c : stage_tiles(b_.index(0), b_.index(0), block)) tiles.push_back(c);
  copy_tiles(tiles, block);
  for (const bool is_keys : {true, false})
    if (p_.has_codes())
      keep_codes(gather_codes(is_keys, b_.index(0), block), expr(b_.index(0)), block);
  if (has_async()) b_.pipe(block, PipeOp::kCommitCopies);
  if (has_async()) b_.pipe(block, PipeOp::kWaitCopies, 0);
  b_.barrier(block);
  if (!p_.keeps_queries()) return;
  for (int64_t step = 0; step * kStep < a_.head_dim->src[0]->imm; ++step)
    s_.queries.push_back(query_fragment(start, step, block));
}

/// Of the sub-group's queries, which lie from byte `start` on.
SlotWords FlashAttention::query_fragment(ValueId start, int64_t step, BlockId block) const {
  const LineFragments f{
      .is_left = true, .is_k_major = true, .lines = p_.rows(), .own = g_.own_lines};
  return fragment(f, start, 0, step, block);
}

// --- the kernel ---------------------------------------------------------------------------------

void FlashAttention::run_keys(BlockId block) {
  const Builder::Loop loop = b_.open_loop(block);
  // Everybody's chunks are there, and nobody reads the stage any more that the next ones go to.
  if (has_async()) b_.pipe(loop.body, PipeOp::kWaitCopies, 0);
  if (p_.has_warpgroups) b_.pipe(loop.body, PipeOp::kProxyFence);
  b_.barrier(loop.body);
  const int shift = std::countr_zero(static_cast<uint64_t>(p_.key_block));
  const Expr key = expr(loop.index);
  const Expr stage = ((key >> shift) & (p_.stages - 1)) * p_.stage_bytes();
  const Expr other = p_.stage_bytes() - stage;
  const Expr next = key + p_.key_block;
  const ValueId has_next = b_.lt(next, g_.visible_keys);
  if (!p_.has_codes()) {
    const BlockId ahead = b_.open_block(loop.body);
    copy_tiles(stage_tiles(next, other, ahead), ahead);
    b_.close_if(ahead, has_next);
  }
  // Codes are on their way in registers, keys before values, where there is room for them; floats
  // without asynchronous copies do not wait for the products either. Behind the last block the
  // first one is read again, which is there in any case.
  const ValueId ahead = p_.has_codes() ? b_.select(has_next, next, b_.index(0)) : kNone;
  const bool has_room = has_async() && p_.keeps_queries();
  const auto gather = [&](bool is_keys) {
    std::vector<CodeChunk> codes;
    if (p_.has_codes()) codes = gather_codes(is_keys, ahead, loop.body);
    if (!has_room) keep_codes(std::exchange(codes, {}), other, loop.body);
    return codes;
  };
  std::vector<CodeChunk> codes = gather(true);
  if (!has_room) gather(false);
  if (has_async()) b_.pipe(loop.body, PipeOp::kCommitCopies);
  multiply_keys(stage, loop.body);
  keep_codes(codes, other, loop.body);
  if (has_room) codes = gather(false);
  finish_logits(loop.index, loop.body, [&](const Node* logit, bool has_tail, BlockId inside) {
    write_block(logit, loop.index, has_tail, inside);
  });
  add_values(Expr(stage + p_.keys_bytes()), loop.body);
  keep_codes(codes, other, loop.body);
  b_.close_loop(loop, b_.index(0), g_.visible_keys, p_.key_block);
}

void FlashAttention::store_results(BlockId block) {
  Epilogue out(e_, a_.pv);
  const Expr first = expr(s_.part) * kPair;
  for (uint32_t r = 0; r < s_.rows.size(); ++r) {
    // The sum of what the four work-items of a row have.
    Expr row_sum = expr(b_.read(block, s_.row_sums[r]));
    for (const uint32_t with : {1U, 2U}) row_sum = row_sum + expr(b_.shuffle(block, row_sum, with));
    const Env row = e_.bound(g_.env, a_.row, s_.rows[r].binding);
    e_.set_known(a_.row_sum, row, row_sum);
    Offsets columns(e_, first, block);
    for (size_t n = 0; n < s_.results.size(); ++n)
      for (uint32_t e = 0; e < kPair; ++e) {
        const uint32_t column =
            columns.at(static_cast<int64_t>(n * p_.value_info.slot + e)).binding;
        out.add(e_.bound(row, a_.column, column), b_.read(block, s_.results[n] + r * kPair + e),
                s_.rows[r].exists);
      }
  }
  out.store_pairs(block, a_.column, s_.is_aligned, s_.is_not);
}

void FlashAttention::run() {
  const auto bytes = static_cast<uint64_t>(p_.local_bytes());
  stage_.emplace(e_, e_.schedule().block, b_.add_local(DType::kU8, bytes));
  e_.program().locals[stage_->array()].alignment = LineTile::kAlignment;
  e_.program().has_dynamic_shared = bytes > b_.target().shared_memory_bytes;
  open_groups([&](ValueId row_block, ValueId head, BlockId body) { run(row_block, head, body); });
}

void FlashAttention::run(ValueId row_block, ValueId head, BlockId body) {
  bind_group(row_block, head, body);
  s_.is_aligned = b_.is_aligned(e_.kernel().stores[0].param);
  for (const Node* load : {p_.query, p_.keys, p_.values}) {
    const ValueId one = b_.is_aligned(static_cast<int>(load->imm));
    s_.is_aligned = b_.bit_and(s_.is_aligned, one);
  }
  s_.is_not = b_.negated(s_.is_aligned);
  clear_accumulators(body);
  read_queries(body);
  run_keys(body);
  store_results(body);
}

void lower_flash_attention(Emitter& e) {
  if (e.schedule().group_attention()->is_transposed()) return lower_wave_attention(e);
  FlashAttention(e).run();
}

}  // namespace bm::compiler
