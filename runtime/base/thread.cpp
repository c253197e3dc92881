#include "runtime/base/thread.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "runtime/base/log.h"
#include "runtime/base/out_of_memory.h"

namespace bm {
namespace {

/// What a new thread would get, but never less than kThreadStack.
class StackSize {
 public:
  StackSize() {
    is_ok_ = pthread_attr_init(&attributes_) == 0;
    size_t size = 0;
    if (is_ok_ && pthread_attr_getstacksize(&attributes_, &size) == 0 && size < kThreadStack)
      pthread_attr_setstacksize(&attributes_, kThreadStack);
  }
  ~StackSize() {
    if (is_ok_) pthread_attr_destroy(&attributes_);
  }
  StackSize(const StackSize&) = delete;
  StackSize& operator=(const StackSize&) = delete;
  const pthread_attr_t* get() const { return is_ok_ ? &attributes_ : nullptr; }

 private:
  pthread_attr_t attributes_{};
  bool is_ok_ = false;
};

}  // namespace

int create_thread(pthread_t* thread, void* (*main)(void*), void* argument) {
  const StackSize stack;
  return pthread_create(thread, stack.get(), main, argument);
}

uint32_t worker_threads(uint32_t asked) {
  const uint32_t cores = std::max(std::thread::hardware_concurrency(), 1u);
  if (asked == 0) return cores;
  const uint32_t most = std::max(kAlwaysThreads, kThreadsPerCore * cores);
  if (asked <= most) return asked;
  static std::atomic<bool> is_said{false};  // once for the process, whoever asks
  if (!is_said.exchange(true))
    log("runtime", LogLevel::kWarning, "BM_THREADS={}: {} threads are used, there are {} cores",
        asked, most, cores);
  return most;
}

void* Thread::main(void* body) {
  (*static_cast<std::function<void()>*>(body))();
  return nullptr;
}

Result<Thread> Thread::start(std::function<void()> body) {
  return guard_memory("starting a thread", [&]() -> Result<Thread> {
    auto kept = std::make_unique<std::function<void()>>(std::move(body));
    Thread thread;
    if (const int failed = create_thread(&thread.thread_, main, kept.get()); failed != 0)
      return fail(Code::kIo,
                  "a thread cannot be started: {}; `ulimit -u` and the pids limit of the cgroup "
                  "bound their number",
                  errno_text(failed));
    thread.body_ = std::move(kept);
    return thread;
  });
}

void Thread::join() {
  if (!body_) return;
  pthread_join(thread_, nullptr);
  body_.reset();
}

}  // namespace bm
