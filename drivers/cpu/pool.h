#pragma once
// Worker threads of one CPU device, shared by its queues: splits the blocks of one big kernel.

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "drivers/cpu/scratch.h"

namespace bm::cpu {

/// Entry point of a kernel; see hal::CodeObject.
using KernelEntry = void (*)(const uint64_t* args, uint64_t block_begin, uint64_t block_end,
                             void* scratch);

/// Threads start at the first run() and are joined by the destructor. Between kernels a worker
/// spins for about 50 us, so the kernels of one replay find it awake, then parks.
///
/// Cores: workers may use what the first caller of run() may, except the core on which the caller
/// is when it wakes them. A worker that the system queues there would wait for the caller, which
/// waits for it: with all cores just busy Linux does not look for an idle one (kernel/sched/fair.c,
/// select_idle_cpu), and kernels of a few milliseconds gain nothing from a second core. Whoever
/// sets the workers' affinity from outside has the last word.
///
/// Fork: a child has no workers; there every run() is inline and the destructor joins nothing.
class Pool {
 public:
  struct Options {
    uint32_t threads = 1;  ///< including the caller
    bool pin = false;      ///< worker i stays on the i-th usable core; the caller is never pinned
  };
  explicit Pool(const Options& options);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Runs every block of [0, blocks) exactly once and returns when all have run; their writes are
  /// visible. Thread: any. While another thread's run() is in progress, and from inside a kernel,
  /// the calling thread runs all blocks itself rather than oversubscribing the cores.
  /// `scratch_bytes`: what each participating thread gets; reserved before.
  void run(KernelEntry entry, const uint64_t* args, uint64_t blocks, uint64_t scratch_bytes = 0);
  /// All blocks on the calling thread.
  void run_inline(KernelEntry entry, const uint64_t* args, uint64_t blocks, uint64_t scratch_bytes);
  /// Makes `bytes` of working memory ready for every thread, now rather than in a run. Thread: any.
  /// Errors: kOutOfMemory.
  Status reserve_scratch(uint64_t bytes) { return scratch_.reserve(bytes); }

  uint32_t threads() const { return threads_; }
  /// Threads started so far, without the caller; 0 before the first run().
  uint32_t workers_started() const { return started_.load(std::memory_order_relaxed); }

 private:
  /// Share of one participant. Others steal from it, so it has a cache line of its own.
  struct alignas(64) Share {
    std::atomic<uint64_t> next{0};
    uint64_t end = 0;
  };
  struct Worker {
    Pool* pool = nullptr;
    uint32_t index = 0;
    pthread_t thread{};
  };
  static void* worker_main(void* worker);
  void start_workers();
  void work_loop(uint32_t index);
  /// Waits until the gate differs from `seen` and returns it.
  uint64_t next_gate(uint64_t seen);
  /// Takes chunks, first of its own share, then of the others', until none is left.
  void take_chunks(uint32_t index);
  /// Before parked workers are woken; a system call per worker when the caller has moved since.
  void leave_callers_core();
  void publish(KernelEntry entry, const uint64_t* args, uint64_t blocks, uint64_t scratch_bytes);
  void finish();
  bool in_forked_child() const;

  const uint32_t threads_;
  const bool pin_;
  const uint32_t fork_generation_;
  std::atomic<bool> busy_{false};
  std::once_flag start_once_;
  std::atomic<uint32_t> started_{0};
  std::vector<Worker> workers_;
  std::unique_ptr<Share[]> shares_;
  cpu_set_t usable_{};  ///< cores of the first caller
  cpu_set_t given_{};   ///< what the workers were given of them
  int callers_core_ = -1;
  bool is_placing_ = false;  ///< until somebody else does
  Scratch scratch_;

  // The job. Written only while the gate is closed and nobody is inside.
  KernelEntry entry_ = nullptr;
  const uint64_t* args_ = nullptr;
  uint64_t chunk_ = 1;
  uint64_t scratch_bytes_ = 0;

  /// bit 63: closing down; bit 62: a job may be entered; bits 61..16: job number; bits 15..0:
  /// workers inside. A worker that wakes late finds the gate closed and never looks at the job.
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<uint32_t> bell_{0};  ///< parked workers wait for it to change
  std::atomic<uint32_t> parked_{0};
};

}  // namespace bm::cpu
