#pragma once
// GPU memory in slabs: few allocations of the owner of the GPU, many of ours. Remembers what was
// freed, so that a fault can name the allocation next to its address.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "drivers/hcq/driver_interface.h"
#include "runtime/base/fork.h"
#include "runtime/base/result.h"
#include "runtime/base/tlsf.h"

namespace bm::hcq {

class MemoryPool;

/// A range of GPU memory; goes back to its pool when destroyed.
class Allocation {
 public:
  Allocation() = default;
  Allocation(Allocation&& other) noexcept { swap(other); }
  Allocation& operator=(Allocation&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Allocation() { reset(); }

  explicit operator bool() const { return pool_ != nullptr; }
  uint64_t va() const { return va_; }
  uint64_t size() const { return size_; }
  /// The CPU's view; empty for MemoryDomain::kVideo, and for memory of the process, which needs
  /// none. MemoryDomain::kVideoMapped: only write.
  const HostView& view() const { return view_; }
  /// The owner's allocation it lies in; whole slabs are mapped for peers.
  Memory& memory() const { return *memory_; }
  void reset();

 private:
  friend class MemoryPool;
  void swap(Allocation& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(memory_, other.memory_);
    std::swap(va_, other.va_);
    std::swap(size_, other.size_);
    std::swap(view_, other.view_);
  }
  MemoryPool* pool_ = nullptr;
  Memory* memory_ = nullptr;
  uint64_t va_ = 0, size_ = 0;
  HostView view_;
};

/// Thread: callers serialise, frees included. Must outlive its allocations.
class MemoryPool {
 public:
  static constexpr uint64_t kSlabBytes = 32 << 20;
  static constexpr uint64_t kAlignment = 256;

  explicit MemoryPool(DriverInterface& driver, uint64_t slab_bytes = kSlabBytes)
      : driver_(driver), slab_bytes_(slab_bytes) {}
  ~MemoryPool();

  /// At least `size` bytes, aligned to `alignment` (a power of two, at least kAlignment).
  /// Errors: kInvalidArgument (size 0), kOutOfMemory with the numbers.
  Result<Allocation> allocate(uint64_t size, MemoryDomain domain, uint64_t alignment = kAlignment);
  /// Registers `size` bytes of the process at `host`, which need not be aligned to pages.
  Result<Allocation> wrap(void* host, uint64_t size);
  /// Gives slabs without allocations back to the owner of the GPU.
  void trim();

  /// The CPU's view of [va, va + bytes), `va` a multiple of 8; empty when it must not or cannot
  /// read there.
  HostView readable(uint64_t va, uint64_t bytes) const;
  /// First address of [va, va + bytes) that is no memory of this pool; va + bytes when all is.
  uint64_t first_gap(uint64_t va, uint64_t bytes) const;
  /// "12 bytes past the end of a live allocation of 4096 bytes at 0x…", for messages.
  std::string describe(uint64_t va) const;

  uint64_t video_bytes() const { return video_bytes_; }  ///< handed out by the owner of the GPU

 private:
  friend class Allocation;
  struct Slab {
    std::unique_ptr<Memory> memory;
    std::optional<Tlsf> ranges;  ///< none: one allocation takes it whole
    uint64_t live = 0;
    void* registered = nullptr;  ///< memory of the process
  };
  struct Freed {
    uint64_t va, size;
  };

  Result<Slab*> add_slab(uint64_t bytes, MemoryDomain domain, bool is_whole);
  Result<std::unique_ptr<Memory>> ask(uint64_t bytes, MemoryDomain domain);
  void drop(std::map<uint64_t, Slab>::iterator at);
  void release(const Allocation& allocation);
  Allocation make(Slab& slab, uint64_t va, uint64_t size);
  std::map<uint64_t, Slab>::const_iterator slab_at(uint64_t va) const;

  const ForkGuard fork_;
  DriverInterface& driver_;
  const uint64_t slab_bytes_;
  std::map<uint64_t, Slab> slabs_;  ///< by address
  std::deque<Freed> freed_;
  uint64_t video_bytes_ = 0;
};

}  // namespace bm::hcq
