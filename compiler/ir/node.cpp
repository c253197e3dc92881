#include "compiler/ir/node.h"

#include <algorithm>
#include <array>
#include <unordered_set>

namespace bm::ir {
namespace {

constexpr std::array<std::string_view, kNumOps> kNames = {
    "const", "var",  "range", "load", "reduce", "scan",   "least", "neg",     "recip",
    "sqrt",  "exp2", "log2",  "sin",  "trunc",  "not",    "cast",  "bitcast", "add",
    "sub",   "mul",  "div",   "mod",  "max",    "min",    "and",   "or",      "xor",
    "shl",   "shr",  "lt",    "eq",   "ne",     "select", "fma"};

}  // namespace

std::string_view op_name(Op op) { return kNames[static_cast<size_t>(op)]; }

std::string_view reduce_op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kProd: return "prod";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kMin: return "min";
  }
  return "?";
}

std::vector<const Node*> topological(std::span<const Node* const> roots) {
  std::vector<const Node*> order;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> stack;
  for (const Node* root : roots)
    if (root && seen.insert(root).second) stack.push_back(root);
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    order.push_back(n);
    for (const Node* s : n->src)
      if (seen.insert(s).second) stack.push_back(s);
  }
  // Ids grow from sources to users, so sorting by id is a topological order.
  std::sort(order.begin(), order.end(), [](const Node* a, const Node* b) { return a->id < b->id; });
  return order;
}

}  // namespace bm::ir
