#pragma once
// Which queue runs each call of a graph, and the fewest waits and barriers that keep program
// order's meaning. Pure: knows no device.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/tracker.h"

namespace bm::runtime {

/// Index of an in-order queue. kHostQueue stands for all inline devices: the replaying thread runs
/// their calls in program order. Every other one is the recorded queue of a hardware queue.
inline constexpr uint32_t kHostQueue = 0;

struct PlanCall {
  uint32_t queue_index = kHostQueue;
  std::vector<Access> accesses;
};

/// Wait until signal `ordinal` of the queue was given.
struct QueueWait {
  uint32_t queue_index = 0;
  uint32_t ordinal = 0;
  bool operator==(const QueueWait&) const = default;
};

struct PlannedCall {
  std::vector<QueueWait> waits;  ///< before the call
  bool needs_barrier = false;    ///< results of earlier commands or waits must be visible to it
  uint32_t signal = 0;  ///< ordinal given after the call, counted from 1 per queue; 0: none
  std::vector<uint32_t> arrows;  ///< calls it directly depends on, for the profiler
};

struct GraphPlan {
  std::vector<PlannedCall> calls;
  std::vector<uint32_t> num_signals;              ///< per queue
  std::vector<std::vector<QueueWait>> epilogues;  ///< per group of `end_waits`, in the same order
};

/// What one queue's end waits for: the last of these calls on each other queue.
struct EndGroup {
  uint32_t queue_index = 0;
  std::vector<uint32_t> calls;  ///< ascending
};

/// Waits are reduced transitively with one vector clock per call: a wait is dropped when the queue
/// already knows, through any chain of earlier waits, that the producer is done.
GraphPlan plan_graph(std::span<const PlanCall> calls, uint32_t num_queues,
                     std::span<const EndGroup> end_groups);

}  // namespace bm::runtime
