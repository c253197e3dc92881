#pragma once
// Internal to allocator.cpp: the state shared by an Allocator and the storages it handed out.

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/allocator.h"
#include "runtime/pool.h"
#include "runtime/use_list.h"

namespace bm::runtime {

/// What happens to a block when it is free.
enum class BlockKind : uint8_t {
  kPooled,     ///< range of a pool chunk
  kDedicated,  ///< whole device allocation, may be cached
  kTransient,  ///< whole device allocation, given back at once
  kExternal,   ///< caller's memory
};

/// What the cache is keyed by: size in granules and placement flags.
struct CacheKey {
  uint64_t packed = 0;
  static CacheKey of(const hal::BufferDesc& desc);
  bool operator==(const CacheKey&) const = default;
};
struct CacheKeyHash {
  size_t operator()(const CacheKey& key) const {
    return static_cast<size_t>(key.packed * 0x9e3779b97f4a7c15u);
  }
};

/// A block on its way from storage to storage. `last_use` is set when handed out before it is
/// reached.
struct Lease {
  Block block;
  BlockKind kind = BlockKind::kPooled;
  CacheKey key;
  Point last_use;
};

/// Everything behind the allocator's lock. Shared, so that storages destroyed after their
/// allocator (process exit) find it closed instead of gone.
class AllocatorCore {
 public:
  AllocatorCore(hal::Device& device, Device& owner, const AllocatorOptions& options);

  Result<Lease> obtain(hal::BufferDesc desc);
  Result<Lease> adopt(const hal::BufferDesc& desc);
  Result<Lease> adopt(std::unique_ptr<hal::Buffer> memory);
  /// Takes a block back, to be reused when `uses` are reached. Never blocks on the device.
  void retire(const Lease& lease, const UseList& uses, std::function<void()> release);

  void collect();
  Status wait_pending();
  uint64_t trim(uint64_t target);
  void close();
  AllocatorStats stats() const;
  std::vector<BlockInfo> snapshot() const;

 private:
  struct Cached {
    Block block;
    BlockKind kind;
    Point last_use;
  };
  struct Pending {
    Lease lease;
    std::vector<Point> uses;
    std::function<void()> release;
  };
  using Hooks = std::vector<std::function<void()>>;
  /// The lock, and after it is let go, the release hooks collected under it.
  class Section;

  // All below: caller holds the lock.
  bool plain_is_visible();
  std::optional<Lease> take_cached(const CacheKey& key);
  Result<Lease> take_or_grow(const hal::BufferDesc& desc, BlockKind kind);
  void trim_for(uint64_t fresh, uint64_t size);
  Result<Lease> grow(const hal::BufferDesc& desc, BlockKind kind);
  Result<std::unique_ptr<hal::Buffer>> ask_device(hal::BufferDesc desc, uint64_t bytes);
  Pool& pool_for(const hal::BufferDesc& desc) { return pools_[desc.host_visible ? 1 : 0]; }
  void collect_locked(Hooks& hooks, size_t most);
  void retire_locked(const Lease& lease, const UseList& uses, std::function<void()> release,
                     Hooks& hooks);
  void recycle(Pending& done, Hooks& hooks);
  void flush_cache();
  uint64_t release_idle(uint64_t wanted);
  void drop_chunk(Chunk* chunk);
  void enforce_soft_cap();
  Lease account(Lease lease);
  void count(const hal::Buffer& memory);
  tl::unexpected<Error> out_of_memory(uint64_t size, const Error& cause) const;

  hal::Device& device_;
  Device& owner_;
  const AllocatorOptions options_;

  mutable std::mutex lock_;
  bool is_closed_ = false;
  std::optional<bool> is_plain_visible_;
  Pool pools_[2];  ///< plain, host visible
  std::unordered_map<Chunk*, std::unique_ptr<Chunk>> dedicated_;
  std::unordered_map<CacheKey, std::vector<Cached>, CacheKeyHash> cache_;
  std::deque<Pending> pending_;
  uint64_t capped_bytes_ = 0;  ///< what the hard cap counts
  AllocatorStats stats_;
};

}  // namespace bm::runtime
