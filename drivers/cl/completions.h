#pragma once
// What happens on the host when a queue reaches a place: Signal stores, timestamps, host tasks.

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "drivers/cl/context.h"
#include "drivers/cl/host_tasks.h"

namespace bm::cl {

struct Action {
  enum class Kind : uint8_t { kNothing, kStore, kTimestamp, kTask };
  Kind kind = Kind::kNothing;
  uint64_t* word = nullptr;     ///< kStore, kTimestamp
  uint64_t value = 0;           ///< kStore
  int64_t clock_offset_ns = 0;  ///< kTimestamp: event time to steady clock
  HostTask task;                ///< kTask
};

class Completions;

/// The completions of all queues of one device. One lock: what a queue does is ordered after what
/// it waited for in another one.
struct CompletionGroup {
  static constexpr size_t kMostQueues = 2;  ///< compute and copy

  std::mutex mutex;
  std::condition_variable moved;
  uint32_t watchers = 0;  ///< of `moved`
  std::array<Completions*, kMostQueues> queues{};
  size_t num_queues = 0;
};

/// Ring of actions of one queue, each performed when its event is complete and all earlier ones
/// were, and those of other queues that it stands behind: OpenCL calls back in no particular
/// order, and a signal must not go back. After a fault nothing is performed any more.
class Completions {
 public:
  static constexpr size_t kCapacity = 1024;

  /// Joins the group for good: queues of a device are made and destroyed together.
  Completions(const Api& api, Health& health, HostTasks& tasks, CompletionGroup& group,
              uint32_t wait_timeout_ms);
  /// Only when wait_empty() succeeded: OpenCL holds pointers into the ring.
  ~Completions() = default;
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  /// Retains `event`. Blocks while the ring is full: this bounds what is in flight. Thread: one at
  /// a time. Errors: kTimeout, the device's fault, the driver's.
  Status push(const Action& action, cl_event event);
  /// Actions pushed from now on are performed after action `sequence` of `other`, whose event the
  /// queue waits for: that event being complete says nothing of who is called back first. Thread:
  /// that of push().
  void stand_behind(const Completions& other, uint64_t sequence);
  /// Actions pushed and performed so far.
  uint64_t pushed() const { return pushed_.load(std::memory_order_relaxed); }
  uint64_t retired() const { return retired_.load(std::memory_order_acquire); }
  /// False when actions are left and the device is bad or nothing moved for the wait timeout.
  bool wait_empty();

 private:
  struct Slot {
    Completions* owner = nullptr;
    cl_event event = nullptr;
    Action action;
    /// How many actions of each queue of the group come before this one.
    std::array<uint64_t, CompletionGroup::kMostQueues> behind{};
    bool is_complete = false;
  };
  static void CL_CALLBACK on_event(cl_event event, cl_int status, void* slot);
  void complete(Slot& slot, cl_int status);
  static bool retire_some(CompletionGroup& group, const Api& api);
  bool is_next_ready() const;
  void perform(const Action& action);
  uint64_t timestamp(const Slot& slot) const;
  template <class Done>
  bool wait_progress(std::unique_lock<std::mutex>& lock, const Done& done);

  const Api& api_;
  Health& health_;
  HostTasks& tasks_;
  CompletionGroup& group_;
  const size_t number_;  ///< in the group
  const std::chrono::milliseconds timeout_;
  std::vector<Slot> ring_;
  std::atomic<uint64_t> pushed_{0}, retired_{0};
  std::array<uint64_t, CompletionGroup::kMostQueues> behind_{};  ///< of the next action
  uint32_t callbacks_ = 0;                                       ///< running now
};

}  // namespace bm::cl
