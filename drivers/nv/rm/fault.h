#pragma once
// What the resource manager can still tell about a fault.

#include "drivers/nv/driver_interface.h"
#include "drivers/nv/rm/channel.h"
#include "drivers/nv/rm/device.h"

namespace bm::nv {

/// Every question may be refused; what nobody tells stays empty.
FaultDetails read_fault_details(RmDevice& device, RmChannel& channel);

}  // namespace bm::nv
