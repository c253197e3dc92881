#pragma once
// Registers that have no part in a boot of the GSP and that kernel drivers read or write around it:
// straps, endianness, the timer's interrupt.

#include "tests/sim/nv/chip/bus.h"

namespace bm::sim::nv::card {

void declare_kernel_registers(RegisterFile& registers);

}  // namespace bm::sim::nv::card
