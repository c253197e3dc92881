#pragma once
// One thread per device for queues that need the host to go on.

#include <condition_variable>
#include <thread>

#include "drivers/cuda/queue.h"

namespace bm::cuda {

/// Sleeps until wake(); then looks at the queues again and again until none has business.
class Pump {
 public:
  explicit Pump(QueueShared& shared);
  ~Pump();
  Pump(const Pump&) = delete;
  Pump& operator=(const Pump&) = delete;

  /// A queue has business. Under the submission lock.
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
