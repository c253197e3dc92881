#pragma once
// Threads: how many are worth having, and one that may be refused and is joined by its destructor.

#include <pthread.h>

#include <functional>
#include <memory>
#include <utility>

#include "runtime/base/result.h"

namespace bm {

/// Smallest stack of our threads, bytes: compilers recurse in them, and `ulimit -s` sets the size
/// of every thread that does not ask.
inline constexpr size_t kThreadStack = size_t{8} << 20;

/// pthread_create with a stack of at least kThreadStack. Result: its error number, 0 for none.
int create_thread(pthread_t* thread, void* (*main)(void*), void* argument);

/// Threads for work of which `asked` (BM_THREADS) were wanted; 0: one per core this process may
/// use. More than kThreadsPerCore of them, or than kAlwaysThreads on small machines, only wait for
/// each other: the rest is left out, and the log says so once.
uint32_t worker_threads(uint32_t asked);
inline constexpr uint32_t kThreadsPerCore = 4, kAlwaysThreads = 16;

/// Joined by its owner's destructor.
class Thread {
 public:
  Thread() = default;
  /// Errors: kIo with the reason when the system gives no thread, kOutOfMemory.
  static Result<Thread> start(std::function<void()> body);
  Thread(Thread&& other) noexcept : body_(std::move(other.body_)), thread_(other.thread_) {}
  Thread& operator=(Thread&& other) noexcept {
    if (this != &other) {
      join();
      body_ = std::move(other.body_);
      thread_ = other.thread_;
    }
    return *this;
  }
  ~Thread() { join(); }

  bool is_joinable() const { return body_ != nullptr; }
  /// Waits for the end of the body. Nothing where there is none.
  void join();

 private:
  static void* main(void* body);
  std::unique_ptr<std::function<void()>> body_;  ///< set until joined
  pthread_t thread_{};
};

}  // namespace bm
