#pragma once
// Runs compiled kernels in the test process.

#include <cstdint>
#include <memory>
#include <span>

#include "compiler/compile.h"
#include "drivers/cpu/program.h"

namespace bm::test {

/// Architecture of the machine the tests run on.
hal::Arch native_arch();
/// x86-64 without any extension: no FMA, no float16 conversions, no rounding instruction.
hal::Arch baseline_arch();

/// Runs all blocks of the grid, later ones first: blocks must not depend on each other.
void run_kernel(const cpu::CpuProgram& program, std::span<void* const> buffers,
                std::span<const int64_t> vars);

/// Compiles without the cache and loads.
Result<std::unique_ptr<cpu::CpuProgram>> build_kernel(const ir::KernelIr& kernel,
                                                      const hal::Arch& arch,
                                                      std::string_view renderer);

}  // namespace bm::test
