// Attention with online softmax on CPUs, tiled over queries and keys.
// Attention in tiles of queries and keys; see AttentionPlan. Lanes run along the queries, so that
// maxima, sums and masks never cross them.
#include <algorithm>
#include <array>
#include <cmath>

#include "compiler/schedules/attention/lower_cpu.h"

namespace bm::compiler {
namespace {

/// Distance between copied keys and values beyond their length: rows of a power of two would share
/// few sets of a cache.
constexpr int64_t kRowPadding = 16;
/// Vectors of a copying loop side by side.
constexpr uint32_t kCopies = 4;

int64_t round_up(int64_t v, int64_t step) { return (v + step - 1) / step * step; }

}  // namespace

ValueId Lowerer::scaled(ValueId v, int64_t factor) { return b_.mul(v, b_.index(factor)); }
ValueId Lowerer::moved(ValueId v, int64_t offset) { return b_.add(v, b_.index(offset)); }
ValueId Lowerer::smaller(ValueId a, ValueId b) {
  const std::array args{a, b};
  return b_.alu(Op::kMin, DType::kI64, args);
}

void Lowerer::add_attention_roots(const AttentionParts& a, std::vector<const Node*>* roots) {
  roots->insert(roots->end(), {a.query, a.keys, a.values, a.score, a.total, a.mix});
  for (const Node* n : {a.hidden_from, a.seen_score, a.edge_score})
    if (n) roots->push_back(n);
}

Lowerer::AttentionState Lowerer::attention_state() {
  const AttentionPlan& p = *schedule_.attention();
  const AttentionParts& a = p.parts;
  AttentionState s;
  s.env = Env(ranges_.size(), 0);
  s.dtype = a.mix->dtype;
  s.depth = a.depth->src[0]->imm;
  s.width = a.column->src[0]->imm;
  // Tiles may reach beyond the last element: what is there is never looked at.
  s.lines = std::max(round_up(s.width, p.column_tile), round_up(s.width, p.lanes));
  s.key_step = round_up(s.depth, p.lanes) + kRowPadding;
  s.value_step = s.lines + kRowPadding;
  s.turned_step = round_up(s.width, p.lanes) + kRowPadding;
  const auto array = [&](int64_t count) {
    return b_.add_local(s.dtype, static_cast<uint64_t>(count));
  };
  s.queries = array(p.row_block * s.depth);
  s.keys = array(p.key_block * s.key_step);
  s.values = array(p.key_block * s.value_step);
  s.scores = array(p.key_block * p.strip());
  s.results = array(p.row_block * s.lines);
  s.most = array(p.row_block);
  s.totals = array(p.row_block);
  s.turned = array(p.strip() * s.turned_step);
  for (uint32_t i = 0; i < std::max(p.key_tile, p.column_tile) * p.vectors; ++i)
    s.sums.push_back(b_.add_register({s.dtype, p.lanes}));
  return s;
}

void Lowerer::lower_attention(BlockId root) {
  const AttentionPlan& p = *schedule_.attention();
  const AttentionParts& a = p.parts;
  const Builder::Loop grid = b_.open_loop(root, LoopKind::kGrid);
  AttentionState s = attention_state();
  const ValueId extent = emit(a.row->src[0], s.env), block_size = b_.index(p.row_block);
  ValueId rest = grid.index;
  const auto digit = [&](ValueId of) {
    const ValueId d = divide_index(Op::kMod, rest, of, false);
    rest = divide_index(Op::kDiv, rest, of, false);
    return d;
  };
  const ValueId blocks = divide_index(Op::kDiv, moved(extent, p.row_block - 1), block_size, false);
  s.row = scaled(a.batch.empty() ? rest : digit(blocks), p.row_block);
  for (size_t i = a.batch.size(); i-- > 0;) {
    const ValueId at = i == 0 ? rest : digit(emit(a.batch[i]->src[0], s.env));
    s.env = bound(s.env, a.batch[i], make_bindings(at, grid.body, 0, 1, 0));
  }
  s.rows = smaller(b_.sub(extent, s.row), block_size);
  const auto for_strips = [&](BlockId parent, auto&& body) {
    const Builder::Loop strips = b_.open_loop(parent);
    AttentionStrip strip{.at = strips.index, .block = strips.body};
    const ValueId strip_size = b_.index(p.strip());
    strip.height = smaller(b_.sub(s.rows, strips.index), strip_size);
    body(strip);
    b_.close_loop(strips, b_.index(0), s.rows, p.strip());
  };
  for_strips(grid.body, [&](const AttentionStrip& strip) { start_strip(s, strip); });
  const ValueId visible = visible_keys(s, s.rows, grid.body);
  const Builder::Loop keys = b_.open_loop(grid.body);
  const ValueId most = b_.index(p.key_block);
  const ValueId count = smaller(b_.sub(visible, keys.index), most);
  copy_side(s, a.keys, a.depth, s.keys, s.key_step, keys.index, count, keys.body);
  copy_side(s, a.values, a.column, s.values, s.value_step, keys.index, count, keys.body);
  for_strips(keys.body, [&](AttentionStrip strip) {
    strip.first_key = keys.index;
    strip.count = count;
    add_keys(s, strip);
  });
  b_.close_loop(keys, b_.index(0), visible, p.key_block);
  for_strips(grid.body, [&](const AttentionStrip& strip) { finish_strip(s, strip); });
  const ValueId begin = b_.bitcast(program_.block_begin, DType::kI64);
  b_.close_loop(grid, begin, b_.bitcast(program_.block_end, DType::kI64), 1);
}

/// Keys up to the last one that any of the block's first `rows` queries sees.
ValueId Lowerer::visible_keys(const AttentionState& s, ValueId rows, BlockId block) {
  const AttentionParts& a = schedule_.attention()->parts;
  const ValueId all = emit(a.key->src[0], s.env);
  if (!a.hidden_from) return all;
  const ValueId last = moved(b_.add(s.row, rows), -1);
  return smaller(all, hidden_from(s, last, block));
}

/// The first key that is hidden from a query.
ValueId Lowerer::hidden_from(const AttentionState& s, ValueId row, BlockId block) {
  const AttentionParts& a = schedule_.attention()->parts;
  return emit(a.hidden_from, bound(s.env, a.row, make_bindings(row, block, 0, 1, 0)));
}

/// Code for strips whose queries all exist, and code for the last one.
void Lowerer::split_strip(const AttentionStrip& strip,
                          const std::function<void(BlockId, bool)>& body) {
  const AttentionPlan& p = *schedule_.attention();
  const Node* extent = p.parts.row->src[0];
  if (extent->is_const() && extent->imm % p.strip() == 0) return body(strip.block, false);
  const ValueId is_cut = b_.lt(strip.height, b_.index(p.strip()));
  const std::array conditions{b_.raw(Op::kNot, DType::kBool, {is_cut}), is_cut};
  for (const bool is_edge : {false, true}) {
    const BlockId inside = b_.open_block(strip.block);
    // What is read there may not exist elsewhere: nothing moves out, nothing is shared.
    const BlockId floor = b_.set_floor(inside);
    const auto memo = memo_;
    body(inside, is_edge);
    memo_ = memo;
    b_.set_floor(floor);
    b_.close_if(inside, conditions[is_edge]);
  }
}

/// Copies the queries, turned, and sets maxima and sums to those of nothing.
void Lowerer::start_strip(const AttentionState& s, const AttentionStrip& strip) {
  const AttentionPlan& p = *schedule_.attention();
  split_strip(strip, [&](BlockId inside, bool is_edge) {
    if (p.is_turned_at_once && !is_edge)
      turn_queries(s, strip, inside);
    else
      copy_queries(s, strip, inside);
  });
  const auto fill = [&](uint32_t array, int64_t step, double value) {
    const Builder::Loop loop = b_.open_loop(strip.block);
    const ValueId base = scaled(strip.at, step);
    const ValueId constant = b_.constant_f({s.dtype, p.lanes}, value);
    b_.local_store(loop.body, array, b_.add(base, loop.index), constant);
    b_.close_loop(loop, b_.index(0), b_.index(step * p.strip()), p.lanes);
  };
  fill(s.results, s.lines, 0);
  fill(s.most, 1, -HUGE_VAL);
  fill(s.totals, 1, 0);
}

/// Squares of as many queries as there are lanes, turned in registers.
void Lowerer::turn_queries(const AttentionState& s, const AttentionStrip& strip, BlockId block) {
  const AttentionPlan& p = *schedule_.attention();
  const AttentionParts& a = p.parts;
  const Builder::Loop part = b_.open_loop(block);
  const ValueId row = b_.add(b_.add(s.row, strip.at), part.index);
  const Instances rows = bind_axis({s.env}, a.row, row, part.body, p.lanes, 1, p.lanes);
  const ValueId line = b_.add(scaled(strip.at, s.depth), part.index);
  const auto run = [&](int64_t begin, int64_t end, uint32_t jam) {
    if (begin == end) return;
    const Builder::Loop loop = b_.open_loop(part.body);
    const Instances all = bind_axis(rows, a.depth, loop.index, loop.body, 1, jam, 1);
    const ValueId at = b_.add(line, scaled(loop.index, p.strip()));
    instances_ = &all;
    std::vector<ValueId> vectors;
    for (const Env& env : all) vectors.push_back(spread(emit(a.query, env), p.lanes));
    instances_ = nullptr;
    for (size_t i = 0; i < vectors.size(); ++i)
      b_.local_store(loop.body, s.queries, moved(at, static_cast<int64_t>(i) * p.strip()),
                     vectors[i]);
    b_.close_loop(loop, b_.index(begin), b_.index(end), jam);
  };
  const int64_t whole = s.depth / p.lanes * p.lanes;
  run(0, whole, p.lanes);
  run(whole, s.depth, 1);
  b_.close_loop(part, b_.index(0), b_.index(p.strip()), p.lanes);
}

/// Element by element; queries that do not exist are zero.
void Lowerer::copy_queries(const AttentionState& s, const AttentionStrip& strip, BlockId block) {
  const AttentionPlan& p = *schedule_.attention();
  const AttentionParts& a = p.parts;
  const ValueId base = scaled(strip.at, s.depth);
  const Builder::Loop zero = b_.open_loop(block);
  const ValueId nothing = b_.constant_f({s.dtype, p.lanes}, 0);
  b_.local_store(zero.body, s.queries, b_.add(base, zero.index), nothing);
  b_.close_loop(zero, b_.index(0), b_.index(s.depth * p.strip()), p.lanes);
  const Builder::Loop rows = b_.open_loop(block);
  const ValueId row = b_.add(b_.add(s.row, strip.at), rows.index);
  const Env env = bound(s.env, a.row, make_bindings(row, rows.body, 0, 1, 0));
  const ValueId line = b_.add(base, rows.index);
  const Builder::Loop loop = b_.open_loop(rows.body);
  const ValueId v =
      emit(a.query, bound(env, a.depth, make_bindings(loop.index, loop.body, 0, 1, 0)));
  const ValueId at = b_.add(line, scaled(loop.index, p.strip()));
  b_.local_store(loop.body, s.queries, at, v);
  b_.close_loop(loop, b_.index(0), b_.index(s.depth), 1);
  b_.close_loop(rows, b_.index(0), strip.height, 1);
}

/// Keys or values of a block, one after the other.
void Lowerer::copy_side(const AttentionState& s, const Node* value, const Node* along,
                        uint32_t array, int64_t step, ValueId first, ValueId count,
                        BlockId parent) {
  const AttentionPlan& p = *schedule_.attention();
  const Builder::Loop keys = b_.open_loop(parent);
  const ValueId key = b_.add(first, keys.index);
  const Env env = bound(s.env, p.parts.key, make_bindings(key, keys.body, 0, 1, 0));
  const ValueId line = scaled(keys.index, step);
  const auto run = [&](int64_t begin, int64_t end, uint32_t lanes, uint32_t jam) {
    if (begin == end) return;
    const Builder::Loop loop = b_.open_loop(keys.body);
    const ValueId at = b_.add(line, loop.index);
    const Instances all = bind_axis({env}, along, loop.index, loop.body, lanes, jam, lanes);
    for (size_t i = 0; i < all.size(); ++i) {
      const ValueId v = spread(emit(value, all[i]), lanes);
      b_.local_store(loop.body, array, moved(at, static_cast<int64_t>(i) * lanes), v);
    }
    b_.close_loop(loop, b_.index(begin), b_.index(end), int64_t{lanes} * jam);
  };
  const int64_t length = along->src[0]->imm, wide = int64_t{p.lanes} * kCopies;
  const int64_t most = length / wide * wide, whole = length / p.lanes * p.lanes;
  run(0, most, p.lanes, kCopies);
  run(most, whole, p.lanes, 1);
  run(whole, length, 1, 1);
  b_.close_loop(keys, b_.index(0), count, 1);
}

}  // namespace bm::compiler
