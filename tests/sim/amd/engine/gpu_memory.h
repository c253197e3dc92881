#pragma once
// Memory as a GPU's engines see it: what a process mapped through the kernel driver's model
// (kfd/memory.h), or what page tables in video memory say (chip/gmc.h).

#include <cstddef>
#include <cstdint>
#include <optional>

namespace bm::sim::amd {

/// Thread: any. A thread that got memory through at() has it until its release().
class GpuMemory {
 public:
  virtual ~GpuMemory() = default;

  /// Host view of GPU memory, or nullptr where the GPU's page tables have nothing or refuse it.
  virtual std::byte* at(uint32_t gpu_id, uint64_t va, uint64_t bytes, bool is_write) = 0;
  /// How many of `bytes` at `va` one at() can be asked for: pages lie anywhere.
  virtual uint64_t contiguous(uint32_t gpu_id, uint64_t va, uint64_t bytes) {
    static_cast<void>(gpu_id), static_cast<void>(va);
    return bytes;
  }

  /// A mapping that is plain memory here, as long as generation() stays the same.
  struct Range {
    uint64_t va = 0, bytes = 0;
    std::byte* host = nullptr;
    bool is_readable = true, is_writable = true, is_executable = true;
  };
  virtual std::optional<Range> local_range(uint32_t gpu_id, uint64_t va) = 0;
  virtual uint64_t generation() const = 0;
  /// Start of a mapping that another GPU has and this one has not; 0: none.
  virtual uint64_t mapped_elsewhere(uint32_t gpu_id) const {
    static_cast<void>(gpu_id);
    return 0;
  }

  /// What GPU `gpu_id` writes into another GPU's video memory over PCIe waits in that one's host
  /// data path until it is flushed, or somebody reads over PCIe. False: nothing of the kind, the
  /// caller writes. The range is known to be mapped.
  virtual bool hold_write(uint32_t gpu_id, uint64_t va, const std::byte* data, uint64_t bytes) {
    static_cast<void>(gpu_id), static_cast<void>(va), static_cast<void>(data);
    static_cast<void>(bytes);
    return false;
  }
  /// Whether `va` is, for that GPU, the register that flushes a GPU; it is done then.
  virtual bool flush_at(uint32_t gpu_id, uint64_t va) {
    static_cast<void>(gpu_id), static_cast<void>(va);
    return false;
  }
  /// Before reading there: over PCIe a GPU sees what waits.
  virtual void read_over_bus(uint32_t gpu_id, uint64_t va) {
    static_cast<void>(gpu_id), static_cast<void>(va);
  }
  /// What this thread changed through at() is where others see it.
  virtual void release() {}
};

}  // namespace bm::sim::amd
