// Tiles of attention with online softmax on CPUs: how many queries and keys.
#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "compiler/ir/linear.h"
#include "compiler/analysis/affine.h"
#include "compiler/schedules/attention/attention_plan.h"
#include "compiler/analysis/cost.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;

/// Cycles of latency of a multiply-add, two of which start per cycle, and of a loop's own
/// iteration.
constexpr double kLatency = 4, kIterationCycles = 0.5;
/// Most queries of a block: keys and values are then read often enough from what was copied.
constexpr int64_t kMostRows = 256, kFewRows = 64;
/// Keys of a block where the caches do not say less; below the least, accumulators are spilled too
/// often.
constexpr int64_t kMostKeys = 128, kLeastKeys = 16;
/// Blocks per processor, so that shares can be evened out.
constexpr double kBlocksPerUnit = 4;
/// Arithmetic operations that CodeObject::work_per_block counts as one.
constexpr double kOperationsPerWork = 8;

int64_t round_up(int64_t v, int64_t step) { return (v + step - 1) / step * step; }

class AttentionScheduler {
 public:
  AttentionScheduler(AttentionParts parts, const TargetInfo& target, uint32_t units,
                     const Knobs* knobs)
      : target_(target), knobs_(knobs), units_(std::max(units, 1u)) {
    p_.parts = std::move(parts);
  }

  std::optional<Schedule> run() {
    item_ = item_size(parts().pv->dtype);
    p_.lanes = static_cast<uint32_t>(std::max<int64_t>(target_.vector_bits / 8 / item_, 1));
    rows_ = CostModel::trip_count(parts().row);
    head_dim_ = parts().head_dim->src[0]->imm;
    width_ = parts().column->src[0]->imm;
    if (p_.lanes < 2 || rows_ * 2 < p_.lanes) return std::nullopt;
    if (!choose_tiles()) return std::nullopt;
    choose_blocks();
    p_.is_transposed_in_registers = lies_in_squares();
    add_edge();
    return finish();
  }

 private:
  AttentionParts& parts() { return p_.parts; }

  /// Cycles per step of the head dimension for `length` rows of results in tiles of `tile`.
  double cycles(uint32_t tile, uint32_t vectors, double length) const {
    const double products = tile * vectors / 2.0, loads = (tile + vectors) / 2.0;
    return std::ceil(length / tile) * (std::max({products, loads, kLatency}) + kIterationCycles);
  }

  uint32_t best_tile(uint32_t vectors, double length) const {
    uint32_t best = 0;
    for (uint32_t t = 1; t * vectors + vectors + 1 <= target_.vector_registers && t <= 16; ++t)
      if (best == 0 || cycles(t, vectors, length) <= cycles(best, vectors, length)) best = t;
    return best;
  }

  bool choose_tiles() {
    double least = 0;
    for (uint32_t v = 1; v <= 4; ++v) {
      if (2 * v + 1 > target_.vector_registers) break;
      // Keys come in powers of two more often than not.
      const uint32_t key_tile = best_tile(v, kLeastKeys),
                     column_tile = best_tile(v, static_cast<double>(width_));
      const double query_tiles = std::ceil(rows_ / (v * p_.lanes));
      const double cost = query_tiles * (cycles(key_tile, v, kLeastKeys) / kLeastKeys *
                                             static_cast<double>(head_dim_) +
                                         cycles(column_tile, v, static_cast<double>(width_)));
      if (least != 0 && cost >= least) continue;
      least = cost;
      p_.vectors = v;
      p_.key_tile = key_tile;
      p_.column_tile = column_tile;
    }
    return least != 0;
  }

  void choose_blocks() {
    // A query tile of logits has a third of the first cache; queries, keys and results share the
    // private one.
    const auto first = static_cast<int64_t>(target_.l1_bytes),
               second = static_cast<int64_t>(target_.l2_bytes);
    const int64_t query_tile = p_.query_tile(), both = (head_dim_ + width_) * item_;
    int64_t keys = std::min(first / 3 / (query_tile * item_), second / 4 / both);
    const Node* extent = parts().key->src[0];
    keys = std::min({std::max(keys, kLeastKeys), kMostKeys, extent->hi});
    if (const auto asked = knob("tile_n")) keys = std::min(*asked, extent->hi);
    p_.key_block = round_up(std::max<int64_t>(keys, 1), p_.key_tile);
    const int64_t most = std::clamp<int64_t>(second / 4 / both, 1, kMostRows);
    const int64_t wanted = static_cast<int64_t>(
        std::ceil(rows_ * batch_iterations() / (kBlocksPerUnit * static_cast<double>(units_))));
    int64_t rows = std::clamp<int64_t>(wanted, std::min(kFewRows, most), most);
    if (const auto asked = knob("tile_m")) rows = *asked;
    rows = std::min(rows, std::max<int64_t>(parts().row->src[0]->hi, 1));
    p_.row_block = round_up(rows, query_tile);
  }

  std::optional<int64_t> knob(std::string_view name) const {
    return knobs_ ? knobs_->get(name) : std::nullopt;
  }

  double batch_iterations() {
    double product = 1;
    for (const Node* r : parts().batch) product *= CostModel::trip_count(r);
    return product;
  }

  template <class F>
  static void for_loads(const Node* root, F&& f) {
    for (const Node* n : ir::topological({&root, 1}))
      if (n->op == Op::kLoad) f(n);
  }

  bool lies_in_squares() {
    Strides along_head_dim(parts().head_dim, 0), along_rows(parts().row, p_.lanes);
    bool result = true;
    for_loads(parts().query, [&](const Node* n) {
      result = result && n->src.size() == 1 && along_head_dim.stride(n->src[0]) == 1 &&
               along_rows.stride(n->src[0]).has_value();
    });
    return result;
  }

  /// Queries of the last query tile that do not exist: what the logits read for them is not
  /// touched.
  void add_edge() {
    for_loads(parts().logit, [&](const Node* n) {
      p_.has_loads =
          p_.has_loads || (ir::depends_on(n, parts().row) && !ir::depends_on(n, parts().head_dim));
    });
    const Node* extent = parts().row->src[0];
    if (!p_.has_loads || (extent->is_const() && extent->imm % p_.query_tile() == 0)) return;
    Graph& g = *parts().kernel->graph;
    parts().edge_row = g.range(g.add(extent, int64_t{p_.query_tile()}));
    const Node *from[] = {parts().row}, *to[] = {parts().edge_row};
    parts().edge_product = g.substitute(parts().product, from, to);
    const Node* logit = g.substitute(parts().logit, from, to);
    parts().edge_logit = gated(g, logit, g.less(parts().edge_row, extent));
  }

  /// The same with `gate` in front of what varies with the queries, q·k itself left alone.
  const Node* gated(Graph& g, const Node* root, const Node* gate) {
    std::unordered_map<const Node*, const Node*> map{{parts().edge_product, parts().edge_product}};
    for (const Node* n : ir::topological({&root, 1})) {
      if (map.contains(n)) continue;
      std::vector<const Node*> from, to;
      for (const Node* s : n->src)
        if (const auto it = map.find(s); it != map.end() && it->second != s) {
          from.push_back(s);
          to.push_back(it->second);
        }
      const Node* m = from.empty() ? n : g.substitute(n, from, to);
      if (m->op == Op::kLoad && ir::depends_on(m, parts().edge_row) &&
          !ir::depends_on(m, parts().head_dim)) {
        const Node* before = m->src.size() > 1 ? m->src[1] : nullptr;
        m = g.load(static_cast<int>(m->imm), m->dtype, m->src[0], g.both(before, gate));
      }
      map[n] = m;
    }
    return map.at(root);
  }

  std::optional<Schedule> finish() {
    Schedule s;
    s.grid[0] = {.constant = 1, .terms = {}, .divisor = p_.row_block};
    s.grid[1].constant = s.grid[2].constant = 1;
    bool is_linear = multiply(&s.grid[0], parts().row->src[0], 1);
    for (const bool is_const : {true, false})
      for (const Node* r : parts().batch)
        if (r->src[0]->is_const() == is_const)
          is_linear = multiply(&s.grid[2], r->src[0], 1) && is_linear;
    // Surplus blocks would be ones of heads that do not exist.
    if (!is_linear) return std::nullopt;
    const double rows = std::min(rows_, static_cast<double>(p_.row_block));
    const double work = 2 * rows * CostModel::trip_count(parts().key) *
                        static_cast<double>(head_dim_ + width_) / kOperationsPerWork;
    s.work_per_block = static_cast<uint64_t>(std::min(work, 1e18));
    s.plan = std::make_shared<const AttentionPlan>(std::move(p_));
    return s;
  }

  AttentionPlan p_;
  const TargetInfo& target_;
  const Knobs* knobs_;  ///< or nullptr
  uint32_t units_;
  double rows_ = 1;
  int64_t item_ = 4, head_dim_ = 1, width_ = 1;
};

}  // namespace

std::optional<Schedule> make_attention_schedule(const ir::KernelIr& kernel,
                                                const TargetInfo& target, uint32_t units,
                                                ScheduleLimits limits) {
  if (target.has_groups || !limits.has_tiles) return std::nullopt;
  auto parts = find_attention_parts(kernel);
  if (!parts) return std::nullopt;
  return AttentionScheduler(std::move(*parts), target, units, limits.knobs).run();
}

}  // namespace bm::compiler
