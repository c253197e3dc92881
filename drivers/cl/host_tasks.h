#pragma once
// What the host does for a queue: waits for words nobody's event stands for, and stores and copies
// between host memory, which OpenCL has no command for.

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

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    HostTask task;
    uint64_t seen = 0;
    Clock::time_point deadline;
  };
  void run();
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
  std::thread thread_;
};

}  // namespace bm::cl
