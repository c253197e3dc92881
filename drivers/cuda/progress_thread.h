#pragma once
// One thread per device for queues that need the host to go on.

#include <condition_variable>
#include <thread>

#include "drivers/cuda/queue.h"

namespace bm::cuda {

/// Sleeps until wake(); then looks at the queues again and again until none has work left.
class ProgressThread {
 public:
  explicit ProgressThread(QueueShared& shared);
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// A queue has work for it. Under the submission lock.
  void wake() { woken_.notify_one(); }
  void close();

 private:
  void run();
  QueueShared& shared_;
  std::condition_variable woken_;
  bool is_closing_ = false;
  std::thread thread_;
};

}  // namespace bm::cuda
