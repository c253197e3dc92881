#pragma once
// What a device, its queues, buffers and programs share.

#include <memory>
#include <shared_mutex>

#include "drivers/hcq/gpu.h"
#include "drivers/nv/chips.h"
#include "drivers/nv/driver_interface.h"
#include "drivers/nv/hardware_ring.h"
#include "runtime/base/result.h"

namespace bm::nv {

class NvProgram;

using hcq::Allocation;
using hcq::CommandSpace;
using hcq::MemoryPool;

struct Gpu : hcq::GpuState<DriverInterface, HardwareRing, NvProgram> {
  using GpuState::GpuState;
  uint32_t sm_count() const;

  /// The first fault, once there was one. Cheap while there is none.
  Status health();
  /// The same under `mutex`.
  Status health_locked();

  /// Taken after `mutex`: exclusive while channels are replaced; shared by those who look at them
  /// without `mutex`.
  std::shared_mutex channels;
};

}  // namespace bm::nv
