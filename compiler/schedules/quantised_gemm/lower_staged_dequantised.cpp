// Lowering of quantised GEMM by instructions for float16 where rows go through shared memory:
// vectors and words of codes are on their way while a stage is multiplied, and words become float16
// when it is done; see DequantisedPlan.
#include <array>
#include <optional>

#include "compiler/lowering/chunk_stage.h"
#include "compiler/lowering/contract.h"
#include "compiler/lowering/epilogue.h"
#include "compiler/program/expr.h"
#include "compiler/schedules/quantised_gemm/lowering.h"
#include "compiler/schedules/quantised_gemm/quantised_gemm.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

using Shape = DequantisedPlan;

constexpr int64_t kStagedTile = 16;                  // rows, and vectors
constexpr uint32_t kWordPairs = 2, kBlockSteps = 2;  // of a word and of a block
constexpr int64_t kChunkElements = ChunkStage::kChunk / 2;

class StagedDequantisedGemm {
 public:
  explicit StagedDequantisedGemm(Emitter& e)
      : e_(e), b_(e.builder()), p_(*e.schedule().quantised()->dequantised) {}

  void run() {
    const uint32_t array = b_.add_local(
        DType::kU32, static_cast<uint64_t>(p_.stage_bytes() / 4 * Shape::kStagedStages));
    stage_.emplace(e_, array);
    const Builder::Loop groups = b_.open_loop(e_.root(), LoopKind::kGroup);
    body_ = groups.body;
    bind_tile(groups.index);
    {
      const Confined confined(e_, body_);
      for (uint32_t i = 0; i < p_.slots * p_.row_tiles; ++i)
        accumulators_.push_back(
            clear_registers(b_, body_, {DType::kF32, 1}, p_.info.accumulators).front());
      share_vectors();
      share_rows();
      run_stages();
      const Confined behind(e_, body_);
      store();
    }
    b_.close_groups(groups, 0, count_);
  }

 private:
  /// Sixteen bytes of a vector, in every stage.
  struct VectorShare {
    Env env;
    Expr inside;  ///< of the block: first element
    ValueId at;   ///< word of the tile
  };
  /// Some words of a row, in every stage.
  struct RowShare {
    Env env;
    std::array<ValueId, kBlockSteps * kWordPairs> at =
        {};  ///< of the tile, by chunk: step and pair
  };
  struct Words {
    ValueId at = kNone;
    std::vector<ValueId> words;
  };
  /// On their way.
  struct Gathered {
    std::vector<Words> vectors;
    std::vector<Env> rows;  ///< of the share, bound to the block
  };

  Expr expr(ValueId v) const { return {b_, v}; }
  void order(BlockId block) {
    if (b_.target().hoists_loads) b_.pipe(block, PipeOp::kOrder);
  }
  int64_t words_of_share() const { return Shape::kWords / p_.word_parts(); }
  bool has_steps() const { return p_.step != nullptr; }

  void bind_tile(ValueId group) {
    ValueId rest = group;
    env_ = e_.unbound();
    const Node* vectors = p_.vectors->src[0];
    extent_ = e_.emit(vectors, env_);
    has_tail_ = !vectors->is_const() || vectors->imm % p_.block_n() != 0;
    const Expr most = expr(extent_) + (p_.block_n() - 1);
    const ValueId tiles = e_.divide_index(Op::kDiv, most, b_.index(p_.block_n()), true);
    const Expr vector_tile(b_, e_.next_digit(&rest, tiles, false));
    const int64_t row_tiles = p_.row_count() / p_.block_m();
    const Expr row_tile(b_, e_.next_digit(&rest, b_.index(row_tiles), true));
    if (!vectors->is_const()) count_ = b_.mul(tiles, b_.index(row_tiles));
    const Expr item(b_, b_.item());
    const Expr lane = item & (p_.sub_group - 1), sub_group = item >> log2_of(p_.sub_group);
    lane_group_ = Expr(item & (p_.info.slot - 1));
    part_ = Expr(lane >> log2_of(p_.info.slot));
    first_vector_ = Expr(vector_tile * p_.block_n());
    first_row_ = Expr(row_tile * p_.block_m());
    own_vector_ = Expr((sub_group & (p_.vector_groups - 1)) * (int64_t{p_.slots} * p_.info.slot));
    own_row_ = Expr((sub_group >> log2_of(p_.vector_groups)) * (p_.row_tiles * kStagedTile));
    for (size_t i = 0; i < digits_.size(); ++i)
      digits_[i] = e_.make_bindings(b_.index(static_cast<int64_t>(i)), body_, 0, 1, 0);
    const Expr fragment_part = expr(p_.info.parts == 1 ? b_.index(0) : part_);
    left_.emplace(stage_->fragments(p_.info, expr(own_vector_), expr(lane_group_), fragment_part));
    right_.emplace(stage_->fragments(p_.info, expr(own_row_), expr(lane_group_), fragment_part));
  }

  /// The row `own` behind the first of the group's.
  Env at_row(const Expr& own) {
    const Expr row = expr(first_row_) + own;
    if (p_.rows.size() == 1) return e_.bound_at(env_, p_.rows[0], row, body_);
    // Tiles begin at multiples of sixteen.
    const Expr outer = (expr(first_row_) >> log2_of(kStagedTile)) + (own >> log2_of(kStagedTile));
    const Env env = e_.bound_at(env_, p_.rows[0], outer, body_);
    const Expr inner = own & (kStagedTile - 1);
    return e_.bound_at(env, p_.rows[1], inner, body_);
  }

  // --- gathering ---------------------------------------------------------------------------------

  void share_vectors() {
    constexpr int64_t kChunks = ChunkStage::kChunks;
    for (int64_t n = 0; n < p_.block_n() * kChunks; n += p_.items()) {
      const Expr number = expr(b_.item()) + n;
      const Expr line = number >> log2_of(kChunks), chunk = number & (kChunks - 1);
      ValueId vector = b_.add(first_vector_, line);
      // The last one stands for those that are not there.
      if (has_tail_) {
        const ValueId last = b_.sub(extent_, b_.index(1));
        vector = e_.min_index(vector, last);
      }
      Env env = e_.bound_at(env_, p_.vectors, vector, body_);
      for (const Node* r : {p_.step, p_.lane, p_.pair, p_.element})
        if (r) env = e_.bound(env, r, digits_[0]);
      const ValueId at = stage_->address(line, chunk);
      vector_shares_.push_back({.env = std::move(env), .inside = chunk * kChunkElements, .at = at});
    }
  }

  /// Work-items side by side have words of a row, which lie side by side in shared memory.
  void share_rows() {
    const int64_t parts = p_.word_parts();
    // The number of work-items is a multiple of the parts: every share is of the same one.
    const Expr first = (expr(b_.item()) & (parts - 1)) * words_of_share();
    Offsets lanes(e_, first, body_);
    for (int64_t w = 0; w < words_of_share(); ++w) lanes_.push_back(lanes.at(w).binding);
    for (int64_t n = 0; n < p_.block_m() * parts; n += p_.items()) {
      const Expr number = expr(b_.item()) + n;
      const Expr line = number >> log2_of(parts);
      RowShare share{.env = at_row(line)};
      for (size_t i = 0; i < share.at.size(); ++i) {
        const Expr chunk = expr(b_.index(static_cast<int64_t>(i)));
        share.at[i] = Expr(stage_->address(line, chunk) + first);
      }
      row_shares_.push_back(std::move(share));
    }
  }

  /// Of a term, step and word of a share.
  Env at_word(const Env& env, uint32_t step, int64_t word) const {
    Env out = e_.bound(env, p_.lane, lanes_[static_cast<size_t>(word)]);
    if (has_steps()) out = e_.bound(out, p_.step, digits_[step]);
    return out;
  }
  Env at_element(const Env& env, uint32_t pair, uint32_t element) const {
    return e_.bound(e_.bound(env, p_.pair, digits_[pair]), p_.element, digits_[element]);
  }
  bool is_within_block(const Node* n) const {
    for (const Node* r : {p_.step, p_.lane, p_.pair, p_.element})
      if (r && ir::depends_on(n, r)) return true;
    return false;
  }
  uint32_t steps_of(const DequantisedTerm&) const { return has_steps() ? kBlockSteps : 1; }

  /// Loads alone: nothing waits for them yet.
  Gathered gather(const Expr& stage, BlockId block) {
    Gathered out;
    const uint32_t number = e_.make_bindings(stage, block, 0, 1, 0);
    const Node* load = p_.terms[0].load;
    for (const VectorShare& share : vector_shares_) {
      const ValueId index = e_.emit(load->src[0], e_.bound(share.env, p_.block, number));
      const Expr from = expr(index) + (share.inside - p_.terms[0].first);
      const ValueId words = b_.words(static_cast<int>(load->imm), 4, from, false);
      Words& own = out.vectors.emplace_back();
      own.at = share.at;
      for (uint32_t w = 0; w < 4; ++w) own.words.push_back(b_.extract(words, w));
    }
    for (const RowShare& share : row_shares_) {
      const Env env = e_.bound(share.env, p_.block, number);
      for (const DequantisedTerm& t : p_.terms)
        for (const Node* n : ir::topological(std::vector{t.weight})) {
          if (n->op != Op::kLoad) continue;
          if (!is_within_block(n)) {
            e_.emit(n, env);
            continue;
          }
          for (uint32_t step = 0; step < steps_of(t); ++step)
            for (int64_t w = 0; w < words_of_share(); ++w)
              bytes_of(e_, n, at_element(at_word(env, step, w), 0, 0), false);
        }
      out.rows.push_back(env);
    }
    return out;
  }

  /// code·scale − minimum, where a weight is that: in one rounding.
  ValueId weight_of(const DequantisedTerm& t, const Env& env, ValueId code) {
    const Node* w = t.weight;
    if (w->op == Op::kSub && w->src[0]->op == Op::kMul && !is_within_block(w->src[1]))
      for (const size_t side : {0u, 1u}) {
        const Node *own = w->src[0]->src[side], *scale = w->src[0]->src[1 - side];
        if (own != t.code || is_within_block(scale)) continue;
        const ValueId factor = e_.emit(scale, env), below = e_.emit(w->src[1], env);
        return b_.fma(code, factor, b_.neg(below));
      }
    e_.set_known(t.code, env, code);
    return e_.emit(w, env);
  }

  /// A word of codes as two of float16.
  std::array<ValueId, kWordPairs> dequantised(const DequantisedTerm& t, const Env& env) {
    const Expr word(b_, bytes_of(e_, t.code->src[0], at_element(env, 0, 0), false));
    std::array<ValueId, kWordPairs> out = {};
    for (uint32_t pair = 0; pair < kWordPairs; ++pair) {
      std::array<ValueId, kWordPairs> half = {};
      for (uint32_t element = 0; element < kWordPairs; ++element) {
        const Expr byte = (word >> int64_t{8 * (2 * pair + element)}) & 0xff;
        const ValueId code = b_.convert(byte, DType::kF32);
        half[element] = weight_of(t, at_element(env, pair, element), code);
      }
      out[pair] = b_.pack_half2(half[0], half[1], DType::kF16);
    }
    return out;
  }

  void keep(const Gathered& gathered, const Expr& start, BlockId block) {
    for (const Words& w : gathered.vectors) stage_->store(block, Expr(expr(w.at) + start), w.words);
    const Expr rows = start + p_.block_n() * ChunkStage::kLineWords;
    for (size_t i = 0; i < row_shares_.size(); ++i)
      for (const DequantisedTerm& t : p_.terms)
        for (uint32_t step = 0; step < steps_of(t); ++step) {
          std::array<std::vector<ValueId>, kWordPairs> words;
          for (int64_t w = 0; w < words_of_share(); ++w) {
            const auto pairs = dequantised(t, at_word(gathered.rows[i], step, w));
            for (uint32_t pair = 0; pair < kWordPairs; ++pair) words[pair].push_back(pairs[pair]);
          }
          const auto first = static_cast<uint32_t>(t.first / Shape::kStep) + step;
          for (uint32_t pair = 0; pair < kWordPairs; ++pair) {
            const ValueId at = row_shares_[i].at[first * kWordPairs + pair];
            stage_->store(block, Expr(expr(at) + rows), words[pair]);
          }
        }
  }

  // --- products ----------------------------------------------------------------------------------

  void multiply(const Expr& start, BlockId block) {
    const uint32_t k_steps = static_cast<uint32_t>(ChunkStage::kChunks) / p_.info.parts;
    const uint32_t each = std::max(p_.info.words() / 4, 1u);
    const Expr right_start = start + p_.block_n() * ChunkStage::kLineWords;
    for (uint32_t c = 0; c < k_steps; c += each) {
      const SlotWords left = stage_->load(*left_, start, p_.slots, c, each, block);
      const SlotWords right = stage_->load(*right_, right_start, p_.row_tiles, c, each, block);
      contract_mma(b_, block, p_.info, accumulators_, left, right);
    }
  }

  void run_stages() {
    const int64_t words = p_.stage_bytes() / 4, stages = p_.block->src[0]->imm;
    const auto start = [&](int64_t stage) { return expr(b_.index(stage % 2 * words)); };
    keep(gather(expr(b_.index(0)), body_), start(0), body_);
    b_.barrier(body_);
    if (stages > 1) {
      const Builder::Loop loop = b_.open_loop(body_);
      const Expr stage = expr(loop.index), next = stage + 1;
      // While a stage is multiplied, the next one is on its way.
      const Gathered gathered = gather(next, loop.body);
      order(loop.body);
      multiply((stage & 1) * words, loop.body);
      order(loop.body);
      keep(gathered, (next & 1) * words, loop.body);
      b_.barrier(loop.body);
      b_.close_loop(loop, b_.index(0), b_.index(stages - 1), 1);
    }
    multiply(start(stages - 1), body_);
    settle_accumulators(b_, body_, p_.info, accumulators_);
  }

  void store() {
    const Expr own = expr(first_vector_) + expr(own_vector_);
    Offsets vectors(e_, Expr(own + expr(part_) * p_.info.row_part), body_,
                    has_tail_ ? extent_ : kNone, true);
    std::vector<Env> rows;
    for (uint32_t tile = 0; tile < p_.row_tiles; ++tile)
      rows.push_back(at_row(expr(own_row_) + (expr(lane_group_) + tile * kStagedTile)));
    Epilogue out(e_, p_.reduce);
    for (uint32_t slot = 0; slot < p_.slots; ++slot)
      for (uint32_t s = 0; s < p_.info.accumulators; ++s) {
        const Offsets::Position at =
            vectors.at(int64_t{slot} * p_.info.slot + int64_t{s} * p_.info.row_step);
        for (uint32_t tile = 0; tile < p_.row_tiles; ++tile)
          out.add(e_.bound(rows[tile], p_.vectors, at.binding),
                  b_.read(body_, accumulators_[slot * p_.row_tiles + tile] + s), at.exists);
      }
    out.store_pairs(body_, p_.vectors, false);
  }

  Emitter& e_;
  Builder& b_;
  const Shape& p_;
  BlockId body_ = 0;
  Env env_;
  std::optional<ChunkStage> stage_;
  std::optional<ChunkStage::Fragments> left_, right_;
  std::vector<VectorShare> vector_shares_;
  std::vector<RowShare> row_shares_;
  ValueId extent_ = kNone, part_ = kNone, lane_group_ = kNone;
  ValueId first_vector_ = kNone, first_row_ = kNone;  ///< of the group
  ValueId own_vector_ = kNone, own_row_ = kNone;      ///< of the sub-group, from there
  ValueId count_ = kNone;                             ///< of groups that have a tile; kNone: all
  bool has_tail_ = false;
  std::vector<uint32_t> lanes_;          ///< bindings of a share's words
  std::array<uint32_t, 2> digits_ = {};  ///< bindings to 0 and 1
  std::vector<uint32_t> accumulators_;   ///< first register of [slot of vectors][tile of rows]
};

}  // namespace

void lower_staged_dequantised_gemm(Emitter& e) { StagedDequantisedGemm(e).run(); }

}  // namespace bm::compiler
