#include "compiler/lowering/stage.h"

#include <algorithm>

namespace bm::compiler {
namespace {}  // namespace

void in_steps(Builder& b, ValueId begin, ValueId end, int64_t step,
              const std::function<void(ValueId, ValueId, uint32_t)>& run) {
  if (step == 1) return run(begin, end, 1);
  const ValueId whole = whole_steps({b, end}, step);
  run(begin, whole, static_cast<uint32_t>(step));
  run(whole, end, 1);
}

ValueId next_grid_digit(Emitter& e, ValueId* rest, ValueId count, bool is_last) {
  if (is_last) return *rest;
  const ValueId digit = e.divide_index(Op::kMod, *rest, count, false);
  *rest = e.divide_index(Op::kDiv, *rest, count, false);
  return digit;
}

Env bind_grid_batch(Emitter& e, ValueId rest, const std::vector<const Node*>& batch, Env env,
                    BlockId block) {
  for (size_t i = batch.size(); i-- > 0;) {
    const ValueId count = i == 0 ? kNone : e.emit(batch[i]->src[0], env);
    env = e.bound_at(env, batch[i], next_grid_digit(e, &rest, count, i == 0), block);
  }
  return env;
}

void stage_vectors(Emitter& e, const VectorStage& s, ValueId inner, const Instances& vectors,
                   BlockId parent, const std::function<void(const Instances&, BlockId)>& ahead) {
  Builder& b = e.builder();
  in_steps(b, b.index(0), s.count, s.unroll, [&](ValueId begin, ValueId end, uint32_t jam) {
    const Builder::Loop loop = b.open_loop(parent);
    const Expr index(b, loop.index), first(b, s.at);
    const ValueId base = b.add(s.first, index);
    const Instances all = e.bind_axis(vectors, s.k, base, loop.body, 1, jam, 1);
    const Expr at = first + (index * s.inner_count + Expr(b, inner)) * s.step;
    const std::vector<ValueId> values = e.emit_all(s.value, all, s.lanes);
    if (ahead) ahead(all, loop.body);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto vector = static_cast<int64_t>(i / jam), copy = static_cast<int64_t>(i % jam);
      const Expr to = at + (copy * s.inner_count * s.step + vector * s.spacing);
      b.local_store(loop.body, s.array, to, values[i]);
    }
    b.close_loop(loop, begin, end, jam);
  });
}

Offsets::Position Offsets::at(int64_t offset) {
  Position out;
  if (end_ != kNone) {
    const ValueId index = e_.builder().add(base_, e_.builder().index(offset));
    out.exists = e_.builder().lt(index, end_);
    if (is_clamped_) {
      const ValueId last = e_.builder().add(end_, e_.builder().index(-1));
      out.binding = e_.make_bindings(e_.builder().select(out.exists, index, last), block_, 0, 1, 0);
      return out;
    }
  }
  out.binding = e_.make_bindings(base_, block_, offset, 1, origin_);
  origin_ = e_.binding(out.binding).origin;
  return out;
}

/// This work-item's index along an axis.
Expr LineStage::own(const TileAxis& axis, const Expr& share) const {
  if (axis.first == kNone) return share;
  const Expr first(b_, axis.first);
  return first * axis.step + share;
}

LineCopy LineStage::copy_from(const LineTile& t, const Offsets::Position& across,
                              const Offsets::Position& along, const Env& env) const {
  LineCopy c{.param = static_cast<int>(t.load->imm), .gate = along.exists};
  if (across.exists != kNone)
    c.gate = c.gate == kNone ? across.exists : b_.bit_and(c.gate, across.exists);
  const Env outer = e_.bound(env, t.across.loop, across.binding);
  c.from = e_.emit(t.load->src[0], e_.bound(outer, t.along.loop, along.binding));
  return c;
}

void LineStage::for_chunks(const LineTile& t, ValueId at, const Env& env,
                           const std::function<void(const LineCopy&)>& copy, bool is_there) const {
  const Expr item(b_, b_.item());
  const Expr chunk = item & (LineTile::kChunks - 1);
  const Expr line = item >> log2_of(LineTile::kChunks);
  const Expr at_chunk = (chunk ^ (line & (LineTile::kChunks - 1))) * LineTile::kChunk;
  const Expr start = Expr(b_, at) + (line * LineTile::kLine + at_chunk);
  const Expr share = chunk * (LineTile::kChunk / item_size(t.load->dtype));
  Offsets inside(e_, own(t.along, share), t.along.block, t.along.end, false);
  Offsets lines(e_, own(t.across, line), t.across.block, t.across.end, false);
  const int64_t panel_lines = t.panel_lines ? t.panel_lines : t.lines;
  for (int64_t panel = 0; panel < t.panels; ++panel) {
    Offsets::Position along;
    if (!is_there) along = inside.at(panel * t.per_line());
    const bool is_whole =
        t.along.first == kNone && (panel + 1) * t.per_line() <= t.along.loop->src[0]->imm;
    if (is_whole) along.exists = kNone;
    for (int64_t l = 0; l < t.lines; l += at_once_) {
      if (is_there) {
        copy({.to = Expr(start + (panel * panel_lines + l) * LineTile::kLine)});
        continue;
      }
      LineCopy c = copy_from(t, lines.at(l), along, env);
      c.to = Expr(start + (panel * panel_lines + l) * LineTile::kLine);
      copy(c);
    }
  }
}

void LineStage::for_words(const LineTile& t, ValueId at, const Env& env,
                          const std::function<void(const LineCopy&)>& copy, bool is_there) const {
  constexpr int64_t kTile = LineTile::kChunks, kWord = 4, kWords = LineTile::kChunk / kWord;
  const int64_t warps = at_once_ * LineTile::kChunks / (kTile * kWords);
  const int64_t side_by_side = std::min(warps, LineTile::kChunks);
  const Expr item(b_, b_.item());
  // Sub-groups have a chunk each, then other lines.
  const Expr line = (item & (kTile - 1)) + (item >> log2_of(kTile * kWords * side_by_side)) * kTile;
  const Expr word = (item >> log2_of(kTile)) & (kWords - 1);
  const Expr chunk = (item >> log2_of(kTile * kWords)) & (side_by_side - 1);
  const Expr at_word = ((chunk ^ (item & (kTile - 1))) * LineTile::kChunk) + word * kWord;
  const Expr start = Expr(b_, at) + line * LineTile::kLine;
  Offsets inside(e_, own(t.along, chunk * kWords + word), t.along.block, t.along.end, false);
  Offsets lines(e_, own(t.across, line), t.across.block, t.across.end, false);
  for (int64_t p = 0; p < LineTile::kChunks; p += side_by_side) {
    // Upper digits of the chunk's number change the same way in all lines.
    const Expr own_start = start + (at_word ^ (p * LineTile::kChunk));
    Offsets::Position along;
    if (!is_there) along = inside.at(p * kWords);
    for (int64_t l = 0; l < t.lines; l += kTile * (warps / side_by_side)) {
      if (is_there) {
        copy({.to = Expr(own_start + l * LineTile::kLine)});
        continue;
      }
      LineCopy c = copy_from(t, lines.at(l), along, env);
      c.to = Expr(own_start + l * LineTile::kLine);
      copy(c);
    }
  }
}

std::pair<ValueId, int64_t> LineStage::fragment_byte(const LineFragments& f, int64_t row,
                                                     int64_t step) const {
  constexpr int64_t kLine = LineTile::kLine, kChunk = LineTile::kChunk, kTile = 8;
  const Expr item(b_, b_.item());
  // Of the four 8·8 tiles: the next eight rows, the next 16 bytes along K.
  const Expr lane = item & (b_.target().sub_group - 1);
  const Expr line = lane & (kTile - 1), matrix = lane >> log2_of(kTile);
  const Expr odd = matrix & 1, upper = matrix >> 1;
  const Expr &next_rows = f.is_left ? odd : upper, &next_k = f.is_left ? upper : odd;
  const int64_t panel = f.lines * kLine;
  if (f.is_k_major) {
    const Expr own = f.own == kNone ? line : Expr(Expr(b_, f.own) + line);
    const int64_t exchange = step % LineFragments::kPerLine * (LineFragments::kBytesOfK / kChunk);
    const Expr byte = (own + next_rows * kTile) * kLine + ((next_k ^ line) ^ exchange) * kChunk;
    return {byte, step / LineFragments::kPerLine * panel + row * kLine};
  }
  const int64_t per_line = kLine / f.item_bytes;
  const Expr lines = (line + next_k * kTile) * kLine;
  const int64_t exchange = row % per_line * f.item_bytes / kChunk;
  const int64_t distance =
      row / per_line * panel + step * (LineFragments::kBytesOfK / f.item_bytes) * kLine;
  if (f.own == kNone) return {Expr(lines + ((next_rows ^ line) ^ exchange) * kChunk), distance};
  // Sub-groups start at multiples of their own size within a panel, a power of two.
  const Expr own(b_, f.own);
  const Expr chunk = (((own >> log2_of(kTile)) & (LineTile::kChunks - 1)) | next_rows) ^ line;
  const Expr panels = (own >> log2_of(per_line)) * panel;
  return {Expr(lines + panels + (chunk ^ exchange) * kChunk), distance};
}

SlotWords LineStage::load_fragment(const LineFragments& f, ValueId byte, BlockId block) const {
  const ValueId words = b_.fragment(block, array_, byte, !f.is_k_major);
  std::vector<ValueId> w;
  for (uint32_t i = 0; i < 4; ++i) w.push_back(b_.extract(words, i));
  return f.is_left ? SlotWords{{w[0], w[2]}, {w[1], w[3]}} : SlotWords{{w[0], w[1]}, {w[2], w[3]}};
}

}  // namespace bm::compiler
