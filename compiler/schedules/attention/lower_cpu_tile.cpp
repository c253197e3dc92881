// Online softmax of one tile: rescales the accumulators by exp2(old max - new max), then adds P·V.
// What one strip of queries does with a block of keys, and how its results are stored.
#include <algorithm>
#include <array>
#include <cmath>

#include "compiler/schedules/attention/lower_cpu.h"

namespace bm::compiler {
namespace {

/// Iterations of a loop over scores side by side; a power of two.
constexpr uint32_t kCopies = 4;

}  // namespace

void Lowerer::add_keys(const AttentionState& s, AttentionStrip strip) {
  const AttentionParts& a = schedule_.attention()->parts;
  if (!a.hidden_from) return add_visible_keys(s, strip);
  const ValueId rows = b_.add(strip.at, strip.height);
  const ValueId visible = visible_keys(s, rows, strip.block);
  strip.count = smaller(b_.sub(visible, strip.first_key), strip.count);
  const BlockId parent = strip.block;
  strip.block = b_.open_block(parent);
  add_visible_keys(s, strip);
  b_.close_if(strip.block, b_.lt(b_.index(0), strip.count));
}

void Lowerer::add_visible_keys(const AttentionState& s, const AttentionStrip& strip) {
  const AttentionPlan& p = *schedule_.attention();
  const Builder::Loop keys = b_.open_loop(strip.block);
  const std::vector<ValueId> zeros(p.key_tile * p.vectors, b_.constant({s.dtype, p.lanes}, 0));
  multiply_rows(s, keys.body, zeros,
                {.rows = s.keys,
                 .row_at = scaled(keys.index, s.key_step),
                 .row_step = s.key_step,
                 .depth_step = 1,
                 .vectors = s.queries,
                 .vector_at = scaled(strip.at, s.depth),
                 .length = b_.index(s.depth),
                 .results = s.scores,
                 .result_at = scaled(keys.index, p.strip())});
  b_.close_loop(keys, b_.index(0), strip.count, p.key_tile);

  std::vector<uint32_t> most;
  for (uint32_t v = 0; v < p.vectors; ++v) {
    most.push_back(b_.add_register({s.dtype, p.lanes}));
    const ValueId at = moved(strip.at, int64_t{v} * p.lanes);
    b_.assign(strip.block, most[v], b_.local_load(strip.block, s.most, at, p.lanes));
  }
  if (p.parts.edge_score)
    split_strip(strip, [&](BlockId inside, bool is_edge) {
      finish_scores(s, strip, most, inside, is_edge);
    });
  else
    finish_scores(s, strip, most, strip.block, false);
  add_values(s, strip, take_powers(s, strip, most));
}

/// Results so far fade by what the maximum has grown, then the values of these keys are added.
void Lowerer::add_values(const AttentionState& s, const AttentionStrip& strip,
                         const std::vector<ValueId>& fading) {
  const AttentionPlan& p = *schedule_.attention();
  const Builder::Loop columns = b_.open_loop(strip.block);
  const ValueId base = scaled(strip.at, s.lines);
  const ValueId line = b_.add(base, scaled(columns.index, p.strip()));
  std::vector<ValueId> sums;
  for (uint32_t i = 0; i < p.column_tile * p.vectors; ++i) {
    const ValueId from = moved(line, int64_t{i} * p.lanes);
    const ValueId before = b_.local_load(columns.body, s.results, from, p.lanes);
    sums.push_back(b_.mul(before, fading[i % p.vectors]));
  }
  multiply_rows(s, columns.body, sums,
                {.rows = s.values,
                 .row_at = columns.index,
                 .row_step = 1,
                 .depth_step = s.value_step,
                 .vectors = s.scores,
                 .vector_at = b_.index(0),
                 .length = strip.count,
                 .results = s.results,
                 .result_at = line});
  b_.close_loop(columns, b_.index(0), b_.index(s.width), p.column_tile);
}

/// A tile of registers: single elements times lines of a strip, step by step of the depth.
void Lowerer::multiply_rows(const AttentionState& s, BlockId block,
                            const std::vector<ValueId>& start, const AttentionTile& t) {
  const AttentionPlan& p = *schedule_.attention();
  for (size_t i = 0; i < start.size(); ++i) b_.assign(block, s.sums[i], start[i]);
  const Builder::Loop loop = b_.open_loop(block);
  const ValueId line = b_.add(t.vector_at, scaled(loop.index, p.strip()));
  const ValueId row = b_.add(t.row_at, scaled(loop.index, t.depth_step));
  std::vector<ValueId> vectors;
  for (uint32_t v = 0; v < p.vectors; ++v)
    vectors.push_back(
        b_.local_load(loop.body, t.vectors, moved(line, int64_t{v} * p.lanes), p.lanes));
  for (size_t r = 0; r * p.vectors < start.size(); ++r) {
    const ValueId at = moved(row, static_cast<int64_t>(r) * t.row_step);
    const ValueId wide = spread(b_.local_load(loop.body, t.rows, at), p.lanes);
    for (size_t v = 0; v < p.vectors; ++v) {
      const uint32_t sum = s.sums[r * p.vectors + v];
      b_.assign(loop.body, sum, b_.mad(wide, vectors[v], b_.read(loop.body, sum)));
    }
  }
  b_.close_loop(loop, b_.index(0), t.length, 1);
  for (size_t i = 0; i < start.size(); ++i) {
    const ValueId to = moved(t.result_at, static_cast<int64_t>(i) * p.lanes);
    b_.local_store(block, t.results, to, b_.read(block, s.sums[i]));
  }
}

/// Products become scores, and the maximum takes part in them. NaN need not: its power is NaN.
void Lowerer::finish_scores(const AttentionState& s, const AttentionStrip& strip,
                            const std::vector<uint32_t>& most, BlockId block, bool is_edge) {
  const AttentionPlan& p = *schedule_.attention();
  const AttentionParts& a = p.parts;
  const uint32_t jam = !p.has_loads ? kCopies : is_edge ? 1 : p.lanes;
  const ValueId zero = b_.index(0);
  if (is_edge)
    return finish_keys(s, strip, most,
                       {zero, strip.count, a.edge_score, a.edge_product, a.edge_row}, block, jam);
  ValueId from = zero;
  if (a.seen_score) {
    // What the first query sees, all see.
    const ValueId hidden = hidden_from(s, b_.add(s.row, strip.at), block);
    const ValueId seen = smaller(b_.sub(hidden, strip.first_key), strip.count);
    const std::array args{seen, zero};
    const ValueId positive = b_.alu(Op::kMax, DType::kI64, args);
    const ValueId mask = b_.index(jam - 1);
    from = b_.sub(positive, b_.bit_and(positive, mask));
    finish_keys(s, strip, most, {zero, from, a.seen_score, a.product, a.row}, block, jam);
  }
  finish_keys(s, strip, most, {from, strip.count, a.score, a.product, a.row}, block, jam);
}

void Lowerer::finish_keys(const AttentionState& s, const AttentionStrip& strip,
                          const std::vector<uint32_t>& most, const AttentionScores& scores,
                          BlockId block, uint32_t step) {
  const AttentionPlan& p = *schedule_.attention();
  const ValueId first = b_.add(s.row, strip.at);
  const Instances rows = bind_axis({s.env}, scores.row, first, block, p.lanes, p.vectors, p.lanes);
  in_steps(scores.begin, scores.end, step, [&](ValueId begin, ValueId end, uint32_t jam) {
    const Builder::Loop loop = b_.open_loop(block);
    const ValueId at = b_.add(strip.first_key, loop.index);
    const Instances all = bind_axis(rows, p.parts.key, at, loop.body, 1, jam, 1);
    const ValueId line = scaled(loop.index, p.strip());
    std::vector<ValueId> places, values;
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t v = i / jam, copy = i % jam;
      places.push_back(moved(line, static_cast<int64_t>(copy * p.strip() + v * p.lanes)));
      memo_[key(scores.product, all[i])] =
          b_.local_load(loop.body, s.scores, places.back(), p.lanes);
    }
    instances_ = &all;
    for (const Env& env : all) values.push_back(spread(emit(scores.value, env), p.lanes));
    instances_ = nullptr;
    for (size_t i = 0; i < all.size(); ++i) {
      const uint32_t reg = most[i / jam];
      const ValueId before = b_.read(loop.body, reg);
      b_.assign(loop.body, reg, b_.select(b_.lt(values[i], before), before, values[i]));
      b_.local_store(loop.body, s.scores, places[i], values[i]);
    }
    b_.close_loop(loop, begin, end, jam);
  });
}

/// Whole steps, then single ones. `step`: a power of two, of which `begin` is a multiple.
void Lowerer::in_steps(ValueId begin, ValueId end, uint32_t step,
                       const std::function<void(ValueId, ValueId, uint32_t)>& run) {
  if (step == 1) return run(begin, end, 1);
  const ValueId mask = b_.index(step - 1);
  const ValueId whole = b_.sub(end, b_.bit_and(end, mask));
  run(begin, whole, step);
  run(whole, end, 1);
}

/// Scores become powers of their distance from the maximum, and their sums grow. Returns what
/// earlier sums are worth.
std::vector<ValueId> Lowerer::take_powers(const AttentionState& s, const AttentionStrip& strip,
                                          const std::vector<uint32_t>& most) {
  const AttentionPlan& p = *schedule_.attention();
  const Type type{s.dtype, p.lanes};
  const auto power = [&](ValueId distance) {
    if (p.parts.scale) distance = b_.mul(distance, b_.constant_f(type, p.parts.scale->fimm()));
    return b_.alu(Op::kExp2, s.dtype, {&distance, 1});
  };
  std::vector<ValueId> from, fading;
  std::vector<uint32_t> totals;
  for (uint32_t v = 0; v < p.vectors; ++v) {
    const ValueId at = moved(strip.at, int64_t{v} * p.lanes);
    const ValueId now = b_.read(strip.block, most[v]);
    const ValueId before = b_.local_load(strip.block, s.most, at, p.lanes);
    b_.local_store(strip.block, s.most, at, now);
    // Nothing but -inf so far: distances from -inf would be NaN.
    const ValueId is_empty = b_.eq(now, b_.like(now, -HUGE_VAL));
    from.push_back(b_.select(is_empty, b_.like(now, 0), now));
    fading.push_back(power(b_.sub(before, from[v])));
    totals.push_back(b_.add_register(type));
    const ValueId total = b_.local_load(strip.block, s.totals, at, p.lanes);
    b_.assign(strip.block, totals[v], b_.mul(total, fading[v]));
  }
  in_steps(b_.index(0), strip.count, kCopies, [&](ValueId begin, ValueId end, uint32_t jam) {
    const Builder::Loop loop = b_.open_loop(strip.block);
    const ValueId line = scaled(loop.index, p.strip());
    for (uint32_t i = 0; i < jam * p.vectors; ++i) {
      const uint32_t v = i % p.vectors;
      const ValueId at = moved(line, int64_t{i} * p.lanes);
      const ValueId score = b_.local_load(loop.body, s.scores, at, p.lanes);
      const ValueId share = power(b_.sub(score, from[v]));
      b_.local_store(loop.body, s.scores, at, share);
      b_.assign(loop.body, totals[v], b_.add(b_.read(loop.body, totals[v]), share));
    }
    b_.close_loop(loop, begin, end, jam);
  });
  for (uint32_t v = 0; v < p.vectors; ++v) {
    const ValueId at = moved(strip.at, int64_t{v} * p.lanes);
    b_.local_store(strip.block, s.totals, at, b_.read(strip.block, totals[v]));
  }
  return fading;
}

/// Turns the results of a strip back and makes of them what the kernel stores.
void Lowerer::finish_strip(const AttentionState& s, const AttentionStrip& strip) {
  const AttentionPlan& p = *schedule_.attention();
  const AttentionParts& a = p.parts;
  turn_results(s, strip);
  const Builder::Loop rows = b_.open_loop(strip.block);
  const ValueId place = b_.add(strip.at, rows.index);
  const uint32_t row = make_bindings(b_.add(s.row, place), rows.body, 0, 1, 0);
  const Env env = bound(s.env, a.row, row);
  memo_[key(a.total, env)] = b_.local_load(rows.body, s.totals, place);
  const ValueId line = scaled(rows.index, s.turned_step);
  const auto run = [&](int64_t begin, int64_t end, uint32_t lanes) {
    if (begin == end) return;
    const Builder::Loop loop = b_.open_loop(rows.body);
    const Instances one = bind_axis({env}, a.column, loop.index, loop.body, lanes, 1, lanes);
    const ValueId at = b_.add(line, loop.index);
    memo_[key(a.mix, one[0])] = b_.local_load(loop.body, s.turned, at, lanes);
    emit_stores(loop.body, one, kernel_.stores);
    b_.close_loop(loop, b_.index(begin), b_.index(end), lanes);
  };
  const int64_t whole = s.width / p.lanes * p.lanes;
  run(0, whole, p.lanes);
  run(whole, s.width, 1);
  b_.close_loop(rows, b_.index(0), strip.height, 1);
}

void Lowerer::turn_results(const AttentionState& s, const AttentionStrip& strip) {
  const AttentionPlan& p = *schedule_.attention();
  const Builder::Loop columns = b_.open_loop(strip.block);
  const Builder::Loop part = b_.open_loop(columns.body);
  const ValueId base = scaled(strip.at, s.lines);
  const ValueId line = b_.add(base, scaled(columns.index, p.strip()));
  const ValueId from = b_.add(line, part.index);
  std::vector<ValueId> lines;
  for (uint32_t i = 0; i < p.lanes; ++i)
    lines.push_back(
        b_.local_load(part.body, s.results, moved(from, int64_t{i} * p.strip()), p.lanes));
  lines = turned(std::move(lines));
  const ValueId to = b_.add(scaled(part.index, s.turned_step), columns.index);
  for (uint32_t i = 0; i < p.lanes; ++i)
    b_.local_store(part.body, s.turned, moved(to, i * s.turned_step), lines[i]);
  b_.close_loop(part, b_.index(0), b_.index(p.strip()), p.lanes);
  b_.close_loop(columns, b_.index(0), b_.index(s.width), p.lanes);
}

/// Line i of the result is lane i of every line.
std::vector<ValueId> Lowerer::turned(std::vector<ValueId> lines) {
  const size_t count = lines.size();
  std::vector<ValueId> next(count);
  // Every stage moves one bit of the line's number into the lane's and one the other way.
  for (size_t stage = 1; stage < count; stage *= 2) {
    for (size_t i = 0; i < count / 2; ++i)
      for (int which = 0; which < 2; ++which)
        next[2 * i + static_cast<size_t>(which)] =
            b_.interleave(lines[i], lines[i + count / 2], which);
    lines.swap(next);
  }
  return lines;
}

}  // namespace bm::compiler
