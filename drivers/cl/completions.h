#pragma once
// What happens on the host when a queue reaches a place: Signal stores, timestamps, host tasks.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "drivers/cl/context.h"
#include "drivers/cl/host_tasks.h"

namespace bm::cl {

struct Action {
  enum class Kind : uint8_t { kNothing, kStore, kStamp, kTask };
  Kind kind = Kind::kNothing;
  uint64_t* word = nullptr;     ///< kStore, kStamp
  uint64_t value = 0;           ///< kStore
  int64_t clock_offset_ns = 0;  ///< kStamp: event time to steady clock
  HostTask task;                ///< kTask
};

/// Ring of actions of one queue, each performed when its event is complete and all earlier ones
/// were: OpenCL calls back in no particular order, and a signal must not go back. After a fault
/// nothing is performed any more.
class Completions {
 public:
  static constexpr size_t kCapacity = 1024;

  Completions(const Api& api, Health& health, HostTasks& tasks, uint32_t wait_timeout_ms);
  /// Only when wait_empty() succeeded: OpenCL holds pointers into the ring.
  ~Completions() = default;
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  /// Retains `event`. Blocks while the ring is full: this bounds what is in flight. Thread: one at
  /// a time. Errors: kTimeout, the device's fault, the driver's.
  Status push(const Action& action, cl_event event);
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
    bool is_complete = false;
  };
  static void CL_CALLBACK on_event(cl_event event, cl_int status, void* slot);
  void complete(Slot& slot, cl_int status);
  bool retire_some();
  void perform(const Action& action);
  uint64_t stamp(const Slot& slot) const;
  template <class Done>
  bool wait_progress(std::unique_lock<std::mutex>& lock, const Done& done);

  const Api& api_;
  Health& health_;
  HostTasks& tasks_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable moved_;
  std::vector<Slot> ring_;
  std::atomic<uint64_t> pushed_{0}, retired_{0};
  uint32_t callbacks_ = 0;  ///< running now
  bool is_watched_ = false;
};

}  // namespace bm::cl
