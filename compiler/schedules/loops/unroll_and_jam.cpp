// Unroll-and-jam around the heaviest reduction.
#include "compiler/schedules/loops/unroll_and_jam.h"

#include <algorithm>
#include <cmath>

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Cycles for the cache traffic of one load, and per output of iterations outside full tiles.
constexpr double kVectorTraffic = 0.35, kScalarTraffic = 0.15, kRaggedCost = 1.0;
/// Cycles to start on a row in another page: translation, and caches whose sets such rows share.
constexpr double kFarRowCost = 4;

}  // namespace

const Node* TileSearch::heaviest_reduce() const {
  const Node* best = nullptr;
  double most = 8;  // shorter reductions are not worth a tile
  for (const Node* n : model_.reduces()) {
    double count = 1;
    for (size_t i = 1; i < n->src.size(); ++i) count *= CostModel::trip_count(n->src[i]);
    bool has_output = false;
    for (const AxisPlan& a : s_.loops) has_output = has_output || model_.depends(n, a.range);
    if (has_output && count > most) {
      most = count;
      best = n;
    }
  }
  return best;
}

uint32_t TileSearch::lanes_of(const Node* reduce) const {
  const auto it = s_.reduces.find(reduce);
  if (it != s_.reduces.end() && it->second.lanes > 1) return it->second.lanes;
  return lanes_.range && model_.depends(reduce, lanes_.range) ? lanes_.lanes : 1;
}

double TileSearch::registers_per_value(uint32_t lanes) const {
  return std::max(
      1.0, std::ceil(lanes * static_cast<double>(model_.widest()) * 8 / target_.vector_bits));
}

void TileSearch::choose() {
  const Node* reduce = heaviest_reduce();
  if (!reduce) return;
  std::vector<size_t> axes;
  for (size_t i = 0; i < s_.loops.size(); ++i)
    if (model_.depends(reduce, s_.loops[i].range)) axes.push_back(i);
  const Body body = model_.body(reduce);
  std::optional<Tile> best;
  for (size_t x = 0; x < axes.size(); ++x)
    for (size_t y = x; y < axes.size(); ++y) consider(reduce, body, axes[x], axes[y], &best);
  if (!best) return;
  s_.loops[best->first].jam = best->first_jam;
  if (best->second != best->first) s_.loops[best->second].jam = best->second_jam;
}

void TileSearch::consider(const Node* reduce, const Body& body, size_t first, size_t second,
                          std::optional<Tile>* best) {
  static constexpr uint32_t kJams[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
  for (uint32_t a : kJams)
    for (uint32_t b : kJams) {
      if (first == second && b != 1) continue;
      Tile t{first, second, a, b, 0};
      // Without a load to share, unrolling the reduction itself hides latency with less code.
      if (own_lanes(reduce) && !(shares(body, first, a) && shares(body, second, b))) continue;
      // Rows of their own are streams of their own: prefetchers follow about eight.
      if (own_lanes(reduce) && std::max(a, b) > 8) continue;
      const std::optional<double> cost = tile_cost(reduce, body, t);
      if (!cost) continue;
      t.cost = *cost;
      // A larger tile must be clearly better.
      const bool is_larger = *best && a * b > (*best)->first_jam * (*best)->second_jam;
      if (!*best || t.cost < (*best)->cost * (is_larger ? 0.97 : 1)) *best = t;
    }
}

bool TileSearch::shares(const Body& body, size_t loop, uint32_t jam) const {
  for (const Node* n : body)
    if (n->op == Op::kLoad && !model_.depends(n, s_.loops[loop].range)) return true;
  return jam == 1;
}

/// Share of iterations that run in full tiles, or nothing if the loop is too short.
std::optional<double> TileSearch::coverage(size_t loop, uint32_t jam) const {
  if (jam == 1) return 1;
  const AxisPlan& a = s_.loops[loop];
  const double extent = CostModel::trip_count(a.range), step = double{1} * a.lanes * jam;
  if (extent < step) return std::nullopt;
  if (!a.range->src[0]->is_const()) return jam > 4 ? std::nullopt : std::optional<double>(0.9);
  return std::floor(extent / step) * step / extent;
}

/// Whether adjacent iterations of the reduction read `load` from different pages.
bool TileSearch::is_far(const Node* reduce, const Node* load) {
  for (size_t i = 1; i < reduce->src.size(); ++i) {
    const std::optional<int64_t> stride = model_.strides(reduce->src[i], 0).stride(load->src[0]);
    if (stride && std::abs(*stride) * item_size(load->dtype) >= int64_t{target_.page_bytes})
      return true;
  }
  return false;
}

TileSearch::TileCounts TileSearch::count(const Node* reduce, const Body& body, const Tile& t) {
  TileCounts c;
  c.work = double{1} * t.first_jam * t.second_jam;
  const Node* a = s_.loops[t.first].range;
  const Node* b = s_.loops[t.second].range;
  double only_a = 0, only_b = 0;
  for (const Node* n : body) {
    if (n->op == Op::kConst || n->op == Op::kVar || n->op == Op::kRange) continue;
    const bool on_a = model_.depends(n, a), on_b = a != b && model_.depends(n, b);
    const double bodies = (on_a ? t.first_jam : 1.0) * (on_b ? t.second_jam : 1.0);
    c.nodes += bodies;
    if (n->op != Op::kLoad) {
      if (n != reduce->src[0] || n->op != Op::kMul) c.work += bodies;
      continue;
    }
    const bool is_vector = own_lanes(reduce) || (lanes_.range && model_.depends(n, lanes_.range));
    (is_vector ? c.vector_loads : c.scalar_loads) += bodies;
    if (is_vector && is_far(reduce, n)) {
      const double along = (a == lanes_.range ? t.first_jam : 1.0) *
                           (b == lanes_.range && a != b ? t.second_jam : 1.0);
      c.far_rows += bodies / along;
    }
    if (on_a && !on_b) only_a += bodies;
    if (on_b && !on_a) only_b += bodies;
  }
  c.kept = std::min(only_a, only_b);
  return c;
}

/// Cycles per output value of one iteration of the reduction, for two loads and two operations per
/// cycle and four cycles of latency; data is taken to come from L2.
std::optional<double> TileSearch::tile_cost(const Node* reduce, const Body& body, const Tile& t) {
  const auto share_a = coverage(t.first, t.first_jam), share_b = coverage(t.second, t.second_jam);
  if (!share_a || !share_b) return std::nullopt;
  const double per_value = registers_per_value(lanes_of(reduce)),
               bodies = t.first_jam * t.second_jam;
  const TileCounts c = count(reduce, body, t);
  const double live = (bodies + c.kept + 2) * per_value;
  if (bodies > 1 && (live > target_.vector_registers || c.nodes > kMaxMergedNodes))
    return std::nullopt;
  const double unrolled = own_lanes(reduce) ? std::max(1.0, 4 / bodies) : 1.0;
  const double loads = c.vector_loads * per_value + c.scalar_loads;
  const double traffic = c.vector_loads * per_value * kVectorTraffic +
                         c.scalar_loads * kScalarTraffic + c.far_rows * kFarRowCost;
  const double cycles = std::max({c.work * per_value / 2, loads / 2, 4 / unrolled}) + traffic;
  // Iterations beyond the second axis' tiles still run in tiles of the first.
  double cost = cycles / bodies;
  if (*share_b < 1) {
    const std::optional<double> rest = tile_cost(reduce, body, {t.first, t.second, t.first_jam, 1});
    cost = cost * *share_b + rest.value_or(kRaggedCost) * (1 - *share_b);
  }
  if (*share_a < 1) cost = cost * *share_a + kRaggedCost * per_value * (1 - *share_a);
  return cost + (*share_a < 1 ? 0.03 : 0) + (*share_b < 1 ? 0.03 : 0);
}

bool TileSearch::own_lanes(const Node* reduce) const {
  const auto it = s_.reduces.find(reduce);
  return it != s_.reduces.end() && it->second.lanes > 1;
}

double TileSearch::predict(double cost) {
  const Node* reduce = heaviest_reduce();
  if (!reduce) return cost;
  Tile t;
  for (size_t i = 0; i < s_.loops.size(); ++i) {
    if (s_.loops[i].jam == 1) continue;
    if (t.first_jam == 1) {
      t.first = i;
      t.first_jam = s_.loops[i].jam;
    } else {
      t.second = i;
      t.second_jam = s_.loops[i].jam;
    }
  }
  if (t.first_jam == 1 || s_.loops.empty()) return cost;
  if (t.second_jam == 1) t.second = t.first;
  const Body body = model_.body(reduce);
  const auto plain = tile_cost(reduce, body, {t.first, t.first, 1, 1}),
             tiled = tile_cost(reduce, body, t);
  // Beyond the registers: spilling is about as expensive as not merging at all.
  return plain && tiled && *plain > 0 ? cost * *tiled / *plain : cost * 1.5;
}

}  // namespace bm::compiler
