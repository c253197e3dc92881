#include "tests/cts/mischief.h"

#include <algorithm>
#include <vector>

namespace bm::cts {
namespace {

class Passage : public hal::Queue {
 public:
  explicit Passage(hal::Queue& queue) : queue_(queue) {}
  Status submit(std::span<const hal::Command> commands) override { return queue_.submit(commands); }
  Result<std::unique_ptr<hal::Recording>> record(std::span<const hal::Command> commands,
                                                 std::span<const hal::Patch> patches) override {
    return queue_.record(commands, patches);
  }
  Status replay(hal::Recording& recording, std::span<const uint64_t> values) override {
    return queue_.replay(recording, values);
  }

 private:
  hal::Queue& queue_;
};

class WithoutWaits final : public Passage {
 public:
  using Passage::Passage;
  Status submit(std::span<const hal::Command> commands) override {
    return Passage::submit(spoil(commands));
  }
  Result<std::unique_ptr<hal::Recording>> record(std::span<const hal::Command> commands,
                                                 std::span<const hal::Patch> patches) override {
    const std::vector<hal::Command> left = spoil(commands);
    std::vector<hal::Patch> still(patches.begin(), patches.end());
    std::erase_if(still, [&](const hal::Patch& patch) {
      return std::holds_alternative<hal::Wait>(commands[patch.command]);
    });
    return Passage::record(left, still);
  }

 private:
  /// Positions stay: patches name commands by them.
  static std::vector<hal::Command> spoil(std::span<const hal::Command> commands) {
    std::vector<hal::Command> left(commands.begin(), commands.end());
    for (hal::Command& command : left)
      if (std::holds_alternative<hal::Wait>(command)) command = hal::Barrier{};
    return left;
  }
};

class WithHook final : public Passage {
 public:
  WithHook(hal::Queue& queue, std::function<void()> hook)
      : Passage(queue), hook_(std::move(hook)) {}
  Status replay(hal::Recording& recording, std::span<const uint64_t> values) override {
    hook_();
    return Passage::replay(recording, values);
  }

 private:
  const std::function<void()> hook_;
};

/// Everything of a device but its queues.
class Wrapped final : public hal::Device {
 public:
  using MakeQueue = std::function<std::unique_ptr<hal::Queue>(hal::Queue&)>;
  Wrapped(std::unique_ptr<hal::Device> device, const MakeQueue& make) : device_(std::move(device)) {
    hal::Queue& compute = device_->queue(hal::QueueKind::kCompute);
    hal::Queue& copy = device_->queue(hal::QueueKind::kCopy);
    compute_ = make(compute);
    if (&copy != &compute) copy_ = make(copy);  // one queue for both stays one
  }
  const hal::Arch& arch() const override { return device_->arch(); }
  std::string description() const override { return device_->description(); }
  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc) override {
    return device_->allocate(desc);
  }
  Result<hal::GpuVa> map(hal::Buffer& peer) override { return device_->map(peer); }
  Result<std::unique_ptr<hal::Program>> load(const hal::CodeObject& code) override {
    return device_->load(code);
  }
  hal::Queue& queue(hal::QueueKind kind) override {
    return kind == hal::QueueKind::kCopy && copy_ ? *copy_ : *compute_;
  }
  bool is_inline() const override { return device_->is_inline(); }
  Status status() override { return device_->status(); }
  void lose(const Error& cause) override { device_->lose(cause); }
  hal::MemoryInfo memory() const override { return device_->memory(); }
  Result<std::string> disassemble(const hal::CodeObject& code) override {
    return device_->disassemble(code);
  }

 private:
  std::unique_ptr<hal::Device> device_;
  std::unique_ptr<hal::Queue> compute_, copy_;
};

}  // namespace

std::unique_ptr<hal::Queue> queue_without_waits(hal::Queue& queue) {
  return std::make_unique<WithoutWaits>(queue);
}

std::unique_ptr<hal::Device> without_waits(std::unique_ptr<hal::Device> device) {
  return std::make_unique<Wrapped>(std::move(device), queue_without_waits);
}

std::unique_ptr<hal::Device> with_hook(std::unique_ptr<hal::Device> device,
                                       std::function<void()> before_replay) {
  return std::make_unique<Wrapped>(std::move(device), [before_replay](hal::Queue& queue) {
    return std::make_unique<WithHook>(queue, before_replay);
  });
}

}  // namespace bm::cts
