#include "tests/unit/compiler/census.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "compiler/program/program.h"
#include "compiler/schedules/attention/attention_plan.h"
#include "compiler/schedules/gemm_cpu/gemm_plan.h"
#include "compiler/schedules/schedule.h"

namespace bm::test {
namespace {

using compiler::AxisPlan;
using compiler::PackedGemmPlan;
using compiler::PanelCopy;
using compiler::PanelProduct;
using compiler::Program;
using compiler::Schedule;
using compiler::Value;
using compiler::ValueOp;

struct Kernel {
  const Schedule& s;
  const Program& p;

  bool is_plain() const { return !s.panels() && !s.attention() && s.dots.empty() && s.block == 0; }
  bool has_loop(bool (*is)(const AxisPlan&)) const {
    return std::any_of(s.loops.begin(), s.loops.end(), is);
  }
  bool has_value(ValueOp op) const {
    return std::any_of(p.values.begin(), p.values.end(),
                       [&](const Value& v) { return v.op == op && v.type.dtype != DType::kBool; });
  }
  bool has_prefetch() const {
    for (const compiler::Block& b : p.blocks)
      for (const compiler::Stmt& stmt : b.stmts)
        if (stmt.kind == compiler::StmtKind::kPrefetch) return true;
    return false;
  }
  const PackedGemmPlan* panels() const {
    return s.panels() && !s.panels()->is_skinny ? s.panels() : nullptr;
  }
  bool has_product(bool (*is)(const PanelProduct&)) const {
    return panels() && std::any_of(panels()->products.begin(), panels()->products.end(), is);
  }
  bool copies(PanelCopy copy) const {
    if (!panels()) return false;
    for (const PanelProduct& product : panels()->products)
      if (!product.reads_b_in_place && product.right_copy == copy) return true;
    return false;
  }
  uint32_t scan_lanes(bool is_along) const {
    uint32_t lanes = 1;
    for (const AxisPlan& a : s.loops)
      if (s.scan && (a.range == s.scan) == is_along) lanes = std::max(lanes, a.lanes);
    return lanes;
  }
};

bool is_cut(const ir::Node* extent, int64_t step) {
  return !extent->is_const() || extent->imm % step != 0;
}

bool ends_in_a_word(const PanelProduct& p) {
  return p.dot && is_cut(p.right_k[0]->src[0], p.pack());
}

/// What a name needs of the target; kLuck: a model of processor that few machines are.
enum class Needs : uint8_t { kCpu, kMasks, kGroups, kMatrix, kLuck };

struct Row {
  std::string_view name;
  Needs needs;
  bool (*is_in)(const Kernel&);
};

constexpr std::array kRows = {
    Row{"lanes along an output loop", Needs::kCpu,
        [](const Kernel& k) {
          return k.is_plain() && k.has_loop([](const AxisPlan& a) { return a.lanes > 1; });
        }},
    Row{"lanes, the last ones masked", Needs::kMasks,
        [](const Kernel& k) {
          return k.has_loop([](const AxisPlan& a) { return a.is_masked && a.lanes > 1; });
        }},
    Row{"unroll-and-jam", Needs::kCpu,
        [](const Kernel& k) {
          return k.is_plain() && k.has_loop([](const AxisPlan& a) { return a.jam > 1; });
        }},
    Row{"lanes along a reduction", Needs::kCpu,
        [](const Kernel& k) {
          return std::any_of(k.s.reduces.begin(), k.s.reduces.end(),
                             [](const auto& r) { return r.second.lanes > 1; });
        }},
    Row{"several accumulators", Needs::kCpu,
        [](const Kernel& k) {
          return std::any_of(k.s.reduces.begin(), k.s.reduces.end(),
                             [](const auto& r) { return r.second.unroll > 1; });
        }},
    Row{"row cache", Needs::kCpu, [](const Kernel& k) { return !k.s.row_caches.empty(); }},
    Row{"several loops in the grid", Needs::kCpu,
        [](const Kernel& k) { return k.is_plain() && k.s.grid_loops > 1; }},
    Row{"several iterations per block", Needs::kCpu,
        [](const Kernel& k) { return k.is_plain() && k.s.grid_loops > 0 && k.s.chunk > 1; }},
    Row{"non-temporal stores", Needs::kCpu, [](const Kernel& k) { return !k.s.streams.empty(); }},
    Row{"prefetches", Needs::kCpu, [](const Kernel& k) { return k.has_prefetch(); }},
    Row{"squares transposed in registers", Needs::kCpu,
        [](const Kernel& k) { return k.is_plain() && k.has_value(ValueOp::kInterleave); }},
    Row{"transposition in tiles", Needs::kCpu,
        [](const Kernel& k) { return k.has_loop([](const AxisPlan& a) { return a.tile > 0; }); }},
    Row{"every other element", Needs::kMasks,
        [](const Kernel& k) { return k.is_plain() && k.has_value(ValueOp::kDeinterleave); }},
    Row{"backwards", Needs::kCpu, [](const Kernel& k) { return k.has_value(ValueOp::kReverse); }},
    Row{"scan in lanes", Needs::kCpu, [](const Kernel& k) { return k.scan_lanes(true) > 1; }},
    Row{"scans, one per lane", Needs::kCpu,
        [](const Kernel& k) { return k.scan_lanes(false) > 1; }},
    Row{"scan, one by one", Needs::kCpu,
        [](const Kernel& k) {
          return k.s.scan && k.scan_lanes(true) == 1 && k.scan_lanes(false) == 1;
        }},
    Row{"top-k", Needs::kCpu, [](const Kernel& k) { return k.s.top_k != nullptr; }},
    Row{"int8 dot products", Needs::kCpu, [](const Kernel& k) { return !k.s.dots.empty(); }},
    Row{"int8 dot products, a tile of vectors", Needs::kCpu,
        [](const Kernel& k) { return !k.s.dots.empty() && k.s.loops.back().jam > 1; }},
    Row{"attention", Needs::kCpu, [](const Kernel& k) { return k.s.attention() != nullptr; }},
    Row{"attention, masked keys", Needs::kCpu,
        [](const Kernel& k) { return k.s.attention() && k.s.attention()->parts.causal_bound; }},
    Row{"attention, logits at the causal bound", Needs::kCpu,
        [](const Kernel& k) { return k.s.attention() && k.s.attention()->parts.edge_logit; }},
    Row{"attention, queries transposed in registers", Needs::kCpu,
        [](const Kernel& k) {
          return k.s.attention() && k.s.attention()->is_transposed_in_registers;
        }},
    Row{"attention, several blocks of keys", Needs::kCpu,
        [](const Kernel& k) {
          return k.s.attention() &&
                 k.s.attention()->parts.key->src[0]->hi > k.s.attention()->key_block;
        }},
    Row{"attention, several blocks of queries", Needs::kCpu,
        [](const Kernel& k) {
          return k.s.attention() &&
                 k.s.attention()->parts.row->src[0]->hi > k.s.attention()->row_block;
        }},
    Row{"packed GEMM", Needs::kCpu, [](const Kernel& k) { return k.panels() != nullptr; }},
    Row{"packed GEMM, N tail", Needs::kCpu,
        [](const Kernel& k) {
          return k.panels() && is_cut(k.panels()->column->src[0], k.panels()->tile_columns());
        }},
    Row{"packed GEMM, M tail", Needs::kCpu,
        [](const Kernel& k) {
          return k.panels() && k.panels()->row && is_cut(k.panels()->row->src[0], k.panels()->rows);
        }},
    Row{"packed GEMM, several blocks of N", Needs::kCpu,
        [](const Kernel& k) {
          return k.panels() && k.panels()->column->src[0]->hi > k.panels()->column_block;
        }},
    Row{"packed GEMM, several blocks of K", Needs::kCpu,
        [](const Kernel& k) {
          return k.has_product([](const PanelProduct& p) { return !p.is_single; });
        }},
    Row{"packed GEMM, transposed", Needs::kCpu,
        [](const Kernel& k) { return k.panels() && k.panels()->is_transposed; }},
    Row{"packed GEMM, transposed, packed line by line", Needs::kCpu,
        [](const Kernel& k) {
          return k.has_product([](const PanelProduct& p) { return p.line_outer != nullptr; });
        }},
    Row{"packed GEMM, transposed, M tail", Needs::kCpu,
        [](const Kernel& k) {
          return k.panels() && k.panels()->is_transposed &&
                 is_cut(k.panels()->row->src[0], k.panels()->lanes);
        }},
    Row{"packed GEMM, several loops of K", Needs::kCpu,
        [](const Kernel& k) {
          return k.has_product([](const PanelProduct& p) { return p.right_k.size() > 1; });
        }},
    Row{"packed GEMM, several contractions", Needs::kCpu,
        [](const Kernel& k) { return k.panels() && k.panels()->products.size() > 1; }},
    Row{"packed GEMM, batches", Needs::kCpu,
        [](const Kernel& k) { return k.panels() && !k.panels()->batch.empty(); }},
    Row{"several streams of memory", Needs::kCpu,
        [](const Kernel& k) {
          if (!k.is_plain() || k.s.loops.size() != 1 || k.s.streams.empty()) return false;
          const AxisPlan& axis = k.s.loops[0];
          return k.s.grid_loops == 1 && axis.jam > 1 && k.s.reduces.empty() &&
                 !is_cut(axis.range->src[0], axis.step()) &&
                 (k.s.chunk * axis.step() >= axis.range->src[0]->imm ||
                  !is_cut(axis.range->src[0], k.s.chunk * axis.step()));
        }},
    Row{"packed GEMM, packed on the fly", Needs::kCpu,
        [](const Kernel& k) {
          return k.has_product([](const PanelProduct& p) { return p.packs_b_on_the_fly; });
        }},
    Row{"packed GEMM, A in place", Needs::kCpu,
        [](const Kernel& k) { return k.panels() && k.panels()->reads_a_in_place; }},
    Row{"packed GEMM, B in place", Needs::kCpu,
        [](const Kernel& k) {
          return k.has_product([](const PanelProduct& p) { return p.reads_b_in_place; });
        }},
    Row{"packed GEMM, B streamed in place", Needs::kCpu,
        [](const Kernel& k) { return k.panels() && k.panels()->reads_b_once; }},
    Row{"packed GEMM, packed in vectors", Needs::kCpu,
        [](const Kernel& k) { return k.copies(PanelCopy::kVectors); }},
    Row{"packed GEMM, packed transposed", Needs::kCpu,
        [](const Kernel& k) { return k.copies(PanelCopy::kTransposed); }},
    Row{"packed GEMM, packed one by one", Needs::kCpu,
        [](const Kernel& k) { return k.copies(PanelCopy::kSingle); }},
    Row{"packed GEMM of words", Needs::kCpu,
        [](const Kernel& k) {
          return k.has_product([](const PanelProduct& p) { return p.dot.has_value(); });
        }},
    Row{"packed GEMM of words, signs flipped", Needs::kCpu,
        [](const Kernel& k) {
          return k.has_product([](const PanelProduct& p) { return p.dot && p.dot->flips_left; });
        }},
    Row{"packed GEMM of words, K tail", Needs::kCpu,
        [](const Kernel& k) { return k.has_product(ends_in_a_word); }},
    Row{"packed GEMM of words, bfloat16", Needs::kLuck,
        [](const Kernel& k) {
          return k.has_product([](const PanelProduct& p) {
            return p.dot && p.dot->kind == compiler::DotKind::kBF16BF16;
          });
        }},
    Row{"GEMV, accumulators in workspace", Needs::kCpu,
        [](const Kernel& k) { return k.s.panels() && k.s.panels()->is_skinny; }},
    Row{"work-groups", Needs::kGroups, [](const Kernel& k) { return k.s.block > 0; }},
    Row{"reduction shared by a group", Needs::kGroups,
        [](const Kernel& k) {
          return std::any_of(k.s.reduces.begin(), k.s.reduces.end(),
                             [](const auto& r) { return r.second.is_shared; });
        }},
    Row{"SIMT GEMM through shared memory", Needs::kGroups,
        [](const Kernel& k) { return k.s.staged() != nullptr; }},
    Row{"split-K over the work-items of a group", Needs::kGroups,
        [](const Kernel& k) { return k.s.split_k() != nullptr; }},
    Row{"MMA", Needs::kMatrix, [](const Kernel& k) { return k.s.matrix() != nullptr; }},
};

bool can(const Row& row, const compiler::TargetInfo& target) {
  switch (row.needs) {
    case Needs::kCpu: return !target.has_groups;
    case Needs::kMasks: return target.has_masks;
    case Needs::kGroups: return target.has_groups;
    case Needs::kMatrix: return !target.matrix.empty();
    case Needs::kLuck: return false;
  }
  __builtin_unreachable();
}

}  // namespace

std::vector<std::string_view> schedules_of(const Schedule& schedule, const Program& program) {
  std::vector<std::string_view> names;
  for (const Row& row : kRows)
    if (row.is_in({schedule, program})) names.push_back(row.name);
  return names;
}

std::vector<std::string_view> schedules_for(const compiler::TargetInfo& target) {
  std::vector<std::string_view> names;
  for (const Row& row : kRows)
    if (can(row, target)) names.push_back(row.name);
  return names;
}

void Census::see(const Schedule& schedule, const Program& program) {
  for (const std::string_view name : schedules_of(schedule, program)) add(name, 1);
}

void Census::add(const Census& other) {
  for (const auto& [name, count] : other.counts_) counts_[name] += count;
}

uint64_t Census::count(std::string_view name) const {
  const auto it = counts_.find(name);
  return it == counts_.end() ? 0 : it->second;
}

std::string Census::text() const {
  std::vector<std::pair<uint64_t, std::string_view>> order;
  for (const auto& [name, count] : counts_) order.emplace_back(count, name);
  std::sort(order.begin(), order.end(), std::greater<>());
  std::string out;
  for (const auto& [count, name] : order) out += fmt::format("{:>8} {}\n", count, name);
  return out;
}

}  // namespace bm::test
