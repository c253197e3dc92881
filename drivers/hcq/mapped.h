#pragma once
// Access to memory shared with the GPU: plain loads and stores that the compiler neither drops nor
// joins, and the fence between write-combined stores and the doorbell.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "drivers/transport/mmio.h"

namespace bm::hcq {

inline void store32(std::byte* to, uint32_t value) {
  *reinterpret_cast<volatile uint32_t*>(to) = value;
}
inline void store64(std::byte* to, uint64_t value) {
  *reinterpret_cast<volatile uint64_t*>(to) = value;
}
/// Later than every store before it, for whoever loads it with acquire.
inline void publish32(std::byte* to, uint32_t value) {
  std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(to))
      .store(value, std::memory_order_release);
}
inline void publish64(std::byte* to, uint64_t value) {
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(to))
      .store(value, std::memory_order_release);
}
/// A word the GPU writes, in cached system memory: later reads of results stay behind it.
inline uint64_t load_word(const std::byte* from) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(const_cast<std::byte*>(from)))
      .load(std::memory_order_acquire);
}
/// Sequential copy, into write-combined memory too.
inline void store_words(std::byte* to, std::span<const uint32_t> words) {
  if (!words.empty()) std::memcpy(to, words.data(), words.size_bytes());
}
using bm::relax;
using bm::store_fence;

}  // namespace bm::hcq
