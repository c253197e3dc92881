#pragma once
// Which loops of a kernel are spread over groups and which over their work-items. Private to
// schedule_groups.cpp and schedule_group_costs.cpp.

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "compiler/analysis/cost.h"
#include "compiler/analysis/dot_products.h"
#include "compiler/schedules/groups/segments.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

/// Work-items resident on one compute unit.
inline constexpr double kItemsPerUnit = 1024;
/// Work-items that read adjacent words, where a group shares reductions for as many results.
inline constexpr uint32_t kDotOutputs = 16;
/// Start of a work-item. Costs: time in which each of kItemsPerUnit work-items does one operation.
inline constexpr double kStartCost = 10;
/// Most results that a group does side by side elsewhere: contiguous ones fill cache lines.
inline constexpr uint32_t kMostGroupOutputs = 32;
/// Until a load from memory is there.
inline constexpr double kLoadLatency = 120;
/// Loads of a loop that are on their way at once.
inline constexpr double kLoopLoads = 4;
/// Cost of a load whose adjacent work-items read far apart, against adjacent elements.
inline constexpr double kUncoalesced = 4;
/// Reductions below this many iterations are not worth a barrier.
inline constexpr double kLeastShared = 16;
/// Elements of a dot product's word.
inline constexpr int kWord = 4;

class GroupScheduler {
 public:
  GroupScheduler(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                 ScheduleLimits limits)
      : kernel_(kernel),
        target_(target),
        resident_items_(std::max(units, 1u) * kItemsPerUnit),
        units_(std::max(units, 1u)),
        limits_(limits),
        model_(kernel, target, 1),
        segments_(segment_loop(kernel, target)) {}

  Schedule run();

 private:
  using Node = ir::Node;
  /// A reduction as seen from the output loops.
  struct ReduceFacts {
    const Node* node = nullptr;
    std::vector<bool> outputs;  ///< by output loop: depends on it
    double trip_count = 1;      ///< of its own loops
    double evaluations = 1;     ///< of its body per iteration of those output loops
    bool is_inner = false;      ///< depends on a loop of a reduction around it
    bool is_dot = false;        ///< done in words of four elements
    uint64_t bytes = 4;         ///< of its accumulator
  };

  /// Iterations of a group loop that a group does side by side, see Schedule::group_outputs.
  struct GroupOutputs {
    const Node* loop = nullptr;
    uint32_t width = 1;
    bool is_high = false;
  };
  struct Shape {
    uint32_t block = 1;
    int64_t per_item = 1;      ///< iterations of one work-item
    bool is_single = false;    ///< one group does all iterations of the item loops
    uint32_t unroll = 0;       ///< ReducePlan::item_unroll
    uint32_t item_unroll = 0;  ///< Schedule::item_unroll
    double time = 0;
  };

  void order_loops();
  void find_reductions();
  void find_dot(ReduceFacts* f);
  using Level = std::vector<bool>;  // by loop: spread over groups

  static bool is_within(const Level& part, const Level& whole);
  bool is_symbolic(size_t loop) const { return !loops_[loop]->src[0]->is_const(); }

  void merge_symbolic(Level* level) const;
  void choose_level();
  void choose_side();
  std::vector<GroupOutputs> group_outputs(const Level& level);
  bool has_contiguous(const Level& level, const Node* loop);
  double scattered(const Node* load, const Node* along, int width = 1);
  double body_cost(const ReduceFacts& r, const Node* along);
  double iteration_cost(const ReduceFacts& r, const Node* n, const Node* along);
  const Node* item_loop(const Level& level) const;
  bool is_shared(const ReduceFacts& r, const Level& level) const;
  uint64_t shared_bytes(const Level& level, uint32_t block) const;
  const Node* shared_loop(const ReduceFacts& r, const Level& level) const;
  struct Costs {
    double groups = 1, iterations = 1;       // of the group loops; of the item loops
    double element = 0;                      // per iteration of the item loops
    double partitioned = 0, repeated = 0;    // per group: divided among work-items; done by each
    double waits = 0;                        // for memory, of a work-item per iteration
    double levels = 0;                       // shared reductions
    double trip_count = 1;                   // of the longest of them
    double loads = 0;                        // of the bodies of shared reductions, in one iteration
    double again = 0;                        // loads of the stores' values
    double nodes = 0;                        // operations of one iteration of all passes over a row
    double kept = 0;                         // registers for one iteration's loads
    double load_bytes = 0, store_bytes = 0;  // of one iteration, what several passes load once
    bool is_known = true;                    // iterations are constant
    bool is_stream = true;                   // all shared reductions have streams
    bool has_inner = false;                  // some values are reductions themselves
    bool has_item_loops = false, is_item_known = true;
    uint64_t bytes = 0;  // of shared memory, for one work-item
  };

  Costs costs(const Level& level);
  double time(const Costs& c, const Shape& s) const;
  // schedule_group_rows.cpp: groups that share reductions.
  void add_row_facts(const Level& level, Costs* c);
  uint32_t max_reduce_unroll(const Costs& c, uint32_t block) const;
  bool is_used_again(const Node* load, const ReduceFacts& r);
  bool has_streams(const ReduceFacts& r);
  double memory_time(const Level& level, bool is_plain_known);
  bool choose_unroll(const Costs& c, Shape* s) const;
  double groups_of_unit(const Costs& c, const Shape& s) const;
  double shared_time(const Costs& c, const Shape& s) const;
  Shape best_shape(const Level& level);
  bool is_wanted(const Shape& s) const;
  int64_t max_unroll() const;
  void consider(const Costs& c, Shape s, Shape* best) const;
  void choose_tile();
  std::optional<double> tile_cost(const ReduceFacts& r, size_t x, uint32_t a, size_t y, uint32_t b);
  void share_reductions();
  int64_t count_items(bool* is_const) const;
  void set_launch();
  void choose_contiguous();
  bool add_rows(const ReduceFacts& r);
  uint32_t most_contiguous() const;
  void add_chunks(int64_t most, bool is_const);
  void add_loop(uint32_t loop);
  double most_groups(size_t axis) const;
  bool fit_grid();
  void merge_all();
  const ir::KernelIr& kernel_;
  TargetInfo target_;
  double resident_items_, units_;
  ScheduleLimits limits_;
  CostModel model_;
  const Node* segments_;  // see segments.h; nullptr: none
  Schedule s_;
  std::vector<const Node*> loops_;  // the item loop with adjacent elements last
  std::vector<uint32_t> jams_;      // by loop
  std::vector<ReduceFacts> reduces_;
  std::unordered_map<const Node*, DotPlan> dots_;
  std::vector<InnerDot> found_dots_;
  Level is_group_;
  GroupOutputs outputs_;
  Shape shape_;
  bool is_tiled_ = false;
  size_t axis_ = 0;         // of the grid, being filled
  bool is_closed_ = false;  // nothing may follow on that axis
};

}  // namespace bm::compiler
