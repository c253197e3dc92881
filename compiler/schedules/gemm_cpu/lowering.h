#pragma once
// Lowering of packed GEMM for CPUs; private to this folder.

#include <functional>
#include <span>
#include <vector>

#include "compiler/lowering/contract.h"
#include "compiler/lowering/epilogue.h"
#include "compiler/schedules/gemm_cpu/gemm_plan.h"

namespace bm::compiler {

/// Rows prefetched ahead of packing: as long as memory takes.
constexpr int64_t kRowsAhead = 32;

/// See PackedGemmPlan. An object lowers one kernel: what one call of the grid works on is its
/// state.
class PackedGemm {
 public:
  explicit PackedGemm(Emitter& e) : e_(e), b_(e.builder()), p_(*e.schedule().panels()) {}

  void run();

 private:
  /// A product, and its arrays in scratch and registers.
  struct Contraction {
    const PanelProduct& product;
    uint32_t left = 0, right = 0, accumulators = 0;
    uint32_t corrections = 0;  // of PanelDot::flips_left: by column of the block
    int64_t row_step = 0;      // of `left`; of transposed plans from step to step of K
    uint32_t transposed = 0;   // of transposed plans: C by column of the block, row_step apart
    std::vector<uint32_t> registers = {};  // accumulators, [row][vector]
  };
  /// One panel of B on its way, or one column of it.
  struct Packing {
    const Contraction& c;
    VectorStage stage;
    // Column by column: the first one, and how many.
    ValueId column = kNone, width = kNone;
  };
  /// What is added to one tile of accumulators at a time.
  struct Tile {
    ValueId first = kNone, length = kNone;  // iterations of K
    ValueId row = kNone, column = kNone;    // first ones, counted from those of the block
    ValueId accumulators = kNone;           // position in Contraction::accumulators
    ValueId is_first = kNone;               // whether it is in the first rows of the block
    ValueId height = kNone;                 // rows, of them the last ones if A is read in place
    // Element of a prepacked B that is prefetched meanwhile, or kNone; `lines` of the cache a
    // iteration, of `parts` tiles that share the prefetches.
    ValueId ahead = kNone;
    int64_t lines = 0, parts = 0;
  };
  /// One block of K, inside the loop over them.
  struct KBlock {
    Builder::Loop loop;
    ValueId extent = kNone, length = kNone;  // of the outermost loop of K, of this block of it
    Tile tile;                               // without its rows and columns
  };
  /// What one call of the grid works on.
  struct Block {
    Env env;                                // loops besides rows and columns
    ValueId row = kNone, column = kNone;    // first ones
    ValueId rows = kNone, columns = kNone;  // how many
  };

  /// Where the vectors of B come from.
  enum class BSource : uint8_t {
    kPacked,   ///< the workspace, or prepacked panels
    kPacking,  ///< memory, and into the workspace
    kStream,   ///< memory: no other rows need them
  };

  /// Code for one of two cases, the second of which is that something is cut.
  using SplitBody = std::function<void(BlockId, bool)>;

  // lower.cpp: blocks, and the inner loop.
  Contraction make_contraction(size_t index);
  bool has_whole_tiles() const;
  bool has_fixed_rows() const;
  void split_tail(ValueId column, BlockId parent, const SplitBody& body);
  void split_where(ValueId is_inside, BlockId parent, const SplitBody& body);
  ValueId has_all_columns(ValueId column);
  Env row_of_tile(ValueId row, const Builder::Loop& rows);
  KBlock open_k_block(const Contraction& c, BlockId parent);
  void multiply_blocks(size_t index, BlockId parent);
  void multiply_tile(const Contraction& c, const Tile& tile, BlockId parent);
  void add_steps(const Contraction& c, const Tile& tile, BSource source, BlockId parent);
  void multiply_step(const Contraction& c, const Tile& tile, ValueId step, BSource source,
                     BlockId body);
  std::vector<ValueId> b_vectors(const Contraction& c, const Tile& tile, ValueId step,
                                 BSource source, BlockId body);
  std::vector<ValueId> a_elements(const Contraction& c, const Tile& tile, ValueId step,
                                  BlockId body);
  void start_tile(const Contraction& c, const Tile& tile, BlockId block);
  // lower_packing.cpp
  void pack_b(const Contraction& c, ValueId first, ValueId trip_count, BlockId parent);
  void for_inner_k(std::span<const Node* const> loops, const Instances& all, BlockId parent,
                   const std::function<void(const Instances&, ValueId, BlockId)>& body,
                   ValueId inner = kNone);
  void pack_columns(const Packing& state, ValueId inner, const Instances& columns, BlockId parent);
  void prefetch_rows_ahead(const Node* value, const Instances& all, const Node* k, int64_t ahead,
                           BlockId body);
  void prefetch_stream(const Node* value, const Instances& all, const Node* k, BlockId body);
  void prefetch_loads(const Node* value, const Instances& all, const Node* k, BlockId body,
                      const std::function<int64_t(int64_t)>& ahead);
  void prefetch_left(const PanelProduct& product, const Tile& tile, ValueId step, BlockId body);
  void pack_a(const Contraction& c, ValueId first, ValueId row, ValueId height, ValueId length,
              BlockId parent);
  // lower_epilogue.cpp
  void prefetch_results(const Tile& tile, BlockId parent);
  bool is_epilogue_short() const;
  void epilogue(const std::vector<ValueId>& accumulators, const Tile& tile, BlockId parent);
  void store_accumulators(const std::vector<ValueId>& accumulators, const Tile& tile,
                          BlockId parent);
  void store_tile(const std::vector<ValueId>& accumulators, const Tile& tile, ValueId begin,
                  ValueId end, BlockId parent);
  void store_line(const Instances& all, uint32_t Contraction::* array,
                  const std::function<ValueId(size_t)>& from, bool has_tail, BlockId block);
  // lower_transposed.cpp: C whose adjacent elements are rows.
  void bind_transposed(const PanelProduct& product, Contraction* c);
  void pack_a_transposed(const Contraction& c, const Tile& tile, BlockId parent);
  void pack_a_line(const PanelProduct& product, const VectorStage& line, const Env& env,
                   ValueId begin, ValueId count, BlockId parent);
  void split_rows(const Builder::Loop& loop, uint32_t vectors, const Node* range, ValueId count,
                  const SplitBody& body);
  void multiply_transposed(const Contraction& c, BlockId parent);
  void find_next_panel(const PanelProduct& product, ValueId rows, ValueId trip_count, Tile* tile);
  void prefetch_panel(const PanelProduct& product, const Tile& tile, const Builder::Loop& loop,
                      int64_t steps);
  void transpose_tile(const Contraction& c, const Tile& tile, BlockId parent);
  void store_transposed(BlockId parent);
  // lower_int8.cpp: by dot product instructions.
  ValueId dot(const PanelDot& dot, ValueId sum, ValueId left, ValueId right);
  ValueId steps_of(const PanelProduct& product, ValueId length);
  bool has_whole_words(const PanelProduct& product) const;
  void fill_words(const Contraction& c, ValueId line, ValueId length, BlockId parent);
  ValueId shift_in_word(ValueId v, ValueId amount);
  void pack_words(const Packing& state, const Instances& columns, BlockId parent);
  void pack_last_word(const Packing& state, const Instances& columns, ValueId step, BlockId parent);
  ValueId transpose_words(const Packing& state, const Instances& columns, BlockId parent);
  void add_corrections(const Contraction& c, ValueId column, ValueId trip_count, BlockId parent);
  // lower_gemv.cpp: few rows.
  void lower_gemv(BlockId parent);
  void add_k_steps(const Contraction& c, ValueId begin, ValueId end, uint32_t unroll,
                   BlockId parent);
  Emitter& e_;
  Builder& b_;
  const PackedGemmPlan& p_;
  Block block_;
  std::vector<Contraction> stores_;
};

}  // namespace bm::compiler
