// Matches GEMM and other contractions: which loops are M, N and K.
// Which loops of a GEMM are M, N and K. Nothing here knows of matrix
// products or convolutions: what counts is which output loops each factor varies along.
#include <cmath>

#include "compiler/analysis/affine.h"
#include "compiler/analysis/cost.h"
#include "compiler/schedules/gemm_cpu/find.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Below these packing costs more than tiles bring.
constexpr double kLeastRows = 4, kLeastK = 8, kLeastProducts = 1 << 15;
constexpr size_t kMostProducts = 4;
/// Nodes of what is computed around the accumulators; beyond it is no epilogue any more.
constexpr double kMostEpilogue = 200;

class SideFinder {
 public:
  SideFinder(const ir::KernelIr& kernel, const TargetInfo& target, ScheduleLimits limits,
             bool is_transposed)
      : kernel_(kernel), target_(target), model_(kernel, target, limits.max_lanes) {
    s_.is_transposed = is_transposed;
  }

  std::optional<GemmMatch> run() {
    if (!find_products() || !choose_sides() || !is_worth_it()) return std::nullopt;
    s_.lanes = static_cast<uint32_t>(lane_count());
    return std::move(s_);
  }

 private:
  using Product = GemmMatch::Product;

  bool can_multiply(const Node* product) const {
    return product->dtype == DType::kF32 || product->dtype == DType::kF64 ||
           dot_of(product->src[0], product->src[1], target_, 1);
  }

  bool find_products() {
    for (const Node* n : model_.reduces()) {
      const Node* body = n->src[0];
      const bool is_product = n->reduce_op() == ir::ReduceOp::kSum && body->op == Op::kMul &&
                              body->dtype == n->dtype && can_multiply(body);
      if (!is_product) return false;
      s_.products.push_back({n, {body->src[0], body->src[1]}});
    }
    if (s_.products.empty() || s_.products.size() > kMostProducts) return false;
    for (const Product& p : s_.products) {
      if (p.reduce->dtype != s_.products[0].reduce->dtype) return false;
      // Of nested contractions the outer one would evaluate the inner one again and again.
      for (const Product& q : s_.products)
        if (p.reduce != q.reduce && reaches(p.reduce->src[0], q.reduce)) return false;
      int symbolic = 0;
      for (size_t i = 1; i < p.reduce->src.size(); ++i) {
        const Node* extent = p.reduce->src[i]->src[0];
        // Loops that unify_ranges shares with the output cannot become one with other output loops.
        if (contains(kernel_.ranges, p.reduce->src[i])) return false;
        symbolic += !extent->is_const();
        if (extent->is_const() && extent->imm <= 0) return false;
      }
      if (symbolic > (p.reduce->src.size() == 2 ? 1 : 0)) return false;
    }
    return model_.output_nodes() <= kMostEpilogue;
  }

  static bool reaches(const Node* from, const Node* to) {
    for (const Node* n : ir::topological({&from, 1}))
      if (n == to) return true;
    return false;
  }

  /// All products have the same rows and columns; `swap` says which factor is which.
  bool choose_sides() {
    for (const Node* r : kernel_.ranges) {
      const bool a = model_.depends(s_.products[0].factors[0], r),
                 b = model_.depends(s_.products[0].factors[1], r);
      if (a && !b) exclusive_[0].push_back(r);
      if (b && !a) exclusive_[1].push_back(r);
      if (a == b) s_.batch.push_back(r);
      if (!a && !b) return false;
    }
    if (exclusive_[0].empty() && exclusive_[1].empty()) return false;
    for (Product& p : s_.products) {
      if (same_sides(p.factors[0], p.factors[1])) continue;
      std::swap(p.factors[0], p.factors[1]);
      if (!same_sides(p.factors[0], p.factors[1])) return false;
    }
    // Vectors run along the columns: where the result is contiguous, if there is room for them.
    const double lanes = lane_count();
    const int contiguous = contiguous_side();
    right_ = contiguous >= 0                                          ? contiguous
             : trip_count(exclusive_[1]) >= trip_count(exclusive_[0]) ? 1
                                                                      : 0;
    if (exclusive_[right_].empty() ||
        (trip_count(exclusive_[right_]) < lanes && trip_count(exclusive_[1 - right_]) >= lanes))
      right_ = 1 - right_;
    if (s_.is_transposed) {
      if (contiguous != right_ || !can_turn()) return false;
      right_ = 1 - right_;
    }
    s_.columns = evenly_spaced(exclusive_[right_]);
    s_.rows = s_.is_transposed ? evenly_spaced(exclusive_[1 - right_]) : exclusive_[1 - right_];
    return merge_limits(&s_.rows);
  }

  /// Contractions of floats over rows and columns of known number.
  bool can_turn() const {
    for (const Product& p : s_.products)
      if (dot_of(p.factors[0], p.factors[1], target_, 1)) return false;
    for (const auto& side : exclusive_) {
      if (side.empty()) return false;
      for (const Node* r : side)
        if (!r->src[0]->is_const()) return false;
    }
    return true;
  }

  bool same_sides(const Node* a, const Node* b) const {
    for (const Node* r : kernel_.ranges) {
      const bool in_a = contains(exclusive_[0], r), in_b = contains(exclusive_[1], r);
      const bool in_both = !in_a && !in_b;
      if (model_.depends(a, r) != (in_a || in_both)) return false;
      if (model_.depends(b, r) != (in_b || in_both)) return false;
    }
    return true;
  }

  int contiguous_side() {
    for (int side = 0; side < 2; ++side)
      for (const Node* r : exclusive_[side])
        if (Strides(r, 0).stride(kernel_.stores[0].index) == 1 && CostModel::trip_count(r) > 1)
          return side;
    return -1;
  }

  static double trip_count(const std::vector<const Node*>& ranges) {
    double product = 1;
    for (const Node* r : ranges) product *= CostModel::trip_count(r);
    return product;
  }

  double lane_count() const {
    return static_cast<double>(target_.vector_bits) / 8 /
           static_cast<double>(item_size(s_.products[0].reduce->dtype));
  }

  /// The loops of a side that the results are evenly spaced along when they are one loop; others
  /// are done one after the other.
  std::vector<const Node*> evenly_spaced(std::vector<const Node*> side) {
    // The loop with the smallest step in the result is the innermost.
    const auto step = [&](const Node* r) {
      const auto s = Strides(r, 0).stride(kernel_.stores[0].index);
      return s ? std::abs(*s) : INT64_MAX;
    };
    std::stable_sort(side.begin(), side.end(),
                     [&](const Node* a, const Node* b) { return step(a) > step(b); });
    std::vector<const Node*> merged{side.back()};
    side.pop_back();
    while (!side.empty() && merged[0]->src[0]->is_const() && merges(side.back(), merged[0])) {
      merged.insert(merged.begin(), side.back());
      side.pop_back();
    }
    s_.batch.insert(s_.batch.end(), side.begin(), side.end());
    return merged;
  }

  bool merges(const Node* outer, const Node* inner) const {
    for (const ir::Store& s : kernel_.stores) {
      const auto step = Strides(inner, 0).stride(s.index),
                 outer_step = Strides(outer, 0).stride(s.index);
      if (!step || !outer_step || *outer_step != *step * inner->src[0]->imm) return false;
    }
    return true;
  }

  /// Only the outermost of merged loops may have a symbolic extent.
  bool merge_limits(std::vector<const Node*>* ranges) {
    std::stable_partition(ranges->begin(), ranges->end(),
                          [](const Node* r) { return !r->src[0]->is_const(); });
    for (size_t i = 1; i < ranges->size(); ++i)
      if (!(*ranges)[i]->src[0]->is_const()) return false;
    int symbolic = 0;
    for (const Node* r : s_.batch) symbolic += !r->src[0]->is_const();
    return symbolic <= 1;
  }

  double k_of(const Product& p) const {
    double k = 1;
    for (size_t i = 1; i < p.reduce->src.size(); ++i) k *= CostModel::trip_count(p.reduce->src[i]);
    return k;
  }

  bool is_worth_it() {
    const double rows = trip_count(s_.rows), columns = trip_count(s_.columns);
    double work = 0;
    for (const Product& p : s_.products) {
      if (k_of(p) < kLeastK) return false;
      work += k_of(p) * rows * columns * trip_count(s_.batch);
    }
    s_.is_skinny = rows < kLeastRows;
    if (s_.is_skinny && s_.is_transposed) return false;
    if (s_.rows.size() > 1 && s_.is_skinny) return false;
    for (const Node* r : s_.rows) s_.is_skinny = s_.is_skinny && r->src[0]->is_const();
    if (s_.is_skinny && is_int(s_.products[0].reduce->dtype)) return false;
    return (rows >= kLeastRows || s_.is_skinny) && columns >= lane_count() &&
           work >= kLeastProducts;
  }

  const ir::KernelIr& kernel_;
  const TargetInfo& target_;
  CostModel model_;
  std::vector<const Node*> exclusive_[2];
  int right_ = 1;
  GemmMatch s_;
};

}  // namespace

std::optional<PanelDot> dot_of(const Node* left, const Node* right, const TargetInfo& target,
                               uint32_t lanes) {
  if (left->op != Op::kCast || right->op != Op::kCast) return std::nullopt;
  const DType a = left->src[0]->dtype, b = right->src[0]->dtype;
  const auto is_byte = [](DType t) { return t == DType::kU8 || t == DType::kI8; };
  if (left->dtype == DType::kI32 && is_byte(a) && is_byte(b))
    return PanelDot{DotKind::kU8S8, b == DType::kI8, a == b};
  if (left->dtype != DType::kF32 || a != DType::kBF16 || b != DType::kBF16) return std::nullopt;
  const bool is_native = std::any_of(target.dots.begin(), target.dots.end(), [&](const DotInfo& d) {
    return d.kind == DotKind::kBF16BF16 && d.bits == lanes * 32;
  });
  if (!is_native) return std::nullopt;
  return PanelDot{DotKind::kBF16BF16, true, false};
}

std::optional<GemmMatch> match_gemm(const ir::KernelIr& kernel, const TargetInfo& target,
                                    ScheduleLimits limits, bool is_transposed) {
  return SideFinder(kernel, target, limits, is_transposed).run();
}

}  // namespace bm::compiler
