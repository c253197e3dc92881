#pragma once
// A device without hardware: memory in the host's heap at shifted addresses, a queue that runs its
// submissions only when told, and knobs for everything that can go wrong.

#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/allocator.h"
#include "runtime/base/check.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace bm::runtime::test {

/// Device addresses differ from host pointers by this, so that mixing them up crashes.
constexpr uint64_t kVaShift = uint64_t{1} << 56;

class FakeHal final : public hal::Device, public hal::Queue {
 public:
  // Knobs.
  bool plain_is_visible = false;   ///< ordinary memory has a host view
  bool can_be_visible = true;      ///< host_visible is honoured
  bool holds = false;              ///< submissions wait for step()
  uint64_t capacity = UINT64_MAX;  ///< bytes; more is refused with kOutOfMemory
  int fail_allocation = 0;         ///< n: the n-th allocation from now is refused with `failure`
  Error failure{Code::kOutOfMemory, "no such luck"};
  int fail_submission = 0;     ///< n: the n-th submission from now is refused
  uint32_t compare_bits = 64;  ///< bits of a signal a Wait looks at
  Status health;

  // What happened.
  uint64_t bytes = 0;
  int allocations = 0, frees = 0;
  std::vector<hal::BufferDesc> descs;
  size_t copies = 0;

  const hal::Arch& arch() const override { return arch_; }
  std::string description() const override { return "fake"; }
  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc) override;
  Result<hal::GpuVa> map(hal::Buffer& peer) override { return peer.va(); }
  Result<std::unique_ptr<hal::Program>> load(const hal::CodeObject&) override {
    return fail(Code::kUnsupported, "fake");
  }
  hal::Queue& queue(hal::QueueKind) override { return *this; }
  Status status() override { return health; }
  hal::MemoryInfo memory() const override { return {capacity, bytes}; }
  Result<std::string> disassemble(const hal::CodeObject&) override {
    return fail(Code::kUnsupported, "fake");
  }

  Status submit(std::span<const hal::Command> commands) override;
  Result<std::unique_ptr<hal::Recording>> record(std::span<const hal::Command>,
                                                 std::span<const hal::Patch>) override {
    return fail(Code::kUnsupported, "fake");
  }
  Status replay(hal::Recording&, std::span<const uint64_t>) override {
    return fail(Code::kUnsupported, "fake");
  }

  /// Runs the oldest held submission up to its end or the first Wait that does not hold; false when
  /// nothing was held or it got nowhere.
  bool step();
  /// Runs held submissions until none can go on.
  void run() {
    while (step()) {}
  }
  size_t num_held() const {
    const std::lock_guard guard(lock_);
    return held_.size();
  }

 private:
  class Memory;
  bool execute(const hal::Command& command);

  hal::Arch arch_;
  mutable std::mutex lock_;
  std::deque<std::vector<hal::Command>> held_;
};

class FakeHal::Memory final : public hal::Buffer {
 public:
  Memory(FakeHal& hal, const hal::BufferDesc& desc, void* memory, bool is_visible)
      : Buffer(desc, hal::GpuVa{reinterpret_cast<uint64_t>(memory) + kVaShift},
               is_visible ? static_cast<std::byte*>(memory) : nullptr),
        hal_(hal),
        memory_(memory) {}
  ~Memory() override {
    if (desc_.external) return;
    const std::lock_guard guard(hal_.lock_);
    hal_.bytes -= desc_.size;
    ++hal_.frees;
    std::free(memory_);
  }

 private:
  FakeHal& hal_;
  void* memory_;
};

inline Result<std::unique_ptr<hal::Buffer>> FakeHal::allocate(const hal::BufferDesc& desc) {
  const std::lock_guard guard(lock_);
  descs.push_back(desc);
  if (fail_allocation != 0 && --fail_allocation == 0) return tl::unexpected<Error>(failure);
  if (desc.external) return std::make_unique<Memory>(*this, desc, desc.external, true);
  if (desc.size > capacity || bytes > capacity - desc.size)
    return fail(Code::kOutOfMemory, "{} of {} in use", bytes, capacity);
  // Lazily backed, so that tests may take gigabytes of it.
  void* memory = std::aligned_alloc(4096, (desc.size + 4095) / 4096 * 4096);
  if (memory == nullptr) return fail(Code::kOutOfMemory, "host memory");
  if (desc.zero) std::memset(memory, 0, desc.size);
  bytes += desc.size;
  ++allocations;
  const bool is_visible = can_be_visible && (plain_is_visible || desc.host_visible);
  return std::make_unique<Memory>(*this, desc, memory, is_visible);
}

inline std::byte* host_of(hal::GpuVa va) {
  return reinterpret_cast<std::byte*>(hal::raw(va) - kVaShift);
}

inline std::atomic_ref<uint64_t> word_of(hal::GpuVa va) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(host_of(va)));
}

inline Status FakeHal::submit(std::span<const hal::Command> commands) {
  {
    const std::lock_guard guard(lock_);
    if (fail_submission != 0 && --fail_submission == 0)
      return fail(Code::kDeviceLost, "submission refused");
    held_.emplace_back(commands.begin(), commands.end());
  }
  if (!holds) run();
  return {};
}

inline bool FakeHal::step() {
  const std::lock_guard guard(lock_);
  if (held_.empty()) return false;
  std::vector<hal::Command>& front = held_.front();
  size_t done = 0;
  while (done < front.size() && execute(front[done])) ++done;
  if (done == front.size()) {
    held_.pop_front();
    return true;
  }
  front.erase(front.begin(), front.begin() + static_cast<std::ptrdiff_t>(done));
  return done != 0;
}

inline bool FakeHal::execute(const hal::Command& command) {
  if (const auto* wait = std::get_if<hal::Wait>(&command)) {
    const uint64_t mask = compare_bits == 64 ? UINT64_MAX : (uint64_t{1} << compare_bits) - 1;
    return (word_of(wait->signal).load() & mask) >= (wait->value & mask);
  }
  if (const auto* signal = std::get_if<hal::Signal>(&command))
    word_of(signal->signal).store(signal->value);
  if (const auto* write = std::get_if<hal::Write>(&command))
    word_of(write->dst).store(write->value);
  if (const auto* copy = std::get_if<hal::Copy>(&command)) {
    std::memcpy(host_of(copy->dst), host_of(copy->src), copy->bytes);
    ++copies;
  }
  return true;
}

/// Time that passes only by looking at it; sleeping lets the given devices run one step each.
class FakeClock final : public WaitClock {
 public:
  std::vector<FakeHal*> runs;
  size_t sleeps = 0;
  std::function<void()> on_sleep;

  std::chrono::nanoseconds now() override { return now_ += std::chrono::microseconds(50); }
  void sleep(std::chrono::nanoseconds duration) override {
    ++sleeps;
    now_ += duration;
    for (FakeHal* hal : runs) hal->step();
    if (on_sleep) on_sleep();
  }

 private:
  std::chrono::nanoseconds now_{};
};

class FakeStream final : public Stream {
 public:
  FakeStream(FakeHal& hal, uint32_t compare_bits, WaitClock* clock)
      : hal_(hal),
        page_(std::move(*hal.allocate({.size = 4096,
                                       .host_visible = true,
                                       .host_memory = true,
                                       .uncached = true,
                                       .zero = true}))),
        timeline_(page_->va(), page_->host(),
                  {.compare_bits = compare_bits, .on_idle = {}, .clock = clock}) {}

  Result<Point> submit(hal::QueueKind kind, std::span<const hal::Command> commands) override {
    const std::lock_guard guard(lock_);
    const uint64_t value = BM_TRY(timeline_.next());
    std::vector<hal::Command> all;
    if (const auto wait = timeline_.wait_command(value - 1)) all.emplace_back(*wait);
    all.insert(all.end(), commands.begin(), commands.end());
    all.emplace_back(timeline_.signal_command(value));
    if (Status status = hal_.queue(kind).submit(all); !status) {
      timeline_.cancel(value);
      return tl::unexpected<Error>(status.error());
    }
    ++submissions;
    return Point{&timeline_, value};
  }
  Status wait(Point point) override { return runtime::wait(point); }
  Timeline& timeline() override { return timeline_; }
  Status synchronize() override { return timeline_.wait(timeline_.last()); }

  size_t submissions = 0;

 private:
  FakeHal& hal_;
  std::unique_ptr<hal::Buffer> page_;
  std::mutex lock_;
  Timeline timeline_;
};

/// Everything a Buffer needs. The fake clock steps this device's queue while a wait sleeps.
class FakeDevice final : public Device {
 public:
  explicit FakeDevice(AllocatorOptions options = {}, std::string name = "FAKE",
                      uint32_t compare_bits = 64)
      : name_(std::move(name)),
        stream_(fake, compare_bits, &clock),
        allocator_(fake, *this, options) {
    clock.runs = {&fake};
    fake.descs.clear();
    fake.allocations = 0;
    fake.bytes = 0;
  }
  ~FakeDevice() override {
    fake.run();
    fake.bytes += 4096;  // the stream's page, left out of the count above
  }

  const std::string& name() const override { return name_; }
  const std::string& renderer() const override { return renderer_; }
  hal::Device& hal() override { return fake; }
  Allocator& allocator() override { return allocator_; }
  FakeStream& stream() override { return stream_; }
  Status synchronize() override { return stream_.synchronize(); }

  /// Queues work that touches `buffer`.
  Point use(const Buffer& buffer) {
    const Result<Point> point = stream_.submit(hal::QueueKind::kCompute, {});
    BM_CHECK(point.has_value());
    buffer.storage->used_until(*point);
    return *point;
  }

  FakeHal fake;
  FakeClock clock;

 private:
  std::string name_, renderer_;
  FakeStream stream_;
  Allocator allocator_;
};

}  // namespace bm::runtime::test
