#include "drivers/cpu/pool.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>

#include "drivers/cpu/relax.h"
#include "runtime/base/thread.h"

namespace bm::cpu {
namespace {

constexpr uint64_t kClosing = uint64_t{1} << 63;
constexpr uint64_t kOpen = uint64_t{1} << 62;
constexpr uint64_t kJob = uint64_t{1} << 16;
constexpr uint64_t kInside = kJob - 1;
constexpr uint32_t kMaxThreads = 1024;  // far below what the 16 bits of kInside count

/// Chunks per participant: small enough that a core taken away by the system costs an eighth of a
/// share, large enough that the atomic counter does not show.
constexpr uint64_t kChunksPerShare = 8;
/// Longest spin of an idle worker; parking and waking costs 3-12 us, so this covers the gaps of a
/// replay.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kSpinsPerClockRead = 64;
/// Spins of the caller before it offers its core to a worker that was scheduled away.
constexpr int kFinishSpins = 4000;

/// Forks since process start; a pool made before the last one has no threads in this process.
std::atomic<uint32_t>& fork_counter() {
  // Process-wide by nature: fork copies the whole process.
  static std::atomic<uint32_t> counter{0};
  return counter;
}

uint32_t current_fork_generation() {
  static const int registered = pthread_atfork(
      nullptr, nullptr, [] { fork_counter().fetch_add(1, std::memory_order_relaxed); });
  (void)registered;  // only fails without memory; then a child would merely hang in its own pool
  return fork_counter().load(std::memory_order_relaxed);
}

/// The n-th core this thread may use.
cpu_set_t nth_core(uint32_t n) {
  cpu_set_t usable, one;
  CPU_ZERO(&usable);
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return usable;
  const auto count = static_cast<uint32_t>(std::max(CPU_COUNT(&usable), 1));
  uint32_t left = n % count;
  for (uint32_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &usable) && left-- == 0) {
      CPU_SET(core, &one);
      return one;
    }
  return usable;
}

}  // namespace

Pool::Pool(const Options& options)
    : threads_(std::clamp<uint32_t>(options.threads, 1, kMaxThreads)),
      pin_(options.pin),
      fork_generation_(current_fork_generation()),
      shares_(std::make_unique<Share[]>(threads_)),
      // Callers that find the pool busy run on their own.
      scratch_(2 * threads_) {
  // Now, not in the first run: nothing that takes memory stands between a kernel and its end.
  workers_.resize(threads_ - 1);
}

Pool::~Pool() {
  if (in_forked_child()) {
    // The threads do not exist here and their stacks may be reused: nothing to join.
    return;
  }
  gate_.fetch_or(kClosing, std::memory_order_release);
  bell_.fetch_add(1, std::memory_order_release);
  bell_.notify_all();
  for (uint32_t i = 0; i < workers_started(); ++i) pthread_join(workers_[i].thread, nullptr);
}

bool Pool::in_forked_child() const {
  return fork_counter().load(std::memory_order_relaxed) != fork_generation_;
}

void Pool::run(KernelEntry entry, const uint64_t* args, uint64_t blocks, uint64_t scratch_bytes) {
  if (blocks == 0) return;
  if (threads_ == 1 || blocks == 1 || in_forked_child() ||
      busy_.exchange(true, std::memory_order_acquire)) {
    return run_inline(entry, args, blocks, scratch_bytes);
  }
  std::call_once(start_once_, [this] { start_workers(); });
  publish(entry, args, blocks, scratch_bytes);
  take_chunks(0);
  finish();
  busy_.store(false, std::memory_order_release);
}

void Pool::run_inline(KernelEntry entry, const uint64_t* args, uint64_t blocks,
                      uint64_t scratch_bytes) {
  const Scratch::Lease lease(scratch_, 0, scratch_bytes);
  entry(args, 0, blocks, lease.memory());
}

void Pool::start_workers() {
  // Signals of the process are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  is_placing_ =
      !pin_ && sched_getaffinity(0, sizeof usable_, &usable_) == 0 && CPU_COUNT(&usable_) > 1;
  given_ = usable_;
  uint32_t started = 0;
  for (; started < workers_.size(); ++started) {
    Worker& worker = workers_[started];
    worker.pool = this;
    worker.index = started + 1;
    if (create_thread(&worker.thread, worker_main, &worker) != 0) break;
    pthread_setname_np(worker.thread, "bm-cpu");
  }
  workers_.resize(started);  // fewer workers are only slower: the caller takes what they leave
  started_.store(started, std::memory_order_relaxed);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void* Pool::worker_main(void* argument) {
  auto* worker = static_cast<Worker*>(argument);
  if (worker->pool->pin_) {
    const cpu_set_t core = nth_core(worker->index);
    pthread_setaffinity_np(pthread_self(), sizeof core, &core);
  }
  worker->pool->work_loop(worker->index);
  return nullptr;
}

void Pool::leave_callers_core() {
  const int core = sched_getcpu();
  if (!is_placing_ || core == callers_core_ || core < 0 || workers_.empty()) return;
  cpu_set_t now;
  is_placing_ = pthread_getaffinity_np(workers_[0].thread, sizeof now, &now) == 0 &&
                CPU_EQUAL(&now, &given_) != 0;
  if (!is_placing_) return;
  callers_core_ = core;
  given_ = usable_;
  CPU_CLR(core, &given_);
  for (const Worker& worker : workers_)
    pthread_setaffinity_np(worker.thread, sizeof given_, &given_);
}

void Pool::publish(KernelEntry entry, const uint64_t* args, uint64_t blocks,
                   uint64_t scratch_bytes) {
  scratch_bytes_ = scratch_bytes;
  entry_ = entry;
  args_ = args;
  const uint64_t shares = threads_;
  chunk_ = std::max<uint64_t>(blocks / (shares * kChunksPerShare), 1);
  const uint64_t share = blocks / shares, rest = blocks % shares;
  uint64_t begin = 0;
  for (uint64_t i = 0; i < shares; ++i) {
    const uint64_t end = begin + share + (i < rest ? 1 : 0);
    shares_[i].end = end;
    shares_[i].next.store(begin, std::memory_order_relaxed);
    begin = end;
  }
  if (parked_.load(std::memory_order_relaxed) != 0) leave_callers_core();
  // Only this thread changes the gate while it is closed and empty, except for closing down,
  // which the owner does after all runs.
  const uint64_t job = (gate_.load(std::memory_order_relaxed) + kJob) & (kOpen - 1) & ~kInside;
  gate_.store(job | kOpen, std::memory_order_release);
  bell_.fetch_add(1, std::memory_order_release);
  bell_.notify_all();  // no system call while no worker is parked
}

void Pool::finish() {
  uint64_t gate = gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int i = 0; (gate & kInside) != 0; ++i) {
    if (i < kFinishSpins) {
      relax();
    } else {
      sched_yield();
    }
    gate = gate_.load(std::memory_order_acquire);
  }
}

void Pool::take_chunks(uint32_t index) {
  const Scratch::Lease lease(scratch_, index, scratch_bytes_);
  for (uint32_t i = 0; i < threads_; ++i) {
    const uint32_t victim = index + i < threads_ ? index + i : index + i - threads_;
    Share& share = shares_[victim];
    while (share.next.load(std::memory_order_relaxed) < share.end) {
      const uint64_t begin = share.next.fetch_add(chunk_, std::memory_order_relaxed);
      if (begin >= share.end) break;
      entry_(args_, begin, std::min(begin + chunk_, share.end), lease.memory());
    }
  }
}

uint64_t Pool::next_gate(uint64_t seen) {
  using Clock = std::chrono::steady_clock;
  const auto differs = [seen](uint64_t gate) {
    // Workers entering and leaving are no news.
    return ((gate ^ seen) & ~kInside & ~kOpen) != 0 && (gate & (kOpen | kClosing)) != 0;
  };
  const auto deadline = Clock::now() + kSpin;
  for (int i = 1;; ++i) {
    const uint64_t gate = gate_.load(std::memory_order_acquire);
    if (differs(gate)) return gate;
    relax();
    if (i % kSpinsPerClockRead == 0 && Clock::now() >= deadline) break;
  }
  for (;;) {
    const uint32_t bell = bell_.load(std::memory_order_acquire);
    const uint64_t gate = gate_.load(std::memory_order_acquire);
    if (differs(gate)) return gate;
    parked_.fetch_add(1, std::memory_order_relaxed);
    bell_.wait(bell, std::memory_order_acquire);
    parked_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Pool::work_loop(uint32_t index) {
  uint64_t seen = 0;
  for (;;) {
    uint64_t gate = next_gate(seen);
    if ((gate & kClosing) != 0) return;
    seen = gate;
    // Entering is only possible while the gate is open: after that the job stays as it is until we
    // leave.
    bool entered = false;
    while ((gate & kOpen) != 0 && !entered) {
      seen = gate;
      entered = gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire,
                                            std::memory_order_relaxed);
    }
    if (!entered) continue;
    take_chunks(index);
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace bm::cpu
