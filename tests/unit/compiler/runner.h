#pragma once
// Runs compiled kernels in the test process.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "drivers/cpu/program.h"

namespace bm::test {

/// What a kernel reads and writes, one for each of its buffers.
using Buffers = std::vector<std::vector<std::byte>>;

/// Architecture of the machine the tests run on.
hal::Arch native_arch();
/// x86-64 without any extension: no FMA, no float16 conversions, no rounding instruction.
hal::Arch baseline_arch();

/// `arch` with other caches, cores and shorter vectors: facts no schedule may take for granted.
hal::Arch varied(hal::Arch arch, uint64_t seed);

/// Buffers whose last element is the last byte before memory that faults.
class GuardedBuffers {
 public:
  explicit GuardedBuffers(std::span<const std::vector<std::byte>> contents);
  ~GuardedBuffers();
  GuardedBuffers(const GuardedBuffers&) = delete;
  GuardedBuffers& operator=(const GuardedBuffers&) = delete;
  std::span<void* const> pointers() const { return pointers_; }
  /// False if anything in front of a buffer was written.
  bool copy_out(std::span<std::vector<std::byte>> contents) const;

 private:
  struct Mapping {
    std::byte* base;
    size_t bytes;
  };
  std::vector<Mapping> mappings_;
  std::vector<void*> pointers_;
};

/// Runs all blocks of the grid, later ones first: blocks must not depend on each other.
void run_kernel(const cpu::CpuProgram& program, std::span<void* const> buffers,
                std::span<const int64_t> vars);

/// Compiles without the cache, whatever the options say, and loads.
Result<std::unique_ptr<cpu::CpuProgram>> build_kernel(const ir::KernelIr& kernel,
                                                      const hal::Arch& arch,
                                                      std::string_view renderer,
                                                      compiler::CompileOptions options = {});

/// Where a kernel is compiled for and run; "PTX", "NVRTC" and "NVPTX" (of LLVM) as PTX text on an
/// interpreter, "GFX1030", "GFX1100" and "GFX1201" as machine code on one.
struct Where {
  const char* renderer;
  bool is_native = true;  ///< CPU: this machine's, else the baseline
  /// CPU: features taken away from this machine's, as in DEV; "" for none.
  const char* without = "";
};
/// "LLVMNative", "LLVMNative_avx512f" (without it), "CLANGBaseline", "OPENCL", "PTX".
std::string where_name(const Where& where);
/// "" or why nothing runs there (then the test skips).
std::string why_not(const Where& where);
hal::Arch arch_of(const Where& where);
/// What the compiler calls the renderer.
const char* renderer_of(const Where& where);

/// Compiles without the cache and runs the kernel once on `buffers`, by param.
Status run_on(const Where& where, const ir::KernelIr& kernel,
              std::span<std::vector<std::byte>> buffers, std::span<const int64_t> vars,
              compiler::CompileOptions options = {});
/// The same on the CPU for any architecture that this machine executes.
Status run_on_cpu(const hal::Arch& arch, std::string_view renderer, const ir::KernelIr& kernel,
                  std::span<std::vector<std::byte>> buffers, std::span<const int64_t> vars,
                  compiler::CompileOptions options = {});
bool is_cpu(const Where& where);

}  // namespace bm::test
