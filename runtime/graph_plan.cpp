#include "runtime/graph_plan.h"

#include <algorithm>

namespace bm::runtime {
namespace {

/// Per queue: how many of its calls are known to be complete.
using Clock = std::vector<uint32_t>;

void merge(Clock& into, const Clock& from) {
  for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

class Planner {
 public:
  Planner(std::span<const PlanCall> calls, uint32_t num_queues)
      : calls_(calls),
        known_(num_queues, Clock(num_queues, 0)),
        direct_(num_queues, Clock(num_queues, 0)),
        length_(num_queues, 0),
        visible_(num_queues, 0),
        finished_(calls.size()),
        position_(calls.size()),
        is_producer_(calls.size(), false),
        producers_(calls.size()) {
    plan_.calls.resize(calls.size());
    plan_.num_signals.assign(num_queues, 0);
  }

  GraphPlan run(std::span<const EndGroup> end_groups) {
    DependencyTracker tracker;
    std::vector<uint32_t> dependencies;
    for (uint32_t call = 0; call < calls_.size(); ++call) {
      tracker.add(call, calls_[call].accesses, dependencies);
      place(call, dependencies);
    }
    std::vector<std::vector<uint32_t>> end_producers;
    for (const EndGroup& group : end_groups) end_producers.push_back(needed_at_end(group));
    number_signals();
    for (uint32_t call = 0; call < calls_.size(); ++call)
      plan_.calls[call].waits = to_waits(producers_[call]);
    for (const auto& producers : end_producers) plan_.epilogues.push_back(to_waits(producers));
    return std::move(plan_);
  }

 private:
  /// Cross-queue dependencies the queue does not know to be complete yet; updates what it knows.
  std::vector<uint32_t> needed(uint32_t queue_index, const std::vector<uint32_t>& dependencies) {
    std::vector<uint32_t> kept;
    Clock& known = known_[queue_index];
    for (size_t i = dependencies.size(); i-- > 0;) {
      const uint32_t producer = dependencies[i];
      const uint32_t from = calls_[producer].queue_index;
      if (from == queue_index || position_[producer] < known[from]) continue;
      merge(known, finished_[producer]);
      keep(queue_index, producer, kept);
    }
    return kept;
  }

  /// Last call of every other queue that the queue of `group` has not itself waited for. Knowledge
  /// through a third queue does not count here: when that queue's submission fails, its signals are
  /// given without its work, and still the end must not come before what runs.
  std::vector<uint32_t> needed_at_end(const EndGroup& group) {
    std::vector<uint32_t> kept;
    for (auto call = group.calls.rbegin(); call != group.calls.rend(); ++call) {
      const uint32_t from = calls_[*call].queue_index;
      if (from != group.queue_index && position_[*call] >= direct_[group.queue_index][from])
        keep(group.queue_index, *call, kept);
    }
    return kept;
  }

  void keep(uint32_t queue_index, uint32_t producer, std::vector<uint32_t>& kept) {
    uint32_t& waited = direct_[queue_index][calls_[producer].queue_index];
    waited = std::max(waited, position_[producer] + 1);
    is_producer_[producer] = true;
    kept.push_back(producer);
  }

  void place(uint32_t call, const std::vector<uint32_t>& dependencies) {
    const uint32_t queue_index = calls_[call].queue_index;
    PlannedCall& planned = plan_.calls[call];
    producers_[call] = needed(queue_index, dependencies);
    planned.arrows = producers_[call];
    bool has_local = false;
    for (size_t i = dependencies.size(); i-- > 0 && !has_local;) {
      const uint32_t producer = dependencies[i];
      if (calls_[producer].queue_index != queue_index) continue;
      has_local = true;  // the latest one: older ones are in order before it
      planned.arrows.push_back(producer);
      planned.needs_barrier = position_[producer] >= visible_[queue_index];
    }
    planned.needs_barrier |= !producers_[call].empty();
    position_[call] = length_[queue_index];
    if (planned.needs_barrier) visible_[queue_index] = position_[call];
    known_[queue_index][queue_index] = ++length_[queue_index];
    finished_[call] = known_[queue_index];
  }

  void number_signals() {
    for (uint32_t call = 0; call < calls_.size(); ++call)
      if (is_producer_[call])
        plan_.calls[call].signal = ++plan_.num_signals[calls_[call].queue_index];
  }

  /// One wait per queue: the latest signal implies the earlier ones.
  std::vector<QueueWait> to_waits(const std::vector<uint32_t>& producers) const {
    std::vector<QueueWait> waits;
    for (const uint32_t producer : producers) {
      const QueueWait wait{calls_[producer].queue_index, plan_.calls[producer].signal};
      const auto same = std::find_if(waits.begin(), waits.end(), [&](const QueueWait& w) {
        return w.queue_index == wait.queue_index;
      });
      if (same == waits.end()) {
        waits.push_back(wait);
      } else {
        same->ordinal = std::max(same->ordinal, wait.ordinal);
      }
    }
    return waits;
  }

  std::span<const PlanCall> calls_;
  std::vector<Clock> known_;        // per queue: what its next command may rely on
  std::vector<Clock> direct_;       // the part of it that the queue waited for itself
  std::vector<uint32_t> length_;    // per queue: calls placed
  std::vector<uint32_t> visible_;   // per queue: calls whose results a barrier made visible
  std::vector<Clock> finished_;     // per call: what holds once its signal was given
  std::vector<uint32_t> position_;  // per call: index in its queue
  std::vector<bool> is_producer_;
  std::vector<std::vector<uint32_t>> producers_;
  GraphPlan plan_;
};

}  // namespace

GraphPlan plan_graph(std::span<const PlanCall> calls, uint32_t num_queues,
                     std::span<const EndGroup> end_groups) {
  return Planner(calls, num_queues).run(end_groups);
}

}  // namespace bm::runtime
