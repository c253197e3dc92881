#include "runtime/stream.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device.h"
#include "runtime/hal/waiting.h"

namespace bm::runtime {
namespace {

// An event ends it early; faults are asked for in between.
constexpr std::chrono::milliseconds kLongestEventSleep{5};

std::atomic<bool>& forked_flag() {
  // Process-wide by nature: it tells a forked child apart from its parent.
  static std::atomic<bool> flag{false};
  return flag;
}

std::atomic<bool>& queue_device_flag() {
  static std::atomic<bool> flag{false};  // process-wide: Points travel between all devices
  return flag;
}

/// Devices without a queue: commands run inside submit().
class InlineStream final : public Stream {
 public:
  explicit InlineStream(hal::Device& device)
      : device_(device), timeline_(hal::GpuVa{}, signal_.data()) {}

  Result<Point> submit(hal::QueueKind kind, std::span<const hal::Command> commands) override {
    BM_TRY(check_not_forked());
    BM_TRY(device_.queue(kind).submit(commands));
    return Point{};
  }
  Status wait(Point point) override {
    BM_TRY(check_not_forked());
    return runtime::wait(point);
  }
  Timeline& timeline() override { return timeline_; }
  Status synchronize() override {
    BM_TRY(check_not_forked());
    return device_.status();
  }
  Status recover() override {
    BM_TRY(check_not_forked());
    return device_.status() ? Status{} : device_.recover();
  }

 private:
  hal::Device& device_;
  alignas(16) std::array<std::byte, 16> signal_{};
  Timeline timeline_;  // never advances: there is no work in flight
};

/// What a submission was to do, for messages. A copy: programs may be gone by then. Every
/// submission writes one and only a wait that gives up reads it, so there is no lock: `value_` is 0
/// while words change, and a reader that sees the same value before and after them has them all.
class WorkName {
 public:
  /// Thread: one writer at a time.
  void write(uint64_t value, std::string_view name) {
    value_.store(0, std::memory_order_relaxed);
    const size_t length = std::min(name.size(), kBytes);
    for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
      uint64_t word = 0;
      if (length - at >= sizeof word)
        std::memcpy(&word, name.data() + at, sizeof word);
      else
        std::memcpy(&word, name.data() + at, length - at);
      // Release, here and below: not before the store above. Costs a plain store on x86.
      words_[at / sizeof word].store(word, std::memory_order_release);
    }
    length_.store(length, std::memory_order_release);
    value_.store(value, std::memory_order_release);
  }
  /// The name of submission `value`, if it is the last one written. Thread: any.
  std::optional<std::string> read(uint64_t value) const {
    if (value_.load(std::memory_order_acquire) != value) return std::nullopt;
    std::array<uint64_t, kWords> words;
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    const size_t length = length_.load(std::memory_order_acquire);
    if (value_.load(std::memory_order_relaxed) != value) return std::nullopt;
    std::string name(length, 0);
    std::memcpy(name.data(), words.data(), length);
    return name;
  }

 private:
  static constexpr size_t kWords = 15, kBytes = kWords * sizeof(uint64_t);
  std::atomic<uint64_t> value_{0};
  std::atomic<size_t> length_{0};
  std::array<std::atomic<uint64_t>, kWords> words_{};
};

class QueueStream final : public Stream {
 public:
  QueueStream(hal::Device& device, std::string name, std::unique_ptr<hal::Buffer> signal)
      : device_(device),
        name_(std::move(name)),
        signal_(std::move(signal)),
        timeline_(signal_->va(), signal_->host(), timeline_options()) {}
  ~QueueStream() override;

  Result<Point> submit(hal::QueueKind kind, std::span<const hal::Command> commands) override {
    return submit_after(kind, commands, {});
  }
  Result<Point> submit_after(hal::QueueKind kind, std::span<const hal::Command> commands,
                             std::span<const Point> points) override;
  Status wait(Point point) override {
    BM_TRY(check_not_forked());
    return runtime::wait(point);
  }
  Timeline& timeline() override { return timeline_; }
  Status synchronize() override {
    BM_TRY(check_not_forked());
    return timeline_.wait(timeline_.last());
  }
  Status recover() override;
  std::unique_lock<std::mutex> lock() override { return std::unique_lock(mutex_); }
  void note_work(uint64_t value, std::string_view name) override;
  Result<hal::GpuVa> signal_on(hal::Device& waiter) override;

 private:
  TimelineOptions timeline_options() {
    // Signals are compared in 32 bits by the narrowest hardware (AMD's WAIT_REG_MEM, NVIDIA's copy
    // engine). Restarting there on wider hardware too costs one drain per 2^31 submissions.
    return {.compare_bits = 32,
            .on_idle = [this](std::chrono::nanoseconds idle) { return when_idle(idle); },
            .clock = nullptr,
            .explain = [this] { return explain(); }};
  }
  /// Asks for a fault; a device with interrupts sleeps here until it has something to tell.
  Status when_idle(std::chrono::nanoseconds idle) {
    BM_TRY(device_.status());
    if (waiting_ != nullptr && idle.count() > 0)
      waiting_->sleep_until_event(static_cast<uint64_t>(
          std::min<std::chrono::nanoseconds>(idle, kLongestEventSleep).count()));
    return {};
  }
  /// The submission that the device has come to, as it was named when it was handed over, and what
  /// the hardware is doing.
  std::string explain();

  hal::Device& device_;
  hal::Waiting* const waiting_ = dynamic_cast<hal::Waiting*>(&device_);  ///< may be null
  const std::string name_;
  std::shared_ptr<hal::Buffer> signal_;
  Timeline timeline_;

  std::mutex mutex_;                    // the device lock
  std::vector<hal::Command> commands_;  // scratch of submit_after, under mutex_

  static constexpr size_t kKeptWork = 64;
  std::array<WorkName, kKeptWork> work_;  // of the last submissions, by value modulo

  std::mutex peers_mutex_;
  std::map<hal::Device*, hal::GpuVa> peers_;  // our signal's address on other devices
};

/// Engines of other devices poll the signal, and those that wait for a failed one go on doing so.
QueueStream::~QueueStream() {
  for (const Point& waiting : timeline_.waiting()) {
    if (settle(waiting)) continue;
    for (Device* device : opened_devices())
      if (&device->stream().timeline() == waiting.timeline) device->keep_until_closed(signal_);
  }
}

Result<hal::GpuVa> QueueStream::signal_on(hal::Device& waiter) {
  if (&waiter == &device_) return timeline_.signal();
  const std::lock_guard guard(peers_mutex_);
  if (const auto known = peers_.find(&waiter); known != peers_.end()) return known->second;
  const hal::GpuVa va = BM_TRY(waiter.map(*signal_));
  peers_.emplace(&waiter, va);
  return va;
}

Status QueueStream::recover() {
  BM_TRY(check_not_forked());
  const std::lock_guard guard(mutex_);
  Error cause{Code::kDeviceFault, "dropped when the device was recovered"};
  if (const Status told = timeline_.status(); !told)
    cause = told.error();
  else if (const Status health = device_.status(); !health)
    cause = health.error();
  else if (timeline_.reached(timeline_.last()))
    return {};  // nothing is wrong
  BM_TRY(device_.recover());
  timeline_.revive(cause);
  return {};
}

void QueueStream::note_work(uint64_t value, std::string_view name) {
  work_[value % kKeptWork].write(value, name);
}

std::string QueueStream::explain() {
  const uint64_t value = timeline_.completed() + 1;
  const std::optional<std::string> name = work_[value % kKeptWork].read(value);
  std::string text = name ? "the device has come to " + *name
                          : "the device has come to work whose name is not kept any more";
  if (waiting_ != nullptr) text += "; " + waiting_->activity();
  return text;
}

/// The kernel that a submission runs.
std::string_view name_of(std::span<const hal::Command> commands) {
  for (const hal::Command& command : commands) {
    const auto* dispatch = std::get_if<hal::Dispatch>(&command);
    if (dispatch != nullptr && dispatch->program != nullptr) return dispatch->program->code().entry;
  }
  return "a copy or a write";
}

/// Stream whose timeline this is, or nullptr when no opened device owns it.
Stream* find_stream(const Timeline* timeline) {
  for (Device* device : opened_devices())
    if (&device->stream().timeline() == timeline) return &device->stream();
  return nullptr;
}

Result<Point> QueueStream::submit_after(hal::QueueKind kind, std::span<const hal::Command> commands,
                                        std::span<const Point> points) {
  BM_TRY(check_not_forked());
  struct Foreign {
    Point point;
    hal::GpuVa signal;
  };
  std::vector<Foreign> foreign;
  for (const Point& point : points) {
    if (point.timeline == &timeline_ || reached(point)) continue;
    Stream* other = find_stream(point.timeline);
    const Result<hal::GpuVa> signal =
        other ? other->signal_on(device_) : fail(Code::kNotFound, "no device owns this timeline");
    if (signal) {
      foreign.push_back({point, *signal});
    } else {
      // This device cannot see that signal; the calling thread can always wait in its place.
      BM_TRY(runtime::wait(point));
    }
  }

  const std::lock_guard guard(mutex_);
  const uint64_t value = BM_TRY(timeline_.next());
  commands_.clear();
  if (const auto wait = timeline_.wait_command(value - 1)) commands_.emplace_back(*wait);
  for (const Foreign& f : foreign) {
    if (auto wait = f.point.timeline->wait_command(f.point.value, {&timeline_, value})) {
      wait->signal = f.signal;
      commands_.emplace_back(*wait);
    }
  }
  commands_.emplace_back(hal::Barrier{});
  commands_.insert(commands_.end(), commands.begin(), commands.end());
  commands_.emplace_back(timeline_.signal_command(value));
  note_work(value, name_of(commands));
  if (Status submitted = device_.queue(kind).submit(commands_); !submitted) {
    timeline_.cancel(value);
    // A faulted device will not complete what is in flight either: wake the waiters with the cause.
    if (Status health = device_.status(); !health) timeline_.poison(health.error());
    return tl::unexpected(std::move(submitted.error()).within(name_));
  }
  return Point{&timeline_, value};
}

}  // namespace

Result<Point> Stream::submit_after(hal::QueueKind kind, std::span<const hal::Command> commands,
                                   std::span<const Point> points) {
  for (const Point& point : points)
    if (!reached(point)) BM_TRY(runtime::wait(point));
  return submit(kind, commands);
}

Result<hal::GpuVa> Stream::signal_on(hal::Device&) {
  return fail(Code::kUnsupported, "an inline device has no signal to wait for");
}

Result<std::unique_ptr<Stream>> make_stream(hal::Device& device, std::string name) {
  if (device.is_inline()) return std::unique_ptr<Stream>(new InlineStream(device));
  constexpr uint64_t kSignalPage = 4096;  // the smallest unit every device can map for a peer
  std::unique_ptr<hal::Buffer> signal = BM_TRY(device.allocate({.size = kSignalPage,
                                                                .host_visible = true,
                                                                .host_memory = true,
                                                                .uncached = true,
                                                                .zero = true}));
  if (signal->host() == nullptr)
    return fail(Code::kUnsupported, "{}: signal memory is not visible to the host", name);
  queue_device_flag().store(true, std::memory_order_relaxed);
  return std::unique_ptr<Stream>(new QueueStream(device, std::move(name), std::move(signal)));
}

bool any_queue_device() { return queue_device_flag().load(std::memory_order_relaxed); }

Status check_not_forked() {
  if (!forked_flag().load(std::memory_order_relaxed)) [[likely]]
    return {};
  return fail(Code::kUnsupported,
              "forked: devices opened before fork() belong to the parent process; start a new one");
}

void watch_for_fork() {
  static const int registered = pthread_atfork(
      nullptr, nullptr, [] { forked_flag().store(true, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

}  // namespace bm::runtime
