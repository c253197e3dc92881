// Plans scans (prefix sums) on GPUs: one pass, a group for a line or for some side by side.
#include <algorithm>
#include <bit>
#include <numeric>

#include "compiler/analysis/cost.h"
#include "compiler/lowering/contiguous.h"
#include "compiler/schedules/loops/scan.h"
#include "compiler/schedules/schedule.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Work-items of a group, and fewest where lines are short.
constexpr uint32_t kScanBlock = 256, kLeastScanBlock = 128;
/// Elements of a work-item in one tile: as many registers hold them and their prefixes.
constexpr uint32_t kScanElements = 16;
/// The same where a work-item has elements of adjacent lines' far apart: more of them are on their
/// way.
constexpr uint32_t kColumnElements = 8;
/// Lines side by side whose elements are adjacent: of 32-bit elements, those of a line of cache.
constexpr uint32_t kScanColumns = 32;
/// Longer lines are planned as those of so many elements.
constexpr int64_t kMostLength = 1'000'000;
/// Without exchanges in a sub-group every work-item reads what all others have.
constexpr uint32_t kPlainParts = 64;

class GroupScanScheduler {
 public:
  GroupScanScheduler(const ir::KernelIr& kernel, const TargetInfo& target,
                     const ScheduleLimits& limits)
      : kernel_(kernel), target_(target), limits_(limits), model_(kernel, target, 1) {}

  std::optional<Schedule> run() {
    plan_.along = scan_loop(kernel_);
    if (plan_.along == nullptr) return std::nullopt;
    has_shuffles_ = target_.has_shuffles || target_.has_segments;
    most_ = std::bit_floor(std::min(kScanBlock, target_.max_block));
    if (const auto asked = limits_.knobs ? limits_.knobs->get("block") : std::nullopt)
      most_ = std::min(std::bit_floor(static_cast<uint32_t>(*asked)), most_);
    if (const Node* columns = contiguous_loop(); columns != nullptr && columns != plan_.along)
      choose_columns(columns);
    else
      choose_rows();
    return schedule();
  }

 private:
  /// Along which elements are adjacent in memory.
  const Node* contiguous_loop() {
    for (const ir::Store& s : kernel_.stores)
      for (const Node* r : kernel_.ranges)
        if (CostModel::trip_count(r) > 1 && model_.strides(r, 0).stride(s.index) == 1) return r;
    return nullptr;
  }

  uint32_t length() const {
    const Node* extent = plan_.along->src[0];
    const int64_t most = extent->is_const() ? extent->imm : extent->hi;
    return static_cast<uint32_t>(std::clamp<int64_t>(most, 1, kMostLength));
  }

  void choose_columns(const Node* columns) {
    plan_.beside = columns;
    plan_.is_part_low = false;
    plan_.per_item = kColumnElements;
    plan_.columns = std::min(kScanColumns, most_);
    const uint32_t wanted = std::bit_ceil((length() + plan_.per_item - 1) / plan_.per_item);
    plan_.parts = std::clamp(most_ / plan_.columns, 1u, std::max(wanted, 1u));
  }

  void choose_rows() {
    choose_contiguous();
    const uint32_t parts = has_shuffles_ ? most_ : std::min(kPlainParts, most_);
    const uint32_t items = (length() + plan_.per_item - 1) / plan_.per_item;
    plan_.parts = std::min(std::bit_ceil(items), parts);
    plan_.lanes = has_shuffles_ ? std::min(target_.sub_group, plan_.parts) : 1;
    const uint32_t runs = std::max(kScanElements / plan_.per_item, 1u);
    plan_.runs = std::clamp(std::bit_ceil((items + plan_.parts - 1) / plan_.parts), 1u, runs);
    const uint32_t least = std::min(kLeastScanBlock, most_);
    if (plan_.parts >= least) return;
    // Short lines: several side by side, of the longest loop there is.
    for (const Node* r : kernel_.ranges)
      if (r != plan_.along && r->src[0]->is_const() &&
          (plan_.beside == nullptr || r->src[0]->imm > plan_.beside->src[0]->imm))
        plan_.beside = r;
    if (plan_.beside != nullptr) plan_.columns = least / plan_.parts;
  }

  /// 16 bytes of the narrowest there is where lines can be taken so, else as many single elements.
  void choose_contiguous() {
    std::vector<const Node*> loads = model_.output_loads();
    int64_t narrowest = 8;
    for (const Node* n : loads) narrowest = std::min(narrowest, item_size(n->dtype));
    for (const ir::Store& s : kernel_.stores)
      narrowest = std::min(narrowest, item_size(s.value->dtype));
    plan_.per_item = static_cast<uint32_t>(std::min<int64_t>(16 / narrowest, kScanElements));
    const Node* extent = plan_.along->src[0];
    if (!target_.has_wide_stores || !extent->is_const() ||
        (limits_.knobs && limits_.knobs->get("contiguous") == 0))
      return;
    for (uint32_t count = plan_.per_item; count > 1; count /= 2) {
      contiguous_ = {.count = count, .loads = {}, .params = {}};
      if (extent->imm % count != 0 ||
          !add_contiguous(model_, loads, kernel_.stores, plan_.along, &contiguous_))
        continue;
      plan_.per_item = count;
      return;
    }
    contiguous_ = {};
  }

  std::optional<Schedule> schedule() {
    Schedule s;
    s.block = plan_.parts * plan_.columns;
    s.scan = plan_.along;
    std::vector<uint32_t> order;
    for (const Node* r : kernel_.ranges) {
      if (r == plan_.along) continue;
      const bool is_beside = r == plan_.beside;
      s.loops.push_back({.range = r, .tile = is_beside ? int64_t{plan_.columns} : 0});
    }
    // Those that are innermost first.
    for (size_t i = s.loops.size(); i-- > 0;) order.push_back(static_cast<uint32_t>(i));
    s.grid_loops = static_cast<uint32_t>(s.loops.size());
    s.loops.push_back({.range = plan_.along});
    for (hal::DimExpr& dim : s.grid) dim.constant = 1;
    if (!assign_to_grid(target_, order, &s)) return std::nullopt;
    s.contiguous = contiguous_;
    s.work_per_block =
        static_cast<uint64_t>(length() * plan_.columns * (model_.output_nodes() + 2));
    s.plan = plan_;
    return s;
  }

  const ir::KernelIr& kernel_;
  const TargetInfo& target_;
  const ScheduleLimits& limits_;
  CostModel model_;
  ScanPlan plan_;
  ContiguousPlan contiguous_;
  bool has_shuffles_ = false;
  uint32_t most_ = kScanBlock;
};

}  // namespace

std::optional<Schedule> make_group_scan_schedule(const ir::KernelIr& kernel,
                                                 const TargetInfo& target, uint32_t /*units*/,
                                                 const ScheduleLimits& limits) {
  return GroupScanScheduler(kernel, target, limits).run();
}

}  // namespace bm::compiler
