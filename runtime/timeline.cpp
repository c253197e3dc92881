#include "runtime/timeline.h"

#include <algorithm>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/base/env.h"

namespace bm::runtime {
namespace {

using std::chrono::nanoseconds;
using namespace std::chrono_literals;

// A kernel launch round trip is a few microseconds: first poll without giving the core away, then
// yield, then sleep in steps that stay small against the time already lost.
constexpr uint32_t kSpins = 400;
constexpr nanoseconds kYieldFor = 200us;
constexpr nanoseconds kLongestSleep = 1ms;

class SystemClock final : public WaitClock {
 public:
  nanoseconds now() override { return std::chrono::steady_clock::now().time_since_epoch(); }
  void sleep(nanoseconds duration) override { std::this_thread::sleep_for(duration); }
};

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr uint64_t low_bits(uint32_t bits) {
  return bits >= 64 ? UINT64_MAX : (uint64_t{1} << bits) - 1;
}

}  // namespace

WaitClock& WaitClock::system() {
  static SystemClock clock;  // stateless
  return clock;
}

Timeline::Timeline(hal::GpuVa signal, std::byte* host, TimelineOptions options)
    : signal_(signal),
      host_(host),
      options_(std::move(options)),
      clock_(options_.clock ? *options_.clock : WaitClock::system()),
      mask_(low_bits(options_.compare_bits)),
      limit_(low_bits(options_.compare_bits - 1)) {
  BM_CHECK(options_.compare_bits >= 2 && options_.compare_bits <= 64);
  BM_CHECK(host != nullptr);
  stub_->timeline = this;
}

Timeline::~Timeline() {
  const std::lock_guard lock(stub_->mutex);
  stub_->timeline = nullptr;
  stub_->completed = completed_.load(std::memory_order_acquire);
  stub_->poison = poison_;
}

uint64_t Timeline::load_signal() const {
  // The device writes this word: an atomic read keeps the compiler from caching it, and acquire
  // orders our later reads of results after it.
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(host_))
             .load(std::memory_order_acquire) &
         mask_;
}

void Timeline::note_completed(uint64_t value) const {
  uint64_t known = completed_.load(std::memory_order_relaxed);
  while (known < value &&
         !completed_.compare_exchange_weak(known, value, std::memory_order_acq_rel)) {}
}

uint64_t Timeline::completed() const {
  for (;;) {
    const uint64_t before = restarts_.load(std::memory_order_acquire);
    // During a restart everything reserved so far is done and noted.
    if (before % 2 != 0) return completed_.load(std::memory_order_acquire);
    const uint64_t value = base_.load(std::memory_order_acquire) + load_signal();
    if (restarts_.load(std::memory_order_acquire) != before) continue;
    // A value nobody reserved is what a lost device reads as (all ones), not progress.
    if (value <= last()) note_completed(value);
    return completed_.load(std::memory_order_acquire);
  }
}

Result<uint64_t> Timeline::next() {
  if (is_poisoned()) BM_TRY(status());
  const uint64_t value = last() + 1;
  if (value - base_.load(std::memory_order_relaxed) > limit_) {
    BM_TRY(drain());
    restart();
  }
  last_.store(value, std::memory_order_release);
  return value;
}

void Timeline::cancel(uint64_t value) {
  last_.compare_exchange_strong(value, value - 1, std::memory_order_acq_rel);
}

/// Waits for all reserved work and for foreign work that waits for it: a queue that has not yet
/// looked at the signal would otherwise see the restarted, smaller value and hang.
Status Timeline::drain() {
  BM_TRY(settle(last()));
  std::vector<Tie> waiters;
  {
    const std::lock_guard lock(waiters_lock_);
    waiters.swap(waiters_);
  }
  for (const Tie& waiter : waiters) {
    Timeline* timeline = nullptr;
    {
      const std::lock_guard lock(waiter.stub->mutex);
      timeline = waiter.stub->timeline;
    }
    // Beyond last(): that submission was cancelled and nothing waits any more.
    if (timeline != nullptr && waiter.value <= timeline->last())
      BM_TRY(timeline->settle(waiter.value));
  }
  return {};
}

/// One tie a timeline: what comes later includes what came earlier.
void Timeline::keep_tie(std::vector<Tie>& ties, Tie tie) {
  const auto known = std::ranges::find(ties, tie.stub, &Tie::stub);
  if (known == ties.end()) {
    ties.push_back(std::move(tie));
    return;
  }
  known->value = std::max(known->value, tie.value);
  known->own = std::max(known->own, tie.own);
}

void Timeline::note_source(uint64_t own, const Point& source) {
  const std::lock_guard lock(sources_lock_);
  keep_tie(sources_, {source.timeline->stub_, source.value, own});
}

std::vector<Point> Timeline::waiting() {
  const std::lock_guard lock(waiters_lock_);
  std::vector<Point> found;
  for (const Tie& waiter : waiters_) {
    const std::lock_guard alive(waiter.stub->mutex);
    Timeline* const timeline = waiter.stub->timeline;
    // Beyond last(): cancelled.
    if (timeline != nullptr && waiter.value <= timeline->last() && !timeline->reached(waiter.value))
      found.push_back({timeline, waiter.value});
  }
  return found;
}

void Timeline::append_sources(std::vector<Tie>& ties) const {
  const std::lock_guard lock(sources_lock_);
  for (const Tie& source : sources_)
    if (!reached(source.own) && std::ranges::find(ties, source.stub, &Tie::stub) == ties.end())
      ties.push_back(source);
}

/// Calls `visit` with each open source of our work and, where that stands, with its own sources in
/// turn: visit(tie, timeline, ties) under the stub's lock; timeline is nullptr for one that is
/// gone, and `ties` takes what is to be visited later. Ends when `visit` returns false.
template <class Visit>
void Timeline::walk_sources(const Visit& visit) const {
  std::vector<Tie> open;
  append_sources(open);
  for (size_t i = 0; i < open.size(); ++i) {
    const Tie source = open[i];
    if (source.stub == stub_) continue;
    const std::lock_guard lock(source.stub->mutex);
    if (!visit(source, source.stub->timeline, open)) return;
  }
}

/// The error of a device that our work waits for, directly or through others.
Status Timeline::ask_sources() const {
  Status found;
  walk_sources([&](const Tie& source, Timeline* other, std::vector<Tie>& open) {
    if (other == nullptr) {
      if (source.value <= source.stub->completed) return true;
      found = source.stub->poison
                  ? tl::unexpected<Error>(*source.stub->poison)
                  : fail(Code::kDeviceLost, "a device was closed before work that others wait for");
      return false;
    }
    if (other->reached(source.value)) return true;
    found = other->status();
    if (!found) return false;
    const uint64_t life = other->recoveries_.load(std::memory_order_acquire);
    const Status alive = other->options_.on_idle ? other->options_.on_idle({}) : Status{};
    if (!alive) {
      other->lose_in_life(life, alive.error());
      found = other->status();
      return false;
    }
    other->append_sources(open);
    return true;
  });
  return found;
}

/// Changes whenever a device that our work waits for, directly or through others, gets on.
uint64_t Timeline::source_progress() const {
  uint64_t sum = 0;
  walk_sources([&](const Tie& source, const Timeline* other, std::vector<Tie>& open) {
    if (other == nullptr) return true;
    sum += other->completed();
    if (!other->reached(source.value)) other->append_sources(open);
    return true;
  });
  return sum;
}

/// Gives up the device at the end of the chain of those that wait for one another: the others stand
/// because of it. Success: our work waits for nobody else's.
Status Timeline::lose_source(std::chrono::milliseconds limit) const {
  Status lost;
  walk_sources([&](const Tie& source, Timeline* other, std::vector<Tie>& open) {
    if (other == nullptr || other->reached(source.value)) return true;
    const size_t before = open.size();
    other->append_sources(open);
    if (open.size() != before || !other->options_.lose) return true;
    other->lose_in_life(other->life(), other->late(source.value, limit));
    lost = other->status();
    return false;
  });
  return lost;
}

void Timeline::restart() {
  note_completed(last());
  restarts_.fetch_add(1, std::memory_order_acq_rel);
  base_.store(last(), std::memory_order_release);
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(host_))
      .store(0, std::memory_order_release);
  restarts_.fetch_add(1, std::memory_order_acq_rel);
}

uint64_t Timeline::hardware_value(uint64_t value) const {
  const uint64_t base = base_.load(std::memory_order_acquire);
  return value <= base ? 0 : value - base;
}

hal::Signal Timeline::signal_command(uint64_t value) const {
  return {signal_, hardware_value(value)};
}

std::optional<hal::Wait> Timeline::wait_command(uint64_t value, Point waiter) {
  // Under the lock: either drain() sees this waiter, or we see that `value` is reached.
  const std::lock_guard lock(waiters_lock_);
  if (reached(value)) return std::nullopt;
  if (waiter.timeline != nullptr && waiter.timeline != this) {
    keep_tie(waiters_, {waiter.timeline->stub_, waiter.value});
    waiter.timeline->note_source(waiter.value, {this, value});
  }
  return hal::Wait{signal_, hardware_value(value)};
}

/// False: the device failed, or one that our work waits for.
bool Timeline::pause(uint64_t life, nanoseconds idle) {
  if (idle < kYieldFor) {
    std::this_thread::yield();
    return true;
  }
  const nanoseconds before = clock_.now();
  if (const Status alive = options_.on_idle ? options_.on_idle(idle) : Status{}; !alive) {
    lose_in_life(life, alive.error());
    return false;
  }
  if (const Status alive = ask_sources(); !alive) {
    poison_in_life(life, alive.error());
    return false;
  }
  // The device may have slept until an event of its own: then it is time to look, not to sleep
  // more.
  if (clock_.now() - before < kYieldFor)
    clock_.sleep(std::min<nanoseconds>(idle / 8, kLongestSleep));
  return true;
}

Error Timeline::late(uint64_t value, std::chrono::milliseconds limit) const {
  return {Code::kTimeout,
          fmt::format("no progress for {} ms: waited for value {}, reached {} of {} submitted",
                      limit.count(), value, completed(), last())};
}

void Timeline::give_up(uint64_t life, uint64_t value, std::chrono::milliseconds limit) {
  if (const Status source = lose_source(limit); !source)
    poison_in_life(life, source.error());
  else
    lose_in_life(life, late(value, limit));
}

Status Timeline::wait(uint64_t value, std::chrono::milliseconds deadline) {
  BM_TRY(settle(value, deadline));
  if (value > tainted_after_.load(std::memory_order_acquire)) [[unlikely]]
    BM_TRY(status());
  if (!has_dropped_.load(std::memory_order_acquire)) [[likely]]
    return {};
  return outcome(value);
}

Status Timeline::settle(uint64_t value, std::chrono::milliseconds deadline) {
  if (reached(value)) return {};
  const bool is_device_limit = deadline.count() == 0;
  if (is_device_limit) deadline = std::chrono::milliseconds(settings().wait_timeout_ms);
  uint64_t seen = completed(), others = 0;
  nanoseconds since = clock_.now();
  for (uint32_t polls = 0;; ++polls) {
    // The poison is read before the signal: work that finished before a fault counts as done.
    const bool was_poisoned = is_poisoned();
    const uint64_t now_completed = completed();
    if (now_completed >= value) return {};
    if (was_poisoned) {
      // None any more: recovered since, and everything reserved before that is reached.
      BM_TRY(status());
      continue;
    }
    const nanoseconds now = clock_.now();
    if (now_completed != seen) {
      seen = now_completed;
      since = now;
      polls = 0;
    }
    if (polls < kSpins) {
      relax();
      continue;
    }
    if (now - since >= deadline) {
      // This thread may have slept through the end: look once more.
      if (reached(value)) return {};
      if (!is_device_limit || !options_.lose) return tl::unexpected<Error>(late(value, deadline));
      give_up(life(), value, deadline);
      if (reached(value)) return {};
      BM_TRY(status());
      continue;
    }
    if (!pause(life(), now - since)) {
      if (reached(value)) return {};
      BM_TRY(status());
    } else if (const uint64_t moved = source_progress(); moved != others) {
      others = moved;
      since = clock_.now();
    }
  }
}

void Timeline::poison(const Error& error) {
  poison_in_life(recoveries_.load(std::memory_order_acquire), error);
}

/// The device's own error, made into what everyone is told.
void Timeline::lose_in_life(uint64_t life, Error error) {
  poison_in_life(life, options_.lose ? options_.lose(life, std::move(error)) : error);
}

/// What the device said before it was recovered is no news.
void Timeline::poison_in_life(uint64_t life, const Error& error) {
  const std::lock_guard lock(poison_lock_);
  if (recoveries_.load(std::memory_order_relaxed) != life) return;
  if (!poison_) {
    // What is given up may end later, and nobody knows what it has done: it never counts as done.
    uint64_t none = UINT64_MAX;
    tainted_after_.compare_exchange_strong(none, completed());
    poison_ = error;
  }
  is_poisoned_.store(true, std::memory_order_release);
}

Status Timeline::status() const {
  if (!is_poisoned()) return {};
  const std::lock_guard lock(poison_lock_);
  return poison_ ? tl::unexpected<Error>(*poison_) : Status{};
}

Status Timeline::outcome(uint64_t value) const {
  const std::lock_guard lock(poison_lock_);
  for (const Dropped& d : dropped_)
    if (value > d.after && value <= d.last) return tl::unexpected<Error>(d.cause);
  return {};
}

void Timeline::recover(const Error& cause) {
  const uint64_t after = std::min(completed(), tainted_after_.load());
  const std::lock_guard lock(poison_lock_);
  // In this order: who finds the value reached finds that it was dropped, and who finds no poison
  // finds the value reached.
  if (after < last()) dropped_.push_back({after, last(), poison_ ? *poison_ : cause});
  has_dropped_.store(!dropped_.empty(), std::memory_order_release);
  tainted_after_.store(UINT64_MAX);
  note_completed(last());
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(host_))
      .store(hardware_value(last()), std::memory_order_release);
  recoveries_.fetch_add(1, std::memory_order_acq_rel);
  poison_.reset();
  is_poisoned_.store(false, std::memory_order_release);
}

bool reached(const Point& point) {
  return point.timeline == nullptr || point.timeline->reached(point.value);
}

Status settle(const Point& point, std::chrono::milliseconds deadline) {
  return point.timeline == nullptr ? Status{} : point.timeline->settle(point.value, deadline);
}

Status wait(const Point& point, std::chrono::milliseconds deadline) {
  return point.timeline == nullptr ? Status{} : point.timeline->wait(point.value, deadline);
}

}  // namespace bm::runtime
