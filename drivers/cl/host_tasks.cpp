#include "drivers/cl/host_tasks.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>

#include "drivers/cl/completions.h"
#include "runtime/base/stuck_call.h"

namespace bm::cl {
namespace {

// Another device's signal comes in microseconds, a host's in any time: yield, then sleep.
constexpr int kYields = 200;
constexpr std::chrono::microseconds kSleep{50};
constexpr size_t kUsualTasks = 256;
/// Looks at a submission within the time limit.
constexpr int kLooks = 8;
/// A thread that computes (PoCL compiles where work is handed over) has so many time limits.
constexpr int kBusyLimits = 10;
/// Less processor time from one look to the next is that of a thread that waits and wakes.
constexpr std::chrono::milliseconds kWork{2};
constexpr std::chrono::milliseconds kShortest{1};  ///< between two looks

std::chrono::nanoseconds cpu_time(clockid_t clock) {
  timespec time{};
  if (::clock_gettime(clock, &time) != 0) return {};  // the thread is gone
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

HostTasks::HostTasks(const Api& api, Health& health, uint32_t wait_timeout_ms)
    : api_(api), health_(health), timeout_(wait_timeout_ms), thread_([this] { run(); }) {}

HostTasks::~HostTasks() {
  close();
  for (const auto* left : {&tasks_, &incoming_})
    for (const Pending& pending : *left) api_.clReleaseEvent(pending.task.done);
}

void HostTasks::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  posted_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void HostTasks::post(const HostTask& task) {
  Pending pending{.task = task, .deadline = Clock::now() + timeout_};
  if (task.kind == HostTask::Kind::kWait)
    pending.seen = std::atomic_ref(*task.word).load(std::memory_order_acquire);
  {
    const std::lock_guard lock(mutex_);
    incoming_.push_back(pending);
  }
  posted_.notify_one();
}

void HostTasks::run() {
  tasks_.reserve(kUsualTasks);
  for (int idle = 0;;) {
    {
      std::unique_lock lock(mutex_);
      if (tasks_.empty())
        posted_.wait_until(lock, std::max(next_look_, Clock::now() + kShortest),
                           [this] { return is_closing_ || !incoming_.empty(); });
      if (is_closing_) return;
      tasks_.insert(tasks_.end(), incoming_.begin(), incoming_.end());
      incoming_.clear();
    }
    watch();
    const size_t before = tasks_.size();
    std::erase_if(tasks_, [this](Pending& pending) { return step(pending); });
    idle = tasks_.size() == before ? idle + 1 : 0;
    if (idle == 0) continue;
    if (idle < kYields)
      sched_yield();
    else
      std::this_thread::sleep_for(kSleep);
  }
}

/// A real driver waits in clEnqueue… for room in the ring of a GPU that hangs, PoCL for a lock that
/// a failed call has left locked: no time limit of ours ends that.
void HostTasks::watch() {
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + timeout_ / kLooks;
  const uint64_t calls = calls_.load(std::memory_order_acquire);
  if (calls % 2 == 0) return;
  const Clock::time_point begin = begin_.load(std::memory_order_relaxed);
  const std::chrono::nanoseconds cpu = cpu_time(clock_.load(std::memory_order_relaxed));
  if (calls != seen_.calls) seen_ = {.calls = calls, .worked = begin, .cpu = cpu};
  if (cpu - seen_.cpu >= kWork) seen_.worked = now;
  seen_.cpu = cpu;
  if (seen_.is_told) return;
  next_look_ = std::min(next_look_, std::max(seen_.worked + timeout_, now + kShortest));
  // TIMEOUT: BM_WAIT_TIMEOUT_MS for a thread that waits in the library, ten times as long for one
  // that computes.
  const bool is_stuck = now - seen_.worked >= timeout_ || now - begin >= timeout_ * kBusyLimits;
  if (!is_stuck) return;
  seen_.is_told = true;
  const std::string why = fmt::format(
      "OpenCL's library has not returned for {} ms from a call that hands work over "
      "(BM_WAIT_TIMEOUT_MS={}): its driver or the device hangs. See the kernel's log; another "
      "process may find the device working",
      std::chrono::duration_cast<std::chrono::milliseconds>(now - begin).count(), timeout_.count());
  health_.fail({Code::kTimeout, why});
  report_stuck_call(why);
}

/// True when the task is over.
bool HostTasks::step(Pending& pending) {
  HostTask& task = pending.task;
  switch (task.kind) {
    case HostTask::Kind::kWait: return step_wait(pending);
    case HostTask::Kind::kStore:
      std::atomic_ref(*task.word).store(task.value, std::memory_order_release);
      break;
    case HostTask::Kind::kCopy: std::memmove(task.dst, task.src, task.bytes); break;
  }
  finish(task);
  return true;
}

bool HostTasks::step_wait(Pending& pending) {
  HostTask& task = pending.task;
  const uint64_t now_value = std::atomic_ref(*task.word).load(std::memory_order_acquire);
  if (now_value >= task.value) {
    finish(task);
    return true;
  }
  const Clock::time_point now = Clock::now();
  if (now_value != pending.seen || task.queue->retired() < task.after) {
    pending.seen = now_value;
    pending.deadline = now + timeout_;
  }
  if (now < pending.deadline) return false;
  // TIMEOUT: BM_WAIT_TIMEOUT_MS without progress of the word while the queue stands at the wait.
  health_.fail(
      {Code::kTimeout, fmt::format("signal at {}: waited {} ms for value {}, it is {}",
                                   fmt::ptr(task.word), timeout_.count(), task.value, now_value)});
  return true;
}

void HostTasks::finish(const HostTask& task) {
  const Status set =
      check(api_.clSetUserEventStatus(task.done, CL_COMPLETE), "clSetUserEventStatus");
  if (!set) health_.fail(set.error());
  api_.clReleaseEvent(task.done);
}

}  // namespace bm::cl
