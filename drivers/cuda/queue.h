#pragma once
// Queue of a CUDA device: steps become calls on one stream.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "drivers/cuda/clock.h"
#include "drivers/cuda/completions.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/recording.h"
#include "drivers/cuda/steps.h"
#include "runtime/hal/device.h"

namespace bm::cuda {

class CudaQueue;
class ProgressThread;

/// What the queues of one device share.
struct QueueShared {
  QueueShared(ContextPtr the_context, std::shared_ptr<Memory> the_memory, uint32_t timeout_ms)
      : context(std::move(the_context)),
        memory(std::move(the_memory)),
        timeout(timeout_ms),
        clock(*context) {}
  ~QueueShared();

  /// Performs what is complete on all queues. After a fault nothing is performed any more. Under
  /// the lock, context current. Errors: the device's.
  Status retire();

  const ContextPtr context;
  const std::shared_ptr<Memory> memory;
  const std::chrono::milliseconds timeout;
  std::mutex mutex;               ///< the submission lock: queues' bookkeeping, clock, recordings
  std::condition_variable moved;  ///< a queue that stood still went on
  Clock clock;
  std::vector<CudaQueue*> queues;
  ProgressThread* progress = nullptr;
  uint64_t pushed = 0, performed = 0;  ///< actions of all queues so far
};

/// Where streams wait for and write words themselves, commands go straight to the stream. What a
/// stream cannot do (words only the host sees, drivers without these calls, copies of memory the
/// GPU does not reach) makes the queue stand: its steps wait here, and the device's progress thread
/// goes on with them. Thread: safe.
class CudaQueue final : public hal::Queue {
 public:
  static Result<std::unique_ptr<CudaQueue>> create(QueueShared& shared);
  ~CudaQueue() override;

  Status submit(std::span<const hal::Command> commands) override;
  Result<std::unique_ptr<hal::Recording>> record(std::span<const hal::Command> commands,
                                                 std::span<const hal::Patch> patches) override;
  Status replay(hal::Recording& recording, std::span<const uint64_t> values) override;

  /// Performs completions and goes on with steps that stand; true if anything moved. Failures
  /// become the device's. Under the submission lock, context current.
  bool advance();
  /// Whether advance() is needed.
  bool has_work_left() const { return num_standing_ != 0 || completions_.has_actions(); }
  /// What the stream says of the device. Thread: any; context current.
  Status check_stream() const;
  /// Forgets what stands and waits until nothing is in flight. False: something is stuck, and the
  /// stream must not be destroyed.
  bool drain();
  CuStream stream() const { return stream_; }
  Completions& completions() { return completions_; }

 private:
  using Clock_ = std::chrono::steady_clock;
  CudaQueue(QueueShared& shared, CuStream stream);

  Status enqueue(std::unique_lock<std::mutex>& lock, const Step& step);
  Status wait_for_room(std::unique_lock<std::mutex>& lock);
  /// False: not now.
  Result<bool> run(const Step& step);
  Result<bool> has_room();
  Result<bool> launch(const Step& step);
  Result<bool> launch_graph(const Step& step);
  Result<bool> copy(const Step& step);
  Result<bool> copy_by_host(const Step& step);
  Status copy_to_host(const Step& step);
  Result<bool> wait(const Step& step);
  Result<bool> signal(const Step& step);
  Result<bool> write(const Step& step);
  Result<bool> push(const Action& action);
  bool is_stream_idle() const;
  void check_patience(const Step& step);

  QueueShared& shared_;
  const Context& context_;
  const Api& api_;
  const CuStream stream_;
  Completions completions_;
  std::mutex submitters_;  ///< one list at a time, also while it waits for room
  std::vector<Step> scratch_;
  std::vector<Step> standing_;  ///< ring
  size_t first_standing_ = 0, num_standing_ = 0;
  uint32_t unmarked_ = 0;  ///< commands since the last mark
  uint64_t progress_ = 0;  ///< grows with everything that moves
  // Patience with the wait at the front.
  bool is_waiting_ = false;
  uint64_t seen_ = 0;
  Clock_::time_point deadline_;
};

}  // namespace bm::cuda
