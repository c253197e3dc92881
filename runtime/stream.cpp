#include "runtime/stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <vector>

#include "runtime/base/fork.h"
#include "runtime/device.h"
#include "runtime/hal/waiting.h"
#include "runtime/work_log.h"

namespace bm::runtime {
namespace {

// An event ends it early; faults are asked for in between.
constexpr std::chrono::milliseconds kLongestEventSleep{5};

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
  void note_work(uint64_t value, std::string_view name, const char* queue) override {
    work_.note(value, {.name = name}, queue);
  }
  Error lose(Error cause) override { return lose_in_life(timeline_.life(), std::move(cause)); }
  Result<hal::GpuVa> signal_on(hal::Device& waiter) override;

 private:
  TimelineOptions timeline_options() {
    // Signals are compared in 32 bits by the narrowest hardware (AMD's WAIT_REG_MEM, NVIDIA's copy
    // engine). Restarting there on wider hardware too costs one drain per 2^31 submissions.
    return {.compare_bits = 32,
            .on_idle = [this](std::chrono::nanoseconds idle) { return when_idle(idle); },
            .clock = nullptr,
            .lose = [this](uint64_t life,
                           Error cause) { return lose_in_life(life, std::move(cause)); }};
  }
  Error lose_in_life(uint64_t life, Error cause);
  /// Asks for a fault; a device with interrupts sleeps here until it has something to tell.
  Status when_idle(std::chrono::nanoseconds idle) {
    BM_TRY(device_.status());
    if (waiting_ != nullptr && idle.count() > 0)
      waiting_->sleep_until_event(static_cast<uint64_t>(
          std::min<std::chrono::nanoseconds>(idle, kLongestEventSleep).count()));
    return {};
  }
  hal::Device& device_;
  hal::Waiting* const waiting_ = dynamic_cast<hal::Waiting*>(&device_);  ///< may be null
  const std::string name_;
  std::shared_ptr<hal::Buffer> signal_;
  Timeline timeline_;

  std::mutex mutex_;                    // the device lock
  std::vector<hal::Command> commands_;  // scratch of submit_after, under mutex_

  WorkLog work_;
  std::mutex lost_mutex_;  // taken by waits while others hold mutex_
  std::optional<Error> lost_;

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
  // Who still has an old error must not lose the device with it.
  const std::lock_guard lost(lost_mutex_);
  BM_TRY(device_.recover());
  lost_.reset();
  timeline_.recover(cause);
  return {};
}

Error QueueStream::lose_in_life(uint64_t life, Error cause) {
  const std::lock_guard guard(lost_mutex_);
  if (timeline_.life() != life) return cause;
  if (lost_) return *lost_;
  if (const Status fault = device_.status(); !fault) {
    cause = fault.error();
  } else if (cause.code == Code::kTimeout) {
    if (waiting_ != nullptr) cause.message += "; " + waiting_->activity();
    cause.message +=
        "; the kernel does not end or the device hangs: start the program again; if the work is "
        "merely slow, raise BM_WAIT_TIMEOUT_MS";
  }
  lost_ = work_.lost(name_, std::move(cause), timeline_.completed(), timeline_.last());
  device_.lose(*lost_);
  // A fault that the device met meanwhile is its first cause, and everybody is told the same one.
  if (const Status first = device_.status();
      !first && lost_->message.find(first.error().message) == std::string::npos &&
      first.error().message.find(lost_->message) == std::string::npos)
    lost_ = work_.lost(name_, first.error(), timeline_.completed(), timeline_.last());
  timeline_.poison(*lost_);
  return *lost_;
}

/// What a submission does. Costs no formatting.
WorkLog::What what_of(std::span<const hal::Command> commands) {
  WorkLog::What what;
  for (const hal::Command& command : commands) {
    const auto* dispatch = std::get_if<hal::Dispatch>(&command);
    if (dispatch != nullptr && dispatch->program != nullptr)
      return {.kernel = dispatch->program->code().entry};
    if (const auto* copy = std::get_if<hal::Copy>(&command)) what.copied_bytes += copy->bytes;
  }
  return what;
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
  work_.note(value, what_of(commands), kind == hal::QueueKind::kCopy ? "copy" : "compute");
  if (Status submitted = device_.queue(kind).submit(commands_); !submitted) {
    // A device that failed will not complete what is in flight either: the waiters are told, too.
    const bool is_lost = is_device_error(submitted.error().code) || !device_.status();
    if (is_lost) submitted = tl::unexpected<Error>(lose(std::move(submitted.error())));
    timeline_.cancel(value);
    if (is_lost) return tl::unexpected<Error>(std::move(submitted.error()));
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
  if (!is_forked_child()) [[likely]]
    return {};
  return fail(Code::kUnsupported,
              "forked: devices opened before fork() belong to the parent process; start a new one");
}

}  // namespace bm::runtime
