// Matches quantised GEMM, prompts of language models: which inner reductions become tiles of int8
// MMA.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "compiler/analysis/cost.h"
#include "compiler/analysis/dot_products.h"
#include "compiler/schedules/gemm_gpu/knobs.h"
#include "compiler/schedules/quantised_gemm/quantised_gemm.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Vectors from which on a tile of them is worth it.
constexpr int64_t kLeastVectors = 8;
/// Float accumulators of a work-item, over all reductions: their scales, fragments and integer
/// accumulators need as many registers again.
constexpr uint32_t kMostAccumulators = 64;
/// Words of fragments that are loaded ahead, and results of an iteration.
constexpr uint32_t kMostWords = 48, kMostResults = 64;
/// Registers of a work-item that a tile counts on, of 256; the rest is for addresses.
constexpr uint64_t kMostRegisters = 190;

bool is_integer_sum(const Node* n) { return n->op == Op::kAdd && n->dtype == DType::kI32; }

class QuantisedPlanner {
 public:
  QuantisedPlanner(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                   const Knobs* knobs)
      : kernel_(kernel), target_(target), knobs_(knobs), units_(std::max(units, 1u)) {
    plan_.sub_group = target.sub_group;
  }

  std::optional<Schedule> run() {
    if (!find_reductions() || !find_loops()) return std::nullopt;
    for (const Node* reduce : plan_.reduces)
      if (!find_block_dots(reduce)) return std::nullopt;
    // Results of all block dots lie in the same lanes.
    const MatrixInfo& first = plan_.info();
    if (std::ranges::any_of(plan_.block_dots, [&](const BlockDot& s) {
          return s.info.accumulators != first.accumulators || s.info.parts != first.parts;
        }))
      return std::nullopt;
    return choose_tiles() ? schedule() : std::nullopt;
  }

 private:
  bool find_reductions() {
    std::vector<const Node*> roots;
    for (const ir::Store& s : kernel_.stores) {
      roots.insert(roots.end(), {s.value, s.index});
      if (s.gate) roots.push_back(s.gate);
    }
    for (const Node* n : ir::topological(roots)) {
      if (n->op != Op::kReduce) continue;
      const auto dot = find_inner_dot(n, target_);
      if (dot && dot->has_aligned_words()) {
        dots_.emplace(n, dot->plan);
      } else {
        const bool is_plain = n->src.size() == 2 && n->src[1]->src[0]->is_const();
        if (!is_plain || n->reduce_op() != ir::ReduceOp::kSum || n->dtype != DType::kF32)
          return false;
        plan_.reduces.push_back(n);
      }
    }
    if (dots_.empty() || plan_.reduces.empty()) return false;
    const int64_t blocks = plan_.reduces[0]->src[1]->src[0]->imm;
    for (const Node* reduce : plan_.reduces) {
      if (reduce->src[1]->src[0]->imm != blocks) return false;
      for (const Node* n : ir::topological(std::vector{reduce->src[0]}))
        if (n->op == Op::kReduce && !dots_.contains(n)) return false;
    }
    // A sum of products outside of all reductions has no block.
    return std::ranges::all_of(dots_, [&](const auto& dot) {
      return std::ranges::any_of(plan_.reduces, [&](const Node* reduce) {
        return std::ranges::count(ir::topological(std::vector{reduce->src[0]}), dot.first) > 0;
      });
    });
  }

  /// Loops that each have to do with one factor of every dot product.
  bool find_loops() {
    for (const Node* rows : kernel_.ranges)
      for (const Node* vectors : kernel_.ranges) {
        const Node* extent = rows->src[0];
        const int64_t step = 16;
        if (rows == vectors || !extent->is_const() || extent->imm % step != 0 || extent->imm == 0 ||
            CostModel::trip_count(vectors) < kLeastVectors)
          continue;
        const bool is_product = std::ranges::all_of(dots_, [&](const auto& dot) {
          const auto& [left, right] = std::pair{dot.second.left, dot.second.right};
          const bool is_left = ir::depends_on(left, rows);
          const Node *a = is_left ? left : right, *b = is_left ? right : left;
          return ir::depends_on(a, rows) && !ir::depends_on(a, vectors) &&
                 ir::depends_on(b, vectors) && !ir::depends_on(b, rows) && b->dtype == DType::kI8;
        });
        if (!is_product) continue;
        if (plan_.rows != nullptr && plan_.rows->src[0]->imm >= extent->imm) continue;
        plan_.rows = rows;
        plan_.vectors = vectors;
      }
    return plan_.rows != nullptr;
  }

  bool has_dot(const Node* n) const {
    return dots_.contains(n) || (is_integer_sum(n) && (has_dot(n->src[0]) || has_dot(n->src[1])));
  }

  bool find_block_dots(const Node* reduce) {
    std::vector<const Node*> stack{reduce->src[0]};
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      const bool is_known =
          std::ranges::any_of(plan_.block_dots, [&](const BlockDot& s) { return s.node == n; });
      if (is_known) continue;
      if (has_dot(n)) {
        if (!add_sum(n)) return false;
      } else if (n->op != Op::kReduce) {
        stack.insert(stack.end(), n->src.begin(), n->src.end());
      }
    }
    return true;
  }

  bool add_sum(const Node* sum) {
    BlockDot out{.node = sum, .others = {}, .info = {}, .steps = {}};
    std::vector<const Node*> stack{sum}, dots;
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      if (dots_.contains(n))
        dots.push_back(n);
      else if (has_dot(n))
        stack.insert(stack.end(), {n->src[1], n->src[0]});
      else
        out.others.push_back(n);
    }
    for (const MatrixInfo& info : target_.quantised) {
      if (!takes(info, dots)) continue;
      out.info = info;
      out.steps = steps_of(info, dots);
      if (out.steps.empty()) continue;
      const bool is_whole = out.steps.size() % info.words() == 0;
      if (is_whole) return plan_.block_dots.push_back(std::move(out)), true;
    }
    // Steps that the last instruction lacks are zeros.
    if (out.steps.empty()) return false;
    plan_.block_dots.push_back(std::move(out));
    return true;
  }

  bool takes(const MatrixInfo& info, const std::vector<const Node*>& dots) const {
    return std::ranges::all_of(dots, [&](const Node* dot) {
      const Node* a = matrix_factor(dots_.at(dot), plan_.rows);
      // Seven bits are the same number with a sign.
      return info.in == a->dtype || (info.in == DType::kI8 && a->lo >= 0 && a->hi <= 127);
    });
  }

  static std::vector<QuantisedStep> steps_of(const MatrixInfo& info,
                                             const std::vector<const Node*>& dots) {
    std::vector<QuantisedStep> steps;
    const int64_t parts = info.parts;
    for (size_t i = 0; i < dots.size();) {
      const int64_t words = words_of(dots[i]);
      if (words % parts == 0) {
        for (int64_t first = 0; first < words; first += parts)
          steps.push_back({.dots = {dots[i]}, .words = words, .first = first});
        ++i;
        continue;
      }
      const auto count = static_cast<size_t>(parts / std::max<int64_t>(words, 1));
      if (parts % words != 0 || i + count > dots.size()) return {};
      QuantisedStep step{.dots = {}, .words = words, .first = 0};
      for (size_t n = 0; n < count; ++n, ++i) {
        if (words_of(dots[i]) != words) return {};
        step.dots.push_back(dots[i]);
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

  /// Large tiles, as long as there are groups for all compute units.
  bool choose_tiles() {
    const int64_t rows = plan_.rows->src[0]->imm;
    const Node* extent = plan_.vectors->src[0];
    const int64_t vectors = extent->is_const() ? extent->imm : 1;
    const MatrixInfo& info = plan_.info();
    double best = 0;
    QuantisedPlan found;
    for (const uint32_t row_tiles : {1u, 2u, 4u})
      for (const uint32_t vector_tiles : {1u, 2u, 4u, 8u})
        for (const auto& [warps_m, warps_n] :
             {std::pair{1u, 1u}, {2u, 1u}, {4u, 1u}, {1u, 2u}, {2u, 2u}, {1u, 4u}}) {
          QuantisedPlan p = plan_;
          p.row_tiles = row_tiles;
          p.vector_tiles = vector_tiles;
          p.warps_m = warps_m;
          p.warps_n = warps_n;
          const auto accumulators = static_cast<uint32_t>(info.accumulators * row_tiles *
                                                          vector_tiles * plan_.reduces.size());
          const bool is_narrow = p.block_n() > vectors && p.block_n() > info.slot;
          if (accumulators > kMostAccumulators || rows % p.block_m() != 0 || is_narrow) continue;
          size_t steps = 0;
          for (const BlockDot& s : p.block_dots) steps += s.steps.size();
          const size_t words = steps * (info.a_slots * row_tiles + vector_tiles);
          for (const uint32_t unroll : {1u, 2u, 4u}) {
            if (unroll > 1 && (p.blocks() % unroll != 0 || words * unroll > kMostWords ||
                               accumulators * unroll > kMostResults))
              break;
            p.unroll = unroll;
            const bool is_spilled = registers(p, accumulators, words * unroll) > kMostRegisters;
            if (is_spilled && (best != 0 || row_tiles * vector_tiles > 1)) continue;
            const double cost = time(p, accumulators) * asked(p);
            if (best != 0 && cost >= best) continue;
            best = cost;
            found = p;
          }
        }
    if (best == 0) return false;
    plan_ = std::move(found);
    return true;
  }

  /// Factor of the cost of a tile: see kNotAsked.
  double asked(const QuantisedPlan& p) const {
    const auto is_other = [&](std::string_view name, uint32_t value) {
      return knobs_ && knobs_->get(name).value_or(value) != value;
    };
    if (is_other("unroll", p.unroll) || is_other("sub_groups", p.warps_m * p.warps_n))
      return kNotAsked;
    return asked_factor(knobs_, {.m = p.block_m(), .n = p.block_n()});
  }

  /// Accumulators in float and in integers, words of fragments (RDNA3, both of whose halves of a
  /// sub-group hold the same, has the most), and the scales of the rows.
  static uint64_t registers(const QuantisedPlan& p, uint32_t accumulators, uint64_t words) {
    const MatrixInfo& info = p.info();
    const uint64_t rows =
        uint64_t{p.row_tiles} * (info.row_step != 0 ? info.accumulators : info.a_slots);
    return uint64_t{2} * accumulators + words + rows * p.reduces.size();
  }

  /// Rough cycles of one block on the busiest compute unit: results are scaled one by one, words
  /// and scales of rows and vectors are loaded once for each tile of a sub-group.
  double time(const QuantisedPlan& p, uint32_t accumulators) const {
    constexpr double kOfResult = 3.5, kOfRow = 6, kOfVector = 4, kFixed = 24, kLatency = 700;
    // Sub-groups that begin an instruction in a cycle, and those that hide each other's loads.
    constexpr double kSchedulers = 4, kResident = 12;
    double groups = 1;
    for (const Node* r : kernel_.ranges) {
      const double count = CostModel::trip_count(r);
      const double step = r == p.rows      ? static_cast<double>(p.block_m())
                          : r == p.vectors ? static_cast<double>(p.block_n())
                                           : 1;
      groups *= std::ceil(count / step);
    }
    const double slots = kOfResult * accumulators + kOfRow * p.info().a_slots * p.row_tiles +
                         kOfVector * 2 * p.vector_tiles + kFixed / p.unroll;
    const double share = std::ceil(groups / units_), waves = share * p.warps_m * p.warps_n;
    // What sub-groups of one group share comes from beyond the unit once.
    constexpr double kBlockBytes = 32, kFarBytes = 64, kOverlap = 0.5;
    const double far =
        share * static_cast<double>(p.block_m() + p.block_n()) * kBlockBytes / kFarBytes;
    return far * kOverlap + std::max(std::ceil(waves / kSchedulers) * slots,
                                     std::ceil(waves / kResident) * (kLatency / p.unroll + slots));
  }

  std::optional<Schedule> schedule() const {
    Schedule s;
    const Node* vectors = plan_.vectors->src[0];
    const int64_t step = plan_.block_n();
    s.grid[0].constant = plan_.rows->src[0]->imm / plan_.block_m();
    double most = static_cast<double>(s.grid[0].constant);
    for (const Node* r : kernel_.ranges) {
      if (r == plan_.rows) continue;
      if (r != plan_.vectors) {
        if (!r->src[0]->is_const()) return std::nullopt;
        s.loops.push_back({.range = r});
      }
      const int64_t extent = r->src[0]->hi;
      most *= static_cast<double>(r == plan_.vectors ? (extent + step - 1) / step : extent);
    }
    if (most > static_cast<double>(target_.max_groups[0])) return std::nullopt;
    for (const AxisPlan& loop : s.loops) s.grid[0].constant *= loop.range->src[0]->imm;
    if (vectors->is_const()) {
      s.grid[0].constant *= (vectors->imm + step - 1) / step;
    } else {
      // Rounded up as a whole: never fewer groups than tiles, and the surplus finds nothing to do.
      const int64_t others = s.grid[0].constant;
      if (!multiply(&s.grid[0], vectors, step)) return std::nullopt;
      s.grid[0].constant += others * (step - 1);
      s.grid[0].divisor = step;
    }
    s.grid_loops = static_cast<uint32_t>(s.loops.size());
    s.block = plan_.sub_group * plan_.warps_m * plan_.warps_n;
    s.work_per_block = static_cast<uint64_t>(plan_.block_m() * plan_.block_n() * plan_.blocks());
    for (const auto& [node, dot] : dots_) s.dots.emplace(node, dot);
    s.plan = std::make_shared<const QuantisedPlan>(plan_);
    return s;
  }

  const ir::KernelIr& kernel_;
  const TargetInfo& target_;
  const Knobs* knobs_;  ///< or nullptr
  double units_;
  std::unordered_map<const Node*, DotPlan> dots_;
  QuantisedPlan plan_;
};

}  // namespace

const Node* matrix_factor(const DotPlan& dot, const Node* rows) {
  return ir::depends_on(dot.left, rows) ? dot.left : dot.right;
}

int64_t words_of(const Node* dot) {
  int64_t count = 1;
  for (size_t i = 1; i < dot->src.size(); ++i) count *= dot->src[i]->src[0]->imm;
  return count / 4;
}

std::optional<Schedule> make_quantised_schedule(const ir::KernelIr& kernel,
                                                const TargetInfo& target, uint32_t units,
                                                const ScheduleLimits& limits) {
  if (!target.has_groups || target.quantised.empty() || !limits.has_tiles) return std::nullopt;
  return QuantisedPlanner(kernel, target, units, limits.knobs).run();
}

std::string describe_quantised(const Schedule& schedule) {
  const QuantisedPlan& p = *schedule.quantised();
  return fmt::format(
      "int8 MMA of blocks: {} rows x {} vectors of a group, {} x {} of a sub-group, {} "
      "blocks at a time\n",
      p.block_m(), p.block_n(), p.block_m() / p.warps_m, p.block_n() / p.warps_n, p.unroll);
}

}  // namespace bm::compiler
