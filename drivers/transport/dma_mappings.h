#pragma once
// Which memory of this process a device can reach at which IOVA: the part of dma_map() that is the
// same whoever programs the IOMMU.

#include <cstdint>
#include <map>
#include <optional>

#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm {

struct DmaMapping {
  uint64_t iova = 0, bytes = 0;
  bool is_read_only = false;
};

/// Not thread-safe.
class DmaMappings {
 public:
  /// Whether `request` may be added under `limits`. Errors: as PciFunction::dma_map().
  Status check(const DmaLimits& limits, const DmaRequest& request) const;
  void add(const DmaRequest& request);
  /// The mapping that starts at `host`. Errors: kInvalidArgument.
  Result<DmaMapping> find(const void* host) const;
  void remove(const void* host);
  /// Memory behind `bytes` at a bus address, of one mapping; nullptr where the device must not
  /// (`is_write`: change it).
  std::byte* resolve(uint64_t address, uint64_t bytes, bool is_write) const;
  uint64_t mapped_bytes() const { return mapped_bytes_; }
  const std::map<const void*, DmaMapping>& all() const { return by_host_; }

 private:
  std::map<const void*, DmaMapping> by_host_;
  std::map<uint64_t, const void*> by_iova_;
  uint64_t mapped_bytes_ = 0;
};

}  // namespace bm
