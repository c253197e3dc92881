#pragma once
// Memory of a CUDA device. Addresses are the driver's unified ones: one range is video memory here,
// video memory of a peer, or host memory that both sides use. Whatever lies in none of them is
// host memory the GPU does not reach.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "drivers/cuda/context.h"
#include "drivers/cuda/slabs.h"
#include "drivers/vendor/region_counters.h"
#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::cuda {

enum class Space : uint8_t {
  kDevice,   ///< video memory, or the caller's CUDA pointer
  kShared,   ///< host memory the GPU reaches too
  kForeign,  ///< host memory it does not: the host copies and looks at words
};

/// Where a range of addresses leads.
struct Place {
  Space space = Space::kForeign;
  CuDevicePtr va = 0;         ///< kDevice, kShared
  std::byte* host = nullptr;  ///< kShared, kForeign
  bool is_device_reachable() const { return space != Space::kForeign; }
};

class Memory;

/// One allocation or wrapped memory. Registered in its Memory until destroyed.
class Region final : public hal::Buffer {
 public:
  enum class Owner : uint8_t { kSlabs, kRegistered, kCaller };
  Region(std::shared_ptr<Memory> memory, const hal::BufferDesc& desc, const Piece& piece,
         Space space, Owner owner);
  ~Region() override;
  Space space() const { return space_; }
  Memory& memory() const { return *memory_; }

 private:
  friend class Memory;
  const std::shared_ptr<Memory> memory_;
  const Piece piece_;
  const Space space_;
  const Owner owner_;
};

/// Thread: safe.
class Memory : public std::enable_shared_from_this<Memory>, public vendor::RegionCounters {
 public:
  explicit Memory(ContextPtr context);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Memory the host must see is pinned host memory at one address for both sides. Errors:
  /// kOutOfMemory with the numbers; kInvalidArgument (size 0, a pointer that is not what it is said
  /// to be); kUnsupported (memory of another framework's own context, foreign kinds).
  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc);
  /// Errors: kUnsupported where peers have no access to each other or memory has no host pointer.
  Result<hal::GpuVa> map(const hal::Buffer& peer);

  /// Errors: kInvalidArgument when the bytes leave their region, or for address 0.
  Result<Place> resolve(hal::GpuVa va, uint64_t bytes) const;

  hal::MemoryInfo info() const { return {.total = context_->info.memory_bytes, .used = used()}; }
  const Context& context() const { return *context_; }

 private:
  friend class Region;
  struct Peer {
    uint64_t size = 0;
    Space space = Space::kForeign;
    std::byte* host = nullptr;
  };
  struct Registration {
    uint64_t size = 0;
    uint32_t users = 0;
  };
  Result<std::unique_ptr<hal::Buffer>> wrap_host(const hal::BufferDesc& desc);
  Result<Region::Owner> register_host(std::byte* host, uint64_t bytes);
  void unregister_host(const std::byte* host);
  Result<std::unique_ptr<hal::Buffer>> wrap_cuda(const hal::BufferDesc& desc);
  Status check_size(uint64_t bytes, bool is_host) const;
  Status fill_zero(CuDevicePtr va, uint64_t bytes);
  Status enable_peer(const Context& peer);
  Result<Place> ask_driver(hal::GpuVa va) const;
  void add(Region& region);
  void remove(Region& region);

  const ContextPtr context_;
  Slabs video_, pinned_;
  mutable std::shared_mutex mutex_;
  std::multimap<uint64_t, Region*> by_address_;  ///< the caller's memory may be wrapped twice
  std::map<uint64_t, Peer> peers_;               ///< what map() made reachable; hints, never owned
  std::set<CuContext> enabled_;
  std::mutex registered_mutex_;
  std::map<const std::byte*, Registration> registered_;  ///< host memory registered by us
  std::mutex fill_mutex_;
  CuStream fill_stream_ = nullptr;
};

}  // namespace bm::cuda
