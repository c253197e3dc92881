#pragma once
// What cases at the level of the runtime share: the device beside the CPU, and programs of calls
// together with a model of what they must compute.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/device.h"
#include "runtime/graph.h"
#include "tests/cts/cts.h"

namespace bm::cts {

/// What a world does wrong on purpose.
struct Mischief {
  bool drops_waits = false;                  ///< the device's queues never get a Wait
  std::function<void()> before_host_replay;  ///< the CPU runs this before each step of a graph
};

/// The subject's device, the CPU, and another instance of the device, opened by the runtime.
class World {
 public:
  static Result<std::unique_ptr<World>> open(const Subject& subject, Mischief mischief = {});

  const Subject& subject() const { return subject_; }
  runtime::Device& device() { return *device_; }
  runtime::Device& cpu() { return *cpu_; }
  /// Opened on first use.
  Result<runtime::Device*> peer();
  /// Gives the device back before its time.
  void close_device() { device_.reset(); }

  /// Launch of a kernel of kernels.h on one of the devices. `vars` index the graph's variables.
  Result<runtime::KernelCall> kernel(runtime::Device& on, std::string_view name,
                                     std::vector<uint32_t> vars,
                                     const std::array<hal::DimExpr, 3>& grid);

 private:
  explicit World(const Subject& subject) : subject_(subject) {}
  const Subject& subject_;
  std::unique_ptr<runtime::Device> cpu_, device_, peer_;
};

/// Holds up what is submitted to a device after hold(), until open(). Devices that run inline are
/// never held: they would stand at the gate themselves.
class Gate {
 public:
  static Result<Gate> make(runtime::Device& device, hal::QueueKind kind = hal::QueueKind::kCompute);
  Status hold();
  void open();

 private:
  Gate(runtime::Device& device, hal::QueueKind kind, runtime::Buffer memory)
      : device_(&device), kind_(kind), memory_(std::move(memory)) {}
  runtime::Device* device_;
  hal::QueueKind kind_;
  runtime::Buffer memory_;
  uint64_t value_ = 0;
};

/// Launch dimension that is always `value`.
inline hal::DimExpr constant(int64_t value) {
  hal::DimExpr dim;
  dim.constant = value;
  return dim;
}

/// Memory on devices with a copy here of what it must hold.
class Model {
 public:
  /// New memory full of numbers that occur nowhere else; returns its number.
  Result<uint32_t> add(runtime::Device& on, uint64_t bytes = 4096);
  /// Takes over memory of the caller, as it is filled by refill().
  uint32_t adopt(runtime::Buffer buffer);
  /// Fills it with new numbers, from the host.
  Status refill(uint32_t memory);
  /// Frees a memory and, while what used it may be held at the gate, writes to new memory of the
  /// same size, which may be the same.
  Status reuse(uint32_t memory, Gate& gate);
  /// Gives the memory back; nobody looks at it any more.
  void drop(uint32_t memory) { memories_[memory] = {}; }

  const runtime::Buffer& buffer(uint32_t memory) const { return memories_[memory].buffer; }
  std::byte* wanted(uint32_t memory) { return memories_[memory].wanted.data(); }
  /// Compares one memory, or all, byte for byte; waits for what is still running. Errors: kCorrupt
  /// naming the first byte that differs.
  Status check(uint32_t memory) const;
  Status check() const;

 private:
  struct Memory {
    runtime::Buffer buffer;
    std::vector<std::byte> wanted;
  };
  std::vector<Memory> memories_;
  std::mt19937_64 numbers_{1};
};

/// Bytes of a memory of the model, or of an input (Tape::input).
struct Part {
  uint32_t place = 0;
  uint64_t offset = 0;
  uint64_t bytes = 4096;
};

/// A list of calls and the same calls on the model. Kernel arguments lie at multiples of kPartAlign
/// bytes and are multiples of kFoldBytes long; copies may lie anywhere.
class Tape {
 public:
  static constexpr uint64_t kPartAlign = 1024, kFoldBytes = 512;

  Tape(World& world, Model& model) : world_(world), model_(model) {}

  /// A place whose memory each replay names; `memory` is bound at capture.
  uint32_t input(uint32_t memory);
  /// dst = dst * 3 + src + variable 0, on the device of dst. Only an order that keeps every
  /// dependency gives these numbers.
  Status fold(Part dst, Part src);
  /// The same over another grid; 0 on an axis: nothing happens.
  Status fold_grid(Part dst, Part src, hal::Dim3 grid);
  Status copy(Part dst, Part src);
  /// `count` calls between parts of different places of at least 4096 bytes: copies, and folds
  /// where the subject has kernels and both places are on one device.
  Status scramble(std::span<const uint32_t> places, size_t count, uint64_t seed);

  Result<std::unique_ptr<runtime::Graph>> capture() const;
  /// Replays, and does the same to the model. `bound`: memory of each input.
  Status replay(runtime::Graph& graph, int64_t by, const std::vector<uint32_t>& bound = {});
  /// One call after the other, without a graph; inputs as at capture.
  Status execute(int64_t by);

 private:
  struct Step {
    bool is_copy = false;
    Part dst, src;
    uint64_t bytes = 0;
  };
  static constexpr uint32_t kInput = 1u << 31;
  runtime::Device& device_of(uint32_t place) const;
  runtime::Arg arg(Part part, bool is_written) const;
  uint32_t memory_of(uint32_t place, std::span<const uint32_t> bound) const;
  void advance(int64_t by, std::span<const uint32_t> bound);

  World& world_;
  Model& model_;
  std::vector<runtime::Call> calls_;
  std::vector<Step> steps_;
  std::vector<uint32_t> captured_;  ///< memory of each input at capture
};

}  // namespace bm::cts
