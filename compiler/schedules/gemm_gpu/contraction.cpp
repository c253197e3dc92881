// Matches GEMM on GPUs: a contraction of two loads, with its M, N and K loops.
#include "compiler/schedules/gemm_gpu/contraction.h"

#include <algorithm>

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

constexpr int64_t kMostBand = 8;

}  // namespace

bool GemmPlanner::divides(const Node* range, int64_t step) {
  const Node* extent = range->src[0];
  return extent->is_const() && extent->imm > 0 && extent->imm % step == 0;
}

const Node* GemmPlanner::wide_contraction() const {
  if (model_.reduces().size() != 1) return nullptr;
  const Node* reduce = model_.reduces()[0];
  const Node* product = reduce->src[0];
  const bool is_wide = product->dtype == reduce->dtype && !is_half_like(product->dtype) &&
                       item_size(product->dtype) >= 4;
  const bool is_contraction =
      reduce->reduce_op() == ir::ReduceOp::kSum && product->op == Op::kMul && is_wide;
  return is_contraction ? reduce : nullptr;
}

const Node* matrix_factor(const Node* n, DType sum) {
  if (n->op == Op::kCast && n->dtype == sum) n = n->src[0];
  return n->op == Op::kLoad && n->src.size() == 1 ? n : nullptr;
}

std::optional<MatrixProduct> find_matrix_product(const CostModel& model) {
  if (model.reduces().size() != 1) return std::nullopt;
  MatrixProduct out{.reduce = model.reduces()[0]};
  const Node* product = out.reduce->src[0];
  if (out.reduce->reduce_op() != ir::ReduceOp::kSum || product->op != Op::kMul) return std::nullopt;
  for (size_t side = 0; side < 2; ++side)
    out.loads[side] = matrix_factor(product->src[side], out.reduce->dtype);
  if (!out.loads[0] || !out.loads[1] || out.loads[0]->dtype != out.loads[1]->dtype)
    return std::nullopt;
  return out;
}

std::optional<MatrixOperand> matrix_operand(const CostModel& model, const Node* load,
                                            const Node* along, const Node* k, const Node* other) {
  if (!model.depends(load, along) || !model.depends(load, k) || model.depends(load, other))
    return std::nullopt;
  MatrixOperand out{.load = load, .along = along};
  const ir::Linear index = ir::linear(load->src[0]);
  out.is_k_major = is_row(index, k, out.per_load());
  // Bytes of four rows would have to be interleaved.
  if (!out.is_k_major && (item_size(load->dtype) == 1 || !is_row(index, along, out.per_load())))
    return std::nullopt;
  return out;
}

std::optional<Schedule> tile_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                      const Node* m, const Node* n, int64_t tiles) {
  Schedule s;
  s.grid[0].constant = tiles;
  auto most = static_cast<double>(tiles);
  size_t symbolic = 0;
  // Constants first: at most one extent is known at launch only.
  for (const bool is_const : {true, false})
    for (const Node* r : kernel.ranges) {
      if (r == m || r == n || r->src[0]->is_const() != is_const) continue;
      symbolic += !is_const;
      if (symbolic > 1 || !multiply(&s.grid[0], r->src[0], 1)) return std::nullopt;
      most *= static_cast<double>(std::max<int64_t>(r->src[0]->hi, 1));
      s.loops.push_back({.range = r});
    }
  if (most > static_cast<double>(target.max_groups[0])) return std::nullopt;
  s.grid_loops = static_cast<uint32_t>(s.loops.size());
  return s;
}

std::optional<Schedule> matrix_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                        MatrixPlan p) {
  const int64_t rows = p.grid_m(), columns = p.grid_n();
  p.band = kMostBand;
  while (rows % p.band != 0) p.band /= 2;
  auto s = tile_schedule(kernel, target, p.left.along, p.right.along, rows * columns);
  if (!s) return std::nullopt;
  s->block = p.sub_group * p.warps_m * p.warps_n;
  s->work_per_block = static_cast<uint64_t>(p.block_m() * p.block_n() * p.k->src[0]->imm);
  s->plan = p;
  return s;
}

}  // namespace bm::compiler
