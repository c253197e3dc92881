// Software prefetch: long rows are split into several concurrent streams, and what is read soon is
// prefetched.
#include <algorithm>
#include <cstdlib>

#include "compiler/lowering/prefetch.h"
#include "compiler/program/expr.h"

namespace bm::compiler {
namespace {

/// Bytes between rows from which a loop over rows prefetches them, and how far ahead.
constexpr int64_t kFarRow = 512;
constexpr int64_t kPrefetchCycles = 200;
/// Prefetch distance of a stream.
constexpr int64_t kStreamBytes = 4096;
/// Streams up to here end before the hardware's prefetchers follow them.
constexpr int64_t kShortRow = 4096;
/// Parts of a row are pages where L1 holds at least so many of them.
constexpr uint64_t kPartsOfCache = 8;

}  // namespace

/// Whether every accumulator goes through a part of the row: what comes from memory comes faster in
/// several streams, each of pages of its own, than in one.
bool Prefetch::splits_row(const ReducePlan& plan, std::span<const Node* const> reduces,
                          const Node* range, int64_t part) const {
  if (plan.unroll < 2 || !plan.vector_range || b_.target().has_groups) return false;
  if (!schedule_.dots.empty() || e_.is_ordered()) return false;
  const TargetInfo& t = b_.target();
  const auto least = std::min<uint64_t>(t.page_bytes, t.l1_bytes / kPartsOfCache);
  // Stores into workspace between loads from parts a page apart would look like stores to the same
  // address: processors compare the lower bits.
  for (const RowCachePlan& stage : schedule_.row_caches)
    if (std::ranges::find(reduces, stage.producer) != reduces.end()) return false;
  for (const Node* reduce : reduces) {
    for (const Node* load : e_.body_loads(reduce))
      if (is_from_memory(load) && Strides(range, 0).stride(load->src[0]) == 1 &&
          part * item_size(load->dtype) >= static_cast<int64_t>(least))
        return true;
  }
  return false;
}

/// Whether it is of more than a core's caches hold.
bool Prefetch::is_from_memory(const Node* load) const {
  const ir::Param& p = kernel_.params[static_cast<size_t>(load->imm)];
  const auto bytes = static_cast<uint64_t>(p.elements * item_size(p.dtype));
  return bytes > b_.target().l2_bytes;
}

/// Of a kernel that reads a row from memory, again from a cache, and stores a row: the load whose
/// next row is prefetched half by the second pass and half by the one that stores. Memory is then
/// busy in both.
const Node* Prefetch::split_row() {
  if (split_row_) return *split_row_;
  split_row_ = nullptr;
  const AxisPlan* last = schedule_.loops.empty() ? nullptr : &schedule_.loops.back();
  if (!last || schedule_.loops.size() <= schedule_.grid_loops || last->lanes < 2 || last->tile > 0)
    return nullptr;
  for (const Node* reduce : e_.reduces()) {
    const auto plan = schedule_.reduces.find(reduce);
    if (plan == schedule_.reduces.end() || plan->second.unroll % 2 != 0) continue;
    const Node* range = plan->second.vector_range;
    const Node* extent = range ? range->src[0] : nullptr;
    if (!extent || !extent->is_const() || last->range->src[0] != extent ||
        extent->imm % (int64_t{plan->second.lanes} * plan->second.unroll) != 0 ||
        extent->imm % (2 * last->step()) != 0 || reduce->src.size() != 2 ||
        !splits_row(plan->second, {&reduce, 1}, range, extent->imm / plan->second.unroll))
      continue;
    for (const Node* load : e_.body_loads(reduce))
      if (is_from_memory(load) && is_read_again(reduce, load) && row_of(load, true) &&
          e_.strides(e_.number_of(range), 0).stride(load->src[0]) == 1) {
        split_range_ = range;
        split_row_ = load;
        return load;
      }
  }
  return nullptr;
}

/// The output loop from row to row of `load`, if these are worth asking for, and what is between
/// the rows of two iterations, in elements.
std::optional<int64_t> Prefetch::row_of(const Node* load, bool is_again) {
  for (const AxisPlan& axis : schedule_.loops) {
    if ((axis.jam == 1 && !is_again) || axis.lanes > 1) continue;
    const std::optional<int64_t> row = e_.strides(e_.number_of(axis.range), 0).stride(load->src[0]);
    const int64_t apart = row ? std::abs(*row) * item_size(load->dtype) : 0;
    if (apart < kFarRow || (apart > kShortRow && !is_again)) continue;
    return *row * axis.jam;
  }
  return std::nullopt;
}

/// The half of the next row that its own passes leave, as the last loop goes by.
void Prefetch::next_row_half(size_t axis, BlockId body, const Env& env, ValueId index) {
  if (axis + 1 != schedule_.loops.size() || b_.target().has_groups) return;
  const Node* load = split_row();
  if (!load) return;
  const int64_t half = split_range_->src[0]->imm / 2;
  const int64_t line = b_.target().cache_line_bytes / item_size(load->dtype);
  const Expr at = (Expr(b_, index) >> 1) + half;
  const auto step = schedule_.loops.back().step() / 2;
  for (int64_t i = 0; i < step; i += line) {
    const uint32_t binding = e_.make_bindings(b_.add(at, b_.index(i)), body, 0, 1, 0);
    const ValueId element = e_.emit(load->src[0], e_.bound(env, split_range_, binding));
    b_.prefetch(body, static_cast<int>(load->imm), b_.add(element, b_.index(*row_of(load, true))));
  }
}

/// Whether a loop reads whole cache lines one after another, of more than caches hold.
bool Prefetch::is_stream(const Node* load, int64_t apart) const {
  const ir::Param& p = kernel_.params[static_cast<size_t>(load->imm)];
  const auto bytes = static_cast<uint64_t>(p.elements * item_size(p.dtype));
  return apart == int64_t{b_.target().cache_line_bytes} && bytes > b_.target().l1_bytes;
}

/// Loops that step from row to row outrun the hardware's prefetchers: rows ahead are prefetched.
void Prefetch::rows_ahead(const ReduceState& s, BlockId body, const Node* range, uint32_t binding) {
  const auto per_iteration = static_cast<int64_t>(s.members());
  const int64_t distance = std::clamp<int64_t>(kPrefetchCycles * 2 / per_iteration, 4, 64);
  const uint32_t number = e_.number_of(range);
  std::vector<std::pair<int64_t, ValueId>> seen;
  std::vector<ValueId> rows;
  for (size_t m = 0; m < s.members(); ++m) {
    const Env env = e_.bound(s.env(m), range, binding);
    for (const Node* load : e_.body_loads(s.reduce(m))) {
      const std::optional<int64_t> stride = e_.strides(number, 0).stride(load->src[0]);
      const int64_t apart = stride ? std::abs(*stride) * item_size(load->dtype) : 0;
      if (apart < kFarRow && !is_stream(load, apart)) continue;
      const uint32_t vr = e_.vector_range(e_.dependencies(load), env);
      if (vr == kNone || e_.strides(vr, e_.binding(env[vr]).lanes).stride(load->src[0]) != 1)
        continue;
      Env first = env;
      first[vr] = e_.binding(env[vr]).first_lane;
      // One request per cache line.
      if (e_.binding(env[vr]).offset * item_size(load->dtype) % 64 != 0) continue;
      const ValueId at = e_.emit(load->src[0], first);
      const std::pair<int64_t, ValueId> key{load->imm, at};
      // Rows that several members share are reused from a cache; asking again costs more than it
      // brings.
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) return;
      seen.push_back(key);
      const int64_t ahead = apart < kFarRow ? kStreamBytes / apart : distance;
      rows.push_back(b_.add(at, b_.index(*stride * ahead)));
    }
  }
  for (size_t i = 0; i < rows.size(); ++i)
    b_.prefetch(body, static_cast<int>(seen[i].first), rows[i]);
}

/// Whether a pass before that of `reduce` has loaded the same: the memory idles meanwhile.
bool Prefetch::is_read_again(const Node* reduce, const Node* load) const {
  return std::any_of(e_.reduces().begin(), e_.reduces().end(), [&](const Node* other) {
    const std::vector<const Node*>& loads = e_.body_loads(other);
    return e_.reduce_level(other) < e_.reduce_level(reduce) &&
           std::find(loads.begin(), loads.end(), load) != loads.end();
  });
}

/// Rows of a large matrix that an unrolled and jammed output loop reads at once: each is too short
/// a stream for the hardware's prefetchers, so those of the next iteration are prefetched. So is
/// the next row by a pass that reads one a second time.
void Prefetch::next_rows(const ReduceState& s, BlockId body, const Node* range, uint32_t binding) {
  std::vector<std::pair<int64_t, ValueId>> seen;
  for (size_t m = 0; m < s.members(); ++m) {
    Env first = e_.bound(s.env(m), range, e_.binding(binding).first_lane);
    for (const Node* load : e_.body_loads(s.reduce(m))) {
      const auto stride =
          e_.strides(e_.number_of(range), e_.binding(binding).lanes).stride(load->src[0]);
      if (!is_from_memory(load) || stride != 1) continue;
      const bool is_again = is_read_again(s.reduce(m), load);
      const auto row = row_of(load, is_again);
      if (!row) continue;
      if (split_row() == load && e_.binding(binding).offset >= range->src[0]->imm / 2) continue;
      const ValueId at = e_.emit(load->src[0], first);
      const std::pair<int64_t, ValueId> key{load->imm, at};
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
      seen.push_back(key);
      b_.prefetch(body, static_cast<int>(load->imm), b_.add(at, b_.index(*row)));
    }
  }
}

}  // namespace bm::compiler
