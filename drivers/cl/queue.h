#pragma once
// Queue of an OpenCL device: steps become enqueue calls on one in-order command queue.

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "drivers/cl/completions.h"
#include "drivers/cl/host_tasks.h"
#include "drivers/cl/memory.h"
#include "drivers/cl/steps.h"
#include "runtime/hal/device.h"

namespace bm::cl {

class ClQueue;

/// What the queues of one device share.
struct QueueShared {
  QueueShared(ContextPtr the_context, std::shared_ptr<Memory> the_memory, uint32_t timeout_ms)
      : context(std::move(the_context)),
        memory(std::move(the_memory)),
        wait_timeout_ms(timeout_ms),
        health(context->health),
        tasks(context->api, health, timeout_ms) {}

  const ContextPtr context;
  const std::shared_ptr<Memory> memory;
  const uint32_t wait_timeout_ms;
  Health& health;
  HostTasks tasks;
  CompletionGroup completions;
  std::mutex mutex;  ///< the submission lock: kernels' arguments, views, queues' bookkeeping
  std::vector<ClQueue*> queues;
};

/// Everything is ordered by the command queue itself; the contract promises order within a queue,
/// so an out-of-order one would only need a barrier between any two commands.
/// Thread: safe.
class ClQueue final : public hal::Queue {
 public:
  static Result<std::unique_ptr<ClQueue>> create(QueueShared& shared);
  ~ClQueue() override = default;

  Status submit(std::span<const hal::Command> commands) override;
  Result<std::unique_ptr<hal::Recording>> record(std::span<const hal::Command> commands,
                                                 std::span<const hal::Patch> patches) override;
  Status replay(hal::Recording& recording, std::span<const uint64_t> values) override;

  /// Waits until nothing is in flight. False: something is stuck, and the queue must not be
  /// destroyed: OpenCL still points into it.
  bool drain() { return completions_.wait_empty(); }
  cl_command_queue handle() const { return queue_.get(); }

 private:
  /// Latest signal of a word: other queues wait for its event instead of the word.
  struct Produced {
    const uint64_t* word;
    uint64_t value;
    OwnedEvent event;
    uint64_t sequence;  ///< of the action that stores the value
  };

  ClQueue(QueueShared& shared, OwnedQueue queue);

  Status execute(StepList& list, bool is_recorded);
  Status execute_step(const Step& step, StepList& list, bool is_recorded);
  Status dispatch(const Step& step, Launch& launch);
  Status copy(const Step& step);
  Status copy_buffer(const Step& step);
  Status copy_on_host(const Step& step);
  Status write(const Step& step);
  Status wait(const Step& step);
  Status signal(const Step& step);
  Status timestamp(const Step& step);

  Status open_views(const Launch& launch);
  Status close_views();
  Status host_task(HostTask task, bool is_ordered);
  Status barrier(cl_event event);
  /// An event that is complete when everything so far is.
  Result<cl_event> mark();
  Status enable_profiling();
  Result<int64_t> measure_clock_offset(cl_command_queue queue) const;
  void note_produced(const uint64_t* word, uint64_t value, cl_event event);
  const Produced* find_produced(const uint64_t* word, uint64_t wanted) const;
  cl_event* event_for(const Step& step);
  Status done(cl_int error, const char* what);

  QueueShared& shared_;
  const Api& api_;
  Memory& memory_;
  OwnedQueue queue_;
  Completions completions_;
  OwnedEvent last_event_;  ///< of the command enqueued last, if it was asked for
  std::vector<Produced> produced_;
  std::vector<Region*> open_views_;
  StepList scratch_;
  bool is_profiling_ = false;
  int64_t clock_offset_ns_ = 0;
  size_t unmarked_ = 0;  ///< commands since the last action
};

}  // namespace bm::cl
