#pragma once
// Execution of a kernel: PTX text at the program's address, or a host function registered for it.

#include "tests/sim/nv/descriptor.h"
#include "tests/sim/nv/engine.h"

namespace bm::sim::nv {

/// Runs every block. Faults are those the GPU would raise: unmapped addresses as MMU faults,
/// misaligned ones and traps as exceptions with the warp's error register.
Outcome run_program(Gpu& gpu, Channel& channel, GpuMemory& memory, const Descriptor& descriptor);

}  // namespace bm::sim::nv
