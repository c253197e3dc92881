#include "runtime/planner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/base/bits.h"

namespace bm::runtime {
namespace {

constexpr uint64_t kGranule = 256;
constexpr uint32_t kMostPools = 65'536;

struct Item {
  size_t buffer = 0;            ///< index in the input
  uint64_t size = 0;            ///< rounded
  uint64_t begin = 0, end = 0;  ///< call indices [begin, end)
};

struct Placed {
  uint64_t offset = 0, end = 0;
  uint64_t begin_use = 0, end_use = 0;
};

tl::unexpected<Error> too_large(const Item& item) {
  return fail(Code::kOutOfMemory, "buffer {} of {} bytes does not fit a 64-bit arena", item.buffer,
              item.size);
}

Result<Item> item_of(const PlanBuffer& buffer, size_t index) {
  if (buffer.first_use > buffer.last_use || buffer.pool >= kMostPools)
    return fail(Code::kInvalidArgument, "buffer {}: uses {}..{}, pool {}", index, buffer.first_use,
                buffer.last_use, buffer.pool);
  const std::optional<uint64_t> size =
      checked_align_up(std::max<uint64_t>(buffer.size, 1), kGranule);
  if (!size) return too_large({.buffer = index, .size = buffer.size});
  const uint64_t length = uint64_t{buffer.last_use} - buffer.first_use + 1;
  return Item{index, *size, buffer.first_use,
              buffer.first_use + (buffer.is_copied ? 2 * length : length)};
}

/// The smallest gap between placed buffers alive at the same time that holds `item`, else behind
/// the last of them. `placed` is sorted by offset.
std::optional<uint64_t> best_gap(const std::vector<Placed>& placed, const Item& item) {
  uint64_t top = 0, best = 0, best_room = UINT64_MAX;
  bool is_found = false;
  for (const Placed& other : placed) {
    if (other.begin_use >= item.end || other.end_use <= item.begin) continue;
    if (other.offset > top) {
      const uint64_t room = other.offset - top;
      if (room >= item.size && room < best_room) {
        best = top;
        best_room = room;
        is_found = true;
      }
    }
    top = std::max(top, other.end);
  }
  if (is_found) return best;
  return checked_add(top, item.size) ? std::optional(top) : std::nullopt;
}

/// Items put down one after the other, each in the best gap between those before it.
class Placement {
 public:
  /// `fixed`, sorted by offset, lies there already.
  explicit Placement(std::vector<Placed> fixed) : fixed_(std::move(fixed)) {}

  /// Where the last byte ends; offsets() are those of this call, by position in `items`.
  Result<uint64_t> place(std::span<const Item> items, const std::vector<uint32_t>& order) {
    placed_ = fixed_;
    offsets_.resize(items.size());
    uint64_t arena = 0;
    for (const uint32_t i : order) {
      const Item& item = items[i];
      const std::optional<uint64_t> offset = best_gap(placed_, item);
      if (!offset) return too_large(item);
      const Placed entry{*offset, *offset + item.size, item.begin, item.end};
      placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), entry, is_lower), entry);
      offsets_[i] = *offset;
      arena = std::max(arena, entry.end);
    }
    return arena;
  }
  const std::vector<uint64_t>& offsets() const { return offsets_; }
  static bool is_lower(const Placed& a, const Placed& b) { return a.offset < b.offset; }

 private:
  std::vector<Placed> fixed_, placed_;
  std::vector<uint64_t> offsets_;
};

/// Most bytes alive at once, which no arena is smaller than; nothing past 2^64.
std::optional<uint64_t> peak_of(const std::vector<Item>& items) {
  std::vector<std::pair<uint64_t, size_t>> begins, ends;
  for (size_t i = 0; i < items.size(); ++i) {
    begins.emplace_back(items[i].begin, i);
    ends.emplace_back(items[i].end, i);
  }
  std::sort(begins.begin(), begins.end());
  std::sort(ends.begin(), ends.end());
  uint64_t alive = 0, peak = 0;
  size_t ended = 0;
  for (const auto& [at, i] : begins) {
    for (; ends[ended].first <= at; ++ended) alive -= items[ends[ended].second].size;
    const std::optional<uint64_t> sum = checked_add(alive, items[i].size);
    if (!sum) return std::nullopt;
    alive = *sum;
    peak = std::max(peak, alive);
  }
  return peak;
}

using Order = std::vector<uint32_t>;

/// Orders to try: largest first (big buffers settle at the bottom and small ones fill the gaps they
/// leave over time), by size times lifetime, longest lifetime first, in call order.
std::vector<Order> orders_of(std::span<const Item> items) {
  const auto size = [&](uint32_t i) { return items[i].size; };
  const auto length = [&](uint32_t i) { return items[i].end - items[i].begin; };
  const auto area = [&](uint32_t i) {
    return static_cast<double>(size(i)) * static_cast<double>(length(i));
  };
  Order calls(items.size());
  std::iota(calls.begin(), calls.end(), 0u);
  std::vector<Order> orders(4, calls);
  const auto sort = [&](Order& order, auto&& is_before) {
    std::stable_sort(order.begin(), order.end(), is_before);
  };
  sort(orders[0], [&](uint32_t a, uint32_t b) { return size(a) > size(b); });
  sort(orders[1], [&](uint32_t a, uint32_t b) { return area(a) > area(b); });
  sort(orders[2], [&](uint32_t a, uint32_t b) {
    return std::pair(length(a), size(a)) > std::pair(length(b), size(b));
  });
  sort(orders[3], [&](uint32_t a, uint32_t b) {
    return items[a].begin != items[b].begin ? items[a].begin < items[b].begin : size(a) > size(b);
  });
  return orders;
}

/// Moves those of `order` that `is_late` names `stride` positions to the front.
template <class F>
void advance(Order& order, size_t stride, F&& is_late) {
  for (size_t i = 1; i < order.size(); ++i) {
    if (!is_late(order[i])) continue;
    const auto at = order.begin() + static_cast<std::ptrdiff_t>(i);
    std::rotate(at - static_cast<std::ptrdiff_t>(std::min(stride, i)), at, at + 1);
  }
}

/// Offsets of `items`, of several orders' the ones with the smallest arena. Where none reaches
/// `goal`, what ended up above it is put down earlier, round after round: it had found its place
/// taken. `steps`: comparisons that all of it may cost.
Result<std::vector<uint64_t>> place_best(std::span<const Item> items, std::vector<Placed> fixed,
                                         uint64_t goal, uint64_t steps) {
  constexpr uint64_t kMostRounds = 200;  // of each order; hardly any program gains after these
  const uint64_t per_round = std::max<uint64_t>(items.size() * (items.size() + fixed.size()), 1);
  Placement placement(std::move(fixed));
  std::vector<uint64_t> best;
  uint64_t least = UINT64_MAX;
  std::vector<Order> orders = orders_of(items);
  uint64_t left = std::max<uint64_t>(steps / per_round, orders.size());
  for (uint64_t round = 0; round < kMostRounds; ++round) {
    for (size_t k = 0; k < orders.size(); ++k) {
      if (left == 0 || (!best.empty() && least <= goal)) return best;
      --left;
      const uint64_t arena = BM_TRY(placement.place(items, orders[k]));
      const std::vector<uint64_t>& at = placement.offsets();
      if (best.empty() || arena < least) {
        least = arena;
        best = at;
      }
      // Not to the front at once, which would only change who is in the way; and not by the same
      // stride each round, which may come back to where it started.
      const size_t stride = 1 + items.size() / (size_t{4} << (round % 4));
      advance(orders[k], stride, [&](uint32_t i) { return at[i] + items[i].size > goal; });
    }
  }
  return best;
}

/// A pool's items, many of them in windows of call order one after the other, since placing takes
/// quadratic time.
Status place_pool(std::vector<Item> items, Plan& plan, uint64_t& arena) {
  constexpr size_t kWindow = 1024;
  constexpr size_t kMostAtOnce = 4096;
  constexpr uint64_t kMostSteps = 30'000'000;  // comparisons: some ten milliseconds
  const std::optional<uint64_t> peak = peak_of(items);
  const uint64_t goal = peak.value_or(UINT64_MAX);
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.begin < b.begin; });
  const size_t window = items.size() <= kMostAtOnce ? items.size() : kWindow;
  std::vector<Placed> alive;
  for (size_t first = 0; first < items.size(); first += window) {
    const std::span part =
        std::span<const Item>(items).subspan(first).first(std::min(window, items.size() - first));
    std::erase_if(alive, [&](const Placed& p) { return p.end_use <= part[0].begin; });
    const std::vector<uint64_t> offsets =
        BM_TRY(place_best(part, alive, goal, kMostSteps * part.size() / items.size()));
    for (size_t i = 0; i < part.size(); ++i) {
      const Item& item = part[i];
      plan.offsets[item.buffer] = offsets[i];
      arena = std::max(arena, offsets[i] + item.size);
      const Placed entry{offsets[i], offsets[i] + item.size, item.begin, item.end};
      alive.insert(std::upper_bound(alive.begin(), alive.end(), entry, Placement::is_lower), entry);
    }
  }
  return {};
}

}  // namespace

Result<Plan> plan_memory(std::span<const PlanBuffer> buffers) {
  std::vector<std::vector<Item>> pools;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Item item = BM_TRY(item_of(buffers[i], i));
    if (buffers[i].pool >= pools.size()) pools.resize(buffers[i].pool + 1);
    pools[buffers[i].pool].push_back(item);
  }
  Plan plan{std::vector<uint64_t>(buffers.size()), std::vector<uint64_t>(pools.size())};
  for (size_t pool = 0; pool < pools.size(); ++pool)
    BM_TRY(place_pool(std::move(pools[pool]), plan, plan.arena_sizes[pool]));
  return plan;
}

}  // namespace bm::runtime
