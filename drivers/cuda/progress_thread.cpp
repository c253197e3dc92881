#include "drivers/cuda/progress_thread.h"

#include <sched.h>

#include <algorithm>

namespace bm::cuda {
namespace {

// Another device's signal comes in microseconds, a host's in any time: yield, then sleep.
constexpr int kYields = 200;
constexpr std::chrono::microseconds kSleep{50};

}  // namespace

ProgressThread::ProgressThread(QueueShared& shared) : shared_(shared), thread_([this] { run(); }) {}

ProgressThread::~ProgressThread() { close(); }

void ProgressThread::close() {
  {
    const std::lock_guard lock(shared_.mutex);
    is_closing_ = true;
  }
  woken_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ProgressThread::run() {
  const Current current(*shared_.context);
  std::unique_lock lock(shared_.mutex);
  const auto has_work_left = [this] {
    return !shared_.context->health.is_bad() &&
           std::any_of(shared_.queues.begin(), shared_.queues.end(),
                       [](const CudaQueue* queue) { return queue->has_work_left(); });
  };
  for (int idle = 0; !is_closing_;) {
    if (!has_work_left()) woken_.wait(lock, [&] { return is_closing_ || has_work_left(); });
    bool moved = false;
    for (CudaQueue* queue : shared_.queues) moved = queue->advance() || moved;
    idle = moved ? 0 : idle + 1;
    lock.unlock();
    if (idle == 0) {
      shared_.moved.notify_all();
    } else if (idle < kYields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
    lock.lock();
  }
}

}  // namespace bm::cuda
