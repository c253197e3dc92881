#include "drivers/cpu/scratch.h"

#include <sched.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/bits.h"
#include "runtime/base/check.h"
#include "runtime/base/env.h"

namespace bm::cpu {
namespace {

/// Mappings of this alignment can be backed by huge pages; panels of matrices are read with
/// strides that would need a translation for every small page.
constexpr uint64_t kHugePage = 2 << 20, kPage = 4096;

void unmap(std::byte* memory, uint64_t bytes) {
  if (memory != nullptr) munmap(memory, bytes);
}

}  // namespace

Scratch::Scratch(uint32_t blocks)
    : count_(blocks), is_poisoned_(settings().poison), blocks_(std::make_unique<Block[]>(blocks)) {}

Scratch::~Scratch() {
  for (uint32_t i = 0; i < count_; ++i) unmap(blocks_[i].memory, blocks_[i].bytes);
}

Status Scratch::reserve(uint64_t bytes) {
  if (bytes <= reserved_.load(std::memory_order_acquire)) return {};
  const std::lock_guard guard(mutex_);
  if (bytes <= reserved_.load(std::memory_order_relaxed)) return {};
  for (uint32_t i = 0; i < count_; ++i) {
    while (!take(blocks_[i])) sched_yield();
    const Status grown = grow(blocks_[i], bytes);
    blocks_[i].is_taken.store(false, std::memory_order_release);
    if (!grown) return grown;
  }
  reserved_.store(bytes, std::memory_order_release);
  return {};
}

/// Pages are the system's until they are touched.
Status Scratch::grow(Block& block, uint64_t bytes) {
  if (block.bytes >= bytes) return {};
  const uint64_t alignment = bytes < kHugePage ? kPage : kHugePage;
  const uint64_t size = align_up(bytes, alignment), room = size + alignment;
  void* memory = size < bytes || room < size ? MAP_FAILED
                                             : mmap(nullptr, room, PROT_READ | PROT_WRITE,
                                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return fail(Code::kOutOfMemory, "{} bytes of workspace for kernels", bytes);
  const uint64_t start = reinterpret_cast<uint64_t>(memory), first = align_up(start, alignment);
  if (first != start) munmap(memory, first - start);
  if (first + size != start + room)
    munmap(reinterpret_cast<void*>(first + size), start + room - first - size);
  auto* aligned = reinterpret_cast<std::byte*>(first);
  // A wish; refused where the system has none.
  if (alignment == kHugePage) madvise(aligned, size, MADV_HUGEPAGE);
  unmap(std::exchange(block.memory, aligned), std::exchange(block.bytes, size));
  return {};
}

Scratch::Lease::Lease(Scratch& scratch, uint32_t preferred, uint64_t bytes)
    : scratch_(scratch), block_(kNoBlock) {
  if (bytes == 0) return;
  BM_CHECK(bytes <= scratch.reserved_.load(std::memory_order_acquire));
  for (uint32_t i = preferred;; ++i) {
    const uint32_t block = i % scratch.count_;
    if (scratch.take(scratch.blocks_[block])) {
      block_ = block;
      if (scratch.is_poisoned_) std::memset(memory(), 0xff, bytes);
      return;
    }
    if (block + 1 == scratch.count_) sched_yield();
  }
}

Scratch::Lease::~Lease() {
  if (block_ != kNoBlock) scratch_.blocks_[block_].is_taken.store(false, std::memory_order_release);
}

void* Scratch::Lease::memory() const {
  return block_ == kNoBlock ? nullptr : scratch_.blocks_[block_].memory;
}

}  // namespace bm::cpu
