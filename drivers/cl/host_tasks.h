#pragma once
// What the host does for a queue: waits for words nobody's event stands for, and stores and copies
// between host memory, which OpenCL has no command for. It watches the calls that hand work over,
// too.

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "drivers/cl/context.h"

namespace bm::cl {

class Completions;

/// Ends by setting `done`, which holds the queue's later commands back.
struct HostTask {
  enum class Kind : uint8_t { kWait, kStore, kCopy };
  Kind kind = Kind::kWait;
  uint64_t* word = nullptr;  ///< kWait, kStore
  uint64_t value = 0;        ///< kWait: word >= value; kStore: what to store
  void* dst = nullptr;       ///< kCopy
  const void* src = nullptr;
  uint64_t bytes = 0;
  cl_event done = nullptr;  ///< user event; the task owns one reference
  /// kWait: the clock runs once this queue has retired `after` actions, i.e. once it stands here.
  const Completions* queue = nullptr;
  uint64_t after = 0;
};

/// One thread per device that performs tasks as they become possible. A wait that times out makes
/// the device bad and leaves its event unset: the commands behind it never run.
class HostTasks {
 private:
  using Clock = std::chrono::steady_clock;

 public:
  HostTasks(const Api& api, Health& health, uint32_t wait_timeout_ms);
  /// Only when no command waits for a task any more.
  ~HostTasks();
  HostTasks(const HostTasks&) = delete;
  HostTasks& operator=(const HostTasks&) = delete;

  /// Thread: any, also an OpenCL callback.
  void post(const HostTask& task);
  /// Stops; tasks that are left stay undone.
  void close();

  /// While one lives, this thread hands work to the library: clEnqueue… may wait for a lock or for
  /// room that never comes. One at a time (the submission lock).
  class Submission {
   public:
    explicit Submission(HostTasks& tasks) : calls_(tasks.calls_) {
      clockid_t clock{};
      ::pthread_getcpuclockid(::pthread_self(), &clock);
      tasks.clock_.store(clock, std::memory_order_relaxed);
      tasks.begin_.store(Clock::now(), std::memory_order_relaxed);
      calls_.fetch_add(1, std::memory_order_release);
    }
    ~Submission() { calls_.fetch_add(1, std::memory_order_release); }
    Submission(const Submission&) = delete;
    Submission& operator=(const Submission&) = delete;

   private:
    std::atomic<uint64_t>& calls_;
  };
  /// A submission in progress waits on its own, with a bound: its time in the library begins anew.
  void begin_anew() {
    begin_.store(Clock::now(), std::memory_order_relaxed);
    calls_.fetch_add(2, std::memory_order_release);
  }

 private:
  struct Pending {
    HostTask task;
    uint64_t seen = 0;
    Clock::time_point deadline;
  };
  /// The submission that is seen in progress, when it worked last, and the processor time it had
  /// then.
  struct Seen {
    uint64_t calls = 0;
    Clock::time_point worked;
    std::chrono::nanoseconds cpu{0};
    bool is_told = false;
  };
  void run();
  void watch();
  bool step(Pending& pending);
  bool step_wait(Pending& pending);
  void finish(const HostTask& task);

  const Api& api_;
  Health& health_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::vector<Pending> incoming_;
  std::vector<Pending> tasks_;  ///< of the thread
  bool is_closing_ = false;
  std::atomic<uint64_t> calls_{0};  ///< begun and ended submissions: odd while one is in progress
  std::atomic<clockid_t> clock_{};  ///< of its thread
  std::atomic<Clock::time_point> begin_{};
  Seen seen_;  ///< of the thread
  Clock::time_point next_look_;
  std::thread thread_;
};

}  // namespace bm::cl
