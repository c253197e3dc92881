// Lowering of implicit GEMM: gathering through registers into two stages of shared memory, MMA on
// fragments from there, epilogue.
#include <array>
#include <utility>
#include <vector>

#include "compiler/lowering/contract.h"
#include "compiler/lowering/epilogue.h"
#include "compiler/lowering/chunk_stage.h"
#include "compiler/program/expr.h"
#include "compiler/schedules/gemm_gpu/lowering.h"
#include "compiler/schedules/implicit_gemm/implicit_gemm.h"

namespace bm::compiler {
namespace {

class ImplicitGemm {
 public:
  explicit ImplicitGemm(Emitter& e) : e_(e), b_(e.builder()), p_(*e.schedule().implicit()) {}
  void run();

 private:
  /// Iterations of merged loops, and whether they are there.
  struct Merged {
    std::vector<std::pair<const Node*, uint32_t>> bindings;
    ValueId exists = kNone;
  };
  /// What a work-item takes of an operand at once, in every stage.
  struct Share {
    Env rows;
    Expr step;                   ///< first of K, in the stage
    std::vector<ValueId> words;  ///< words of the tile that it goes to
  };
  /// On its way to shared memory.
  struct Words {
    ValueId at = kNone;
    std::vector<ValueId> words;
  };
  struct Side {
    const ImplicitOperand& o;
    int64_t rows;        ///< of a group
    int64_t first_word;  ///< of its tile in a stage
    std::vector<Share> shares = {};
  };

  Expr expr(ValueId v) const { return {b_, v}; }
  void order(BlockId block) {
    if (b_.target().hoists_loads) b_.pipe(block, PipeOp::kOrder);
  }
  void bind_tile(ValueId group, BlockId block);
  Merged merged(const std::vector<const Node*>& loops, const Expr& at, BlockId block);
  Merged result(const ImplicitOperand& o, ValueId first, const Expr& own, int64_t rows,
                BlockId block);
  Env bound(Env env, const Merged& m) const;
  void share_lines(Side* side, ValueId first_row, BlockId block);
  void share_rows(Side* side, ValueId first_row, BlockId block);
  Env row_env(const Side& side, ValueId first_row, const Expr& own, int64_t adjacent,
              BlockId block);
  int64_t steps_together(const Side& side) const;

  /// Steps of K from `first` on in the stage.
  class Steps;
  ValueId word_of(const ImplicitOperand& o, const Env& env, ValueId exists);
  std::vector<ValueId> load_words(const ImplicitOperand& o, const Env& env, ValueId exists);
  void gather_share(const Side& side, const Share& share, Steps& steps, std::vector<Words>* out);
  std::vector<Words> gather(ValueId stage, BlockId block, bool is_tail);
  bool is_in_elements(const ImplicitOperand& o, bool is_tail) const;
  void keep(const std::vector<Words>& tiles, const Expr& start, BlockId block);
  void multiply(const Expr& start, BlockId block);
  void run_stages(BlockId block);
  void store_results(BlockId block);

  Emitter& e_;
  Builder& b_;
  const ImplicitPlan& p_;
  std::optional<ChunkStage> stage_;
  std::optional<ChunkStage::Fragments> left_, right_;
  std::vector<Side> sides_;
  Env env_;                                           // loops besides rows, columns and K
  ValueId first_row_ = kNone, first_column_ = kNone;  // of the group
  ValueId own_row_ = kNone, own_column_ = kNone;      // of the sub-group, from there
  ValueId lane_group_ = kNone, part_ = kNone;         // in the lane group
  std::vector<uint32_t> accumulators_;  // first register of [left instruction][right slot]
  bool is_aligned_ = false;
};

/// Bindings of the loops of K.
class ImplicitGemm::Steps {
 public:
  struct Position {
    Env env;
    ValueId exists = kNone;
  };
  /// `is_tail`: the plan's has_tail, and this is the last stage.
  Steps(ImplicitGemm& g, ValueId stage, BlockId block, bool is_tail)
      : g_(g), block_(block), stage_(stage), is_tail_(is_tail) {
    const ImplicitPlan& p = g.p_;
    may_end_ = p.k_extent() % p.stage_k() != 0 && (is_tail || !p.has_tail());
    if (p.is_flat) return;
    ValueId rest = stage;
    stage_ = g.e_.next_digit(&rest, g.b_.index(p.stages_per_k()), p.k.size() == 1);
    for (size_t i = p.k.size() - 1; i-- > 0;) {
      const ValueId digit = g.e_.next_digit(&rest, g.b_.index(p.k[i]->src[0]->imm), i == 0);
      outer_.emplace_back(p.k[i], g.e_.make_bindings(digit, block, 0, 1, 0));
    }
  }

  /// The share's step `offset` from its first.
  void begin(const Expr& own) {
    base_ = Expr(g_.expr(stage_) * g_.p_.stage_k() + own);
    origin_ = 0;
  }
  Position at(const Env& rows, int64_t offset) {
    const ImplicitPlan& p = g_.p_;
    Position out{.env = rows};
    const Expr step = offset == 0 ? Expr(g_.b_, base_) : g_.expr(base_) + offset;
    if (may_end_) out.exists = g_.b_.lt(step, g_.b_.index(p.k_extent()));
    if (p.is_flat) {
      out.env = g_.bound(std::move(out.env), g_.merged(p.k, step, block_));
      return out;
    }
    for (const auto& [range, binding] : outer_) out.env = g_.e_.bound(out.env, range, binding);
    const uint32_t binding = g_.e_.make_bindings(base_, block_, offset, 1, origin_);
    origin_ = g_.e_.binding(binding).origin;
    out.env = g_.e_.bound(out.env, p.k.back(), binding);
    return out;
  }
  bool is_tail() const { return is_tail_; }

 private:
  ImplicitGemm& g_;
  BlockId block_;
  ValueId stage_, base_ = kNone;
  uint32_t origin_ = 0;
  std::vector<std::pair<const Node*, uint32_t>> outer_;
  bool is_tail_, may_end_ = false;
};

void ImplicitGemm::bind_tile(ValueId group, BlockId block) {
  env_ = e_.unbound();
  ValueId rest = group;
  const Expr in_band(b_, e_.next_digit(&rest, b_.index(p_.band), false));
  const Expr column(b_, e_.next_digit(&rest, b_.index(p_.grid_n()), false));
  const Expr band(
      b_, e_.next_digit(&rest, b_.index(p_.grid_m() / p_.band), e_.schedule().loops.empty()));
  env_ = bind_batch(e_, rest, std::move(env_), block);
  const Expr item(b_, b_.item());
  const Expr lane = item & (p_.sub_group - 1), warp = item >> log2_of(p_.sub_group);
  if (p_.info.is_part_low) {
    lane_group_ = Expr(lane >> log2_of(p_.info.parts));
    part_ = Expr(item & (p_.info.parts - 1));
  } else {
    lane_group_ = Expr(item & (p_.info.slot - 1));
    part_ = p_.info.parts == 1 && p_.info.row_part == 0
                ? b_.index(0)
                : ValueId(Expr(lane >> log2_of(p_.info.slot)));
  }
  first_row_ = Expr((band * p_.band + in_band) * p_.block_m());
  first_column_ = Expr(column * p_.block_n());
  own_row_ = Expr((warp & (p_.warps_m - 1)) * p_.left_rows());
  own_column_ = Expr((warp >> log2_of(p_.warps_m)) * p_.right_rows());
}

ImplicitGemm::Merged ImplicitGemm::merged(const std::vector<const Node*>& loops, const Expr& at,
                                          BlockId block) {
  Merged out;
  ValueId rest = at;
  for (size_t i = loops.size(); i-- > 0;) {
    const ValueId digit = e_.next_digit(&rest, b_.index(loops[i]->src[0]->imm), i == 0);
    out.bindings.emplace_back(loops[i], e_.make_bindings(digit, block, 0, 1, 0));
  }
  return out;
}

Env ImplicitGemm::bound(Env env, const Merged& m) const {
  for (const auto& [range, binding] : m.bindings) env = e_.bound(env, range, binding);
  return env;
}

/// `adjacent` rows that are taken together, all of which are there; those beyond the last stand for
/// rows whose results nobody wants.
Env ImplicitGemm::row_env(const Side& side, ValueId first_row, const Expr& own, int64_t adjacent,
                          BlockId block) {
  ValueId row = b_.add(first_row, own);
  const int64_t extent = side.o.extent();
  if (extent % side.rows != 0) row = e_.min_index(row, b_.index(extent - adjacent));
  return bound(env_, merged(side.o.along, expr(row), block));
}

/// Chunks of 16 bytes along K: of the same line side by side, or of adjacent lines.
void ImplicitGemm::share_lines(Side* side, ValueId first_row, BlockId block) {
  constexpr int64_t kChunks = ChunkStage::kChunks;
  const bool is_line_first = side->o.gather == Gather::kChunks || side->o.is_deep;
  for (int64_t n = 0; n < side->rows * kChunks; n += p_.items()) {
    const Expr number = expr(b_.item()) + n;
    const Expr line = is_line_first ? number >> log2_of(kChunks) : Expr(number & (side->rows - 1));
    const Expr chunk = is_line_first ? number & (kChunks - 1) : Expr(number >> log2_of(side->rows));
    side->shares.push_back({.rows = row_env(*side, first_row, line, 1, block),
                            .step = chunk * p_.per_chunk(),
                            .words = {stage_->address(line, chunk)}});
  }
}

/// Steps of K of one share of what is contiguous across K: fewer stores, or work for everybody.
int64_t ImplicitGemm::steps_together(const Side& side) const {
  for (const int64_t steps : {8, 4})
    if (side.rows / ChunkStage::kTransposed * (p_.stage_k() / steps) % p_.items() == 0)
      return steps;
  return 2;
}

/// Eight rows by some steps of K. Adjacent work-items take what is adjacent in memory.
void ImplicitGemm::share_rows(Side* side, ValueId first_row, BlockId block) {
  const int64_t steps = steps_together(*side), parts = p_.per_chunk() / steps;
  const int64_t blocks = side->rows / ChunkStage::kTransposed, low = std::min<int64_t>(blocks, 8);
  for (int64_t n = 0; n < blocks * (p_.stage_k() / steps); n += p_.items()) {
    const Expr number = expr(b_.item()) + n;
    const Expr rest = number >> log2_of(low * parts);
    const Expr part = (number >> log2_of(low)) & (parts - 1);
    const Expr line =
        ((rest & (blocks / low - 1)) * low + (number & (low - 1))) * ChunkStage::kTransposed;
    const Expr chunk = rest >> log2_of(blocks / low);
    Share share{.rows = row_env(*side, first_row, line, ChunkStage::kTransposed, block),
                .step = chunk * p_.per_chunk() + part * steps,
                .words = {}};
    for (int64_t r = 0; r < ChunkStage::kTransposed; ++r)
      share.words.push_back(
          Expr(stage_->address(line + r, chunk) + part * (ChunkStage::kChunkWords / parts)));
    side->shares.push_back(std::move(share));
  }
}

/// One element, as the low bits of a word; 0 where it does not exist.
ValueId ImplicitGemm::word_of(const ImplicitOperand& o, const Env& env, ValueId exists) {
  if (o.load->src.size() > 1) {
    const ValueId gate = e_.emit(o.load->src[1], env);
    exists = exists == kNone ? gate : b_.bit_and(exists, gate);
  }
  ValueId at = e_.emit(o.load->src[0], env);
  if (exists != kNone) at = b_.select(exists, at, b_.index(0));
  ValueId v = b_.load(static_cast<int>(o.load->imm), o.load->dtype, 1, at);
  const DType bits = p_.item_bytes() == 4   ? DType::kU32
                     : p_.item_bytes() == 2 ? DType::kU16
                                            : DType::kU8;
  if (b_.type(v).dtype != bits) v = b_.bitcast(v, bits);
  if (bits != DType::kU32) v = b_.convert(v, DType::kU32);
  return exists == kNone ? v : b_.select(exists, v, b_.like_int(v, 0));
}

/// Sixteen bytes.
std::vector<ValueId> ImplicitGemm::load_words(const ImplicitOperand& o, const Env& env,
                                              ValueId exists) {
  if (o.load->src.size() > 1) {
    const ValueId gate = e_.emit(o.load->src[1], env);
    exists = exists == kNone ? gate : b_.bit_and(exists, gate);
  }
  ValueId at = e_.emit(o.load->src[0], env);
  if (exists != kNone) at = b_.select(exists, at, b_.index(0));
  const bool is_aligned = is_aligned_ && !o.is_unaligned;
  const ValueId words = b_.words(static_cast<int>(o.load->imm), 4, at, is_aligned);
  std::vector<ValueId> out;
  for (uint32_t w = 0; w < 4; ++w) {
    const ValueId word = b_.extract(words, w);
    out.push_back(exists == kNone ? word : b_.select(exists, word, b_.like_int(word, 0)));
  }
  return out;
}

bool ImplicitGemm::is_in_elements(const ImplicitOperand& o, bool is_tail) const {
  const bool is_cut = is_tail && p_.k_extent() % p_.per_chunk() != 0;
  return o.gather == Gather::kElements || (o.gather == Gather::kChunks && is_cut);
}

void ImplicitGemm::gather_share(const Side& side, const Share& share, Steps& steps,
                                std::vector<Words>* out) {
  steps.begin(share.step);
  const bool has_elements = is_in_elements(side.o, steps.is_tail());
  if (side.o.gather == Gather::kChunks && !has_elements) {
    const Steps::Position from = steps.at(share.rows, 0);
    out->push_back({share.words[0], load_words(side.o, from.env, from.exists)});
    return;
  }
  if (has_elements) {
    const int64_t per_word = 4 / p_.item_bytes();
    std::vector<ValueId> words;
    for (int64_t e = 0; e < p_.per_chunk(); ++e) {
      const Steps::Position from = steps.at(share.rows, e);
      const ValueId one = word_of(side.o, from.env, from.exists);
      if (e % per_word == 0)
        words.push_back(one);
      else
        words.back() = Expr(expr(words.back()) | (expr(one) << e % per_word * 8 * p_.item_bytes()));
    }
    out->push_back({share.words[0], std::move(words)});
    return;
  }
  const int64_t together = steps_together(side);
  std::vector<std::vector<ValueId>> lines;
  for (int64_t s = 0; s < together; ++s) {
    const Steps::Position from = steps.at(share.rows, s);
    lines.push_back(load_words(side.o, from.env, from.exists));
  }
  for (size_t r = 0; r < ChunkStage::kTransposed; ++r)
    out->push_back({share.words[r], stage_->transposed(lines, r)});
}

std::vector<ImplicitGemm::Words> ImplicitGemm::gather(ValueId stage, BlockId block, bool is_tail) {
  Steps steps(*this, stage, block, is_tail);
  std::vector<Words> out;
  for (const Side& side : sides_) {
    const size_t first = out.size();
    for (const Share& share : side.shares) gather_share(side, share, steps, &out);
    for (size_t i = first; i < out.size(); ++i) out[i].at = Expr(expr(out[i].at) + side.first_word);
  }
  return out;
}

void ImplicitGemm::keep(const std::vector<Words>& tiles, const Expr& start, BlockId block) {
  for (const Words& w : tiles) stage_->store(block, Expr(expr(w.at) + start), w.words);
}

void ImplicitGemm::multiply(const Expr& start, BlockId block) {
  const uint32_t k_steps = static_cast<uint32_t>(ChunkStage::kChunks) / p_.info.parts;
  const uint32_t each = std::max(p_.info.words() / 4, 1u);
  const Expr right_start = start + sides_[1].first_word;
  for (uint32_t c = 0; c < k_steps; c += each) {
    const SlotWords left = stage_->load(*left_, start, p_.left.slots, c, each, block);
    const SlotWords right = stage_->load(*right_, right_start, p_.right.slots, c, each, block);
    contract_mma(b_, block, p_.info, accumulators_, left, right);
  }
}

void ImplicitGemm::run_stages(BlockId block) {
  const int64_t words = p_.stage_words(), stages = p_.stages();
  const int64_t whole = stages - (p_.has_tail() ? 1 : 0);
  const auto start = [&](int64_t stage) { return expr(b_.index(stage % 2 * words)); };
  keep(gather(b_.index(0), block, whole == 0), start(0), block);
  b_.barrier(block);
  /// While `stage` is multiplied, the next one is on its way.
  const auto step = [&](const Expr& stage, BlockId body, bool is_tail) {
    const Expr next = stage + 1;
    const std::vector<Words> tiles = gather(next, body, is_tail);
    order(body);
    multiply((stage & 1) * words, body);
    order(body);
    keep(tiles, (next & 1) * words, body);
    // The next tile is there, and nobody reads the stage any more that the one after it goes to.
    b_.barrier(body);
  };
  if (whole > 1) {
    const Builder::Loop loop = b_.open_loop(block);
    step(expr(loop.index), loop.body, false);
    b_.close_loop(loop, b_.index(0), b_.index(whole - 1), 1);
  }
  if (0 < whole && whole < stages) step(expr(b_.index(whole - 1)), block, true);
  multiply(start(stages - 1), block);
  settle_accumulators(b_, block, p_.info, accumulators_);
}

/// A row or column of the results. Where tiles reach beyond them, the last one stands for those
/// that are not there, for what is loaded with it.
ImplicitGemm::Merged ImplicitGemm::result(const ImplicitOperand& o, ValueId first, const Expr& own,
                                          int64_t rows, BlockId block) {
  ValueId at = b_.add(first, own), exists = kNone;
  if (o.extent() % rows != 0) {
    exists = b_.lt(at, b_.index(o.extent()));
    at = e_.min_index(at, b_.index(o.extent() - 1));
  }
  Merged out = merged(o.along, expr(at), block);
  out.exists = exists;
  return out;
}

void ImplicitGemm::store_results(BlockId block) {
  const MatrixInfo& info = p_.info;
  const bool is_paired = info.row_step == 0;
  const Expr own_row = expr(own_row_), own_column = expr(own_column_);
  const Expr lane_group = expr(lane_group_), part = expr(part_);
  // By slot and sum of the instruction.
  std::vector<std::vector<Merged>> rows, columns;
  for (uint32_t slot = 0; slot < p_.left.slots; slot += info.a_slots) {
    std::vector<Merged>& out = rows.emplace_back();
    for (uint32_t s = 0; s < info.accumulators; ++s) {
      const int64_t offset = is_paired ? int64_t{slot + s / 2} * info.slot
                                       : int64_t{slot} * info.slot + int64_t{s} * info.row_step;
      const Expr own = own_row + (is_paired ? lane_group : Expr(part * info.row_part));
      if (is_paired && s % 2 != 0)
        out.push_back(out.back());
      else
        out.push_back(result(p_.left, first_row_, own + offset, p_.block_m(), block));
    }
  }
  for (uint32_t slot = 0; slot < p_.right.slots; ++slot) {
    std::vector<Merged>& out = columns.emplace_back();
    for (uint32_t s = 0; s < info.accumulators; ++s) {
      const int64_t offset = int64_t{slot} * info.slot;
      const Expr own = own_column + (is_paired ? Expr(part * 2 + s % 2) : lane_group);
      if (s >= (is_paired ? 2u : 1u))
        out.push_back(out[is_paired ? s - 2 : 0]);
      else
        out.push_back(result(p_.right, first_column_, own + offset, p_.block_n(), block));
    }
  }
  Epilogue out(e_, p_.reduce);
  // Row after row; two results of a row that are side by side follow each other.
  const uint32_t each = is_paired ? 2 : 1;
  for (size_t i = 0; i < rows.size(); ++i)
    for (uint32_t s = 0; s < info.accumulators; s += each)
      for (size_t j = 0; j < columns.size(); ++j)
        for (uint32_t n = s; n < s + each; ++n) {
          const Merged &row = rows[i][n], &column = columns[j][n];
          ValueId gate = row.exists == kNone ? column.exists : row.exists;
          if (row.exists != kNone && column.exists != kNone)
            gate = b_.bit_and(row.exists, column.exists);
          out.add(bound(bound(env_, row), column),
                  b_.read(block, accumulators_[i * columns.size() + j] + n), gate);
        }
  out.store_pairs(block, p_.right.along.back(), is_paired && is_aligned_);
}

void ImplicitGemm::run() {
  const uint32_t array =
      b_.add_local(DType::kU32, static_cast<uint64_t>(p_.stage_words() * ImplicitPlan::kStages));
  stage_.emplace(e_, array);
  const Builder::Loop groups = b_.open_loop(e_.root(), LoopKind::kGroup);
  bind_tile(groups.index, groups.body);
  const Expr lane_group = expr(lane_group_), part = expr(p_.info.parts == 1 ? b_.index(0) : part_);
  left_.emplace(stage_->fragments(p_.info, expr(own_row_), lane_group, part));
  right_.emplace(stage_->fragments(p_.info, expr(own_column_), lane_group, part));
  // Words need params that start at multiples of 16 bytes; memory that a program was given may not.
  const auto has_words = [](const ImplicitOperand& o) {
    return o.gather != Gather::kElements && !o.is_unaligned;
  };
  const bool has_two_ways =
      (has_words(p_.left) || has_words(p_.right)) && !b_.target().has_unaligned_words;
  ValueId is_aligned = kNone;
  if (has_two_ways) {
    const ValueId left = b_.is_aligned(static_cast<int>(p_.left.load->imm));
    const ValueId right = b_.is_aligned(static_cast<int>(p_.right.load->imm));
    is_aligned = b_.bit_and(left, right);
    for (const ir::Store& s : e_.kernel().stores) {
      const ValueId out = b_.is_aligned(s.param);
      is_aligned = b_.bit_and(is_aligned, out);
    }
  }
  for (const bool is_fast : {true, false}) {
    if (is_fast && !has_two_ways) continue;
    is_aligned_ = is_fast;
    const BlockId block = has_two_ways ? b_.open_block(groups.body) : groups.body;
    {
      const Confined confined(e_, block);
      accumulators_.clear();
      for (uint32_t i = 0; i < p_.left.slots / p_.info.a_slots * p_.right.slots; ++i)
        accumulators_.push_back(
            clear_registers(b_, block, {p_.info.sum, 1}, p_.info.accumulators).front());
      sides_.clear();
      sides_.push_back({p_.left, p_.block_m(), 0});
      sides_.push_back({p_.right, p_.block_n(), p_.block_m() * ChunkStage::kLineWords});
      const std::array firsts{first_row_, first_column_};
      for (size_t i = 0; i < sides_.size(); ++i)
        if (sides_[i].o.gather == Gather::kRows)
          share_rows(&sides_[i], firsts[i], block);
        else
          share_lines(&sides_[i], firsts[i], block);
      run_stages(block);
      const Confined behind(e_, block);
      store_results(block);
    }
    if (has_two_ways) b_.close_if(block, is_fast ? is_aligned : b_.negated(is_aligned));
  }
  b_.close_groups(groups, 0, kNone);
}

}  // namespace

void lower_implicit_gemm(Emitter& e) { ImplicitGemm(e).run(); }

}  // namespace bm::compiler
