// Operands of GEMM that need no packing: they are read where they are.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "compiler/analysis/affine.h"
#include "compiler/schedules/gemm_cpu/find.h"

namespace bm::compiler {
namespace {

using ir::Node;

/// Rows of a tile that may begin at the same offset of their pages: a set of L1 holds
/// them with room for more.
constexpr int64_t kRowsOfSet = 8;
/// Up to which B from L2 is not copied.
constexpr int64_t kMostNearSteps = 512, kMostNearRows = 512;
/// Rows that are one tile, of two vectors at least.
constexpr int64_t kMostRowsOnce = 12;
/// Bytes from step to step of K up to which the hardware's prefetchers see one stream.
constexpr int64_t kNearRow = 512;

bool is_plain_right(const PanelProduct& p) {
  return p.right->op == ir::Op::kLoad && p.right->src.size() == 1 &&
         (p.dot ? !p.dot->flips_left : p.right->dtype == p.reduce->dtype) && p.right_k.size() == 1;
}

}  // namespace

bool can_read_left(const PackedGemmPlan& plan, const PanelProduct& p, const TargetInfo& target) {
  const Node* extent = plan.row->src[0];
  const Node* load = p.left;
  const bool is_plain = load->op == ir::Op::kLoad && load->src.size() == 1 &&
                        (p.dot || load->dtype == p.reduce->dtype);
  if (!is_plain || !extent->is_const() || extent->imm < plan.rows) return false;
  const Node* k = p.right_k[0]->src[0];
  const bool has_whole_words =
      k->is_const() && k->imm % p.pack() == 0 && !(p.dot && p.dot->flips_left);
  if (p.dot && !has_whole_words) return false;
  const auto row = Strides(plan.row, 0).stride(load->src[0]);
  if (Strides(p.left_k, 0).stride(load->src[0]) != 1 || !row) return false;
  const int64_t bytes = std::abs(*row) * item_size(load->dtype);
  const int64_t apart = std::gcd(bytes, int64_t{target.page_bytes});
  return apart * plan.rows <= kRowsOfSet * target.page_bytes;
}

bool is_prepacked(const PackedGemmPlan& plan, const PanelProduct& p) {
  const Node* load = p.right;
  if (!is_plain_right(p)) return false;
  const int64_t pack = p.pack(), tile = plan.tile_columns();
  const auto column = Strides(plan.column, tile).stride(load->src[0]);
  const auto k = Strides(p.right_k[0], pack == 1 ? 0 : pack).stride(load->src[0]);
  // A matrix of as many columns as a tile has is in this order by itself.
  if (column != pack || k != (pack == 1 ? tile : 1)) return false;
  // The last tile is read to its end.
  const Node* extent = plan.column->src[0];
  if (!extent->is_const()) return false;
  ir::Graph& g = *plan.kernel->graph;
  const std::array from{plan.column}, to{g.range(g.index((extent->imm + tile - 1) / tile * tile))};
  return g.substitute(load->src[0], from, to)->hi <
         plan.kernel->params[static_cast<size_t>(load->imm)].elements;
}

bool fits_in_l2(const PackedGemmPlan& plan, const PanelProduct& p, const TargetInfo& target) {
  if (plan.is_transposed || p.dot || !plan.row || !is_plain_right(p)) return false;
  const Node *rows = plan.row->src[0], *columns = plan.column->src[0], *k = p.right_k[0]->src[0];
  if (!rows->is_const() || !columns->is_const() || !k->is_const()) return false;
  const int64_t bytes = columns->imm * k->imm * item_size(p.right->dtype);
  return columns->imm % plan.tile_columns() == 0 && k->imm <= kMostNearSteps &&
         rows->imm <= kMostNearRows && bytes <= static_cast<int64_t>(target.l2_bytes) / 4 &&
         Strides(plan.column, plan.tile_columns()).stride(p.right->src[0]) == 1;
}

bool is_read_once(const PackedGemmPlan& plan, const PanelProduct& p) {
  if (plan.is_transposed || p.dot || p.right_copy != PanelCopy::kVectors) return false;
  const Node *columns = plan.column->src[0], *k = p.right_k[0]->src[0];
  if (plan.row && !(plan.row->src[0]->is_const() && plan.row->src[0]->imm <= kMostRowsOnce))
    return false;
  if (p.right_k.size() > 1 || !k->is_const() || !columns->is_const() ||
      columns->imm % plan.lanes != 0)
    return false;
  Strides along(p.right_k[0], 0);
  const std::vector<const Node*> nodes = ir::topological({&p.right, 1});
  return std::ranges::all_of(nodes, [&](const Node* n) {
    if (n->op != ir::Op::kLoad) return true;
    const auto step = along.stride(n->src[0]);
    return step && std::abs(*step) * item_size(n->dtype) <= kNearRow;
  });
}

}  // namespace bm::compiler
