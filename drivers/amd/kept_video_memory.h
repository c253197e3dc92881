#pragma once
// Video memory that outlives the process: what an owner of a GPU may offer beside DriverInterface;
// found by asking it for this class.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drivers/amd/driver_interface.h"
#include "runtime/base/result.h"
#include "runtime/hal/kept_memory.h"

namespace bm::amd {

/// One range of video memory and what it is.
struct KeptRecord {
  hal::KeptKey key;
  uint64_t offset = 0;  ///< in video memory
  uint64_t bytes = 0;   ///< as asked for; whole pages are taken
  uint64_t checksum = 0;
};

/// See hal::KeptMemory. Thread: any.
class KeptVideoMemory {
 public:
  struct Found {
    std::unique_ptr<Memory> memory;  ///< nullptr: no such record, or attached already
    uint64_t checksum = 0;
  };
  virtual Result<Found> attach(const hal::KeptKey& key, uint64_t bytes) = 0;
  /// `memory`: of allocate() in MemoryDomain::kVideo, or of attach().
  virtual Status keep(Memory& memory, uint64_t bytes, const hal::KeptKey& key,
                      uint64_t checksum) = 0;
  virtual Result<uint64_t> forget_all_but(std::span<const hal::KeptKey> keys) = 0;
  virtual std::vector<KeptRecord> kept_records() = 0;

 protected:
  ~KeptVideoMemory() = default;
};

}  // namespace bm::amd
