#pragma once
// Runs compiled kernels in the test process.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

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

/// Where a kernel is compiled for and run; "PTX", "NVRTC" and "NVPTX" (of LLVM) as PTX text on an
/// interpreter.
struct Where {
  const char* renderer;
  bool is_native = true;  ///< CPU: this machine's, else the baseline
};
/// "LLVMNative", "CLANGBaseline", "OPENCL", "PTX".
std::string where_name(const Where& where);
/// "" or why nothing runs there (then the test skips).
std::string why_not(const Where& where);
hal::Arch arch_of(const Where& where);
/// What the compiler calls the renderer.
const char* renderer_of(const Where& where);

/// Compiles without the cache and runs the kernel once on `buffers`, by param.
Status run_on(const Where& where, const ir::KernelIr& kernel,
              std::span<std::vector<std::byte>> buffers, std::span<const int64_t> vars);

}  // namespace bm::test
