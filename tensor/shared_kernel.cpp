#include "tensor/shared_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "compiler/ir/linear.h"
#include "runtime/base/half.h"

namespace bm {
namespace {

using ir::Node;
using ir::Op;

/// Offsets are moved in steps that no alignment a kernel relies on notices.
constexpr int64_t kStepBytes = 256;
/// More variables than this and launches would cost what compiling saves.
constexpr size_t kMostConstants = 8;

bool takes_numbers(Op op) {
  return op == Op::kAdd || op == Op::kSub || op == Op::kMul || op == Op::kFma;
}

bool is_ordinary(const Node* n) {
  if (!n->is_const() || n->dtype != DType::kF32) return false;
  const double v = n->fimm();
  return std::isfinite(v) && v != 0 && std::abs(v) != 1;
}

class Sharer {
 public:
  Sharer(ir::KernelIr& kernel, bool moves) : kernel_(kernel), moves_(moves) {}

  KernelConstants run() {
    out_.first.assign(kernel_.params.size(), 0);
    find();
    for (size_t p = 0; moves_ && p < kernel_.params.size(); ++p) move_param(p);
    if (!constants_.empty() || has_moved_ || (fills() && !is_plain_fill()))
      rebuild_all();
    else if (fills())
      fill_with_variable();
    return std::move(out_);
  }

 private:
  /// Whether all that the kernel does is store one number; of the two of bool each has a kernel.
  bool fills() const {
    return kernel_.stores.size() == 1 && kernel_.stores[0].value->is_const() &&
           kernel_.stores[0].value->dtype != DType::kBool;
  }

  /// A fill of one range from its first element: no operation in it whose operands have an order.
  bool is_plain_fill() const {
    const ir::Store& store = kernel_.stores[0];
    return kernel_.graph && store.index->op == Op::kRange && !store.gate;
  }

  /// Most eager fills: as rebuild_all, for less than a quarter of its time.
  void fill_with_variable() {
    ir::Store& store = kernel_.stores[0];
    add_variable(*kernel_.graph, store.value);
    store.value = variable_.at(store.value);
  }

  std::vector<const Node*> order() const {
    std::vector<const Node*> roots = kernel_.ranges;
    for (const ir::Store& s : kernel_.stores) {
      roots.push_back(s.index);
      roots.push_back(s.value);
      if (s.gate) roots.push_back(s.gate);
    }
    return ir::topological(roots);
  }

  void find() {
    lowest_.assign(kernel_.params.size(), std::numeric_limits<int64_t>::max());
    highest_.assign(kernel_.params.size(), -1);
    is_gated_.assign(kernel_.params.size(), false);
    bool has_powers = false, has_reduces = false;
    for (const Node* n : order()) {
      has_powers = has_powers || n->op == Op::kExp2;
      has_reduces = has_reduces || n->op == Op::kReduce;
      if (n->op == Op::kLoad) note_load(*n);
      if (!takes_numbers(n->op)) continue;
      for (const Node* s : n->src)
        if (is_ordinary(s) && constants_.size() < kMostConstants) constants_.insert(s);
    }
    // Schedules of attention must see that what its scores are multiplied with is positive.
    if (has_powers && has_reduces) constants_.clear();
  }

  void note_load(const Node& load) {
    const auto p = static_cast<size_t>(load.imm);
    if (load.src.size() > 1) is_gated_[p] = true;
    const ir::Linear at = ir::linear(load.src[0]);
    lowest_[p] = std::min(lowest_[p], std::max(at.lower(), load.src[0]->lo));
    highest_[p] = std::max(highest_[p], std::min(at.upper(), load.src[0]->hi));
  }

  /// What lies before the first and behind the last element read is none of the kernel's business.
  void move_param(size_t p) {
    ir::Param& param = kernel_.params[p];
    if (param.is_written || is_gated_[p] || highest_[p] < 0) return;
    const int64_t step = kStepBytes / item_size(param.dtype);
    const int64_t first = std::max<int64_t>(lowest_[p], 0) / step * step;
    has_moved_ = has_moved_ || first > 0;
    out_.first[p] = first;
    param.elements = highest_[p] + 1 - first;
  }

  /// In a new graph: operands are ordered by age, which must not depend on what was moved.
  void rebuild_all() {
    auto graph = std::make_unique<ir::Graph>();
    for (const Node* n : order()) done_[n] = rebuild(*graph, n);
    for (const Node*& r : kernel_.ranges) r = done_.at(r);
    if (fills()) add_variable(*graph, kernel_.stores[0].value);
    for (ir::Store& s : kernel_.stores) {
      const auto variable = fills() ? variable_.find(s.value) : variable_.end();
      s.value = variable != variable_.end() ? variable->second : done_.at(s.value);
      s.index = done_.at(s.index);
      if (s.gate) s.gate = done_.at(s.gate);
    }
    kernel_.graph = std::move(graph);
  }

  const Node* rebuild(ir::Graph& g, const Node* n) {
    if (constants_.contains(n)) add_variable(g, n);
    std::vector<const Node*> sources;
    for (const Node* s : n->src) {
      const auto variable = takes_numbers(n->op) ? variable_.find(s) : variable_.end();
      sources.push_back(variable != variable_.end() ? variable->second : done_.at(s));
    }
    const int64_t first = n->op == Op::kLoad ? out_.first[static_cast<size_t>(n->imm)] : 0;
    if (first != 0) sources[0] = g.add(sources[0], -first);
    return g.remake(*n, sources);
  }

  /// A variable that holds the constant's bits, in the least integer type that has as many.
  void add_variable(ir::Graph& g, const Node* constant) {
    const DType t = constant->dtype;
    const DType bits = !is_float(t)        ? t
                       : item_size(t) == 2 ? DType::kI16
                       : item_size(t) == 4 ? DType::kI32
                                           : DType::kI64;
    const bool is_wide = item_size(t) == 8;
    const int64_t least =
        is_wide ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int32_t>::min();
    // One range for all: the kernel must not depend on the number.
    const int64_t most = is_wide            ? std::numeric_limits<int64_t>::max()
                         : t == DType::kU32 ? int64_t{std::numeric_limits<uint32_t>::max()}
                                            : int64_t{std::numeric_limits<int32_t>::max()};
    const auto number = static_cast<int>(kernel_.vars.size());
    kernel_.vars.push_back({.name = kConstantName, .min = least, .max = most});
    out_.values.push_back(bits_of(*constant));
    const Node* word = g.cast(g.var(number, least, most), bits);
    variable_[constant] = g.bitcast(word, t);
  }

  static int64_t bits_of(const Node& constant) {
    switch (constant.dtype) {
      case DType::kF16:
        return static_cast<int16_t>(f32_to_f16(static_cast<float>(constant.fimm())));
      case DType::kBF16:
        return static_cast<int16_t>(f32_to_bf16(static_cast<float>(constant.fimm())));
      case DType::kF32: return std::bit_cast<int32_t>(static_cast<float>(constant.fimm()));
      case DType::kF64: return std::bit_cast<int64_t>(constant.fimm());
      default: return constant.imm;
    }
  }

  ir::KernelIr& kernel_;
  const bool moves_;
  KernelConstants out_;
  std::unordered_set<const Node*> constants_;
  std::vector<int64_t> lowest_, highest_;
  std::vector<bool> is_gated_;
  bool has_moved_ = false;
  std::unordered_map<const Node*, const Node*> variable_, done_;
};

}  // namespace

KernelConstants share_kernel(ir::KernelIr& kernel, bool moves) {
  return Sharer(kernel, moves).run();
}

}  // namespace bm
