#include "compiler/ir/node.h"

#include <algorithm>
#include <array>
#include <unordered_set>

namespace bm::ir {
namespace {

constexpr std::array<std::string_view, kNumOps> kNames = {
    "const", "var",  "range", "load", "reduce", "scan",   "top_k", "neg",     "recip",
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
  // Most kernels are small, and every eager operation asks several times: a set allocates per node.
  constexpr size_t kFew = 32;
  std::vector<const Node*> order;
  order.reserve(kFew);
  std::unordered_set<const Node*> seen;  // all of `order` once there are more than a few
  const auto add = [&](const Node* n) {
    if (order.size() < kFew) {
      if (std::find(order.begin(), order.end(), n) != order.end()) return;
    } else {
      if (seen.empty()) seen.insert(order.begin(), order.end());
      if (!seen.insert(n).second) return;
    }
    order.push_back(n);
  };
  for (const Node* root : roots)
    if (root) add(root);
  for (size_t i = 0; i < order.size(); ++i)
    for (const Node* s : order[i]->src) add(s);
  // Ids grow from sources to users, so sorting by id is a topological order.
  std::sort(order.begin(), order.end(), [](const Node* a, const Node* b) { return a->id < b->id; });
  return order;
}

}  // namespace bm::ir
