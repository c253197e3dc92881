#include "compiler/analysis/cost.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Numbers handed over at launch, made of a variable once for all iterations.
bool is_given(const Node* n) {
  while (n->op == Op::kCast || n->op == Op::kBitcast) n = n->src[0];
  return n->op == Op::kVar;
}

bool compares_positions(const Node* n) {
  return ir::is_comparison(n->op) && n->src[0]->dtype == DType::kI64 &&
         std::all_of(n->src.begin(), n->src.end(),
                     [](const Node* s) { return s->lo >= INT32_MIN && s->hi <= INT32_MAX; });
}

/// Loops of more vectors than this lose little to single iterations at their end.
constexpr int64_t kMaskedVectors = 4;

}  // namespace

double CostModel::weight(const Node* n) {
  switch (n->op) {
    case Op::kExp2: return 14;
    case Op::kLog2:
    case Op::kSin: return 25;
    case Op::kDiv:
    case Op::kRecip:
    case Op::kSqrt: return is_float(n->dtype) ? 4 : 12;
    case Op::kMod: return is_float(n->dtype) ? 30 : 12;
    default: return is_half_like(n->dtype) ? 2 : 1;
  }
}

CostModel::CostModel(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t max_lanes)
    : kernel_(kernel), target_(target), max_lanes_(max_lanes) {
  std::vector<const Node*> roots(kernel.ranges);
  std::vector<const Node*> values;
  for (const ir::Store& s : kernel.stores) {
    roots.push_back(s.index);
    roots.push_back(s.value);
    values.push_back(s.value);
    if (s.gate) roots.push_back(s.gate);
  }
  for (const Node* n : ir::topological(roots)) {
    std::vector<const Node*> free;
    if (n->op == Op::kRange) free.push_back(n);
    const auto bound = n->bound();
    const auto is_bound = [&](const Node* r) {
      return std::find(bound.begin(), bound.end(), r) != bound.end();
    };
    for (const Node* s : n->src)
      if (!is_bound(s))
        for (const Node* r : free_ranges_[s])
          if (std::find(free.begin(), free.end(), r) == free.end()) free.push_back(r);
    std::erase_if(free, is_bound);
    if (n->op == Op::kReduce) {
      reduces_.push_back(n);
      values.push_back(n->src[0]);
    }
    free_ranges_[n] = std::move(free);
  }
  std::vector<const Node*> nodes;
  collect(values, &nodes);
  // Users first. Indices that are only compared are compared in 32 bits.
  std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->id > b->id; });
  std::unordered_set<const Node*> used(values.begin(), values.end());
  for (const Node* n : nodes) {
    if (!used.contains(n)) continue;
    widest_ = std::max(
        widest_, is_half_like(n->dtype) && n->op != Op::kLoad ? int64_t{4} : item_size(n->dtype));
    if (n->op == Op::kReduce || n->op == Op::kRange || compares_positions(n)) continue;
    const size_t first = n->op == Op::kLoad ? 1 : 0;
    for (const Node* s : n->src.subspan(first)) used.insert(s);
  }
}

/// A register full of the widest value; at least 4.
uint32_t CostModel::full_lanes() const {
  return std::min(max_lanes_, std::clamp<uint32_t>(
                                  target_.vector_bits / 8 / static_cast<uint32_t>(widest_), 4, 64));
}

bool CostModel::depends(const Node* n, const Node* range) const {
  const auto& free = free_ranges_.at(n);
  return std::find(free.begin(), free.end(), range) != free.end();
}

Strides& CostModel::strides(const Node* range, int64_t chunk) {
  return strides_.try_emplace({range, chunk}, range, chunk).first->second;
}

double CostModel::trip_count(const Node* range) {
  const Node* extent = range->src[0];
  if (extent->is_const()) return std::max(static_cast<double>(extent->imm), 1.0);
  return std::max(
      (static_cast<double>(std::max<int64_t>(extent->lo, 0)) + static_cast<double>(extent->hi)) / 2,
      1.0);
}

double CostModel::iterations(const ir::KernelIr& kernel) {
  double product = 1;
  for (const Node* r : kernel.ranges) product *= trip_count(r);
  return product;
}

/// Values computed per iteration, reachable without entering reductions or index expressions.
void CostModel::collect(const std::vector<const Node*>& roots,
                        std::vector<const Node*>* nodes) const {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> stack = roots;
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    if (!seen.insert(n).second || is_given(n)) continue;
    nodes->push_back(n);
    if (n->op == Op::kReduce || n->op == Op::kRange) continue;
    if (n->op == Op::kLoad) {
      if (n->src.size() > 1) stack.push_back(n->src[1]);
      continue;
    }
    for (const Node* s : n->src) stack.push_back(s);
  }
}

std::vector<const Node*> CostModel::body(const Node* reduce) const {
  std::vector<const Node*> nodes;
  collect({reduce->src[0]}, &nodes);
  return nodes;
}

double CostModel::load_cost(const Node* n, const LaneChoice& c) {
  if (!c.range) return 1;
  Strides& along = strides(c.range, c.lanes);
  const double lanes = c.lanes;
  const double gate = n->src.size() > 1 && !along.is_uniform(n->src[1]) ? 2 / lanes : 0;
  if (along.is_uniform(n->src[0])) return 1.3 / lanes + gate;
  const std::optional<int64_t> stride = along.stride(n->src[0]);
  const double registers =
      std::max(1.0, lanes * static_cast<double>(item_size(n->dtype)) * 8 / target_.vector_bits);
  if (stride == 1) return registers / lanes + gate;
  // Two masked loads and a shuffle.
  if (stride == 2 && target_.has_masks && item_size(n->dtype) == 4 && c.lanes >= 4 &&
      c.lanes * 32 <= target_.vector_bits)
    return 4 / lanes + gate;
  // One by one: a load and an insertion per lane; a computed index has to leave its vector as well.
  return stride ? 2.2 : 3.5;
}

double CostModel::node_cost(const Node* n, const LaneChoice& c) {
  if (n->op == Op::kConst || n->op == Op::kVar || n->op == Op::kRange) return 0;
  if (n->op == Op::kLoad) return load_cost(n, c);
  if (n->op == Op::kScan && n->src[1] == c.range)  // log2(lanes) shuffles and steps
    return (2 * std::log2(c.lanes) + 4) * weight(n) / c.lanes;
  if (!c.range) return weight(n);
  if (strides(c.range, c.lanes).is_uniform(n)) return weight(n) / c.lanes;
  int64_t size = item_size(n->dtype);
  for (const Node* s : n->src) size = std::max(size, item_size(s->dtype));
  const double registers =
      std::max(1.0, static_cast<double>(size) * c.lanes * 8 / target_.vector_bits);
  // Vector division of integers is done lane by lane.
  if ((n->op == Op::kDiv || n->op == Op::kMod) && is_int(n->dtype)) return weight(n) * 1.3;
  return weight(n) * registers / c.lanes;
}

const Node* CostModel::transposing_range(const Node* n, const LaneChoice& c) {
  if (!c.range || c.lanes > 16 || n->src.size() > 1) return nullptr;
  const std::optional<int64_t> stride = strides(c.range, c.lanes).stride(n->src[0]);
  if (!stride || std::abs(*stride) <= 1) return nullptr;
  for (const Node* u : kernel_.ranges)
    if (u != c.range && trip_count(u) >= c.lanes && strides(u, 0).stride(n->src[0]) == 1) return u;
  return nullptr;
}

double CostModel::output_nodes() const {
  double sum = 0;
  for (const Node* n : output_values())
    if (n->op != Op::kConst) sum += weight(n);
  return sum;
}

std::vector<const Node*> CostModel::output_values() const {
  std::vector<const Node*> roots, nodes;
  for (const ir::Store& s : kernel_.stores) roots.push_back(s.value);
  collect(roots, &nodes);
  return nodes;
}

std::vector<const Node*> CostModel::output_loads() const {
  std::vector<const Node*> nodes = output_values();
  std::erase_if(nodes, [](const Node* n) { return n->op != Op::kLoad; });
  return nodes;
}

double CostModel::scope_cost(const std::vector<const Node*>& roots, const LaneChoice& choice,
                             ReducePlans* plans, const Node* around) {
  std::vector<const Node*> nodes;
  collect(roots, &nodes);
  double cost = 0;
  for (const Node* n : nodes) {
    if (!around && n->op == Op::kLoad && transposing_range(n, choice))
      cost += (2 + std::log2(choice.lanes)) / choice.lanes;
    else
      cost += n->op == Op::kReduce ? reduce_cost(n, choice, plans, around) : node_cost(n, choice);
  }
  return cost;
}

/// A reduction runs outside the loops around it that it does not depend on: once for all their
/// iterations.
double CostModel::share_of(const Node* reduce, const Node* around) const {
  std::vector<const Node*> loops = kernel_.ranges;
  if (around) {
    loops = free_ranges_.at(around);
    loops.insert(loops.end(), around->src.begin() + 1, around->src.end());
  }
  double share = 1;
  for (const Node* r : loops)
    if (!depends(reduce, r)) share /= trip_count(r);
  return share;
}

double CostModel::reduce_cost(const Node* n, const LaneChoice& choice, ReducePlans* plans,
                              const Node* around) {
  double count = 1;
  for (size_t i = 1; i < n->src.size(); ++i) count *= trip_count(n->src[i]);
  if (choice.range && depends(n, choice.range) &&
      !strides(choice.range, choice.lanes).is_uniform(n)) {
    (*plans)[n] = {};
    return count * (scope_cost({n->src[0]}, choice, plans, n) + 1.0 / choice.lanes) *
           share_of(n, around);
  }
  // Its own lanes, or none.
  const double share = share_of(n, around);
  ReducePlans best_plans;
  double best = count * (scope_cost({n->src[0]}, {}, &best_plans, n) + 1);
  best_plans[n] = {};
  for (size_t i = 1; i < n->src.size(); ++i) {
    const Node* r = n->src[i];
    const double extent = trip_count(r);
    for (uint32_t lanes = full_lanes(); lanes >= 4; lanes /= 2) {
      if (extent < lanes) continue;
      ReducePlans inner;
      const double wide = scope_cost({n->src[0]}, {r, lanes}, &inner, n) + 1.0 / lanes;
      ReducePlans ignored;
      const double single = scope_cost({n->src[0]}, {}, &ignored, n) + 1;
      const double left =
          r->src[0]->is_const() ? static_cast<double>(r->src[0]->imm % lanes) : lanes / 2.0;
      // The horizontal combination costs about two operations per halving.
      const double cost = count / extent * ((extent - left) * wide + left * single) + 10;
      if (cost >= best) continue;
      best = cost;
      best_plans = std::move(inner);
      best_plans[n] = {.vector_range = r, .lanes = lanes, .unroll = 1};
    }
  }
  for (auto& [reduce, plan] : best_plans) (*plans)[reduce] = plan;
  return best * share;
}

double CostModel::output_cost(const LaneChoice& choice, ReducePlans* plans) {
  std::vector<const Node*> roots;
  double cost = 0;
  for (const ir::Store& s : kernel_.stores) {
    roots.push_back(s.value);
    if (s.gate) roots.push_back(s.gate);
    if (!choice.range) {
      cost += 1;
      continue;
    }
    const std::optional<int64_t> stride = strides(choice.range, choice.lanes).stride(s.index);
    cost += stride == 1 ? 1.0 / choice.lanes : 2.5;
  }
  return cost + scope_cost(roots, choice, plans, nullptr);
}

/// Short loops around reductions, of elements that the target loads and stores some lanes of.
bool CostModel::can_mask(const Node* range, uint32_t lanes) const {
  const Node* extent = range->src[0];
  const bool is_short = extent->is_const() && extent->imm % lanes != 0 && extent->imm > lanes / 2 &&
                        extent->imm < kMaskedVectors * lanes;
  const auto is_word = [](const ir::Param& p) { return item_size(p.dtype) == 4; };
  return is_short && target_.has_masks && lanes * 32 <= target_.vector_bits && widest_ == 4 &&
         !reduces_.empty() && std::all_of(kernel_.params.begin(), kernel_.params.end(), is_word) &&
         std::all_of(reduces_.begin(), reduces_.end(),
                     [&](const Node* n) { return depends(n, range); });
}

LaneChoice CostModel::best_lanes(const Node* range, double* cost, ReducePlans* plans) {
  LaneChoice best;
  const double extent = trip_count(range);
  ReducePlans scalar_plans;
  const double single = output_cost({}, &scalar_plans);
  for (uint32_t lanes = full_lanes(); lanes >= 4; lanes /= 2) {
    const bool is_masked = can_mask(range, lanes);
    if (extent < lanes && !is_masked) continue;
    ReducePlans inner;
    const double wide = output_cost({range, lanes}, &inner);
    const double left =
        range->src[0]->is_const() ? static_cast<double>(range->src[0]->imm % lanes) : lanes / 2.0;
    const double total = is_masked ? std::ceil(extent / lanes) * lanes * wide / extent
                                   : ((extent - left) * wide + left * single) / extent;
    if (total >= *cost) continue;
    *cost = total;
    *plans = std::move(inner);
    best = {range, lanes, is_masked};
  }
  return best;
}

}  // namespace bm::compiler
