// Matches products of float16 vectors and quantised blocks that become float16: which loop of the
// sum is what of an instruction's K, and with which tiles.
#include <algorithm>
#include <cmath>
#include <unordered_set>

#include <fmt/format.h>

#include "compiler/analysis/cost.h"
#include "compiler/schedules/gemm_gpu/knobs.h"
#include "compiler/schedules/quantised_gemm/quantised_gemm.h"
#include "compiler/schedules/strategy.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

using Shape = DequantisedPlan;

/// Vectors from which on a tile of them is worth it.
constexpr int64_t kLeastColumns = 16;
constexpr uint32_t kMostDequantised = 128;
// Rough cycles of a compute unit. Source: as of plan_pipelined.cpp.
constexpr double kMmaCycles = 2, kGroupMmaCycles = 1;  ///< 16 by 8 results, 16 elements of K
constexpr double kSharedCycles = 1;                    ///< 128 bytes of shared memory
/// Instructions of a sub-group for 16 rows of a block of 32, and how many begin in a cycle.
constexpr double kBlockInstructions = 70, kIssue = 4;
constexpr double kStartCycles = 1500;  ///< of a group
constexpr double kResultCycles = 0.125;
// The same where rows go through shared memory. Source: as of implicit_gemm/plan.cpp.
constexpr double kTileCycles = 8, kStagedIssueCycles = 0.5, kBarrierCycles = 40, kWaitCycles = 800;
constexpr double kElementInstructions = 2.5, kChunkInstructions = 6;
constexpr double kStagedRegisters = 40, kBesideWaits = 0.2;

/// Of a sub-group, and sub-groups side by side.
struct StagedTile {
  uint32_t vector_groups, row_groups, vectors, rows;
};
constexpr std::array kStagedTiles = {
    StagedTile{4, 2, 64, 64}, StagedTile{2, 4, 64, 32}, StagedTile{4, 2, 64, 32},
    StagedTile{4, 2, 32, 64}, StagedTile{2, 2, 64, 64}, StagedTile{2, 2, 64, 32},
    StagedTile{4, 1, 64, 64}, StagedTile{4, 1, 32, 64}, StagedTile{2, 2, 32, 64},
    StagedTile{2, 2, 32, 32}, StagedTile{1, 4, 32, 16}, StagedTile{2, 2, 16, 32},
    StagedTile{2, 2, 32, 16}, StagedTile{2, 1, 32, 32}, StagedTile{2, 2, 16, 16}};

bool is_fragments(const MatrixInfo& m) {
  return m.in == DType::kF16 && m.sum == DType::kF32 && m.sub_groups == 1 && m.slot == 8 &&
         m.a_slots == 2 && m.parts == 4 && m.is_part_low && m.k_words == 8 && m.row_step == 0;
}
/// Whose results lie side by side along the right operand, over the lanes.
bool is_of_lines(const MatrixInfo& m) {
  return m.in == DType::kF16 && m.sum == DType::kF32 && m.sub_groups == 1 && m.slot == 16 &&
         m.a_slots == 1 && m.k_words == 8 && m.row_step != 0;
}
bool is_group(const MatrixInfo& m) {
  return m.in == DType::kF16 && m.sum == DType::kF32 && m.sub_groups == 4 && m.k_words == 8;
}

class DequantisedPlanner {
 public:
  DequantisedPlanner(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                     uint32_t most_accumulators, const Knobs* knobs)
      : kernel_(kernel),
        target_(target),
        knobs_(knobs),
        units_(std::max(units, 1u)),
        most_accumulators_(std::min(most_accumulators, kMostDequantised)) {
    p_.sub_group = target.sub_group;
  }

  /// `own`: the kernel, where it is one that the plan has to keep.
  std::optional<Schedule> run(std::shared_ptr<const ir::KernelIr> own = nullptr) {
    p_.kernel = std::move(own);
    if (!find_instructions() || !find_reduction() || !find_terms(p_.reduce->src[0]) ||
        p_.terms.empty() || !find_output_loops() || !find_k_loops() || !has_all_steps() ||
        !std::ranges::all_of(p_.terms, [&](DequantisedTerm& t) { return is_word(t); }))
      return std::nullopt;
    return choose_tiles() ? schedule() : std::nullopt;
  }

 private:
  bool find_instructions() {
    p_.is_staged = !target_.pipe.has_async_copies;
    const auto fragments =
        std::ranges::find_if(target_.matrix, p_.is_staged ? is_of_lines : is_fragments);
    if (fragments == target_.matrix.end()) return false;
    p_.info = *fragments;
    if (p_.is_staged) return target_.has_unaligned_words;
    const auto group = std::ranges::find_if(target_.matrix, is_group);
    if (group != target_.matrix.end()) p_.group_mma = *group;
    return true;
  }

  bool find_reduction() {
    std::vector<const Node*> roots;
    for (const ir::Store& s : kernel_.stores) {
      roots.insert(roots.end(), {s.value, s.index});
      if (s.gate) roots.push_back(s.gate);
    }
    for (const Node* n : ir::topological(roots)) {
      if (n->op != Op::kReduce) continue;
      if (p_.reduce) return false;
      p_.reduce = n;
    }
    return p_.reduce && p_.reduce->reduce_op() == ir::ReduceOp::kSum &&
           p_.reduce->dtype == DType::kF32;
  }

  static const Node* widened(const Node* n) {
    const bool is_wide =
        n->op == Op::kCast && n->dtype == DType::kF32 && n->src[0]->dtype == DType::kF16;
    return is_wide ? n->src[0] : nullptr;
  }

  bool find_terms(const Node* n) {
    if (n->op == Op::kAdd) return find_terms(n->src[0]) && find_terms(n->src[1]);
    if (n->op != Op::kMul) return false;
    for (const size_t side : {0u, 1u}) {
      const Node *load = widened(n->src[side]), *weight = widened(n->src[1 - side]);
      if (!load || !weight || load->op != Op::kLoad || load->src.size() > 1 ||
          weight->op != Op::kCast || weight->src[0]->dtype != DType::kF32)
        continue;
      p_.terms.push_back({.load = load, .weight = weight->src[0]});
      return true;
    }
    return false;
  }

  bool is_own(const Node* n, const Node* range) const { return ir::depends_on(n, range); }

  /// Vectors are what the loads vary along, rows what the codes do.
  bool find_output_loops() {
    for (const Node* r : kernel_.ranges) {
      const bool in_load = is_own(p_.terms[0].load, r), in_weight = is_own(p_.terms[0].weight, r);
      if (in_load == in_weight || (in_load && p_.vectors)) return false;
      if (in_load)
        p_.vectors = r;
      else if (!r->src[0]->is_const())
        return false;
      else
        p_.rows.push_back(r);
    }
    const bool is_split = p_.rows.size() == 2 && p_.rows[1]->src[0]->imm == 16;
    return p_.vectors && (p_.rows.size() == 1 || is_split) && p_.row_count() % 64 == 0 &&
           p_.row_count() > 0 && CostModel::trip_count(p_.vectors) >= kLeastColumns;
  }

  /// By how far apart the elements of a vector are. Another order of them would be another plan.
  bool find_k_loops() {
    for (size_t i = 1; i < p_.reduce->src.size(); ++i) {
      const Node* r = p_.reduce->src[i];
      int64_t stride = 0;
      if (!r->src[0]->is_const() || !ir::affine_stride(p_.terms[0].load->src[0], r, &stride))
        return false;
      const int64_t count = r->src[0]->imm;
      const auto take = [&](const Node** role, int64_t extent) {
        if (*role || count != extent) return false;
        *role = r;
        return true;
      };
      const bool is_known = stride == Shape::kBlock  ? take(&p_.block, count)
                            : stride == Shape::kStep ? take(&p_.step, 2)
                            : stride == 8            ? take(&p_.pair, 2)
                            : stride == 2            ? take(&p_.lane, 4)
                                                     : stride == 1 && take(&p_.element, 2);
      if (!is_known) return false;
    }
    return p_.block && p_.lane && p_.pair && p_.element &&
           p_.block->src[0]->imm % Shape::kStageBlocks == 0;
  }

  /// Both steps of a block, once each, of the same param. Lines start at multiples of 16 bytes.
  bool has_all_steps() {
    std::array<int, 2> times = {};
    for (DequantisedTerm& t : p_.terms) {
      const ir::Linear index = ir::linear(t.load->src[0]);
      t.first = index.constant;
      if (t.load->imm != p_.terms[0].load->imm || t.first < 0 || t.first % Shape::kStep != 0 ||
          t.first >= Shape::kBlock)
        return false;
      for (const ir::Linear::Term& term : index.terms) {
        const bool is_vector = term.atom == p_.vectors && term.coefficient % 8 == 0;
        int64_t stride = 0;
        const bool is_same = ir::affine_stride(p_.terms[0].load->src[0], term.atom, &stride) &&
                             stride == term.coefficient;
        if (!is_same || (!is_vector && std::ranges::count(k_loops(), term.atom) == 0)) return false;
      }
      for (int64_t s = 0; s < (p_.step ? 2 : 1); ++s) {
        const auto at = static_cast<size_t>(t.first / Shape::kStep + s);
        if (at >= times.size()) return false;
        ++times[at];
      }
    }
    return times[0] == 1 && times[1] == 1;
  }

  std::vector<const Node*> k_loops() const {
    return {p_.block, p_.step, p_.lane, p_.pair, p_.element};
  }

  bool is_within_block(const Node* n) const {
    return std::ranges::any_of(std::array{p_.step, p_.lane, p_.pair, p_.element},
                               [&](const Node* r) { return r && ir::depends_on(n, r); });
  }

  /// Whether the weight is made of one code, and of what its block and row have in common.
  bool is_word(DequantisedTerm& t) {
    std::vector<const Node*> stack{t.weight};
    std::unordered_set<const Node*> seen;
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      if (!seen.insert(n).second || !is_within_block(n)) continue;
      const bool is_code = n->op == Op::kCast && n->dtype == DType::kF32 &&
                           n->src[0]->dtype == DType::kU8 && is_bytewise(n->src[0]);
      if (is_code && t.code && t.code != n) return false;
      if (is_code) {
        t.code = n;
        continue;
      }
      if (n->op == Op::kLoad || n->op == Op::kRange || n->op == Op::kReduce) return false;
      stack.insert(stack.end(), n->src.begin(), n->src.end());
    }
    return t.code != nullptr;
  }

  /// Whether four elements of a word may be computed at once; see bytes_of in
  /// lower_dequantised.cpp.
  bool is_bytewise(const Node* n) const {
    if (n->dtype != DType::kU8) return false;
    switch (n->op) {
      case Op::kConst: return true;
      case Op::kLoad: return n->src.size() == 1 && starts_word(n->src[0]);
      case Op::kShl:
      case Op::kShr:
        return n->src[1]->is_const() && n->src[1]->imm >= 0 && n->src[1]->imm < 8 &&
               is_bytewise(n->src[0]);
      case Op::kMul:  // of a bit
        return n->src[1]->is_const() && (n->src[1]->imm & 0xff) == 255 && n->src[0]->lo >= 0 &&
               n->src[0]->hi <= 1 && is_bytewise(n->src[0]);
      case Op::kAnd:
      case Op::kOr:
      case Op::kXor: return is_bytewise(n->src[0]) && is_bytewise(n->src[1]);
      default: return false;
    }
  }

  /// Registers and their halves are the bytes of a word that begins at a multiple of four.
  bool starts_word(const Node* index) const {
    const ir::Linear linear = ir::linear(index);
    int64_t pair = 0, element = 0;
    if (!ir::affine_stride(index, p_.pair, &pair) || pair != 2 ||
        !ir::affine_stride(index, p_.element, &element) || element != 1)
      return false;
    return linear.constant % 4 == 0 &&
           std::ranges::all_of(linear.terms, [&](const ir::Linear::Term& t) {
             return t.atom == p_.pair || t.atom == p_.element || t.coefficient % 4 == 0;
           });
  }

  bool choose_staged_tiles() {
    double best = 0;
    Shape found;
    for (const StagedTile& tile : kStagedTiles) {
      Shape p = p_;
      p.stages = Shape::kStagedStages;
      p.sub_groups = tile.vector_groups * tile.row_groups;
      p.vector_groups = tile.vector_groups;
      p.slots = tile.vectors / p.info.slot;
      p.row_tiles = tile.rows / p.info.slot;
      const uint32_t accumulators = p.slots * p.row_tiles * p.info.accumulators;
      const int64_t chunks = p.block_n() * (Shape::kLineBytes / 16);
      if (accumulators > most_accumulators_ || p.row_count() % p.block_m() != 0 ||
          p.word_parts() > Shape::kWords || p.block_m() % (p.items() / p.word_parts()) != 0 ||
          chunks % p.items() != 0 || p.items() > target_.max_block ||
          p.stages * p.stage_bytes() > target_.shared_memory_bytes)
        continue;
      const double cost =
          staged_time(p) * asked_factor(knobs_, {.m = p.block_m(), .n = p.block_n()});
      if (best != 0 && cost >= best * 0.99) continue;
      best = cost;
      found = p;
    }
    if (best == 0) return false;
    p_ = std::move(found);
    return true;
  }

  /// As of plan.cpp of implicit_gemm, with what a word costs.
  double staged_time(const Shape& p) const {
    const auto vectors = static_cast<double>(p.block_n()), rows = static_cast<double>(p.block_m());
    const double groups = static_cast<double>(p.row_count() / p.block_m()) *
                          std::ceil(CostModel::trip_count(p.vectors) / vectors);
    const double products = vectors / 16 * rows / 16 * 2 * kTileCycles;
    const double made =
        rows * Shape::kBlock * kElementInstructions + (vectors + rows) * 4 * kChunkInstructions;
    const double reads = p.info.parts == 1 ? 2 : 1;  // the same read by two halves of a wave
    const double read =
        p.sub_groups * static_cast<double>(p.slots + p.row_tiles) * p.info.slot * reads;
    const double shared = (read + rows + vectors) / 2 * kSharedCycles;
    const double busy =
        std::max(products + made / p.sub_group * kStagedIssueCycles, shared) + kBarrierCycles;
    const double registers = p.slots * p.row_tiles * p.info.accumulators +
                             (p.slots + p.row_tiles) * 8.0 + kStagedRegisters;
    const PipeInfo& room = target_.pipe;
    const double memory = std::max<double>(room.cu_memory_bytes, target_.shared_memory_bytes);
    const double resident =
        std::max(1.0, std::floor(std::min({memory / static_cast<double>(p.stages * p.stage_bytes()),
                                           room.cu_registers / (registers * p.items()),
                                           static_cast<double>(room.cu_items) / p.items()})));
    // Those of a unit multiply in turn and wait together; less work is better while they wait too.
    const double share = std::ceil(groups / units_);
    const double stage = std::max(share * busy, std::ceil(share / resident) * kWaitCycles) +
                         kBesideWaits * share * busy;
    return static_cast<double>(p.block->src[0]->imm) * stage + kStartCycles +
           share * rows * vectors * kResultCycles;
  }

  bool choose_tiles() {
    if (p_.is_staged) return choose_staged_tiles();
    double best = 0;
    Shape found;
    for (const uint32_t sub_groups : {4u, 8u})
      for (const uint32_t row_tiles : {1u, 2u})
        for (const uint32_t slots : {32u, 16u, 8u, 4u}) {
          Shape p = p_;
          p.sub_groups = sub_groups;
          p.row_tiles = row_tiles;
          p.slots = slots;
          const bool is_narrow =
              CostModel::trip_count(p.vectors) * 2 <= static_cast<double>(p.block_n());
          // Instructions on registers have fragments of vectors beside their results.
          const bool is_wide = !p.has_group_mma() && slots > 16;
          if ((p.has_group_mma() && row_tiles > 1) || is_wide ||
              row_tiles * slots * 4 > most_accumulators_ || p.row_count() % p.block_m() != 0 ||
              (is_narrow && slots > 4) ||
              p.stages * p.stage_bytes() > target_.pipe.group_memory_bytes ||
              p.sub_groups * p.sub_group > target_.max_block)
            continue;
          const double cost = time(p) * asked_factor(knobs_, {.m = p.block_m(), .n = p.block_n()});
          if (best != 0 && cost >= best) continue;
          best = cost;
          found = p;
        }
    if (best == 0) return false;
    p_ = std::move(found);
    return true;
  }

  double time(const Shape& p) const {
    const double columns =
        std::ceil(CostModel::trip_count(p.vectors) / static_cast<double>(p.block_n()));
    const double groups = static_cast<double>(p.row_count() / p.block_m()) * columns;
    const double tiles = p.sub_groups * p.row_tiles;
    const double products =
        tiles * p.slots * 4 * (p.has_group_mma() ? kGroupMmaCycles : kMmaCycles);
    const double readers = p.has_group_mma() ? p.sub_groups / 4 : p.sub_groups;
    const double shared = static_cast<double>(p.block_n()) * (readers + 1) * kSharedCycles;
    const double made = tiles * Shape::kStageBlocks * kBlockInstructions / kIssue;
    // Two groups of a unit hide each other's waits; one is alone with them.
    const double share = std::ceil(groups / units_);
    const double alone = share > 1 ? 0.5 : 1;
    const double iteration = std::max(products, shared) + alone * made;
    return share * (static_cast<double>(p.iterations()) * iteration + kStartCycles +
                    static_cast<double>(p.block_m() * p.block_n()) * kResultCycles);
  }

  std::optional<Schedule> schedule() const {
    Schedule s;
    const Node* vectors = p_.vectors->src[0];
    const int64_t step = p_.block_n(), tiles = p_.row_count() / p_.block_m();
    s.grid[0].constant = tiles;
    const double most = static_cast<double>(tiles) *
                        std::ceil(static_cast<double>(vectors->hi) / static_cast<double>(step));
    if (most > static_cast<double>(target_.max_groups[0])) return std::nullopt;
    if (vectors->is_const()) {
      s.grid[0].constant *= (vectors->imm + step - 1) / step;
    } else {
      // Rounded up as a whole: never fewer groups than tiles, and the surplus finds nothing to do.
      if (!multiply(&s.grid[0], vectors, step)) return std::nullopt;
      s.grid[0].constant += tiles * (step - 1);
      s.grid[0].divisor = step;
    }
    s.block = p_.sub_group * p_.sub_groups;
    s.work_per_block =
        static_cast<uint64_t>(p_.block_m() * p_.block_n() * p_.block->src[0]->imm * Shape::kBlock);
    QuantisedPlan plan;
    plan.dequantised = std::make_shared<const Shape>(p_);
    s.plan = std::make_shared<const QuantisedPlan>(std::move(plan));
    return s;
  }

  const ir::KernelIr& kernel_;
  const TargetInfo& target_;
  const Knobs* knobs_;  ///< or nullptr
  double units_;
  uint32_t most_accumulators_;  ///< accumulators of a work-item
  Shape p_;
};

/// The kernel with two loops for its range number `rows`: of sixteens, and of the rows of one. Then
/// what is where for slots of one tile is apart by constants, which take no registers.
std::shared_ptr<ir::KernelIr> with_sixteens(const ir::KernelIr& kernel, int64_t rows) {
  auto copied = ir::deserialize(ir::serialize(kernel));
  if (!copied) return nullptr;
  auto out = std::make_shared<ir::KernelIr>(std::move(*copied));
  out->name = kernel.name;
  out->vars = kernel.vars;
  const auto at = std::ranges::find(out->ranges, rows, [](const Node* r) { return r->imm; });
  if (at == out->ranges.end()) return nullptr;
  ir::Graph& g = *out->graph;
  const Node* range = *at;
  const Node* outer = g.range(g.index(range->src[0]->imm / 16));
  const Node* inner = g.range(g.index(16));
  const Node* both = g.add(g.mul(outer, 16), inner);
  const auto split = [&](const Node* n) {
    return n ? g.substitute(n, std::array{range}, std::array{both}) : n;
  };
  for (ir::Store& s : out->stores) {
    s.value = split(s.value);
    s.index = split(s.index);
    s.gate = split(s.gate);
  }
  *at = inner;
  out->ranges.insert(at, outer);
  return out;
}

}  // namespace

int64_t DequantisedPlan::row_count() const {
  int64_t count = 1;
  for (const Node* r : rows) count *= r->src[0]->imm;
  return count;
}

std::optional<Schedule> make_dequantised_schedule(const ir::KernelIr& kernel,
                                                  const TargetInfo& target, uint32_t units,
                                                  const ScheduleLimits& limits) {
  if (!target.has_groups || target.matrix.empty() || !limits.has_tiles) return std::nullopt;
  auto found =
      DequantisedPlanner(kernel, target, units, limits.max_accumulators, limits.knobs).run();
  if (!found || found->quantised()->dequantised->rows.size() != 1) return found;
  const auto split = with_sixteens(kernel, found->quantised()->dequantised->rows[0]->imm);
  if (!split) return found;
  auto better =
      DequantisedPlanner(*split, target, units, limits.max_accumulators, limits.knobs).run(split);
  return better ? better : found;
}

Rewritten rewritten(const DequantisedPlan& plan) { return {plan.kernel.get(), {}}; }

std::string describe_dequantised(const Schedule& schedule) {
  const DequantisedPlan& p = *schedule.quantised()->dequantised;
  if (p.is_staged)
    return fmt::format(
        "blocks dequantised to float16 into shared memory: {} rows x {} vectors of a group, {} x "
        "{} sub-groups with {} x {}, {}, {} stages\n",
        p.block_m(), p.block_n(), p.row_groups(), p.vector_groups, 16 * p.row_tiles,
        p.info.slot * p.slots, p.info.parts == 4 ? "mfma" : "wmma", p.stages);
  return fmt::format(
      "blocks dequantised to float16 in registers: {} rows x {} vectors of a group, {} sub-groups, "
      "{}, {} stages\n",
      p.block_m(), p.block_n(), p.sub_groups, p.has_group_mma() ? "wgmma" : "mma", p.stages);
}

}  // namespace bm::compiler
