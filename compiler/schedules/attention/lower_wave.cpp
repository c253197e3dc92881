// FlashAttention (tiled attention) by WMMA and MFMA: keys · queries, online softmax, values ·
// weights. Results of these instructions lie along columns: with queries as columns a work-item has
// logits and results of one query, and logits are where the second product wants them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "compiler/lowering/chunk_stage.h"
#include "compiler/schedules/attention/lower_mma.h"

namespace bm::compiler {
namespace {

using Plan = GroupAttentionPlan;

/// Queries, keys or elements of a result of one instruction, and elements of 16 bytes.
constexpr int64_t kTile = 16, kChunkItems = 8;
/// Elements of a line of keys; lines of values hold as many keys.
constexpr int64_t kLineItems = Plan::kWaveLine / 2;
/// Exponent up to which a logit may be above the row max that numerators are shifted by: far from
/// float16's end.
constexpr double kWaveRoom = 8;

class WaveAttention : GroupAttention {
 public:
  explicit WaveAttention(Emitter& e) : GroupAttention(e), info_(p_.logit_info) {}
  void run();

 private:
  /// Elements of a key or value on their way: eight floats, or codes and their scale.
  struct Line {
    std::vector<ValueId> words;
    ValueId scale = kNone;  // float16
  };
  /// One of them to chunks of shared memory, or several, transposed.
  struct Chunk {
    std::vector<Line> lines;
    std::vector<ValueId> at;
  };

  void run(ValueId row_block, ValueId head, BlockId body);
  void bind_group(ValueId row_block, ValueId head, BlockId block);
  int64_t head_dim() const { return a_.head_dim->src[0]->imm; }
  int64_t columns() const { return a_.column->src[0]->imm; }
  /// Of lanes that hold results of one query.
  int64_t shares() const { return p_.sub_group / kTile; }
  int64_t key_of(size_t tile, uint32_t sum) const;
  std::vector<ValueId> load_words(const Node* load, const Env& env, ValueId exists) const;
  Line load_line(const AttentionLine& line, int64_t codes, const Env& env, ValueId exists) const;
  std::vector<ValueId> floats_of(const Line& line) const;
  Env key_env(ValueId first_key, const Expr& own, int64_t offset, bool is_clamped, ValueId* exists,
              BlockId block);
  std::pair<Expr, Expr> line_and_chunk(ValueId number, int64_t lines, int64_t together);
  void gather_keys(ValueId first_key, std::vector<Chunk>* out, BlockId block);
  void gather_values(ValueId first_key, std::vector<Chunk>* out, BlockId block);
  std::vector<Chunk> gather(ValueId first_key, BlockId block);
  std::vector<std::vector<ValueId>> rows_of(const Chunk& chunk) const;
  void keep(const std::vector<Chunk>& tiles, const Expr& start, BlockId block);
  int64_t query_start() const { return p_.stages * p_.stage_bytes() / 4; }  ///< word
  void keep_queries(BlockId block);
  std::vector<ValueId> query_words(int64_t k_step, BlockId block);
  void run_keys(BlockId block);
  void attend(ValueId first_key, const Expr& start, BlockId block);
  void multiply_keys(const Expr& start, BlockId block);
  void write_block(const Node* logit, ValueId first_key, bool has_tail, BlockId block);
  Expr across(BlockId block, Expr value, Expr (*join)(const Expr&, const Expr&));
  void update_row_max(BlockId block);
  void rescale(ValueId before, ValueId now, BlockId block);
  ValueId word_of(ValueId low, ValueId high) const;
  std::vector<ValueId> weights(BlockId block);
  void add_values(const Expr& start, BlockId block);
  void store_results(BlockId block);

  const MatrixInfo& info_;
  std::optional<ChunkStage> stage_;
  std::optional<ChunkStage::Fragments> key_lines_, value_lines_, query_lines_;
  ValueId lane_group_ = kNone, share_ = kNone;  // g; which of the lanes of a query
  Offsets::Position row_ = {};                  // the query
  std::vector<ValueId> queries_;                // words
  std::vector<uint32_t> logits_, results_;      // first registers, by tile
  uint32_t row_max_ = 0, row_sum_ = 0;          // registers
  ValueId shift_ = kNone;  // row max that numerators of this block are shifted by
};

/// Key of a block whose logit is sum `sum` of a tile of keys, from what the work-item's share adds:
/// the keys of a share are those that it has of K in the second product.
int64_t WaveAttention::key_of(size_t tile, uint32_t sum) const {
  const auto number = static_cast<int64_t>(tile);
  return info_.parts == 4 ? number * info_.accumulators + sum : number * kTile + sum;
}

void WaveAttention::bind_group(ValueId row_block, ValueId head, BlockId block) {
  bind_queries(row_block, head, block);
  const Expr item = expr(b_.item()), lane = item & (p_.sub_group - 1);
  const Expr own = item & (kTile - 1), share = lane >> log2_of(kTile);
  g_.own_lines = Expr((item >> std::countr_zero(p_.sub_group)) * Plan::kRows);
  lane_group_ = own;
  share_ = share;
  const Expr row = expr(g_.first_row) + expr(g_.own_lines) + own;
  const Node* extent = a_.row->src[0];
  const bool has_tail = !extent->is_const() || extent->imm % p_.rows() != 0;
  row_ = Offsets(e_, row, block, has_tail ? g_.row_extent : kNone, true).at(0);
  find_visible_keys(block);
  // Lines that the work-item reads as rows of the left operand. Instructions whose accumulators are
  // in every other row get them in another order: then accumulators of a work-item are adjacent.
  const Expr interleaved = (own & 1) * kChunkItems + (own >> 1);
  const Expr rows = info_.row_step == 2 ? interleaved : own;
  const Expr apart = (own >> 2) * kChunkItems + (own & 3);
  const Expr none = expr(b_.index(0)), part = info_.parts == 1 ? none : share;
  MatrixInfo lines = info_;
  value_lines_.emplace(stage_->fragments(lines, none, rows, part));
  query_lines_.emplace(stage_->fragments(lines, expr(g_.own_lines), own, part));
  if (info_.parts == 4) lines.slot = info_.accumulators;
  key_lines_.emplace(stage_->fragments(lines, none, info_.parts == 4 ? apart : rows, part));
}

std::vector<ValueId> WaveAttention::load_words(const Node* load, const Env& env,
                                               ValueId exists) const {
  ValueId at = e_.emit(load->src[0], env);
  if (exists != kNone) at = b_.select(exists, at, b_.index(0));
  const ValueId words = b_.words(static_cast<int>(load->imm), 4, at, false);
  std::vector<ValueId> out;
  for (uint32_t w = 0; w < 4; ++w) {
    const ValueId word = b_.extract(words, w);
    out.push_back(exists == kNone ? word : b_.select(exists, word, b_.like_int(word, 0)));
  }
  return out;
}

WaveAttention::Line WaveAttention::load_line(const AttentionLine& line, int64_t codes,
                                             const Env& env, ValueId exists) const {
  if (!line.scale) return {load_words(line.load, env, exists)};
  Line out;
  ValueId at = e_.emit(line.load->src[0], env), gate = kNone;
  if (line.load->src.size() > 1) {
    gate = e_.emit(line.load->src[1], env);
    at = b_.select(gate, at, b_.index(0));
  }
  const auto count = static_cast<uint32_t>(codes / 4);
  const ValueId words = b_.words(static_cast<int>(line.load->imm), count, at, false);
  for (uint32_t w = 0; w < count; ++w) {
    const ValueId word = b_.extract(words, w);
    out.words.push_back(gate == kNone ? word : b_.select(gate, word, b_.like_int(word, 0)));
  }
  out.scale = e_.emit(line.scale, env);
  return out;
}

/// Words.
std::vector<ValueId> WaveAttention::floats_of(const Line& line) const {
  return line.scale == kNone ? line.words : dequantised(line.words, line.scale);
}

// --- keys and values ----------------------------------------------------------------------------

/// The loops over heads and keys, at key first_key + own + offset. `is_clamped`: the last one
/// stands for keys that are not there, whose logits are -inf; else `*exists`.
Env WaveAttention::key_env(ValueId first_key, const Expr& own, int64_t offset, bool is_clamped,
                           ValueId* exists, BlockId block) {
  const Expr key = expr(first_key) + own + offset;
  const Node* extent = a_.key->src[0];
  const bool has_tail = !extent->is_const() || extent->imm % p_.key_block != 0;
  *exists = has_tail && !is_clamped ? b_.lt(key, g_.all_keys) : kNone;
  if (!has_tail || !is_clamped) return e_.bound_at(g_.env, a_.key, key, block);
  const ValueId last = e_.max_index(b_.sub(g_.all_keys, b_.index(1)), b_.index(0));
  return e_.bound_at(g_.env, a_.key, e_.min_index(key, last), block);
}

/// What the `number`-th chunk of `lines` keys or queries is: of whole panels, four work-items have
/// a line of one, the next four the next line. `together`: chunks of a work-item.
std::pair<Expr, Expr> WaveAttention::line_and_chunk(ValueId number, int64_t lines,
                                                    int64_t together) {
  const int64_t chunks = head_dim() / kChunkItems;
  const bool has_panels = chunks % ChunkStage::kChunks == 0;
  const int64_t in_line = (has_panels ? ChunkStage::kChunks : chunks) / together;
  const Expr low(b_, e_.next_digit(&number, b_.index(in_line), false));
  if (!has_panels) return {expr(number), Expr(low * together)};
  const Expr line(b_, e_.next_digit(&number, b_.index(lines), false));
  return {line, Expr((expr(number) * in_line + low) * together)};
}

/// A line of 32 elements of every key, panel after panel of them. Where there are not enough chunks
/// for everybody, several work-items take the same one.
void WaveAttention::gather_keys(ValueId first_key, std::vector<Chunk>* out, BlockId block) {
  const int64_t items = p_.key_scale ? Plan::kCodes : kChunkItems, together = items / kChunkItems;
  const int64_t count = p_.key_block * head_dim() / items;
  for (int64_t n = 0; n < count; n += e_.schedule().block) {
    ValueId number = Expr(expr(b_.item()) + n);
    if (n + e_.schedule().block > count) number = e_.min_index(number, b_.index(count - 1));
    const auto [key, chunk] = line_and_chunk(number, p_.key_block, together);
    ValueId exists = kNone;
    const Env env = key_env(first_key, key, 0, p_.key_scale != nullptr, &exists, block);
    const Expr first = chunk * kChunkItems;
    const Expr panel = chunk >> log2_of(ChunkStage::kChunks);
    const Env element = e_.bound_at(env, a_.head_dim, first, block);
    Chunk& tile = out->emplace_back();
    tile.lines.push_back(load_line({p_.keys, p_.key_scale}, items, element, exists));
    for (int64_t c = 0; c < together; ++c) {
      const Expr in_panel = (chunk & (ChunkStage::kChunks - 1)) + c;
      const Expr at =
          stage_->address(key, in_panel) + panel * (p_.key_block * ChunkStage::kLineWords);
      tile.at.push_back(at);
    }
  }
}

/// A line of all keys for every element of the results: transposed in registers.
void WaveAttention::gather_values(ValueId first_key, std::vector<Chunk>* out, BlockId block) {
  const int64_t items = e_.schedule().block, blocks = columns() / ChunkStage::kTransposed;
  int64_t steps = 2;
  for (const int64_t s : {8, 4})
    if (steps == 2 && blocks * (p_.key_block / s) % items == 0) steps = s;
  const int64_t parts = kChunkItems / steps, count = blocks * (p_.key_block / steps);
  const int64_t low = std::min<int64_t>(blocks & -blocks, 8);
  for (int64_t n = 0; n < count; n += items) {
    ValueId number = Expr(expr(b_.item()) + n);
    if (n + items > count) number = e_.min_index(number, b_.index(count - 1));
    const Expr in_low(b_, e_.next_digit(&number, b_.index(low), false));
    const Expr part(b_, e_.next_digit(&number, b_.index(parts), false));
    const Expr in_high(b_, e_.next_digit(&number, b_.index(blocks / low), false));
    const Expr chunk = expr(number);
    const Expr column = (in_high * low + in_low) * ChunkStage::kTransposed;
    const Expr own_key = chunk * kChunkItems + part * steps;
    Chunk tile;
    for (int64_t s = 0; s < steps; ++s) {
      ValueId exists = kNone;
      const Env env = key_env(first_key, own_key, s, p_.value_scale != nullptr, &exists, block);
      const Env element = e_.bound_at(env, a_.column, column, block);
      tile.lines.push_back(
          load_line({p_.values, p_.value_scale}, ChunkStage::kTransposed, element, exists));
    }
    for (int64_t r = 0; r < ChunkStage::kTransposed; ++r) {
      const Expr at = stage_->address(column + r, chunk) +
                      part * (ChunkStage::kChunkWords / parts) + p_.keys_bytes() / 4;
      tile.at.push_back(at);
    }
    if (p_.value_scale) {
      out->push_back(std::move(tile));
    } else {
      const std::vector<std::vector<ValueId>> rows = rows_of(tile);
      for (size_t r = 0; r < rows.size(); ++r) out->push_back({{{rows[r]}}, {tile.at[r]}});
    }
  }
}

/// The words of every chunk.
std::vector<std::vector<ValueId>> WaveAttention::rows_of(const Chunk& chunk) const {
  std::vector<std::vector<ValueId>> lines, rows;
  for (const Line& line : chunk.lines) lines.push_back(floats_of(line));
  if (lines.size() > 1) {
    for (size_t r = 0; r < chunk.at.size(); ++r) rows.push_back(stage_->transposed(lines, r));
    return rows;
  }
  const size_t each = lines[0].size() / chunk.at.size();
  for (size_t r = 0; r < chunk.at.size(); ++r) {
    rows.emplace_back();
    for (size_t w = 0; w < each; ++w) rows.back().push_back(lines[0][each * r + w]);
  }
  return rows;
}

std::vector<WaveAttention::Chunk> WaveAttention::gather(ValueId first_key, BlockId block) {
  std::vector<Chunk> out;
  gather_keys(first_key, &out, block);
  gather_values(first_key, &out, block);
  return out;
}

void WaveAttention::keep(const std::vector<Chunk>& tiles, const Expr& start, BlockId block) {
  for (const Chunk& c : tiles) {
    const std::vector<std::vector<ValueId>> rows = rows_of(c);
    for (size_t r = 0; r < rows.size(); ++r)
      stage_->store(block, Expr(expr(c.at[r]) + start), rows[r]);
  }
}

// --- queries · keys -----------------------------------------------------------------------------

/// Queries that do not stay in registers are in shared memory, behind keys and values.
void WaveAttention::keep_queries(BlockId block) {
  const int64_t chunks = head_dim() / kChunkItems, count = p_.rows() * chunks;
  for (int64_t n = 0; n < count; n += e_.schedule().block) {
    ValueId number = Expr(expr(b_.item()) + n);
    const auto [line, chunk] = line_and_chunk(number, p_.rows(), 1);
    ValueId row = Expr(expr(g_.first_row) + line);
    row = e_.min_index(row, Expr(expr(g_.row_extent) + -1));
    const Env env = e_.bound_at(e_.bound_at(g_.env, a_.row, row, block), a_.head_dim,
                                Expr(chunk * kChunkItems), block);
    const Expr panel = chunk >> log2_of(ChunkStage::kChunks);
    const Expr at = stage_->address(line, chunk & (ChunkStage::kChunks - 1)) +
                    panel * (p_.rows() * ChunkStage::kLineWords);
    stage_->store(block, Expr(at + query_start()), load_words(p_.query, env, kNone));
  }
}

/// Four words of the query: what this work-item has of a step of K.
std::vector<ValueId> WaveAttention::query_words(int64_t k_step, BlockId block) {
  if (!p_.keeps_queries()) {
    const int64_t per_line = ChunkStage::kChunks / info_.parts;
    const Expr panel =
        expr(b_.index(query_start() + k_step / per_line * p_.rows() * ChunkStage::kLineWords));
    return stage_->load(*query_lines_, panel, 1, static_cast<uint32_t>(k_step % per_line), 1,
                        block)[0];
  }
  const Expr part = info_.parts == 1 ? expr(b_.index(0)) : expr(share_);
  const Expr first = (part + k_step * info_.parts) * kChunkItems;
  const Env env = e_.bound_at(e_.bound(g_.env, a_.row, row_.binding), a_.head_dim, first, block);
  return load_words(p_.query, env, kNone);
}

void WaveAttention::multiply_keys(const Expr& start, BlockId block) {
  const Type type{info_.sum, 1};
  for (const uint32_t first : logits_)
    for (uint32_t i = 0; i < info_.accumulators; ++i)
      b_.assign(block, first + i, b_.constant(type, 0));
  const uint32_t each = std::max(info_.words() / 4, 1u);
  const int64_t per_line = ChunkStage::kChunks / info_.parts,
                k_steps = head_dim() / (kChunkItems * info_.parts);
  for (int64_t c = 0; c < k_steps; c += each) {
    std::vector<ValueId> query;
    for (int64_t w = c; w < c + each; ++w) {
      const std::vector<ValueId> words =
          p_.keeps_queries() ? std::vector(queries_.begin() + 4 * w, queries_.begin() + 4 * (w + 1))
                             : query_words(w, block);
      query.insert(query.end(), words.begin(), words.end());
    }
    const Expr panel = start + c / per_line * p_.key_block * ChunkStage::kLineWords;
    const SlotWords keys = stage_->load(*key_lines_, panel, static_cast<uint32_t>(logits_.size()),
                                        static_cast<uint32_t>(c % per_line), each, block);
    contract_mma(b_, block, info_, logits_, keys, {query});
  }
}

/// `has_tail`: keys may not be there; then what is read for them is read for the last one.
void WaveAttention::write_block(const Node* logit, ValueId first_key, bool has_tail,
                                BlockId block) {
  if (logit == a_.product && !has_tail) return;
  const Confined confined(e_, block);
  const int64_t apart = info_.parts == 4 ? kChunkItems : info_.accumulators;
  const Expr base = expr(first_key) + expr(share_) * apart;
  std::vector<Logit> logits;
  Instances instances;
  Offsets keys(e_, base, block, has_tail ? g_.all_keys : kNone, p_.has_loads);
  const Env row = e_.bound(g_.env, a_.row, row_.binding);
  for (size_t tile = 0; tile < logits_.size(); ++tile)
    for (uint32_t s = 0; s < info_.accumulators; ++s) {
      const Offsets::Position key = keys.at(key_of(tile, s));
      logits.push_back({logits_[tile] + s, key.exists});
      instances.push_back(e_.bound(row, a_.key, key.binding));
      e_.set_known(a_.product, instances.back(), b_.read(block, logits.back().reg));
    }
  write_logits(logit, logits, instances, block);
}

// --- online softmax -----------------------------------------------------------------------------

/// Either, where one is NaN.
Expr larger_of(const Expr& x, const Expr& y) { return select(x < y, y, x); }
Expr sum_of(const Expr& x, const Expr& y) { return x + y; }

/// Joined over the lanes that have the same query.
Expr WaveAttention::across(BlockId block, Expr value, Expr (*join)(const Expr&, const Expr&)) {
  for (uint32_t with = kTile; with < p_.sub_group; with *= 2)
    value = join(value, expr(b_.shuffle(block, value, with)));
  return value;
}

/// The row max that numerators are shifted by: the largest logit that was met, until one is so far
/// above it that its numerator would not fit the type of the values. Then accumulators are
/// rescaled.
void WaveAttention::update_row_max(BlockId block) {
  // Where one is NaN, so are its numerator and the row.
  std::vector<ValueId> logits;
  for (const uint32_t first : logits_)
    for (uint32_t s = 0; s < info_.accumulators; ++s) logits.push_back(b_.read(block, first + s));
  for (; logits.size() > 1; logits.resize(logits.size() / 2))
    for (size_t i = 0; i < logits.size() / 2; ++i)
      logits[i] = larger_of(expr(logits[2 * i]), expr(logits[2 * i + 1]));
  const Expr largest = across(block, expr(logits[0]), larger_of);
  const Expr before = expr(b_.read(block, row_max_));
  const Expr is_far = before + kWaveRoom / p_.scale < largest;
  const ValueId now = b_.select(is_far, largest, before);
  // Nothing but -inf so far: distances from -inf would be NaN.
  const ValueId is_empty = b_.eq(now, b_.like(now, -HUGE_VAL));
  shift_ = b_.select(is_empty, b_.like(now, 0), now);
  const BlockId inside = b_.open_block(block);
  rescale(before, now, inside);
  b_.close_if(inside, is_far);
}

/// Accumulators, which were shifted by `before`, are by `now`, which is above -inf.
void WaveAttention::rescale(ValueId before, ValueId now, BlockId block) {
  // Otherwise all of it would be done where nothing changes as well.
  const BlockId floor = b_.set_floor(block);
  const Expr distance = expr(before) - expr(now);
  const Expr by = expr(b_.exp2_of_distance(distance, p_.scale));
  const auto shrink = [&](uint32_t reg) {
    const Expr rescaled = expr(b_.read(block, reg)) * by;
    b_.assign(block, reg, rescaled);
  };
  for (const uint32_t first : results_)
    for (uint32_t s = 0; s < p_.value_info.accumulators; ++s) shrink(first + s);
  shrink(row_sum_);
  b_.assign(block, row_max_, now);
  b_.set_floor(floor);
}

/// Two elements, rounded to the type of the values.
ValueId WaveAttention::word_of(ValueId low, ValueId high) const {
  const auto half = [&](ValueId v) -> Expr {
    return convert(bitcast(cast(expr(v), p_.value_info.in), DType::kU16), DType::kU32);
  };
  const Expr first = half(low), second = half(high);
  return Expr(first | (second << 16));
}

/// Weights of this work-item's query as the right operand of the second product.
std::vector<ValueId> WaveAttention::weights(BlockId block) {
  ValueId row_sum = kNone;
  std::vector<ValueId> out;
  const ValueId is_first = b_.eq(share_, b_.index(0));
  for (const uint32_t first : logits_) {
    std::vector<ValueId> own;
    for (uint32_t s = 0; s < info_.accumulators; s += 2) {
      const auto numerator = [&](uint32_t reg) {
        const Expr distance = expr(b_.read(block, reg)) - expr(shift_);
        return b_.exp2_of_distance(distance, p_.scale);
      };
      const ValueId low = numerator(first + s), high = numerator(first + s + 1),
                    both = b_.add(low, high);
      row_sum = row_sum == kNone ? both : b_.add(row_sum, both);
      own.push_back(word_of(low, high));
    }
    if (info_.parts > 1) {
      out.insert(out.end(), own.begin(), own.end());
      continue;
    }
    // Both halves of the wave hold all of K.
    std::vector<ValueId> second;
    for (const ValueId word : own) {
      const ValueId other = b_.shuffle(block, word, kTile);
      out.push_back(b_.select(is_first, word, other));
      second.push_back(b_.select(is_first, other, word));
    }
    out.insert(out.end(), second.begin(), second.end());
  }
  const Expr sum = expr(b_.read(block, row_sum_)) + expr(row_sum);
  b_.assign(block, row_sum_, sum);
  return out;
}

/// Adds the values of these keys.
void WaveAttention::add_values(const Expr& start, BlockId block) {
  update_row_max(block);
  const SlotWords right = {weights(block)};
  const auto k_steps = static_cast<uint32_t>(ChunkStage::kChunks) / info_.parts;
  const Expr first = start + p_.keys_bytes() / 4;
  for (size_t tile = 0; tile < results_.size(); ++tile) {
    const SlotWords values =
        stage_->load_from(*value_lines_, first, static_cast<uint32_t>(tile), 1, 0, k_steps, block);
    contract_mma(b_, block, p_.value_info, std::span(results_).subspan(tile, 1), values, right);
  }
}

// --- the kernel ---------------------------------------------------------------------------------

/// The products of queries and this block of keys are there: logits, and the values of them.
void WaveAttention::attend(ValueId first_key, const Expr& start, BlockId block) {
  finish_logits(first_key, block, [&](const Node* logit, bool has_tail, BlockId inside) {
    write_block(logit, first_key, has_tail, inside);
  });
  add_values(start, block);
}

void WaveAttention::run_keys(BlockId block) {
  const int64_t words = p_.stage_bytes() / 4;
  if (p_.stages == 1) {
    const Builder::Loop loop = b_.open_loop(block);
    b_.barrier(loop.body);  // nobody reads the block before any more
    std::vector<Chunk> tiles;
    gather_keys(loop.index, &tiles, loop.body);
    keep(tiles, expr(b_.index(0)), loop.body);
    tiles.clear();
    // Together they would not stay in registers.
    b_.pipe(loop.body, PipeOp::kOrder);
    gather_values(loop.index, &tiles, loop.body);
    keep(tiles, expr(b_.index(0)), loop.body);
    b_.barrier(loop.body);
    b_.pipe(loop.body, PipeOp::kOrder);
    multiply_keys(expr(b_.index(0)), loop.body);
    attend(loop.index, expr(b_.index(0)), loop.body);
    b_.close_loop(loop, b_.index(0), g_.visible_keys, p_.key_block);
    return;
  }
  keep(gather(b_.index(0), block), expr(b_.index(0)), block);
  b_.barrier(block);
  const Builder::Loop loop = b_.open_loop(block);
  const Expr key = expr(loop.index);
  const Expr start = ((key >> log2_of(p_.key_block)) & 1) * words;
  const Expr other = words - start;
  // Behind the last block the first one is read again, which is there in any case.
  const Expr next = key + p_.key_block;
  const ValueId has_next = b_.lt(next, g_.visible_keys);
  const ValueId ahead = b_.select(has_next, next, b_.index(0));
  std::vector<Chunk> tiles;
  gather_keys(ahead, &tiles, loop.body);
  if (!p_.has_codes()) gather_values(ahead, &tiles, loop.body);
  b_.pipe(loop.body, PipeOp::kOrder);
  multiply_keys(start, loop.body);
  if (p_.has_codes()) {
    // One after the other: what codes become takes registers.
    b_.pipe(loop.body, PipeOp::kOrder);
    keep(tiles, other, loop.body);
    tiles.clear();
    gather_values(ahead, &tiles, loop.body);
    b_.pipe(loop.body, PipeOp::kOrder);
  }
  attend(key, start, loop.body);
  b_.pipe(loop.body, PipeOp::kOrder);
  keep(tiles, other, loop.body);
  b_.barrier(loop.body);
  b_.close_loop(loop, b_.index(0), g_.visible_keys, p_.key_block);
}

void WaveAttention::store_results(BlockId block) {
  settle_accumulators(b_, block, p_.value_info, results_);
  const ValueId row_sum = across(block, expr(b_.read(block, row_sum_)), sum_of);
  const BlockId inside = row_.exists == kNone ? block : b_.open_block(block);
  {
    const Confined confined(e_, inside);
    Epilogue out(e_, a_.pv);
    const Env row = e_.bound(g_.env, a_.row, row_.binding);
    e_.set_known(a_.row_sum, row, row_sum);
    Offsets columns(e_, Expr(expr(share_) * p_.value_info.accumulators), inside);
    for (size_t tile = 0; tile < results_.size(); ++tile)
      for (uint32_t s = 0; s < p_.value_info.accumulators; ++s) {
        const uint32_t column = columns.at(static_cast<int64_t>(tile) * kTile + int64_t{s}).binding;
        out.add(e_.bound(row, a_.column, column), b_.read(inside, results_[tile] + s));
      }
    out.store(inside);
  }
  if (inside != block) b_.close_if(inside, row_.exists);
}

void WaveAttention::run(ValueId row_block, ValueId head, BlockId body) {
  bind_group(row_block, head, body);
  const Type type{DType::kF32, 1};
  for (int64_t k = 0; k < p_.key_block; k += kTile)
    logits_.push_back(clear_registers(b_, body, type, info_.accumulators).front());
  for (int64_t c = 0; c < columns(); c += kTile)
    results_.push_back(clear_registers(b_, body, type, p_.value_info.accumulators).front());
  row_max_ = b_.add_register(type);
  b_.assign(body, row_max_, b_.constant_f(type, -HUGE_VAL));
  row_sum_ = clear_registers(b_, body, type, 1).front();
  if (!p_.keeps_queries()) keep_queries(body);  // a barrier follows before they are read
  if (p_.keeps_queries())
    for (int64_t c = 0; c < head_dim() / (kChunkItems * info_.parts); ++c)
      for (const ValueId word : query_words(c, body)) queries_.push_back(word);
  run_keys(body);
  store_results(body);
}

void WaveAttention::run() {
  stage_.emplace(e_, b_.add_local(DType::kU32, static_cast<uint64_t>(p_.local_bytes() / 4)));
  open_groups([&](ValueId row_block, ValueId head, BlockId body) { run(row_block, head, body); });
}

}  // namespace

void lower_wave_attention(Emitter& e) { WaveAttention(e).run(); }

}  // namespace bm::compiler
