#pragma once
// What the resource manager can still tell about a fault.

#include <cstdint>
#include <string>

#include "drivers/nv/driver_interface.h"
#include "drivers/nv/rm/channel.h"
#include "drivers/nv/rm/device.h"

namespace bm::nv {

/// NV_PFAULT_FAULT_TYPE_* in words.
std::string mmu_fault_kind(uint32_t type);

/// Every question may be refused; what nobody tells stays empty.
FaultDetails read_fault_details(RmDevice& device, RmChannel& channel);

}  // namespace bm::nv
