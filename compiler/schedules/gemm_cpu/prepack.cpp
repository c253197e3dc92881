// Weight prepacking: constant operands of GEMM are packed once.
#include "compiler/schedules/gemm_cpu/prepack.h"

#include <array>

#include "compiler/ir/linear.h"
#include "compiler/schedules/gemm_cpu/find.h"

namespace bm::compiler {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;

/// One loop over `loops`, outer to inner.
const Node* merged(Graph& g, std::span<const Node* const> loops) {
  const Node* at = loops[0];
  for (const Node* r : loops.subspan(1)) at = g.add(g.mul(at, r->src[0]->imm), r);
  return at;
}

/// The panels of one operand: [column / tile][k / pack][column % tile][k % pack].
struct Panels {
  int64_t columns = 0, k = 0;  ///< of the operand
  int64_t tile = 1, pack = 1;
  DType dtype = DType::kF32;
  int64_t count() const { return (columns + tile - 1) / tile; }
  int64_t steps() const { return (k + pack - 1) / pack; }
  int64_t elements() const { return count() * steps() * tile * pack; }
  const Node* index(Graph& g, const Node* column, const Node* d) const {
    const Node* line = g.add(g.mul(g.div(column, tile), steps()), g.div(d, pack));
    const Node* word = g.add(g.mul(line, tile), g.mod(column, tile));
    return g.add(g.mul(word, pack), g.mod(d, pack));
  }
};

class Packer {
 public:
  Packer(const ir::KernelIr& kernel, const PackedGemmPlan& plan, const PanelProduct& product,
         const std::vector<bool>& is_constant)
      : kernel_(kernel), plan_(plan), product_(product), is_constant_(is_constant) {}

  std::optional<PackedKernel> run(const GemmMatch& sides, ir::KernelIr copy) {
    if (!find_operand()) return std::nullopt;
    auto pack = make_pack();
    if (!pack || !make_main(sides, &copy)) return std::nullopt;
    return PackedKernel{std::move(*pack), std::move(copy), operand_};
  }

 private:
  /// Elements of one param, in an order that only the columns and K change.
  bool find_operand() {
    const Node* extent = plan_.column->src[0];
    if (!extent->is_const()) return false;
    panels_ = {.columns = extent->imm,
               .k = 1,
               .tile = plan_.tile_columns(),
               .pack = product_.pack(),
               .dtype = product_.right->dtype};
    for (const Node* r : product_.right_k) {
      if (!r->src[0]->is_const()) return false;
      panels_.k *= r->src[0]->imm;
    }
    for (const Node* n : ir::topological({&product_.right, 1})) {
      const bool is_loop = n == plan_.column || contains(product_.right_k, n);
      if ((n->op == Op::kRange && !is_loop) || n->op == Op::kVar || n->op == Op::kReduce)
        return false;
      if (n->op != Op::kLoad) continue;
      for (const Node* inner : ir::topological({&n->src[0], 1}))
        if (inner->op == Op::kLoad) return false;
      if (load_ && load_->imm != n->imm) return false;
      load_ = n;
    }
    if (!load_) return false;
    operand_ = static_cast<int>(load_->imm);
    const ir::Param& param = kernel_.params[static_cast<size_t>(operand_)];
    return is_constant_[static_cast<size_t>(operand_)] && !param.is_written &&
           item_size(panels_.dtype) <= item_size(param.dtype) &&
           panels_.elements() <= 2 * param.elements;
  }

  std::optional<ir::KernelIr> make_pack() {
    Graph& g = *plan_.kernel->graph;
    const Node *panel = g.range(g.index(panels_.count())),
               *step = g.range(g.index(panels_.steps())), *inner = g.range(g.index(panels_.tile));
    const Node* part = panels_.pack > 1 ? g.range(g.index(panels_.pack)) : nullptr;
    const Node* column = g.add(g.mul(panel, panels_.tile), inner);
    const Node* at_k = part ? g.add(g.mul(step, panels_.pack), part) : step;
    std::vector<const Node*> from{plan_.column}, to{column};
    int64_t inside = 1;
    for (size_t i = product_.right_k.size(); i-- > 0;) {
      const Node* r = product_.right_k[i];
      const Node* digit = g.div(at_k, inside);
      from.push_back(r);
      to.push_back(i == 0 ? digit : g.mod(digit, r->src[0]->imm));
      inside *= r->src[0]->imm;
    }
    const Node* gate =
        g.both(g.less(column, g.index(panels_.columns)), g.less(at_k, g.index(panels_.k)));
    const Node* value = gated(g, g.substitute(product_.right, from, to), gate);
    ir::KernelIr k;
    k.params = {{panels_.dtype, panels_.elements(), true, false},
                kernel_.params[static_cast<size_t>(operand_)]};
    k.ranges = {panel, step, inner};
    if (part) k.ranges.push_back(part);
    k.stores.push_back({0, panels_.index(g, column, at_k), value, nullptr});
    auto own = ir::deserialize(ir::serialize(k));
    if (!own) return std::nullopt;
    own->name = "pack_" + kernel_.name;
    return std::move(*own);
  }

  /// Loads of the operand become loads of param 1, and 0 where `gate` is false.
  static const Node* gated(Graph& g, const Node* value, const Node* gate) {
    std::vector<const Node*> from, to;
    for (const Node* n : ir::topological({&value, 1})) {
      if (n->op != Op::kLoad) continue;
      from.push_back(n);
      to.push_back(
          g.load(1, n->dtype, n->src[0], g.both(n->src.size() > 1 ? n->src[1] : nullptr, gate)));
    }
    const Node* loaded = g.substitute(value, from, to);
    // Not every function of 0 is 0.
    const Node* zero = g.constant(value->dtype, 0);
    return value->op == Op::kLoad ? loaded : g.select(gate, loaded, zero);
  }

  bool make_main(const GemmMatch& sides, ir::KernelIr* copy) {
    Graph& g = *copy->graph;
    const Node *reduce = nullptr, *factor = nullptr;
    for (const GemmMatch::Product& p : sides.products)
      for (const Node* f : p.factors) {
        if (!ir::depends_on(f, sides.columns[0]) || !loads_operand(f)) continue;
        if (factor) return false;  // two that cannot be distinguished
        factor = f;
        reduce = p.reduce;
      }
    if (!factor) return false;
    if (product_.dot) factor = factor->src[0];
    copy->params.push_back({panels_.dtype, panels_.elements(), false, true});
    const auto param = static_cast<int>(copy->params.size() - 1);
    const Node* column = merged(g, sides.columns);
    const Node* at_k = merged(g, reduce->src.subspan(1));
    const std::array from{factor};
    const std::array to{g.load(param, panels_.dtype, panels_.index(g, column, at_k))};
    for (ir::Store& s : copy->stores) s.value = g.substitute(s.value, from, to);
    return static_cast<bool>(ir::verify(*copy));
  }

  bool loads_operand(const Node* value) const {
    for (const Node* n : ir::topological({&value, 1}))
      if (n->op == Op::kLoad && n->imm == operand_) return true;
    return false;
  }

  const ir::KernelIr& kernel_;
  const PackedGemmPlan& plan_;
  const PanelProduct& product_;
  const std::vector<bool>& is_constant_;
  const Node* load_ = nullptr;
  int operand_ = 0;
  Panels panels_;
};

/// `is_packed`: by a schedule that is only good when the operand is packed: a transposed one.
std::optional<PackedKernel> pack_right(const ir::KernelIr& kernel, const TargetInfo& target,
                                       uint32_t units, const std::vector<bool>& is_constant,
                                       bool is_packed) {
  const auto schedule =
      make_panel_schedule(kernel, target, units, {.has_skinny = false, .is_packed = is_packed});
  if (!schedule) return std::nullopt;
  const PackedGemmPlan& plan = *schedule->panels();
  if (plan.is_skinny || (plan.products.size() != 1 && !plan.is_transposed)) return std::nullopt;
  if (is_packed ? !plan.is_transposed : !plan.is_packing_b_expensive) return std::nullopt;
  for (const PanelProduct& product : plan.products) {
    if (product.reads_b_in_place || (product.dot && product.dot->flips_left)) continue;
    auto copy = ir::deserialize(ir::serialize(kernel));
    if (!copy) return std::nullopt;
    copy->name = kernel.name;
    copy->vars = kernel.vars;
    const auto sides = match_gemm(*copy, target, {}, plan.is_transposed);
    if (!sides) return std::nullopt;
    Packer packer(kernel, plan, product, is_constant);
    if (auto packed = packer.run(*sides, std::move(*copy))) return packed;
  }
  return std::nullopt;
}

}  // namespace

std::optional<PackedKernel> pack_constants(const ir::KernelIr& kernel, const TargetInfo& target,
                                           uint32_t units, const std::vector<bool>& is_constant) {
  for (const bool is_packed : {true, false})
    if (auto packed = pack_right(kernel, target, units, is_constant, is_packed)) return packed;
  return std::nullopt;
}

}  // namespace bm::compiler
