#pragma once
// Bus addresses for DMA behind an IOMMU: around the ranges the machine keeps for itself, within
// what both sides can address, aligned so that IOMMU and GPU may use large pages.

#include <cstdint>
#include <vector>

#include "drivers/memory/va_space.h"
#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm::memory {

/// Not thread-safe.
class IovaAllocator {
 public:
  /// `device_bits`: width of the bus addresses that the device can send (44 on AMD GPUs from gfx10
  /// on). The first 64 KiB stay free: address 0 means "none" in too many registers.
  /// Errors: kInvalidArgument (limits that leave nothing).
  static Result<IovaAllocator> create(const DmaLimits& limits, uint32_t device_bits);

  /// `bytes` rounded up to pages, aligned to the largest of 1 GiB, 2 MiB, 64 KiB and a page that it
  /// is no smaller than. Errors: kInvalidArgument; kOutOfMemory.
  Result<uint64_t> allocate(uint64_t bytes);
  /// Errors: kInvalidArgument (not the start of an allocation).
  Status free(uint64_t address);
  uint64_t free_bytes() const { return space_.free_bytes(); }

 private:
  IovaAllocator(VaSpace space, uint64_t page_bytes)
      : space_(std::move(space)), page_bytes_(page_bytes) {}
  VaSpace space_;
  std::vector<uint64_t> reserved_;  ///< starts of what is not ours to free
  uint64_t page_bytes_;
};

}  // namespace bm::memory
