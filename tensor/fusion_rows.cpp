#include "tensor/fusion_rows.h"

#include <algorithm>
#include <set>

namespace bm {
namespace {

/// Nodes looked at before giving up.
constexpr size_t kMaxSteps = 256;
/// A row is read once per pass: two arrays of it fit half of L2.
constexpr uint64_t kArrays = 2, kCacheShare = 2;
/// Rows up to this many elements are not worth a second processor.
constexpr int64_t kShortRow = 1 << 16, kShortRowOfGroup = 1 << 13;
/// Longest row that one group of work-items goes over several times.
constexpr int64_t kLongestRowOfGroup = 1 << 16;

bool is_row_elementwise(const Node& n) {
  return n.kind == NodeKind::kAlu || n.kind == NodeKind::kCast || n.kind == NodeKind::kBitcast ||
         n.kind == NodeKind::kContiguous;
}

Shape without_ones(const Shape& shape) {
  Shape out;
  for (const SymInt& d : shape)
    if (!d.is(1)) out.push_back(d);
  return out;
}

/// Worth one kernel on the device: see RowRules::kernel_of.
bool fits(const Node& per_row, int64_t elements) {
  const hal::Arch& arch = per_row.device->hal().arch();
  const int64_t rows = std::max<int64_t>(max_elements(per_row.shape), 1);
  const int64_t row = elements / rows;
  if (row == 0) return false;
  if (has_work_groups(arch))
    return row <= kLongestRowOfGroup && (row <= kShortRowOfGroup || rows >= arch.units);
  const auto bytes = static_cast<uint64_t>(row * item_size(per_row.dtype));
  if (bytes * kArrays * kCacheShare > arch.l2_bytes) return false;
  return row <= kShortRow || rows >= arch.units;
}

}  // namespace

bool has_work_groups(const hal::Arch& arch) {
  return arch.max_block > 1 || arch.vendor == hal::Vendor::kNv ||
         arch.vendor == hal::Vendor::kOpenCl || arch.name.starts_with("sm_") ||
         arch.name.starts_with("gfx");
}

/// What `user` makes of a value, or nothing if it leaves the rows.
std::optional<RowRules::State> RowRules::step(const Node* user, const State& from,
                                              Walk* walk) const {
  if (is_row_elementwise(*user)) return State{user, from.is_element};
  const Node& n = *from.node;
  switch (user->kind) {
    case NodeKind::kExpand: {
      if (from.is_element) return std::nullopt;
      Rows rows{user->shape, {}};
      for (size_t i = 0; i < n.shape.size(); ++i)
        if (!(n.shape[i] == user->shape[i])) rows.axes.push_back(static_cast<int64_t>(i));
      if (walk->rows && !(*walk->rows == rows)) return std::nullopt;
      walk->rows = std::move(rows);
      return State{user, true};
    }
    case NodeKind::kReduce:
      if (!from.is_element || user->ints != walk->rows->axes) return std::nullopt;
      return State{user, false};
    case NodeKind::kReshape:
      if (from.is_element || without_ones(n.shape) != without_ones(user->shape))
        return std::nullopt;
      return State{user, false};
    default: return std::nullopt;
  }
}

bool RowRules::meet(const Node* sink, Walk* walk) const {
  if (walk->sink && walk->sink != sink) return false;
  walk->sink = sink;
  return true;
}

const Node* RowRules::kernel_of(const Node* n, int64_t reduced) {
  Walk walk;
  std::vector<State> stack{{n, false}};
  std::set<std::pair<const Node*, bool>> seen;
  while (!stack.empty()) {
    const State from = stack.back();
    stack.pop_back();
    if (!seen.emplace(from.node, from.is_element).second) continue;
    if (++walk.steps > kMaxSteps) return nullptr;
    const auto& users = view_.users(from.node);
    if (users.empty()) return nullptr;
    for (const Node* user : users) {
      const std::optional<State> to = step(user, from, &walk);
      if (!to) return nullptr;
      if (!view_.is_stored(user))
        stack.push_back(*to);
      else if (!meet(user, &walk))
        return nullptr;
    }
  }
  if (!walk.sink || !walk.rows) return nullptr;
  if (!fits(*n, std::max(reduced, max_elements(walk.rows->shape)))) return nullptr;
  const auto [known, is_new] = rows_of_.emplace(walk.sink, *walk.rows);
  return is_new || known->second == *walk.rows ? walk.sink : nullptr;
}

}  // namespace bm
