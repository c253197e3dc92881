#pragma once
// GPU memory in slabs: few kernel allocations, many of ours. Remembers what was freed, so that a
// fault can name the allocation next to its address.
//
// `Kernel` names a vendor's types: Interface (with allocate() and facts()), Memory and Place; the
// vendor says which places are system memory by is_system(Place). slab_pool_impl.h holds the
// bodies; each vendor instantiates them once.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/tlsf.h"

namespace bm::memory {

template <class Kernel>
class SlabPool;

/// A range of GPU memory; goes back to its pool when destroyed.
template <class Kernel>
class SlabAllocation {
 public:
  using Memory = typename Kernel::Memory;
  SlabAllocation() = default;
  SlabAllocation(SlabAllocation&& other) noexcept { swap(other); }
  SlabAllocation& operator=(SlabAllocation&& other) noexcept {
    swap(other);
    return *this;
  }
  ~SlabAllocation() { reset(); }

  explicit operator bool() const { return pool_ != nullptr; }
  uint64_t va() const { return va_; }
  uint64_t size() const { return size_; }
  /// CPU address, or nullptr for Place::kVideo. Place::kVideoMapped: only write.
  std::byte* host() const { return host_; }
  /// Kernel allocation it lies in; whole slabs are mapped for peers.
  Memory& memory() const { return *memory_; }
  void reset();

 private:
  friend class SlabPool<Kernel>;
  void swap(SlabAllocation& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(memory_, other.memory_);
    std::swap(va_, other.va_);
    std::swap(size_, other.size_);
    std::swap(host_, other.host_);
  }
  SlabPool<Kernel>* pool_ = nullptr;
  Memory* memory_ = nullptr;
  uint64_t va_ = 0, size_ = 0;
  std::byte* host_ = nullptr;
};

/// Thread: callers serialise, frees included. Must outlive its allocations.
template <class Kernel>
class SlabPool {
 public:
  using Memory = typename Kernel::Memory;
  using Place = typename Kernel::Place;
  using Allocation = SlabAllocation<Kernel>;
  static constexpr uint64_t kSlabBytes = 32 << 20;
  static constexpr uint64_t kAlignment = 256;

  explicit SlabPool(typename Kernel::Interface& kernel, uint64_t slab_bytes = kSlabBytes)
      : kernel_(kernel), slab_bytes_(slab_bytes) {}
  ~SlabPool();

  /// At least `size` bytes, aligned to `alignment` (a power of two, at least kAlignment).
  /// Errors: kInvalidArgument (size 0), kOutOfMemory with the numbers.
  Result<Allocation> allocate(uint64_t size, Place place, uint64_t alignment = kAlignment);
  /// Registers `size` bytes of the process at `host`, which need not be aligned to pages.
  Result<Allocation> wrap(void* host, uint64_t size);
  /// Gives slabs without allocations back to the kernel driver.
  void trim();

  /// The CPU's view of [va, va + bytes), or nullptr when it must not or cannot read there.
  std::byte* readable(uint64_t va, uint64_t bytes) const;
  /// First address of [va, va + bytes) that is no memory of this pool; va + bytes when all is.
  uint64_t first_gap(uint64_t va, uint64_t bytes) const;
  /// "12 bytes past the end of a live allocation of 4096 bytes at 0x…", for messages.
  std::string describe(uint64_t va) const;

  uint64_t video_bytes() const { return video_bytes_; }  ///< handed out by the kernel driver

 private:
  friend Allocation;
  struct Slab {
    std::unique_ptr<Memory> memory;
    std::optional<Tlsf> ranges;  ///< none: one allocation takes it whole
    uint64_t live = 0;
    void* registered = nullptr;  ///< memory of the process
  };
  struct Freed {
    uint64_t va, size;
  };

  Result<Slab*> add_slab(uint64_t bytes, Place place, bool is_whole);
  Result<std::unique_ptr<Memory>> ask(uint64_t bytes, Place place);
  void drop(std::map<uint64_t, Slab>::iterator at);
  void release(const Allocation& allocation);
  Allocation make(Slab& slab, uint64_t va, uint64_t size);
  std::map<uint64_t, Slab>::const_iterator slab_at(uint64_t va) const;

  typename Kernel::Interface& kernel_;
  const uint64_t slab_bytes_;
  std::map<uint64_t, Slab> slabs_;  ///< by address
  std::deque<Freed> freed_;
  uint64_t video_bytes_ = 0;
};

}  // namespace bm::memory
