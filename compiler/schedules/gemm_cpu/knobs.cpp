// Register tiles and cache blocks of packed GEMM as choices of the tuner.
#include "compiler/schedules/gemm_cpu/knobs.h"

#include <algorithm>
#include <array>
#include <bit>

#include "compiler/tune/candidates.h"

namespace bm::compiler {
namespace {

/// Edges of panels are made for tiles of up to so many vectors.
constexpr int64_t kMostVectors = 4, kMostRows = 16;
/// What is packed of a block may take so many private caches.
constexpr int64_t kMostCaches = 4;
/// Shares of the registers that accumulators of a tile worth trying fill at least: one in so many.
constexpr int64_t kLeastShare = 3;

bool fits(const TargetInfo& target, TileShape t) {
  return t.rows >= 1 && t.rows <= kMostRows && t.vectors >= 1 && t.vectors <= kMostVectors &&
         t.rows * t.vectors + t.vectors + 1 <= int64_t{target.vector_registers};
}

class TileCandidates {
 public:
  TileCandidates(const TargetInfo& target, const Knobs& from) : target_(target), from_(from) {}

  std::vector<Knobs> panels(const PackedGemmPlan& plan) {
    add({{"plain", 1}});
    tiles({plan.rows, plan.vectors}, plan.is_skinny);
    sizes("ctiles", plan.column_block / plan.tile_columns());
    if (plan.is_skinny) {
      for (const int64_t unroll : {2, 4, 8, 16}) add({{"unroll", unroll}});
      return std::move(out_);
    }
    sizes("rtiles", plan.row_block / plan.rows);
    add({{"transposed", plan.is_transposed ? 0 : 1}});
    for (const int64_t kc : {128, 256, 384, 512, 768, 1024}) add({{"kc", kc}});
    return std::move(out_);
  }

  std::vector<Knobs> dots() {
    add({{"plain", 1}});
    tiles({}, false);
    for (const int64_t blocks : {1, 2, 4, 8, 16, 32}) add({{"blocks", blocks}});
    return std::move(out_);
  }

 private:
  void tiles(TileShape now, bool has_rows) {
    for (int64_t vectors = 1; vectors <= kMostVectors; ++vectors) {
      if (has_rows) {
        add({{"tvectors", vectors}});
        continue;
      }
      for (const int64_t rows : {1, 2, 3, 4, 6, 8, 10, 12, 14, 16}) {
        const bool is_small =
            rows * vectors * kLeastShare < int64_t{target_.vector_registers} && rows != now.rows;
        if (fits(target_, {rows, vectors}) && !is_small)
          add({{"trows", rows}, {"tvectors", vectors}});
      }
    }
  }

  void sizes(const char* name, int64_t now) {
    for (const int64_t n : {now / 4, now / 2, now - 1, now + 1, now * 2, now * 4})
      if (n >= 1 && n <= 1024) add({{name, n}});
  }

  void add(const std::vector<std::pair<std::string, int64_t>>& changes) {
    Knobs next = from_;
    for (const auto& [name, value] : changes) next.values[name] = value;
    if (next != from_) out_.push_back(std::move(next));
  }

  const TargetInfo& target_;
  const Knobs& from_;
  std::vector<Knobs> out_;
};

}  // namespace

TileShape tile_of(const Knobs* knobs, const TargetInfo& target, TileShape chosen) {
  if (!knobs) return chosen;
  const TileShape asked{knobs->get("trows").value_or(chosen.rows),
                        knobs->get("tvectors").value_or(chosen.vectors)};
  return fits(target, asked) ? asked : chosen;
}

int64_t kc_of(const Knobs* knobs, int64_t chosen) {
  return knobs ? knobs->get("kc").value_or(chosen) : chosen;
}

void set_blocks(const Knobs* knobs, const TargetInfo& target, PackedGemmPlan* plan) {
  if (!knobs) return;
  const int64_t rows = plan->row_block, columns = plan->column_block;
  if (const auto tiles = knobs->get("rtiles"); tiles && !plan->is_skinny)
    plan->row_block = *tiles * plan->rows;
  if (const auto tiles = knobs->get("ctiles")) plan->column_block = *tiles * plan->tile_columns();
  if (const auto unroll = knobs->get("unroll"); unroll && plan->is_skinny)
    plan->k_unroll = std::bit_floor(static_cast<uint32_t>(*unroll));
  int64_t deepest = plan->row_block;
  for (const PanelProduct& p : plan->products) deepest = std::max(deepest, p.k_block());
  const int64_t bytes = plan->column_block * deepest * item_size(plan->products[0].reduce->dtype);
  if (bytes <= kMostCaches * static_cast<int64_t>(target.l2_bytes)) return;
  plan->row_block = rows;
  plan->column_block = columns;
}

std::vector<Knobs> tile_candidates(const ir::KernelIr&, const TargetInfo& target, const Schedule& s,
                                   const Knobs& from) {
  TileCandidates candidates(target, from);
  return s.panels() ? candidates.panels(*s.panels()) : candidates.dots();
}

}  // namespace bm::compiler
