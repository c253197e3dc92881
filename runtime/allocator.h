#pragma once
// Memory of one device: exact-size cache, pool below it, frees delayed until the device is done.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/buffer.h"
#include "runtime/hal/device.h"

namespace bm::runtime {

class AllocatorCore;
class Device;
class Staging;

struct AllocatorOptions {
  uint64_t hard_cap = 0;  ///< most bytes to hold from the device; 0: no limit
  uint64_t soft_cap = 0;  ///< above this many bytes idle memory goes back when freed; 0: no limit
  uint64_t max_buffer_size = 0;  ///< largest single allocation in bytes; 0: no limit
  bool lru = true;               ///< keep freed memory for later allocations
  /// When set, a block whose only pending work is on this timeline may be handed out before that
  /// work is done, and the new storage inherits the Point. Right only when all device work goes
  /// through that timeline's stream in order and host access waits for Storage::wait_idle().
  Timeline* in_order = nullptr;

  /// Caps and switches of the environment (LRU, BM_MEMORY_CAP, BM_POOL_SOFT_CAP, MAX_BUFFER_SIZE).
  static AllocatorOptions from_settings();
};

/// All sizes in bytes.
struct AllocatorStats {
  uint64_t used = 0;      ///< in live storages
  uint64_t pending = 0;   ///< freed, but the device may still touch it
  uint64_t cached = 0;    ///< held and free
  uint64_t reserved = 0;  ///< held from the device: used + pending + cached
  uint64_t peak_used = 0, peak_reserved = 0;
  uint64_t live = 0;         ///< storages
  uint64_t allocations = 0;  ///< storages ever
  uint64_t cache_hits = 0;   ///< served by the exact-size cache
  uint64_t device_allocations = 0, device_frees = 0;
  uint64_t reclaims = 0;     ///< times the device or a cap refused and caches were dropped
  double fragmentation = 0;  ///< 1 - largest free range / free bytes, over the pools
};

struct BlockInfo {
  enum class State : uint8_t { kUsed, kPending, kCached, kFree };
  hal::GpuVa va{};
  uint64_t size = 0;
  State state = State::kFree;
  uint32_t chunk = 0;  ///< equal for blocks of one device allocation
};

/// Thread: safe. Storages may outlive it; their memory goes away with it. The owner synchronizes
/// before destroying it, and destroys it before the timelines of its stream.
class Allocator {
 public:
  /// `owner` must outlive it; its stream is used first by staging().
  Allocator(hal::Device& device, Device& owner, AllocatorOptions options);
  ~Allocator();

  /// Memory as described; storage size is the size rounded up to 256 bytes (0 counts as 1). Plain
  /// and host-visible memory comes from the cache or pool; anything else is its own device
  /// allocation. When the device or a cap refuses: drop what is idle and try again; wait for
  /// pending frees and try again; fail.
  /// Errors: kOutOfMemory with requested, used, cached and cap; kInvalidArgument past
  /// MAX_BUFFER_SIZE; a pending free's wait error; any other error of the device as it is.
  Result<StoragePtr> allocate(const hal::BufferDesc& desc);
  /// Wraps memory of the caller; not counted, not cached. `release` (may be empty) runs once after
  /// the last use, on the thread that observes it: in a later call of this class.
  Result<StoragePtr> wrap(const hal::BufferDesc& desc, std::function<void()> release);

  /// Takes memory over that was got from the device by itself: counted, not cached, and given back
  /// to the device after the last use.
  Result<StoragePtr> adopt(std::unique_ptr<hal::Buffer> memory);

  /// Gives every idle byte back to the device. Does not wait for pending work.
  void free_cache();
  /// Gives idle memory back until at most `target` bytes are held; returns the bytes given back.
  uint64_t trim(uint64_t target = 0);
  /// Takes back freed memory whose work has completed. Allocation does this by itself.
  void collect();
  /// Waits until nothing is pending. Errors: those of Timeline::wait.
  Status wait_pending();

  AllocatorStats stats() const;
  std::vector<BlockInfo> snapshot() const;

  /// Staging rings of this device, created on first use.
  Staging& staging();
  hal::Device& device() { return device_; }

 private:
  hal::Device& device_;
  Device& owner_;
  std::shared_ptr<AllocatorCore> core_;
  const uint64_t max_buffer_size_;
  std::once_flag staging_once_;
  std::unique_ptr<Staging> staging_;
};

}  // namespace bm::runtime
