#include "runtime/tracker.h"

#include <algorithm>

namespace bm::runtime {

size_t DependencyTracker::first_ending_after(const Intervals& intervals, uint64_t offset) {
  const auto it = std::partition_point(intervals.begin(), intervals.end(),
                                       [&](const Interval& i) { return i.end <= offset; });
  return static_cast<size_t>(it - intervals.begin());
}

/// Makes `offset` a boundary; returns the index of the first interval at or after it.
size_t DependencyTracker::split(Intervals& intervals, uint64_t offset) {
  const size_t at = first_ending_after(intervals, offset);
  if (at == intervals.size() || intervals[at].begin >= offset) return at;
  Interval tail = intervals[at];
  tail.begin = offset;
  intervals[at].end = offset;
  intervals.insert(intervals.begin() + static_cast<ptrdiff_t>(at) + 1, std::move(tail));
  return at + 1;
}

void DependencyTracker::find(const Intervals& intervals, const Access& access,
                             std::vector<uint32_t>& found) {
  for (size_t i = first_ending_after(intervals, access.begin);
       i < intervals.size() && intervals[i].begin < access.end; ++i) {
    if (intervals[i].writer != kNone) found.push_back(intervals[i].writer);
    if (access.is_written)
      found.insert(found.end(), intervals[i].readers.begin(), intervals[i].readers.end());
  }
}

void DependencyTracker::record_read(Intervals& intervals, uint32_t call, const Access& access) {
  size_t at = split(intervals, access.begin);
  split(intervals, access.end);
  // Walks the range once: existing pieces gain a reader, gaps between them become pieces.
  for (uint64_t offset = access.begin; offset < access.end; ++at) {
    if (at == intervals.size() || intervals[at].begin > offset) {
      const uint64_t end =
          at == intervals.size() ? access.end : std::min(access.end, intervals[at].begin);
      intervals.insert(intervals.begin() + static_cast<ptrdiff_t>(at), Interval{offset, end});
    }
    Interval& piece = intervals[at];
    if (piece.readers.empty() || piece.readers.back() != call) piece.readers.push_back(call);
    offset = piece.end;
  }
}

void DependencyTracker::record_write(Intervals& intervals, uint32_t call, const Access& access) {
  const size_t first = split(intervals, access.begin);
  const size_t last = split(intervals, access.end);
  const auto begin = intervals.begin();
  const auto at =
      intervals.erase(begin + static_cast<ptrdiff_t>(first), begin + static_cast<ptrdiff_t>(last));
  intervals.insert(at, Interval{access.begin, access.end, call, {}});
}

void DependencyTracker::add(uint32_t call, std::span<const Access> accesses,
                            std::vector<uint32_t>& dependencies) {
  dependencies.clear();
  for (const Access& access : accesses)
    if (access.begin < access.end) find(bases_[access.base], access, dependencies);
  std::sort(dependencies.begin(), dependencies.end());
  dependencies.erase(std::unique(dependencies.begin(), dependencies.end()), dependencies.end());
  // Reads first: a write of the same call replaces its own reads, never the other way round.
  for (const Access& access : accesses)
    if (access.begin < access.end && access.is_read) record_read(bases_[access.base], call, access);
  for (const Access& access : accesses)
    if (access.begin < access.end && access.is_written)
      record_write(bases_[access.base], call, access);
}

}  // namespace bm::runtime
