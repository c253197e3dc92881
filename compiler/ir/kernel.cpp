#include "compiler/ir/kernel.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "compiler/ir/linear.h"

namespace bm::ir {
namespace {

std::vector<const Node*> roots_of(const KernelIr& k) {
  std::vector<const Node*> roots(k.ranges);
  for (const Store& s : k.stores) {
    roots.push_back(s.index);
    roots.push_back(s.value);
    if (s.gate) roots.push_back(s.gate);
  }
  return roots;
}

double evaluate_extent(const Node* n, std::span<const int64_t> vars) {
  const Linear l = linear(n);
  double sum = static_cast<double>(l.constant);
  for (const Linear::Term& t : l.terms) {
    const double v = t.atom->op == Op::kVar
                         ? static_cast<double>(vars[static_cast<size_t>(t.atom->imm)])
                         : static_cast<double>(t.atom->hi);
    sum += v * static_cast<double>(t.coefficient);
  }
  return std::max(sum, 0.0);
}

bool is_arithmetic(const Node* n) {
  return is_alu(n->op) && n->op != Op::kCast && n->op != Op::kBitcast && n->op != Op::kSelect;
}

using RangeSet = std::vector<const Node*>;  // sorted by id

void merge(RangeSet& into, const RangeSet& from) {
  RangeSet out;
  std::set_union(into.begin(), into.end(), from.begin(), from.end(), std::back_inserter(out),
                 [](const Node* a, const Node* b) { return a->id < b->id; });
  into = std::move(out);
}

bool contains(std::span<const Node* const> list, const Node* n) {
  return std::find(list.begin(), list.end(), n) != list.end();
}

/// Free ranges of every node: those it depends on and that no reduction below it has bound.
std::unordered_map<const Node*, RangeSet> free_ranges(std::span<const Node* const> order) {
  std::unordered_map<const Node*, RangeSet> out;
  for (const Node* n : order) {
    RangeSet set;
    if (n->op == Op::kRange) set.push_back(n);
    const auto bound = n->bound();
    for (const Node* s : n->src)
      if (!contains(bound, s)) merge(set, out[s]);
    std::erase_if(set, [&](const Node* r) { return contains(bound, r); });
    out[n] = std::move(set);
  }
  return out;
}

Status check_node(const KernelIr& k, const Node* n) {
  const auto bad = [&](std::string_view what) {
    return fail(Code::kInternal, "kernel {}: node {} ({}): {}", k.name, n->id, op_name(n->op),
                what);
  };
  const size_t arity = n->src.size();
  switch (n->op) {
    case Op::kConst: return arity == 0 ? Status{} : bad("constant with sources");
    case Op::kVar:
      if (n->imm < 0 || n->imm >= static_cast<int64_t>(k.vars.size()))
        return bad("unknown variable");
      return {};
    case Op::kRange:
      return arity == 1 && n->src[0]->dtype == DType::kI64 ? Status{} : bad("malformed range");
    case Op::kLoad: {
      if (n->imm < 0 || n->imm >= static_cast<int64_t>(k.params.size()))
        return bad("unknown param");
      const Param& p = k.params[static_cast<size_t>(n->imm)];
      if (p.dtype != n->dtype) return bad("dtype differs from its param");
      if (!p.is_read) return bad("load from a param not marked as read");
      if (n->src[0]->dtype != DType::kI64) return bad("index is not int64");
      if (arity == 2 && n->src[1]->dtype != DType::kBool) return bad("gate is not bool");
      if (arity == 1) {
        const Linear l = linear(n->src[0]);
        if (std::max(l.lower(), n->src[0]->lo) < 0 ||
            std::min(l.upper(), n->src[0]->hi) >= p.elements)
          return bad(fmt::format("index in [{}, {}] leaves the {} elements of param {}", l.lower(),
                                 l.upper(), p.elements, n->imm));
      }
      return {};
    }
    case Op::kReduce:
      for (size_t i = 1; i < arity; ++i)
        if (n->src[i]->op != Op::kRange)
          return bad("reduction over something that is no range");
        else if (contains(n->src.subspan(i + 1), n->src[i]))
          return bad("reduction over one loop twice");
      return arity >= 2 ? Status{} : bad("reduction without ranges");
    case Op::kScan:
      if (arity != 2 || !contains(k.ranges, n->src[1])) return bad("scan along no output loop");
      return n->src[0]->dtype == n->dtype ? Status{} : bad("scan changes the dtype");
    case Op::kTopK:
      if (arity != 3 || n->src[1]->op != Op::kRange || contains(k.ranges, n->src[1]))
        return bad("malformed order");
      return n->src[0]->dtype == DType::kI64 && n->src[2]->dtype == DType::kI64
                 ? Status{}
                 : bad("order of something that is no int64");
    case Op::kSelect:
      if (arity != 3 || n->src[0]->dtype != DType::kBool || n->src[1]->dtype != n->src[2]->dtype)
        return bad("malformed select");
      return {};
    default: break;
  }
  if (is_unary(n->op) && arity != 1) return bad("wrong number of operands");
  if (is_binary(n->op)) {
    if (arity != 2) return bad("wrong number of operands");
    if (n->src[0]->dtype != n->src[1]->dtype) return bad("operand dtypes differ");
    if (n->dtype != (is_comparison(n->op) ? DType::kBool : n->src[0]->dtype))
      return bad("result dtype");
  }
  return {};
}

}  // namespace

Status verify(const KernelIr& k) {
  if (k.stores.empty()) return fail(Code::kInternal, "kernel {}: stores nothing", k.name);
  const std::vector<const Node*> roots = roots_of(k);
  const std::vector<const Node*> order = topological(roots);
  std::unordered_set<int64_t> range_ids;
  for (const Node* n : order) {
    BM_TRY(check_node(k, n));
    if (n->op == Op::kRange && !range_ids.insert(n->imm).second)
      return fail(Code::kInternal, "kernel {}: two ranges with id {}", k.name, n->imm);
  }
  const Node* scanned = nullptr;
  bool has_order = false;
  for (const Node* n : order) {
    if (n->op != Op::kReduce && n->op != Op::kScan && n->op != Op::kTopK) continue;
    if (n->op == Op::kScan && (has_order || (scanned && scanned != n->src[1])))
      return fail(Code::kInternal, "kernel {}: a scan beside one along another loop, or an order",
                  k.name);
    if (n->op == Op::kScan) scanned = n->src[1];
    if (n->op == Op::kTopK && (scanned || std::exchange(has_order, true)))
      return fail(Code::kInternal, "kernel {}: an order beside another or a scan", k.name);
    for (const Node* inner : topological(n->src.first(1)))
      if (inner->op == Op::kScan || inner->op == Op::kTopK)
        return fail(Code::kInternal, "kernel {}: {} inside {}", k.name, op_name(inner->op),
                    op_name(n->op));
  }
  auto free = free_ranges(order);
  for (const Store& s : k.stores) {
    if (s.param < 0 || s.param >= static_cast<int>(k.params.size()) ||
        !k.params[static_cast<size_t>(s.param)].is_written)
      return fail(Code::kInternal, "kernel {}: store to param {} which is not written", k.name,
                  s.param);
    const Param& p = k.params[static_cast<size_t>(s.param)];
    if (p.dtype != s.value->dtype)
      return fail(Code::kInternal, "kernel {}: store of {} into {}", k.name,
                  dtype_name(s.value->dtype), dtype_name(p.dtype));
    const Linear l = linear(s.index);
    if (!s.gate &&
        (std::max(l.lower(), s.index->lo) < 0 || std::min(l.upper(), s.index->hi) >= p.elements))
      return fail(Code::kInternal, "kernel {}: store index in [{}, {}] leaves {} elements", k.name,
                  l.lower(), l.upper(), p.elements);
    for (const Node* root : {s.index, s.value, s.gate}) {
      if (!root) continue;
      for (const Node* r : free[root])
        if (std::find(k.ranges.begin(), k.ranges.end(), r) == k.ranges.end())
          return fail(Code::kInternal, "kernel {}: range {} is not bound by a loop or reduction",
                      k.name, r->imm);
    }
  }
  return {};
}

Cost estimate_cost(const KernelIr& k, std::span<const int64_t> vars) {
  Cost cost;
  const std::vector<const Node*> roots = roots_of(k);
  const std::vector<const Node*> order = topological(roots);
  auto free = free_ranges(order);
  // Nodes that compute values, as opposed to addresses.
  std::unordered_set<const Node*> values;
  std::vector<const Node*> stack;
  for (const Store& s : k.stores) stack.push_back(s.value);
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    if (!values.insert(n).second) continue;
    if (n->op == Op::kLoad || n->op == Op::kRange) continue;
    for (size_t i = 0; i < n->src.size(); ++i)
      if (i == 0 || is_alu(n->op)) stack.push_back(n->src[i]);
  }
  const auto iterations = [&](const RangeSet& set) {
    double total = 1;
    for (const Node* r : set) total *= evaluate_extent(r->src[0], vars);
    return total;
  };
  std::vector<double> read(k.params.size(), 0.0);
  for (const Node* n : order) {
    if (!values.count(n)) continue;
    if (n->op == Op::kLoad) {
      const auto p = static_cast<size_t>(n->imm);
      const double touched = iterations(free[n->src[0]]);
      read[p] = std::max(read[p], std::min(touched, static_cast<double>(k.params[p].elements)));
    } else if (n->op == Op::kReduce || n->op == Op::kScan || n->op == Op::kTopK) {
      cost.flops += iterations(free[n->src[0]]);
    } else if (is_arithmetic(n)) {
      cost.flops += iterations(free[n]) * (n->op == Op::kFma ? 2 : 1);
    }
  }
  RangeSet out(k.ranges);
  std::sort(out.begin(), out.end(), [](const Node* a, const Node* b) { return a->id < b->id; });
  for (const Store& s : k.stores)
    cost.bytes += iterations(out) * static_cast<double>(item_size(s.value->dtype));
  for (size_t p = 0; p < read.size(); ++p)
    cost.bytes += read[p] * static_cast<double>(item_size(k.params[p].dtype));
  return cost;
}

std::string to_string(const KernelIr& k) {
  std::string out = fmt::format("kernel {}\n", k.name);
  for (size_t i = 0; i < k.params.size(); ++i)
    out += fmt::format("  param {}: {}[{}]{}{}\n", i, dtype_name(k.params[i].dtype),
                       k.params[i].elements, k.params[i].is_read ? " read" : "",
                       k.params[i].is_written ? " write" : "");
  for (size_t i = 0; i < k.vars.size(); ++i)
    out +=
        fmt::format("  var {}: {} in [{}, {}]\n", i, k.vars[i].name, k.vars[i].min, k.vars[i].max);
  const std::vector<const Node*> roots = roots_of(k);
  for (const Node* n : topological(roots)) {
    out += fmt::format("  %{} = {} {}", n->id, op_name(n->op), dtype_name(n->dtype));
    if (n->op == Op::kReduce || n->op == Op::kScan)
      out += fmt::format(" {}", reduce_op_name(n->reduce_op()));
    else if (n->op == Op::kConst && is_float(n->dtype))
      out += fmt::format(" {}", n->fimm());
    else if (n->op == Op::kConst || n->op == Op::kVar || n->op == Op::kRange || n->op == Op::kLoad)
      out += fmt::format(" #{}", n->imm);
    for (const Node* s : n->src) out += fmt::format(" %{}", s->id);
    if (!is_float(n->dtype) && n->op != Op::kConst && n->dtype == DType::kI64 && n->lo != INT64_MIN)
      out += fmt::format("   ; [{}, {}]", n->lo, n->hi);
    out += '\n';
  }
  out += "  for";
  for (const Node* r : k.ranges) out += fmt::format(" %{}", r->id);
  out += '\n';
  for (const Store& s : k.stores) {
    out += fmt::format("    store param {} [%{}] = %{}", s.param, s.index->id, s.value->id);
    if (s.gate) out += fmt::format(" if %{}", s.gate->id);
    out += '\n';
  }
  return out;
}

}  // namespace bm::ir
