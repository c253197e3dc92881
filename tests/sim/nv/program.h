#pragma once
// Execution of a kernel: PTX text at the program's address, or a host function registered for it.

#include "tests/sim/nv/descriptor.h"
#include "tests/sim/nv/engine.h"

namespace bm::sim::nv {

/// Where threads see shared and local memory; global memory mapped there is out of their reach.
struct ShaderWindows {
  uint64_t shared = 0, shared_bytes = 0, local = 0, local_bytes = 0;
  bool cover(uint64_t address) const {
    return address - shared < shared_bytes || address - local < local_bytes;
  }
};

/// Runs every block. Faults are those the GPU would raise: unmapped addresses as MMU faults,
/// misaligned ones and traps as exceptions with the warp's error register.
Outcome run_program(Gpu& gpu, Channel& channel, GpuMemory& memory, const Descriptor& descriptor,
                    const ShaderWindows& windows);

}  // namespace bm::sim::nv
