#include "runtime/planner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/base/bits.h"
#include "runtime/base/tlsf.h"

namespace bm::runtime {
namespace {

constexpr uint64_t kGranule = 256;
constexpr uint32_t kMostLanes = 65'536;
/// Above this many buffers per lane the quadratic placement gives way to the one in call order.
constexpr size_t kMostBySize = 4096;

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
  if (buffer.first_use > buffer.last_use || buffer.lane >= kMostLanes)
    return fail(Code::kInvalidArgument, "buffer {}: uses {}..{}, lane {}", index, buffer.first_use,
                buffer.last_use, buffer.lane);
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

/// Largest first: big buffers settle at the bottom and small ones fill the gaps they leave over
/// time.
Status place_by_size(std::vector<Item> items, Plan& plan, uint64_t& arena) {
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.size != b.size ? a.size > b.size : a.buffer < b.buffer;
  });
  std::vector<Placed> placed;
  placed.reserve(items.size());
  for (const Item& item : items) {
    const std::optional<uint64_t> offset = best_gap(placed, item);
    if (!offset) return too_large(item);
    const Placed entry{*offset, *offset + item.size, item.begin, item.end};
    const auto by_offset = [](const Placed& a, const Placed& b) { return a.offset < b.offset; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), entry, by_offset), entry);
    plan.offsets[item.buffer] = *offset;
    arena = std::max(arena, entry.end);
  }
  return {};
}

/// In call order through a range allocator: a little larger, but near linear.
Status place_in_order(const std::vector<Item>& items, Plan& plan, uint64_t& arena) {
  uint64_t total = 0;
  for (const Item& item : items) {
    const std::optional<uint64_t> sum = checked_add(total, item.size);
    if (!sum) return too_large(item);
    total = *sum;
  }
  std::vector<size_t> opens(items.size());
  std::iota(opens.begin(), opens.end(), size_t{0});
  std::vector<size_t> closes = opens;
  std::sort(opens.begin(), opens.end(), [&](size_t a, size_t b) {
    return std::pair(items[a].begin, a) < std::pair(items[b].begin, b);
  });
  std::sort(closes.begin(), closes.end(), [&](size_t a, size_t b) {
    return std::pair(items[a].end, a) < std::pair(items[b].end, b);
  });
  // Twice the total: never full for want of a large enough gap.
  const uint64_t range = total > (uint64_t{1} << 62) ? align_down(UINT64_MAX, kGranule) : 2 * total;
  Tlsf ranges = BM_TRY(Tlsf::create(0, range, kGranule));
  size_t closed = 0;
  for (const size_t open : opens) {
    for (; items[closes[closed]].end <= items[open].begin; ++closed)
      BM_TRY(ranges.free(plan.offsets[items[closes[closed]].buffer]));
    const std::optional<uint64_t> offset = ranges.try_allocate(items[open].size);
    if (!offset) return too_large(items[open]);
    plan.offsets[items[open].buffer] = *offset;
    arena = std::max(arena, *offset + items[open].size);
  }
  return {};
}

}  // namespace

Result<Plan> plan_memory(std::span<const PlanBuffer> buffers) {
  std::vector<std::vector<Item>> lanes;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Item item = BM_TRY(item_of(buffers[i], i));
    if (buffers[i].lane >= lanes.size()) lanes.resize(buffers[i].lane + 1);
    lanes[buffers[i].lane].push_back(item);
  }
  Plan plan{std::vector<uint64_t>(buffers.size()), std::vector<uint64_t>(lanes.size())};
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    const bool is_small = lanes[lane].size() <= kMostBySize;
    if (is_small)
      BM_TRY(place_by_size(std::move(lanes[lane]), plan, plan.arena_sizes[lane]));
    else
      BM_TRY(place_in_order(lanes[lane], plan, plan.arena_sizes[lane]));
  }
  return plan;
}

}  // namespace bm::runtime
