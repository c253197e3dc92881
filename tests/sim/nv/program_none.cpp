// Built where the PTX interpreter is not: only host functions run.
#include "tests/sim/nv/program.h"

namespace bm::sim::nv {

Outcome run_program(Gpu& gpu, Channel&, GpuMemory& memory, const Descriptor& descriptor,
                    const ShaderWindows&) {
  std::vector<std::byte> bank(descriptor.banks[0].size);
  if (!memory.read(descriptor.banks[0].address, bank.data(), bank.size()))
    return mmu_fault(memory, "constant bank 0");
  const HostKernel kernel = gpu.host_kernel(descriptor.program);
  if (!kernel) return EngineFault{kGraphicsException, "nothing here runs programs"};
  kernel(descriptor.grid, descriptor.block, bank);
  return {};
}

}  // namespace bm::sim::nv
