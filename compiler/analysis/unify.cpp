#include "compiler/analysis/unify.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;
using Ranges = std::vector<const Node*>;  // sorted by id

class Unifier {
 public:
  explicit Unifier(ir::KernelIr* kernel) : kernel_(*kernel), g_(*kernel->graph) {}

  void run() {
    if (!is_row_kernel()) return;
    // Reductions take loops of the output or of reductions before them, so that all that go over
    // one row end with the loops of the first.
    Ranges known(kernel_.ranges);
    while (const Node* old = next()) {
      const Node* fresh = renamed(old, known);
      done_.insert(fresh);
      for (const Node* r : fresh->src.subspan(1))
        if (std::find(known.begin(), known.end(), r) == known.end()) known.push_back(r);
      if (fresh == old) continue;
      for (ir::Store& s : kernel_.stores)
        s.value = g_.substitute(s.value, std::array{old}, std::array{fresh});
    }
  }

 private:
  const Ranges& free_of(const Node* n) {
    if (const auto it = free_.find(n); it != free_.end()) return it->second;
    for (const Node* m : ir::topological(std::array{n})) {
      if (free_.contains(m)) continue;
      Ranges set;
      if (m->op == Op::kRange) set.push_back(m);
      for (size_t i = 0; i < m->src.size(); ++i) {
        if (m->op == Op::kReduce && i > 0) continue;
        Ranges both;
        const Ranges& other = free_.at(m->src[i]);
        std::set_union(set.begin(), set.end(), other.begin(), other.end(), std::back_inserter(both),
                       [](const Node* a, const Node* b) { return a->id < b->id; });
        set = std::move(both);
      }
      if (m->op == Op::kReduce)
        std::erase_if(set, [&](const Node* r) {
          return std::find(m->src.begin() + 1, m->src.end(), r) != m->src.end();
        });
      free_[m] = std::move(set);
    }
    return free_.at(n);
  }

  bool is_free(const Node* n, const Node* range) {
    const Ranges& set = free_of(n);
    return std::find(set.begin(), set.end(), range) != set.end();
  }

  /// Sources first: every change makes new nodes of what uses it. nullptr: all are done.
  const Node* next() const {
    for (const Node* n : reduces())
      if (!done_.contains(n)) return n;
    return nullptr;
  }

  Ranges reduces() const {
    Ranges out;
    for (const Node* n : ir::topological(roots()))
      if (n->op == Op::kReduce) out.push_back(n);
    return out;
  }

  /// Some reduction has one value for many iterations, of output loops or of a reduction around it.
  bool is_row_kernel() {
    const Ranges all = reduces();
    for (const Node* n : all) {
      for (const Node* r : kernel_.ranges)
        if (!is_free(n, r)) return true;
      for (const Node* outer : all)
        for (const Node* m : ir::topological(std::array{outer->src[0]}))
          if (m == n && std::none_of(outer->src.begin() + 1, outer->src.end(),
                                     [&](const Node* r) { return is_free(n, r); }))
            return true;
    }
    return false;
  }

  /// The reduction over other ranges of the kernel, if that makes some of its values ones that the
  /// kernel has already.
  const Node* renamed(const Node* reduce, const Ranges& known) {
    Ranges ranges(reduce->src.begin() + 1, reduce->src.end());
    const Node* value = reduce->src[0];
    for (const Node*& own : ranges)
      for (const Node* r : known) {
        if (r == own || r->src[0] != own->src[0] || is_free(value, r) ||
            is_captured(value, own, r) ||
            std::find(ranges.begin(), ranges.end(), r) != ranges.end())
          continue;
        const Node* other = with(value, own, r);
        // With several ranges, the first alone need not lead to anything known.
        if (ranges.size() == 1 && !is_shared(other, r)) continue;
        value = other;
        own = r;
        break;
      }
    return g_.reduce(reduce->reduce_op(), value, ranges);
  }

  /// `value` with `r` for `own` where it is free. A reduction inside that has `own` as a loop of
  /// its own keeps it: with `r` for it there as well, two loops could become one.
  const Node* with(const Node* value, const Node* own, const Node* r) {
    std::unordered_map<const Node*, const Node*> map{{own, r}};
    std::vector<const Node*> sources;
    for (const Node* n : ir::topological(std::array{value})) {
      if (n == own) continue;
      if (!is_free(n, own)) {
        map[n] = n;
        continue;
      }
      sources.clear();
      for (const Node* s : n->src) sources.push_back(map.at(s));
      map[n] = g_.remake(*n, sources);
    }
    return map.at(value);
  }

  std::vector<const Node*> roots() const {
    std::vector<const Node*> out;
    for (const ir::Store& s : kernel_.stores) out.push_back(s.value);
    return out;
  }

  /// Whether the kernel uses something of `value` that varies with `r`, besides indices.
  bool is_shared(const Node* value, const Node* r) {
    const auto used = ir::topological(roots());
    for (const Node* n : ir::topological(std::array{value}))
      if ((n->op == Op::kLoad || n->dtype != DType::kI64) && is_free(n, r) &&
          std::find(used.begin(), used.end(), n) != used.end())
        return true;
    return false;
  }

  /// Whether a reduction inside `value` that depends on `own` has `r` as a loop of its own.
  bool is_captured(const Node* value, const Node* own, const Node* r) {
    for (const Node* m : ir::topological(std::array{value}))
      if (m->op == Op::kReduce && is_free(m, own) &&
          std::find(m->src.begin() + 1, m->src.end(), r) != m->src.end())
        return true;
    return false;
  }

  ir::KernelIr& kernel_;
  ir::Graph& g_;
  std::unordered_map<const Node*, Ranges> free_;
  std::unordered_set<const Node*> done_;
};

}  // namespace

void unify_ranges(ir::KernelIr* kernel) { Unifier(kernel).run(); }

}  // namespace bm::compiler
