#include "tests/sim/cuda/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "tests/sim/cuda/driver.h"

namespace bm::sim::cuda {
namespace {

constexpr size_t kWindow = size_t{1} << 38;
constexpr size_t kAlignment = 512;  // cuMemAlloc promises 256; 512 is what drivers give
constexpr size_t kGuard = 4096;     // never mapped behind every allocation
constexpr size_t kRubbish = 1 << 20;

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment + kGuard; }

std::byte* map_anonymous(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
}

}  // namespace

AddressSpace::AddressSpace() {
  // The addresses exist, so nothing else gets them, and touching one from the host is a fault.
  void* p = mmap(nullptr, kWindow, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  window_ = p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
  if (window_) holes_[0] = kWindow;
}

AddressSpace::~AddressSpace() {
  for (const auto& [address, range] : ranges_) release(range);
  if (window_) munmap(window_, kWindow);
}

void AddressSpace::release(const Range& range) {
  if (range.kind == Range::Kind::kRegistered) return;
  munmap(range.host, std::max<size_t>(range.bytes, 1));
  if (range.kind != Range::Kind::kDevice) return;
  uint64_t offset = range.address - reinterpret_cast<uint64_t>(window_);
  size_t bytes = padded(range.bytes);
  auto next = holes_.lower_bound(offset);
  if (next != holes_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  holes_[offset] = bytes;
}

uint64_t AddressSpace::allocate(Range::Kind kind, size_t bytes, Context* context, int device,
                                unsigned flags, size_t limit) {
  if (kind == Range::Kind::kDevice && (bytes > limit || used(device) + bytes > limit)) return 0;
  std::byte* host = map_anonymous(bytes);
  if (!host) return 0;
  const std::unique_lock lock(mutex_);
  Range range{reinterpret_cast<uint64_t>(host), bytes, kind, host, context, device, flags};
  if (kind == Range::Kind::kDevice) {
    std::memset(host, 0xa5, std::min(bytes, kRubbish));
    const size_t wanted = padded(bytes);
    const auto hole = std::find_if(holes_.begin(), holes_.end(),
                                   [&](const auto& h) { return h.second >= wanted; });
    if (hole == holes_.end()) {
      munmap(host, bytes);
      return 0;
    }
    range.address = reinterpret_cast<uint64_t>(window_) + hole->first;
    const uint64_t rest_at = hole->first + wanted;
    const size_t rest = hole->second - wanted;
    holes_.erase(hole);
    if (rest) holes_[rest_at] = rest;
  }
  ranges_[range.address] = range;
  return range.address;
}

int AddressSpace::add_registered(void* host, size_t bytes, Context* context, unsigned flags) {
  const std::unique_lock lock(mutex_);
  const auto address = reinterpret_cast<uint64_t>(host);
  const auto after = ranges_.lower_bound(address);
  const bool meets_next = after != ranges_.end() && after->first < address + bytes;
  const bool meets_last = after != ranges_.begin() &&
                          std::prev(after)->first + std::prev(after)->second.bytes > address;
  if (meets_next || meets_last) return kHostMemoryAlreadyRegistered;
  ranges_[address] = {
      address, bytes, Range::Kind::kRegistered, static_cast<std::byte*>(host), context, 0, flags};
  return kSuccess;
}

int AddressSpace::remove(uint64_t address, Range::Kind kind) {
  const std::unique_lock lock(mutex_);
  const auto at = ranges_.find(address);
  if (at == ranges_.end()) return kInvalidValue;
  const bool is_managed_as_device =
      kind == Range::Kind::kDevice && at->second.kind == Range::Kind::kManaged;
  if (at->second.kind != kind && !is_managed_as_device) return kInvalidValue;
  release(at->second);
  ranges_.erase(at);
  return kSuccess;
}

void AddressSpace::remove_all(Context* context) {
  const std::unique_lock lock(mutex_);
  std::erase_if(ranges_, [&](const auto& entry) {
    if (entry.second.context != context) return false;
    release(entry.second);
    return true;
  });
}

const Range* AddressSpace::find_locked(uint64_t address, size_t bytes) const {
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return nullptr;
  const Range& range = std::prev(it)->second;
  const uint64_t offset = address - range.address;
  return offset < range.bytes && range.bytes - offset >= bytes ? &range : nullptr;
}

Range AddressSpace::find(uint64_t address) const {
  const std::shared_lock lock(mutex_);
  const Range* range = find_locked(address, 1);
  return range ? *range : Range{};
}

std::byte* AddressSpace::at(uint64_t address, size_t bytes) const {
  const std::shared_lock lock(mutex_);
  const Range* range = find_locked(address, bytes);
  return range ? range->host + (address - range->address) : nullptr;
}

size_t AddressSpace::used(int device) const {
  const std::shared_lock lock(mutex_);
  size_t total = 0;
  for (const auto& [address, range] : ranges_)
    if (range.kind == Range::Kind::kDevice && range.device == device) total += range.bytes;
  return total;
}

size_t AddressSpace::live() const {
  const std::shared_lock lock(mutex_);
  return ranges_.size();
}

std::byte* KernelView::at(uint64_t address, uint32_t bytes, ptx::Access access) {
  const Range range = space_.find(address);
  const uint64_t offset = address - range.address;
  if (range.bytes == 0 || range.bytes - offset < bytes) return nullptr;
  if (range.kind == Range::Kind::kDevice && range.device != context_.device &&
      !context_.can_reach(range.device))
    return nullptr;
  const bool is_read_only = range.kind == Range::Kind::kRegistered && (range.flags & 8);
  if (is_read_only && access != ptx::Access::kRead) return nullptr;
  return range.host + offset;
}

}  // namespace bm::sim::cuda
