#pragma once
// Memory that a simulator is the first to touch, page by page.

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bm::sim {

/// Brings pages in by the chunk before they are touched. A page fault costs a microsecond on most
/// machines and twenty on those without virtualisation in hardware: a video memory of 32 MiB that
/// is filled for the first time then takes a quarter of a second instead of a hundredth.
class FirstTouch {
 public:
  explicit FirstTouch(uint64_t bytes) : bytes_(bytes), is_in_((bytes + kChunk - 1) / kChunk) {}

  /// `base` is the mapping's first byte. What a kernel refuses faults in as before.
  void operator()(std::byte* base, uint64_t offset) {
    const uint64_t chunk = offset / kChunk;
    if (is_in_[chunk]) return;
    is_in_[chunk] = true;
    constexpr int kPopulateWrite =
        23;  // MADV_POPULATE_WRITE, Linux 5.14, asm-generic/mman-common.h
    (void)madvise(base + chunk * kChunk, std::min(kChunk, bytes_ - chunk * kChunk), kPopulateWrite);
  }
  /// After the memory was given back.
  void forget() { is_in_.assign(is_in_.size(), false); }

 private:
  static constexpr uint64_t kChunk = 128 << 10;
  const uint64_t bytes_;
  std::vector<bool> is_in_;
};

}  // namespace bm::sim
