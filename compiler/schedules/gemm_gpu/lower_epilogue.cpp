// Epilogue of the pipelined GEMM: tiles may reach beyond C, and adjacent elements are stored
// together.
#include <algorithm>
#include <unordered_set>

#include "compiler/schedules/gemm_gpu/lowering.h"
#include "compiler/ir/linear.h"

namespace bm::compiler {
namespace {

/// Sums of a work-item that are neighbours in a row.
constexpr uint32_t kPair = 2;

/// Whether `n` loads anything besides what `product` does.
bool has_loads(const Node* n, const Node* product, std::unordered_set<const Node*>* seen) {
  if (n == nullptr || n == product || !seen->insert(n).second) return false;
  return n->op == Op::kLoad ||
         std::ranges::any_of(n->src, [&](const Node* s) { return has_loads(s, product, seen); });
}

}  // namespace

/// Rows and columns of this work-item's sums. Where tiles reach beyond the results and something
/// else is loaded, the last row or column stands for those that are not there.
void PipelinedGemm::bind_results(Tile* tile, BlockId block) {
  std::unordered_set<const Node*> seen;
  const bool must_stay = std::ranges::any_of(e_.kernel().stores, [&](const ir::Store& s) {
    return has_loads(s.value, p_.reduce, &seen) || has_loads(s.gate, p_.reduce, &seen);
  });
  struct Line {
    ValueId base = kNone;
    const Node* range = nullptr;
    bool has_tail = false;
    uint32_t origin = 0;
  };
  const auto bind = [&](Line* line, int64_t offset, std::vector<uint32_t>* bindings,
                        std::vector<ValueId>* gates) {
    const int64_t extent = line->range->src[0]->imm;
    const ValueId index = b_.add(line->base, b_.index(offset));
    if (line->has_tail) gates->push_back(b_.lt(index, b_.index(extent)));
    if (line->has_tail && must_stay) {
      const ValueId inside = b_.select(gates->back(), index, b_.index(extent - 1));
      bindings->push_back(e_.make_bindings(inside, block, 0, 1, 0));
      return;
    }
    bindings->push_back(e_.make_bindings(line->base, block, offset, 1, line->origin));
    line->origin = e_.binding(bindings->back()).origin;
  };
  Line row{b_.add(tile->row, tile->place), p_.left.along,
           p_.left.along->src[0]->imm % p_.block_m() != 0};
  for (uint32_t slot = 0; slot < p_.left.slots; slot += p_.info.left_slots) {
    std::vector<uint32_t>& rows = tile->out_rows.emplace_back();
    std::vector<ValueId>& gates = tile->has_rows.emplace_back();
    for (uint32_t s = 0; s < p_.info.left_slots; ++s)
      bind(&row, int64_t{slot + s} * p_.left.slot, &rows, &gates);
  }
  Line column{b_.add(tile->column, b_.mul(tile->part, b_.index(kPair))), p_.right.along,
              p_.right.along->src[0]->imm % p_.block_n() != 0};
  for (uint32_t slot = 0; slot < p_.right.slots; ++slot) {
    std::vector<uint32_t>& columns = tile->out_columns.emplace_back();
    std::vector<ValueId>& gates = tile->has_columns.emplace_back();
    for (uint32_t e = 0; e < kPair; ++e)
      bind(&column, int64_t{slot} * p_.right.slot + e, &columns, &gates);
  }
}

/// Whether neighbouring columns are neighbours in memory, from an even element on.
bool PipelinedGemm::has_pairs(const ir::Store& store) const {
  const Node* range = p_.right.along;
  if (store.gate || range->src[0]->imm % kPair != 0) return false;
  const ir::Linear index = ir::linear(store.index);
  bool is_unit = false;
  for (const ir::Linear::Term& t : index.terms) {
    if (t.atom == range)
      is_unit = t.coefficient == 1;
    else if (t.coefficient % kPair != 0 || ir::depends_on(t.atom, range))
      return false;
  }
  return is_unit && index.constant % kPair == 0;
}

void PipelinedGemm::store_results(Tile* of, BlockId block, bool is_aligned) {
  // Whatever is computed here stays behind the product, where registers are free again.
  const Memo memo = e_.save();
  const BlockId floor = b_.set_floor(block);
  e_.set_confined(true);
  bind_results(of, block);
  const Tile& tile = *of;
  struct Result {
    Env env;
    ValueId gate = kNone;
  };
  const auto both = [&](ValueId a, ValueId b) {
    if (a == kNone || b == kNone) return a == kNone ? b : a;
    return b_.bit_and(a, b);
  };
  const auto at = [](const std::vector<std::vector<ValueId>>& gates, size_t i, size_t j) {
    return gates[i].empty() ? kNone : gates[i][j];
  };
  std::vector<Result> results;
  for (size_t i = 0; i < tile.out_rows.size(); ++i)
    for (size_t r = 0; r < tile.out_rows[i].size(); ++r)
      for (size_t j = 0; j < tile.out_columns.size(); ++j)
        for (size_t e = 0; e < kPair; ++e) {
          const Env row = e_.bound(tile.env, p_.left.along, tile.out_rows[i][r]);
          const ValueId gate = both(at(tile.has_rows, i, r), at(tile.has_columns, j, e));
          results.push_back({e_.bound(row, p_.right.along, tile.out_columns[j][e]), gate});
          const size_t sum = tile.accumulators[i * p_.right.slots + j] + r * kPair + e;
          e_.set_known(p_.reduce, results.back().env, b_.read(block, static_cast<uint32_t>(sum)));
        }
  Instances instances;
  for (const Result& r : results) instances.push_back(r.env);
  e_.set_instances(&instances);
  const auto is_changed = [](const ir::Param& param) { return param.is_read && param.is_written; };
  // All values before any store: a param may be read and written at the same element.
  if (std::ranges::any_of(e_.kernel().params, is_changed))
    for (const Env& env : instances)
      for (const ir::Store& s : e_.kernel().stores) {
        e_.emit(s.value, env);
        if (s.gate) e_.emit(s.gate, env);
      }
  for (size_t i = 0; i < results.size(); i += kPair)
    for (const ir::Store& s : e_.kernel().stores) {
      const bool is_paired = is_aligned && has_pairs(s);
      for (size_t e = i; e < i + (is_paired ? 1 : kPair); ++e) {
        const ValueId value = e_.emit(s.value, results[e].env);
        const ValueId index = e_.emit(s.index, results[e].env);
        if (is_paired) {
          const ValueId next = e_.emit(s.value, results[e + 1].env);
          b_.store_together(block, s.param, index, {value, next}, results[e].gate);
          continue;
        }
        const ValueId own = s.gate ? e_.emit(s.gate, results[e].env) : kNone;
        b_.store(block, s.param, index, value, both(own, results[e].gate));
      }
    }
  e_.set_instances(nullptr);
  e_.set_confined(false);
  b_.set_floor(floor);
  e_.restore(memo);
}

}  // namespace bm::compiler
