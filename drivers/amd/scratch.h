#pragma once
// Scratch memory: what the lanes of all waves that can run at once spill to. One area serves every
// kernel of a device and grows on demand.

#include <cstdint>
#include <memory>
#include <vector>

#include "drivers/amd/driver_interface.h"
#include "drivers/hcq/memory_pool.h"
#include "runtime/base/result.h"

namespace bm::amd {

/// Sizes of scratch for waves that need `wave_bytes`; a pure function of the GPU. `share`: one in
/// so many of the waves that could run may hold scratch at once, the others run later.
struct ScratchSize {
  uint64_t wave_bytes = 0;  ///< a multiple of the chip's unit
  uint64_t xcc_bytes = 0;   ///< of one chiplet, a multiple of 64 KiB
  uint32_t tmpring = 0;     ///< COMPUTE_TMPRING_SIZE
};
ScratchSize scratch_size(const GpuFacts& facts, uint64_t wave_bytes, uint32_t share = 1);

struct ScratchArea {
  ScratchSize size;
  std::vector<uint64_t> bases;  ///< of each chiplet
  hcq::Allocation memory;
};

class Scratch {
 public:
  bool holds(uint64_t wave_bytes) const {
    return wave_bytes == 0 || (area_ && area_->size.wave_bytes >= wave_bytes);
  }
  /// Makes an area with at least `wave_bytes` a wave, for fewer waves where memory is short.
  /// Errors: kOutOfMemory with the numbers; the old area stays.
  Status grow(const GpuFacts& facts, hcq::MemoryPool& pool, uint64_t wave_bytes);
  const std::shared_ptr<ScratchArea>& area() const { return area_; }
  void reset() { area_.reset(); }

 private:
  std::shared_ptr<ScratchArea> area_;
};

}  // namespace bm::amd
