#pragma once
// One ordering primitive: a Timeline counts completed work of one device, a Point is a value of it.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/command.h"

namespace bm::runtime {

class Timeline;

/// A value of a timeline. Default: already reached.
struct Point {
  Timeline* timeline = nullptr;
  uint64_t value = 0;
};

/// True when the work up to `point` has completed. Never blocks.
bool reached(const Point& point);

/// Time source of waits, so that tests need no real time.
class WaitClock {
 public:
  virtual ~WaitClock() = default;
  virtual std::chrono::nanoseconds now() = 0;
  virtual void sleep(std::chrono::nanoseconds duration) = 0;
  /// The steady clock and real sleeps.
  static WaitClock& system();
};

struct TimelineOptions {
  /// Bits of a signal the hardware compares in Wait: 64, or 32 where the packet has no more.
  uint32_t compare_bits = 64;
  /// Called between polls of a wait with the time since the last progress; an error ends the wait
  /// and poisons the timeline. Typically asks the driver for a fault.
  std::function<Status(std::chrono::nanoseconds)> on_idle;
  WaitClock* clock = nullptr;  ///< nullptr: WaitClock::system()
  /// Called when the device failed or nothing moved for BM_WAIT_TIMEOUT_MS: gives it up and makes
  /// the error for everyone who waits, now and later. Called by any thread, which may hold the lock
  /// of the stream. Empty: the error is taken as it is, and a wait in vain loses nothing.
  /// `life`: of the timeline (Timeline::life) when the device failed; what came before is no news.
  std::function<Error(uint64_t life, Error)> lose = {};
};

/// Counts work of one device. Values are 64-bit and only grow; the signal word in memory holds
/// `value - base`, so that hardware which compares few bits never sees a wrap (see next()).
///
/// Thread: all functions from any thread; next() and the submission that signals its value must not
/// be interleaved with another next(), so the stream calls both under its lock.
class Timeline {
 public:
  /// `signal` is a 16-byte slot the device writes; `host` its CPU view, holding 0.
  Timeline(hal::GpuVa signal, std::byte* host, TimelineOptions options = {});
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Reserves the next value, starting at 1. The caller must submit signal_command(value), or give
  /// it back with cancel(). Before the hardware value would leave half of the compare range, waits
  /// until all earlier work and everybody who waits for it is through, then restarts the signal at
  /// 0. Errors: the poison; kTimeout from that wait.
  Result<uint64_t> next();
  /// Takes back the value next() returned last, after a submission that failed.
  void cancel(uint64_t value);

  /// Command that makes `value` reached.
  hal::Signal signal_command(uint64_t value) const;
  /// Command with which another queue waits for `value`, or nothing when it is reached already.
  /// `waiter` is the Point of the work that waits: the signal is not restarted before it completed.
  /// Default waiter: a queue of this same timeline, which next() waits for anyway.
  std::optional<hal::Wait> wait_command(uint64_t value, Point waiter = {});
  /// Notes that this timeline reaches `own` only after `source` (wait_command() does so by itself).
  /// A wait here that makes no progress asks the source's device, too: its error is then the first
  /// cause of both.
  void note_source(uint64_t own, const Point& source);
  /// Work of others that waits for this one's signal and is not done.
  std::vector<Point> waiting();
  /// What the signal word holds when `value` is reached; for patch tables of recordings.
  uint64_t hardware_value(uint64_t value) const;

  /// Largest value reserved so far; everything submitted is done when it is reached.
  uint64_t last() const { return last_.load(std::memory_order_acquire); }
  Point last_point() { return {this, last()}; }
  /// Largest value known to be reached; reads the signal.
  uint64_t completed() const;
  bool reached(uint64_t value) const {
    return value <= completed_.load(std::memory_order_acquire) || value <= completed();
  }

  /// Waits until `value` is reached; spins, then yields, then sleeps. `deadline` is time without
  /// progress: it restarts whenever the signal changes, or that of a device whose work is awaited
  /// here. Zero: BM_WAIT_TIMEOUT_MS, after which the device that stands still is lost.
  /// Errors: the poison, if `value` was not reached before; kTimeout with wanted and actual values.
  /// Values dropped by recover() are errors with its cause.
  Status wait(uint64_t value, std::chrono::milliseconds deadline = {});

  /// First error wins: every waiter, now and later, gets it. Values reached before stay reached.
  void poison(const Error& error);
  /// The poison, or success.
  Status status() const;
  /// After the device dropped what was in flight: what was reserved and not reached counts as
  /// reached, so that its memory may be used again, but who waits for it gets the poison (or
  /// `cause`, when there is none), now and later. New work is possible. The caller holds the
  /// stream's lock, and nothing signals meanwhile.
  void recover(const Error& cause);
  /// How often it was recovered.
  uint64_t life() const { return recoveries_.load(std::memory_order_acquire); }
  /// As wait(), and success also for dropped work: for those who only reuse its memory.
  Status settle(uint64_t value, std::chrono::milliseconds deadline = {});
  bool is_poisoned() const { return is_poisoned_.load(std::memory_order_acquire); }

  hal::GpuVa signal() const { return signal_; }

 private:
  /// What is left of a timeline for those it was tied to.
  struct Stub {
    std::mutex mutex;
    Timeline* timeline = nullptr;  ///< nullptr: gone, with the two below
    uint64_t completed = 0;
    std::optional<Error> poison;
  };
  struct Tie {
    std::shared_ptr<Stub> stub;
    uint64_t value = 0;  ///< on the other timeline
    uint64_t own = 0;    ///< of a source: who waits for it here
  };
  uint64_t load_signal() const;
  Status drain();
  static void keep_tie(std::vector<Tie>& ties, Tie tie);
  template <class Visit>
  void walk_sources(const Visit& visit) const;
  Status ask_sources() const;
  void append_sources(std::vector<Tie>& ties) const;
  Status outcome(uint64_t value) const;
  void poison_in_life(uint64_t life, const Error& error);
  void lose_in_life(uint64_t life, Error error);
  Error late(uint64_t value, std::chrono::milliseconds limit) const;
  void give_up(uint64_t life, uint64_t value, std::chrono::milliseconds limit);
  Status lose_source(std::chrono::milliseconds limit) const;
  uint64_t source_progress() const;
  void restart();
  void note_completed(uint64_t value) const;
  bool pause(uint64_t life, std::chrono::nanoseconds idle);

  const hal::GpuVa signal_;
  std::byte* const host_;
  const TimelineOptions options_;
  WaitClock& clock_;
  const uint64_t mask_, limit_;

  std::atomic<uint64_t> last_{0};
  mutable std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> base_{0};
  std::atomic<uint64_t> restarts_{0};  ///< odd while restart() changes base and signal together

  const std::shared_ptr<Stub> stub_ = std::make_shared<Stub>();
  std::mutex waiters_lock_;
  std::vector<Tie> waiters_;  ///< foreign work that waits for this signal on its device
  mutable std::mutex sources_lock_;
  std::vector<Tie> sources_;  ///< what our work waits for on this device
  /// What comes later was given up, or waited for a device that failed: it counts as dropped, even
  /// if it runs to its end after all.
  mutable std::atomic<uint64_t> tainted_after_{UINT64_MAX};

  std::atomic<bool> is_poisoned_{false};
  mutable std::mutex poison_lock_;
  std::optional<Error> poison_;
  /// Values that were dropped, (after, last], and why.
  struct Dropped {
    uint64_t after, last;
    Error cause;
  };
  std::vector<Dropped> dropped_;  ///< under poison_lock_
  std::atomic<bool> has_dropped_{false};
  std::atomic<uint64_t> recoveries_{0};
};

/// Waits for a Point; see Timeline::wait and settle.
Status wait(const Point& point, std::chrono::milliseconds deadline = {});
Status settle(const Point& point, std::chrono::milliseconds deadline = {});

}  // namespace bm::runtime
