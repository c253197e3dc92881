#pragma once
// Who has which part of a card's memory when no kernel driver does. What lives as long as the card
// is up (PSP, interrupt rings, MQDs) is handed out in one fixed order from the bottom, so that the
// next process finds it where the last one left it.

#include <cstdint>
#include <optional>
#include <string_view>

#include "drivers/memory/range_set.h"
#include "drivers/memory/va_space.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

class VideoMemory {
 public:
  /// For what lives across processes; the PSP's protected memory (TMR) lies at its end.
  static constexpr uint64_t kBootBytes = 64 << 20;

  /// `visible`: bytes that the CPU sees through BAR0; `top`: at the end, for firmware and the
  /// discovery table. Errors: kUnsupported (too little of either).
  static Result<VideoMemory> create(uint64_t bytes, uint64_t visible, uint64_t top);

  /// Deterministic: same calls, same addresses. Errors: kOutOfMemory naming `what`.
  Result<uint64_t> allocate_boot(uint64_t bytes, uint64_t alignment, std::string_view what);
  /// What allocate_boot() has left, aligned.
  Result<uint64_t> boot_rest(uint64_t bytes, uint64_t alignment, std::string_view what) const;
  /// Over every allocate_boot() so far: differs where a layout does.
  uint32_t layout_hash() const { return hash_; }

  /// `is_visible`: where the CPU sees it; otherwise where it does not, as long as there is room.
  Result<uint64_t> allocate(uint64_t bytes, uint64_t alignment, bool is_visible);
  /// Exactly that range, of whole pages. Errors: kOutOfMemory (taken, or where no memory of ours
  /// is).
  Status reserve(uint64_t address, uint64_t bytes);
  void free(uint64_t address);
  uint64_t free_bytes() const;
  /// Whether all of it holds what this process wrote, or zeroes. What is freed stays the process's.
  bool is_cleared(uint64_t address, uint64_t bytes) const {
    return cleared_.contains(address, bytes);
  }
  void note_cleared(uint64_t address, uint64_t bytes) { cleared_.add(address, bytes); }
  uint64_t bytes() const { return bytes_; }

 private:
  VideoMemory(uint64_t bytes, memory::VaSpace visible)
      : bytes_(bytes), visible_(std::move(visible)) {}
  uint64_t bytes_ = 0, boot_used_ = 0;
  uint32_t hash_ = 0x811c9dc5;
  memory::VaSpace visible_;
  std::optional<memory::VaSpace> hidden_;  ///< none where the BAR shows everything
  memory::RangeSet cleared_;
};

}  // namespace bm::amd::am
