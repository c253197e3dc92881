#include "runtime/allocator_core.h"

#include <algorithm>
#include <new>
#include <unordered_set>

#include "runtime/base/bits.h"
#include "runtime/base/check.h"
#include "runtime/device.h"
#include "runtime/work_log.h"

namespace bm::runtime {
namespace {

/// Freed blocks looked at per allocation: keeps the common path short while it still drains faster
/// than it fills.
constexpr size_t kCollectPerCall = 4;

BlockKind kind_of(const hal::BufferDesc& desc) {
  if (desc.external != nullptr) return BlockKind::kExternal;
  if (desc.zero || desc.no_cache) return BlockKind::kTransient;
  return desc.host_memory || desc.uncached ? BlockKind::kDedicated : BlockKind::kPooled;
}

bool all_reached(const std::vector<Point>& points) {
  return std::all_of(points.begin(), points.end(),
                     [](const Point& point) { return reached(point); });
}

}  // namespace

class AllocatorCore::Section {
 public:
  explicit Section(const AllocatorCore& core) : lock_(core.lock_) {}
  ~Section() {
    lock_.unlock();
    // Hooks are the caller's code: they may call back into the allocator.
    for (const std::function<void()>& hook : hooks) hook();
  }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;
  Hooks hooks;

 private:
  std::unique_lock<std::mutex> lock_;
};

CacheKey CacheKey::of(const hal::BufferDesc& desc) {
  return {(desc.size & ~uint64_t{7}) | (desc.host_visible ? 1u : 0u) |
          (desc.host_memory ? 2u : 0u) | (desc.uncached ? 4u : 0u)};
}

AllocatorCore::AllocatorCore(hal::Device& device, Device& owner, const AllocatorOptions& options)
    : device_(device), owner_(owner), options_(options) {}

Result<Lease> AllocatorCore::obtain(hal::BufferDesc desc) {
  const BlockKind kind = kind_of(desc);
  const uint64_t requested = desc.size;
  std::optional<Error> refused;
  {
    Section section(*this);
    if (is_closed_) return fail(Code::kInvalidArgument, "allocation after the device was closed");
    collect_locked(section.hooks, kCollectPerCall);
    // Memory that is visible anyway is one kind, whatever the caller asked for.
    if (kind == BlockKind::kPooled && desc.host_visible && plain_is_visible())
      desc.host_visible = false;
    if (kind != BlockKind::kTransient)
      if (std::optional<Lease> hit = take_cached(CacheKey::of(desc))) return account(*hit);
    Result<Lease> fresh = take_or_grow(desc, kind);
    if (fresh) return account(*fresh);
    if (fresh.error().code != Code::kOutOfMemory) return fresh;
    ++stats_.reclaims;
    collect_locked(section.hooks, SIZE_MAX);
    flush_cache();
    release_idle(UINT64_MAX);
    fresh = take_or_grow(desc, kind);
    if (fresh) return account(*fresh);
    if (fresh.error().code != Code::kOutOfMemory) return fresh;
    if (pending_.empty()) return out_of_memory(requested, fresh.error());
    refused = fresh.error();
  }
  // Waiting happens without the lock: other threads may go on and the device's progress may need
  // them.
  if (Status waited = wait_pending(); !waited && is_loss(waited.error()))
    return tl::unexpected<Error>(std::move(waited.error()));
  else if (!waited)
    return tl::unexpected<Error>(std::move(waited.error()).within("waiting for freed memory"));
  Section section(*this);
  flush_cache();
  release_idle(UINT64_MAX);
  Result<Lease> fresh = take_or_grow(desc, kind);
  if (fresh) return account(*fresh);
  if (fresh.error().code != Code::kOutOfMemory) return fresh;
  return out_of_memory(requested, fresh.error());
}

/// Whether this device's ordinary memory has a host view; asks with a tiny allocation the first
/// time.
bool AllocatorCore::plain_is_visible() {
  if (!is_plain_visible_) {
    const Result<std::unique_ptr<hal::Buffer>> probe = device_.allocate({.size = Pool::kGranule});
    if (!probe) return false;
    is_plain_visible_ = (*probe)->host() != nullptr;
  }
  return *is_plain_visible_;
}

std::optional<Lease> AllocatorCore::take_cached(const CacheKey& key) {
  const auto bin = cache_.find(key);
  if (bin == cache_.end() || bin->second.empty()) return std::nullopt;
  const Cached cached = bin->second.back();
  bin->second.pop_back();
  ++stats_.cache_hits;
  return Lease{cached.block, cached.kind, key,
               reached(cached.last_use) ? Point{} : cached.last_use};
}

Result<Lease> AllocatorCore::take_or_grow(const hal::BufferDesc& desc, BlockKind kind) {
  if (kind != BlockKind::kPooled) return grow(desc, kind);
  Pool& pool = pool_for(desc);
  std::optional<Block> block = pool.take(desc.size);
  if (!block && !cache_.empty()) {
    // Cached blocks of other sizes may merge into room: cheaper than more memory.
    flush_cache();
    block = pool.take(desc.size);
  }
  if (block) return Lease{*block, kind, CacheKey::of(desc), {}};
  trim_for(pool.chunk_bytes(desc.size), desc.size);
  return grow(desc, kind);
}

/// Before the pools grow by `fresh` bytes for a block of `size`: gives idle chunks back that would
/// take the reserve past half again what is in use. One chunk's worth stays in any case, so that
/// programs whose sizes alternate do not ask the device each time.
void AllocatorCore::trim_for(uint64_t fresh, uint64_t size) {
  const uint64_t in_use = stats_.used + stats_.pending + size;
  const uint64_t allowed = in_use + std::max(Pool::kLargeChunk, in_use / 2);
  if (stats_.reserved + fresh > allowed) release_idle(stats_.reserved + fresh - allowed);
}

Result<Lease> AllocatorCore::grow(const hal::BufferDesc& desc, BlockKind kind) {
  const CacheKey key = CacheKey::of(desc);
  if (kind == BlockKind::kPooled) {
    const uint64_t bytes = pool_for(desc).chunk_bytes(desc.size);
    Result<std::unique_ptr<hal::Buffer>> memory = ask_device(desc, bytes);
    if (!memory && memory.error().code == Code::kOutOfMemory && bytes != desc.size)
      memory = ask_device(desc, desc.size);
    if (!memory) return tl::unexpected<Error>(std::move(memory.error()));
    if (!desc.host_visible) is_plain_visible_ = (*memory)->host() != nullptr;
    return Lease{pool_for(desc).take_from(std::move(*memory), desc.size), kind, key, {}};
  }
  std::unique_ptr<hal::Buffer> memory = BM_TRY(ask_device(desc, desc.size));
  auto chunk = std::make_unique<Chunk>(Chunk{std::move(memory), std::nullopt});
  const Block block{chunk.get(), 0, desc.size};
  dedicated_.emplace(chunk.get(), std::move(chunk));
  return Lease{block, kind, key, {}};
}

Result<std::unique_ptr<hal::Buffer>> AllocatorCore::ask_device(hal::BufferDesc desc,
                                                               uint64_t bytes) {
  const bool is_counted = desc.external == nullptr;
  // The cap limits the device's own memory; staging and signals live in the host's.
  const bool is_capped = is_counted && !desc.host_memory && options_.hard_cap != 0;
  if (is_capped && (capped_bytes_ > options_.hard_cap || bytes > options_.hard_cap - capped_bytes_))
    return fail(Code::kOutOfMemory, "the cap leaves no room for {} bytes more", bytes);
  desc.size = bytes;
  auto allocated = device_.allocate(desc);
  if (!allocated) return tl::unexpected<Error>(owner_.first_cause(std::move(allocated.error())));
  std::unique_ptr<hal::Buffer> memory = std::move(*allocated);
  if (desc.host_visible && memory->host() == nullptr)
    return fail(Code::kUnsupported, "{} gave memory without the host view that was asked for",
                owner_.name());
  if (is_counted) count(*memory);
  return memory;
}

void AllocatorCore::count(const hal::Buffer& memory) {
  ++stats_.device_allocations;
  stats_.reserved += memory.size();
  if (!memory.desc().host_memory) capped_bytes_ += memory.size();
  stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.reserved);
}

Lease AllocatorCore::account(Lease lease) {
  ++stats_.live;
  ++stats_.allocations;
  if (lease.kind != BlockKind::kExternal) stats_.used += lease.block.size;
  stats_.peak_used = std::max(stats_.peak_used, stats_.used);
  return lease;
}

Result<Lease> AllocatorCore::adopt(const hal::BufferDesc& desc) {
  Section section(*this);
  if (is_closed_)
    return fail(Code::kInvalidArgument, "wrapping memory after the device was closed");
  return account(BM_TRY(grow(desc, BlockKind::kExternal)));
}

Result<Lease> AllocatorCore::adopt(std::unique_ptr<hal::Buffer> memory) {
  Section section(*this);
  if (is_closed_)
    return fail(Code::kInvalidArgument, "taking memory over after the device was closed");
  auto chunk = std::make_unique<Chunk>(Chunk{std::move(memory), std::nullopt});
  Chunk* const whole = chunk.get();
  const uint64_t bytes = whole->memory->size();
  dedicated_.emplace(whole, std::move(chunk));
  count(*whole->memory);
  return account({{whole, 0, bytes}, BlockKind::kTransient, {}, {}});
}

void AllocatorCore::retire(const Lease& lease, const UseList& all_uses,
                           std::function<void()> release) {
  Section section(*this);
  try {
    retire_locked(lease, all_uses, std::move(release), section.hooks);
  } catch (const std::bad_alloc&) {
    // Destructors come here, often while a failed allocation unwinds. A block that cannot be noted
    // stays allocated until the device closes: memory is the smaller loss.
  }
}

void AllocatorCore::retire_locked(const Lease& lease, const UseList& all_uses,
                                  std::function<void()> release, Hooks& hooks) {
  if (is_closed_) {
    // The timelines in `all_uses` may be gone: they are not looked at.
    if (release) hooks.push_back(std::move(release));
    return;
  }
  std::vector<Point> uses = all_uses.outstanding();
  --stats_.live;
  const bool is_counted = lease.kind != BlockKind::kExternal;
  if (is_counted) stats_.used -= lease.block.size;
  const bool is_cacheable = lease.kind == BlockKind::kPooled || lease.kind == BlockKind::kDedicated;
  if (is_cacheable && options_.lru && uses.size() == 1 && uses[0].timeline == options_.in_order) {
    cache_[lease.key].push_back({lease.block, lease.kind, uses[0]});
    return;
  }
  Pending done{lease, std::move(uses), std::move(release)};
  if (done.uses.empty()) {
    recycle(done, hooks);
    return;
  }
  if (is_counted) stats_.pending += lease.block.size;
  pending_.push_back(std::move(done));
}

/// The block's work is through: to the cache, the pool or the device.
void AllocatorCore::recycle(Pending& done, Hooks& hooks) {
  const Lease& lease = done.lease;
  if (done.release) hooks.push_back(std::move(done.release));
  if (lease.kind == BlockKind::kTransient || lease.kind == BlockKind::kExternal)
    return drop_chunk(lease.block.chunk);
  if (options_.lru) {
    cache_[lease.key].push_back({lease.block, lease.kind, {}});
    return enforce_soft_cap();
  }
  if (lease.kind == BlockKind::kDedicated) return drop_chunk(lease.block.chunk);
  BM_CHECK(pools_[lease.key.packed & 1].give_back(lease.block));
  release_idle(UINT64_MAX);
}

void AllocatorCore::enforce_soft_cap() {
  if (options_.soft_cap == 0 || stats_.reserved <= options_.soft_cap) return;
  flush_cache();
  release_idle(stats_.reserved - options_.soft_cap);
}

void AllocatorCore::drop_chunk(Chunk* chunk) {
  const auto found = dedicated_.find(chunk);
  BM_CHECK(found != dedicated_.end());
  const uint64_t bytes = chunk->memory->size();
  if (chunk->memory->desc().external == nullptr) {
    stats_.reserved -= bytes;
    if (!chunk->memory->desc().host_memory) capped_bytes_ -= bytes;
    ++stats_.device_frees;
  }
  dedicated_.erase(found);
}

/// Moves cached ranges back into the pools, where they merge. Blocks the device may still touch
/// become pending; dedicated ones stay cached.
void AllocatorCore::flush_cache() {
  for (auto& [key, bin] : cache_) {
    std::erase_if(bin, [&](const Cached& cached) {
      if (!reached(cached.last_use)) {
        pending_.push_back({{cached.block, cached.kind, key, {}}, {cached.last_use}, {}});
        stats_.pending += cached.block.size;
        return true;
      }
      if (cached.kind == BlockKind::kDedicated) return false;
      BM_CHECK(pools_[key.packed & 1].give_back(cached.block));
      return true;
    });
  }
  std::erase_if(cache_, [](const auto& bin) { return bin.second.empty(); });
}

/// Gives at least `wanted` idle bytes back to the device if there are as many. Flush the cache
/// first.
uint64_t AllocatorCore::release_idle(uint64_t wanted) {
  uint64_t released = 0;
  for (Pool& pool : pools_) {
    const size_t chunks = pool.num_chunks();
    const uint64_t bytes = pool.release_idle(wanted - released);
    released += bytes;
    stats_.reserved -= bytes;
    capped_bytes_ -= bytes;
    stats_.device_frees += chunks - pool.num_chunks();
    if (released >= wanted) return released;
  }
  for (auto& [key, bin] : cache_)
    while (!bin.empty() && bin.back().kind == BlockKind::kDedicated && released < wanted) {
      released += bin.back().block.size;
      drop_chunk(bin.back().block.chunk);
      bin.pop_back();
    }
  return released;
}

void AllocatorCore::collect_locked(Hooks& hooks, size_t most) {
  // In order of freeing: with one stream the front completes first.
  for (size_t n = 0; n < most && !pending_.empty() && all_reached(pending_.front().uses); ++n) {
    Pending done = std::move(pending_.front());
    pending_.pop_front();
    if (done.lease.kind != BlockKind::kExternal) stats_.pending -= done.lease.block.size;
    recycle(done, hooks);
  }
  if (most != SIZE_MAX) return;
  // Everything: other timelines may have passed the front.
  std::deque<Pending> waiting;
  for (Pending& entry : std::exchange(pending_, {})) {
    if (!all_reached(entry.uses)) {
      waiting.push_back(std::move(entry));
      continue;
    }
    if (entry.lease.kind != BlockKind::kExternal) stats_.pending -= entry.lease.block.size;
    recycle(entry, hooks);
  }
  for (Pending& entry : waiting) pending_.push_back(std::move(entry));
}

void AllocatorCore::collect() {
  Section section(*this);
  collect_locked(section.hooks, SIZE_MAX);
}

Status AllocatorCore::wait_pending() {
  std::vector<Point> points;
  {
    Section section(*this);
    collect_locked(section.hooks, SIZE_MAX);
    for (const Pending& entry : pending_)
      points.insert(points.end(), entry.uses.begin(), entry.uses.end());
  }
  for (const Point& point : points) BM_TRY(wait(point));
  collect();
  return {};
}

uint64_t AllocatorCore::trim(uint64_t target) {
  Section section(*this);
  if (is_closed_) return 0;
  collect_locked(section.hooks, SIZE_MAX);
  if (stats_.reserved <= target) return 0;
  flush_cache();
  return release_idle(stats_.reserved - target);
}

void AllocatorCore::close() {
  Section section(*this);
  is_closed_ = true;
  for (Pending& entry : pending_)
    if (entry.release) section.hooks.push_back(std::move(entry.release));
  pending_.clear();
  cache_.clear();
  dedicated_.clear();
  for (Pool& pool : pools_) pool = Pool();
}

AllocatorStats AllocatorCore::stats() const {
  const std::lock_guard lock(lock_);
  AllocatorStats result = stats_;
  result.cached = result.reserved - result.used - result.pending;
  const uint64_t free = pools_[0].free_bytes() + pools_[1].free_bytes();
  const uint64_t largest = std::max(pools_[0].largest_free(), pools_[1].largest_free());
  result.fragmentation =
      free == 0 ? 0 : 1 - static_cast<double>(largest) / static_cast<double>(free);
  return result;
}

std::vector<BlockInfo> AllocatorCore::snapshot() const {
  using State = BlockInfo::State;
  const std::lock_guard lock(lock_);
  std::unordered_map<uint64_t, State> states;
  for (const auto& [key, bin] : cache_)
    for (const Cached& cached : bin) states[hal::raw(cached.block.va())] = State::kCached;
  for (const Pending& entry : pending_) states[hal::raw(entry.lease.block.va())] = State::kPending;
  std::vector<BlockInfo> blocks;
  uint32_t chunk_number = 0;
  const auto add = [&](hal::GpuVa va, uint64_t size, bool is_free) {
    const auto known = states.find(hal::raw(va));
    const State state = is_free                 ? State::kFree
                        : known == states.end() ? State::kUsed
                                                : known->second;
    blocks.push_back({va, size, state, chunk_number});
  };
  for (const Pool& pool : pools_)
    for (const Chunk* chunk : pool.chunks()) {
      for (const Tlsf::Range& range : chunk->ranges->ranges())
        add(hal::offset(chunk->memory->va(), range.address), range.size, range.is_free);
      ++chunk_number;
    }
  for (const auto& [chunk, owner] : dedicated_) {
    add(chunk->memory->va(), chunk->memory->size(), false);
    ++chunk_number;
  }
  return blocks;
}

tl::unexpected<Error> AllocatorCore::out_of_memory(uint64_t size, const Error& cause) const {
  const uint64_t cached = stats_.reserved - stats_.used - stats_.pending;
  const std::string cap = options_.hard_cap ? fmt::format("{}", options_.hard_cap) : "none";
  return fail(Code::kOutOfMemory,
              "{}: {} bytes requested, {} used, {} cached, {} waiting for the device, cap {}: {}",
              owner_.name(), size, stats_.used, cached, stats_.pending, cap, cause.message);
}

}  // namespace bm::runtime
