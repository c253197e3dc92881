#pragma once
// Devices that execute commands in memory. Queue devices run on one scheduler thread that picks
// queues, and commands not kept apart by barriers, in a seeded random order: a missing wait or
// barrier shows as a wrong result for some seed.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/device.h"
#include "runtime/hal/device.h"

namespace bm::fake {

class FakeDevice;
class FakeQueue;

/// Deliberate defects and conditions. Change only while the world is idle.
struct Knobs {
  bool ignore_waits = false;     ///< Wait commands of queue devices do nothing
  bool ignore_barriers = false;  ///< Barrier commands keep nothing apart
  bool prefer_copies = false;    ///< copy queues run whenever they can, before compute queues
  bool prefer_compute = false;
  bool is_held = false;  ///< queue devices execute nothing
};

class World {
 public:
  explicit World(uint32_t seed);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Applies a change of knobs between two commands.
  void set(const Knobs& knobs);
  bool ignores_waits() const { return ignores_waits_.load(std::memory_order_relaxed); }
  /// Returns when every queue is empty; the world must not be held.
  void drain();
  /// First broken promise seen: an address of another device, a recording replayed while running.
  std::string fault() const;
  void report_fault(const std::string& what);

 private:
  friend class FakeQueue;
  friend class FakeDevice;
  void run();
  bool step();
  bool try_execute(FakeQueue& queue);

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<FakeQueue*> queues_;
  Knobs knobs_;
  std::atomic<bool> ignores_waits_{false};
  std::mt19937 random_;
  std::string fault_;
  bool is_stopping_ = false;
  std::thread thread_;
};

class FakeBuffer final : public hal::Buffer {
 public:
  FakeBuffer(const hal::BufferDesc& desc, uint32_t device_id);
  ~FakeBuffer() override;
  std::byte* memory() const { return memory_; }

 private:
  std::byte* memory_;
};

/// out[i] = out[i] * 31 + sum over k of in_k[i] * (2 k + 3) + sum of variables, for i < grid.x
/// words.
class FakeProgram final : public hal::Program {
 public:
  explicit FakeProgram(hal::CodeObject code) : Program(std::move(code)) {}
};

/// The code object of such a kernel over `buffers` buffers and `vars` variables.
hal::CodeObject mix_kernel(uint32_t buffers, uint32_t vars, hal::DimExpr grid_x);
/// What it computes; also used by reference executions.
void mix(std::vector<uint64_t*> buffers, const int64_t* vars, uint32_t num_vars, uint64_t words);

class FakeRecording final : public hal::Recording {
 public:
  std::vector<hal::Command> commands;
  std::vector<hal::Patch> patches;
  std::atomic<int> in_flight{0};
};

class FakeQueue final : public hal::Queue {
 public:
  FakeQueue(World& world, FakeDevice& device, bool is_copy);
  Status submit(std::span<const hal::Command> commands) override;
  Result<std::unique_ptr<hal::Recording>> record(std::span<const hal::Command> commands,
                                                 std::span<const hal::Patch> patches) override;
  Status replay(hal::Recording& recording, std::span<const uint64_t> values) override;

  std::atomic<size_t> waits{0}, barriers{0}, signals{0};  ///< in recordings made so far
  std::atomic<size_t> replays{0};

 private:
  friend class World;
  struct Item {
    hal::Command command;
    FakeRecording* last_of = nullptr;  ///< recording that is complete after this command
  };
  World& world_;
  FakeDevice& device_;
  const bool is_copy_;
  std::deque<Item> items_;  // under World::mutex_
};

struct FakeOptions {
  bool is_inline = false;
  bool has_copy_queue = true;
  bool can_map = true;  ///< other devices' memory can be mapped here
};

class FakeDevice final : public hal::Device {
 public:
  /// `id` 0 … 100; addresses carry it, so that an address of the wrong device is noticed.
  FakeDevice(World& world, uint32_t id, FakeOptions options);
  ~FakeDevice() override;

  const hal::Arch& arch() const override { return arch_; }
  std::string description() const override { return "fake"; }
  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc) override;
  Result<hal::GpuVa> map(hal::Buffer& peer) override;
  Result<std::unique_ptr<hal::Program>> load(const hal::CodeObject& code) override;
  hal::Queue& queue(hal::QueueKind kind) override;
  bool is_inline() const override { return options_.is_inline; }
  Status status() override;
  void lose(const Error& cause) override;
  hal::MemoryInfo memory() const override { return {}; }
  Result<std::string> disassemble(const hal::CodeObject&) override {
    return fail(Code::kUnsupported, "fake");
  }

  /// Host pointer behind one of this device's addresses; nullptr and a fault for another device's.
  std::byte* translate(hal::GpuVa va);
  void execute(const hal::Command& command);
  FakeQueue& fake_queue(hal::QueueKind kind) { return static_cast<FakeQueue&>(queue(kind)); }

  std::atomic<bool> is_refusing{false};  ///< submit and replay fail
  std::atomic<bool> is_lost{false};      ///< status() fails
  std::atomic<int> loads{0};
  std::atomic<int> dispatches{0};

 private:
  World& world_;
  const uint32_t id_;
  const FakeOptions options_;
  hal::Arch arch_;
  std::atomic<uint64_t> clock_{1};
  std::mutex lost_mutex_;
  std::optional<Error> lost_;
  FakeQueue compute_, copy_;
};

/// Pointer the test may read and write, whatever the device.
std::byte* peek(const runtime::Buffer& buffer);

}  // namespace bm::fake
