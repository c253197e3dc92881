#pragma once
// Unroll-and-jam: which loops around the heaviest reduction have iterations merged, so that what
// these share is loaded once.

#include <optional>
#include <vector>

#include "compiler/analysis/cost.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

/// Merged bodies beyond this many nodes cost more to compile than they save.
inline constexpr double kMaxMergedNodes = 500;

/// Looks for the tile with the fewest cycles per result.
class TileSearch {
 public:
  /// All three outlive the search; `schedule` holds loops and plans of reductions.
  TileSearch(CostModel& model, const TargetInfo& target, const LaneChoice& lanes,
             Schedule& schedule)
      : model_(model), target_(target), lanes_(lanes), s_(schedule) {}

  /// Sets the `jam` of up to two loops, if that pays.
  void choose();
  /// `cost` of an output iteration, scaled by what merging iterations saves of the heaviest
  /// reduction.
  double predict(double cost);

  /// Whether a loop of the reduction itself runs in lanes.
  bool own_lanes(const ir::Node* reduce) const;
  /// Vector registers for one value of the kernel's widest type.
  double registers_per_value(uint32_t lanes) const;

 private:
  /// One way to merge iterations of loops around the heaviest reduction.
  struct Tile {
    size_t first = 0, second = 0;  // positions in Schedule::loops
    uint32_t first_jam = 1, second_jam = 1;
    double cost = 0;
  };
  /// Instances of the nodes of a reduction body under a tile.
  struct TileCounts {
    double work = 0, vector_loads = 0, scalar_loads = 0, nodes = 0;
    double far_rows = 0;  // groups of adjacent vectors that are in a new page on every iteration
    double kept = 0;      // loads that stay in registers while the other axis runs
  };
  using Body = std::vector<const ir::Node*>;

  const ir::Node* heaviest_reduce() const;
  uint32_t lanes_of(const ir::Node* reduce) const;
  void consider(const ir::Node* reduce, const Body& body, size_t first, size_t second,
                std::optional<Tile>* best);
  bool shares(const Body& body, size_t loop, uint32_t jam) const;
  std::optional<double> coverage(size_t loop, uint32_t jam) const;
  bool is_far(const ir::Node* reduce, const ir::Node* load);
  TileCounts count(const ir::Node* reduce, const Body& body, const Tile& t);
  std::optional<double> tile_cost(const ir::Node* reduce, const Body& body, const Tile& t);

  CostModel& model_;
  const TargetInfo& target_;
  const LaneChoice& lanes_;
  Schedule& s_;
};

}  // namespace bm::compiler
