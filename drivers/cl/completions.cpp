#include "drivers/cl/completions.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace bm::cl {

Completions::Completions(const Api& api, Health& health, HostTasks& tasks, CompletionGroup& group,
                         uint32_t wait_timeout_ms)
    : api_(api),
      health_(health),
      tasks_(tasks),
      group_(group),
      number_(group.num_queues),
      timeout_(wait_timeout_ms),
      ring_(kCapacity) {
  BM_CHECK(group.num_queues < CompletionGroup::kMostQueues);
  group.queues[group.num_queues++] = this;
  for (Slot& slot : ring_) slot.owner = this;
}

/// Waits for `done`, anew whenever something is retired. False: not done, and the device is bad or
/// stands still.
template <class Done>
bool Completions::wait_progress(std::unique_lock<std::mutex>& lock, const Done& done) {
  // Health is looked at this often; it has no condition variable of its own.
  constexpr std::chrono::milliseconds kLook{20};
  using Clock = std::chrono::steady_clock;
  ++group_.watchers;
  uint64_t seen = retired();
  Clock::time_point deadline = Clock::now() + timeout_;
  while (!done() && !health_.is_bad()) {
    if (retired() != seen) {
      seen = retired();
      deadline = Clock::now() + timeout_;
    }
    // TIMEOUT: BM_WAIT_TIMEOUT_MS without a completion, the bound of every wait for a device.
    if (Clock::now() >= deadline) break;
    tasks_.begin_anew();
    group_.moved.wait_for(lock, kLook);
  }
  --group_.watchers;
  return done();
}

Status Completions::push(const Action& action, cl_event event) {
  Slot* slot = nullptr;
  {
    std::unique_lock lock(group_.mutex);
    const auto has_room = [this] { return pushed() - retired() < kCapacity; };
    if (!has_room() && !wait_progress(lock, has_room)) {
      BM_TRY(health_.status());
      return fail(Code::kTimeout, "{} commands in flight, none completed for {} ms", kCapacity,
                  timeout_.count());
    }
    slot = &ring_[pushed() % kCapacity];
    slot->event = event;
    slot->action = action;
    slot->behind = behind_;
    slot->is_complete = false;
    pushed_.store(pushed() + 1, std::memory_order_relaxed);
  }
  // Not under the lock: a completed event calls back at once.
  cl_int error = api_.clRetainEvent(event);
  if (error == CL_SUCCESS) error = api_.clSetEventCallback(event, CL_COMPLETE, on_event, slot);
  if (error == CL_SUCCESS) return {};
  // The slot will never complete, so the queue cannot go on.
  Status failed = check(error, "clSetEventCallback");
  health_.fail(failed.error());
  return failed;
}

void Completions::stand_behind(const Completions& other, uint64_t sequence) {
  uint64_t& count = behind_[other.number_];
  count = std::max(count, sequence + 1);
}

bool Completions::wait_empty() {
  std::unique_lock lock(group_.mutex);
  const auto is_empty = [this] { return pushed() == retired() && callbacks_ == 0; };
  return is_empty() || wait_progress(lock, is_empty);
}

void CL_CALLBACK Completions::on_event(cl_event, cl_int status, void* user) {
  auto& slot = *static_cast<Slot*>(user);
  slot.owner->complete(slot, status);
}

void Completions::complete(Slot& slot, cl_int status) {
  if (status < 0)
    health_.fail({Code::kDeviceLost, fmt::format("a command failed: {}", error_name(status))});
  const bool is_timestamp = slot.action.kind == Action::Kind::kTimestamp;
  const uint64_t ticks = is_timestamp && status >= 0 ? timestamp(slot) : 0;
  {
    const std::lock_guard lock(group_.mutex);
    ++callbacks_;
    if (is_timestamp) slot.action.value = ticks;
    slot.is_complete = true;
  }
  while (retire_some(group_, api_)) {}
  const std::lock_guard lock(group_.mutex);
  --callbacks_;
  if (group_.watchers != 0) group_.moved.notify_all();
}

/// Whether the event of the oldest action is complete, and everything done that comes before it.
bool Completions::is_next_ready() const {
  const uint64_t next = retired();
  if (next == pushed()) return false;
  const Slot& slot = ring_[next % kCapacity];
  if (!slot.is_complete) return false;
  for (size_t i = 0; i < group_.num_queues; ++i)
    if (group_.queues[i]->retired() < slot.behind[i]) return false;
  return true;
}

/// Performs what can be of all queues; true if there may be more.
bool Completions::retire_some(CompletionGroup& group, const Api& api) {
  // Events are released outside of the lock: OpenCL's own locks may be held around callbacks.
  constexpr size_t kMost = 16;
  std::array<cl_event, kMost> released{};
  size_t count = 0;
  {
    const std::lock_guard lock(group.mutex);
    for (bool is_news = true; is_news && count < kMost;) {
      is_news = false;
      for (size_t i = 0; i < group.num_queues; ++i) {
        Completions& queue = *group.queues[i];
        for (; count < kMost && queue.is_next_ready(); is_news = true) {
          const uint64_t next = queue.retired();
          const Slot& slot = queue.ring_[next % kCapacity];
          queue.perform(slot.action);
          released[count++] = slot.event;
          queue.retired_.store(next + 1, std::memory_order_release);
        }
      }
    }
  }
  for (size_t i = 0; i < count; ++i) api.clReleaseEvent(released[i]);
  return count == kMost;
}

void Completions::perform(const Action& action) {
  if (health_.is_bad()) return;
  switch (action.kind) {
    case Action::Kind::kNothing: break;
    case Action::Kind::kStore:
    case Action::Kind::kTimestamp:
      std::atomic_ref(*action.word).store(action.value, std::memory_order_release);
      break;
    case Action::Kind::kTask: tasks_.post(action.task); break;
  }
}

/// End of the event's command on the steady clock, in nanoseconds.
uint64_t Completions::timestamp(const Slot& slot) const {
  cl_ulong ended = 0;
  if (api_.clGetEventProfilingInfo(slot.event, CL_PROFILING_COMMAND_END, sizeof ended, &ended,
                                   nullptr) == CL_SUCCESS &&
      ended != 0)
    return ended + static_cast<uint64_t>(slot.action.clock_offset_ns);
  // Some drivers keep no times for markers: now is a little late, and still in order.
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace bm::cl
