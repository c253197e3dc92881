#include "drivers/hcq/memory_pool.h"

#include <unistd.h>

#include <algorithm>

#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::hcq {
namespace {

// Frees a fault report looks back on.
constexpr size_t kRemembered = 256;
constexpr uint64_t kNear = 1_GiB;                        ///< farther ones explain nothing
constexpr uint64_t kLargestRequest = uint64_t{1} << 46;  ///< what an address window could hold

uint64_t page_bytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

/// Of the machine.
uint64_t system_bytes() { return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes(); }

}  // namespace

void Allocation::reset() {
  if (pool_ == nullptr) return;
  MemoryPool* const pool = std::exchange(pool_, nullptr);
  if (!pool->fork_.is_parents()) pool->release(*this);
}

MemoryPool::~MemoryPool() {
  for (const auto& [va, slab] : slabs_) BM_CHECK(slab.live == 0);
}

Result<std::unique_ptr<Memory>> MemoryPool::ask(uint64_t bytes, MemoryDomain domain) {
  auto memory = BM_TRY(driver_.allocate({.size = bytes, .domain = domain}));
  if (!is_system(domain)) video_bytes_ += memory->size;
  return memory;
}

Result<MemoryPool::Slab*> MemoryPool::add_slab(uint64_t bytes, MemoryDomain domain, bool is_whole) {
  auto memory = ask(bytes, domain);
  if (!memory && memory.error().code == Code::kOutOfMemory) {
    trim();
    memory = ask(bytes, domain);
  }
  if (!memory) return tl::unexpected(std::move(memory.error()));
  Slab slab;
  if (!is_whole) slab.ranges = BM_TRY(Tlsf::create((*memory)->va, (*memory)->size, kAlignment));
  slab.memory = std::move(*memory);
  const uint64_t va = slab.memory->va;
  return &slabs_.insert_or_assign(va, std::move(slab)).first->second;
}

Allocation MemoryPool::make(Slab& slab, uint64_t va, uint64_t size) {
  Allocation allocation;
  allocation.pool_ = this;
  allocation.memory_ = slab.memory.get();
  allocation.va_ = va;
  allocation.size_ = size;
  if (slab.memory->view && slab.registered == nullptr)
    allocation.view_ = slab.memory->view.slice(va - slab.memory->va, size);
  ++slab.live;
  return allocation;
}

Result<Allocation> MemoryPool::allocate(uint64_t size, MemoryDomain domain, uint64_t alignment) {
  if (size == 0) return fail(Code::kInvalidArgument, "an allocation of 0 bytes");
  const bool is_of_system = is_system(domain);
  const uint64_t most =
      std::min(is_of_system ? system_bytes() : driver_.facts().video_memory, kLargestRequest);
  if (size > most)
    return fail(Code::kOutOfMemory, "{} bytes of {} memory requested, there are {}", size,
                is_of_system ? "system" : "video", most);
  const uint64_t bytes = align_up(size, kAlignment);
  const bool is_whole = bytes > slab_bytes_ / 2;
  if (!is_whole) {
    for (auto& [base, slab] : slabs_) {
      if (!slab.ranges || slab.memory->domain != domain) continue;
      if (const auto va = slab.ranges->try_allocate(bytes, alignment)) return make(slab, *va, size);
    }
    if (auto slab = add_slab(slab_bytes_, domain, false)) {
      if (const auto va = (*slab)->ranges->try_allocate(bytes, alignment))
        return make(**slab, *va, size);
    } else if (slab.error().code != Code::kOutOfMemory) {
      return tl::unexpected(std::move(slab.error()));
    }
  }
  Slab* slab = BM_TRY(add_slab(bytes, domain, true));
  return make(*slab, slab->memory->va, size);
}

Result<Allocation> MemoryPool::wrap(void* host, uint64_t size) {
  if (size == 0) return fail(Code::kInvalidArgument, "a wrapped range of 0 bytes");
  const auto address = reinterpret_cast<uintptr_t>(host);
  const uint64_t first = align_down(uint64_t{address}, page_bytes());
  const auto past = checked_add(uint64_t{address}, size);
  const auto last = past ? checked_align_up(*past, page_bytes()) : std::nullopt;
  if (!last || *last == 0)
    return fail(Code::kInvalidArgument, "{} bytes at {} pass the end of memory", size, host);
  auto memory = BM_TRY(driver_.allocate({.size = *last - first,
                                         .domain = MemoryDomain::kSystem,
                                         .host = reinterpret_cast<void*>(first)}));
  auto view = HostView::mapped(reinterpret_cast<void*>(first), *last - first);
  if (!view) return tl::unexpected(std::move(view.error()));
  Slab slab;
  slab.registered = host;
  slab.memory = std::move(memory);
  const uint64_t va = slab.memory->va;
  Slab& kept = slabs_.insert_or_assign(va, std::move(slab)).first->second;
  if (!kept.memory->view) kept.memory->view = *view;
  return make(kept, va + (address - first), size);
}

void MemoryPool::drop(std::map<uint64_t, Slab>::iterator at) {
  const Slab& slab = at->second;
  if (!is_system(slab.memory->domain)) video_bytes_ -= slab.memory->size;
  slabs_.erase(at);
}

void MemoryPool::release(const Allocation& allocation) {
  const auto at = slabs_.find(allocation.memory_->va);
  BM_CHECK(at != slabs_.end());
  Slab& slab = at->second;
  --slab.live;
  freed_.push_back({allocation.va_, allocation.size_});
  if (freed_.size() > kRemembered) freed_.pop_front();
  if (slab.ranges) {
    BM_CHECK(slab.ranges->free(allocation.va_).has_value());
  } else if (slab.live == 0) {
    drop(at);
  }
}

void MemoryPool::trim() {
  for (auto at = slabs_.begin(); at != slabs_.end();) {
    const auto next = std::next(at);
    if (at->second.live == 0) drop(at);
    at = next;
  }
}

auto MemoryPool::slab_at(uint64_t va) const -> std::map<uint64_t, Slab>::const_iterator {
  auto at = slabs_.upper_bound(va);
  if (at == slabs_.begin()) return slabs_.end();
  --at;
  return va - at->first < at->second.memory->size ? at : slabs_.end();
}

HostView MemoryPool::readable(uint64_t va, uint64_t bytes) const {
  const auto at = slab_at(va);
  if (at == slabs_.end()) return {};
  const Memory& memory = *at->second.memory;
  const uint64_t offset = va - memory.va;
  if (!is_system(memory.domain) || !memory.view || bytes == 0 || bytes > memory.size - offset)
    return {};
  return is_aligned(offset, 8) ? memory.view.slice(offset, bytes) : HostView();
}

uint64_t MemoryPool::first_gap(uint64_t va, uint64_t bytes) const {
  const uint64_t end = va + bytes;
  while (va < end) {
    const auto at = slab_at(va);
    if (at == slabs_.end()) return va;
    va = at->first + at->second.memory->size;
  }
  return end;
}

std::string MemoryPool::describe(uint64_t va) const {
  struct Nearest {
    uint64_t distance = UINT64_MAX;
    uint64_t va = 0, size = 0;
    bool is_live = false;
  } nearest;
  const auto consider = [&](uint64_t begin, uint64_t size, bool is_live) {
    uint64_t distance = 0;
    if (va < begin) distance = begin - va;
    if (va >= begin + size) distance = va - (begin + size) + 1;
    if (distance < nearest.distance) nearest = {distance, begin, size, is_live};
  };
  for (const auto& [base, slab] : slabs_) {
    if (!slab.ranges) {
      consider(base, slab.memory->size, true);
      continue;
    }
    for (const Tlsf::Range& range : slab.ranges->ranges())
      if (!range.is_free) consider(range.address, range.size, true);
  }
  for (const Freed& range : freed_) consider(range.va, range.size, false);
  if (nearest.distance > kNear) return "no allocation is near";
  const std::string what =
      fmt::format("{} allocation of {} bytes at {:#x}", nearest.is_live ? "a live" : "a freed",
                  nearest.size, nearest.va);
  if (nearest.distance == 0) return fmt::format("inside {}", what);
  return va < nearest.va ? fmt::format("{} bytes before {}", nearest.distance, what)
                         : fmt::format("{} bytes past the end of {}", nearest.distance - 1, what);
}

}  // namespace bm::hcq
