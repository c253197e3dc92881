#pragma once
// Kernel → code object. Touches no device.

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "compiler/analysis/static_roofline.h"
#include "compiler/ir/kernel.h"
#include "compiler/schedules/attention/split.h"
#include "compiler/toolchain/code_resources.h"
#include "runtime/base/result.h"
#include "runtime/hal/arch.h"
#include "runtime/hal/program.h"

namespace bm::compiler {

struct Knobs;
struct Program;
struct Schedule;

/// Is shown what code is made from, before it is: for statistics and tests.
class CompileWatcher {
 public:
  virtual ~CompileWatcher() = default;
  virtual void see(const Schedule& schedule, const Program& program) = 0;
};

struct CompileOptions {
  bool use_cache = true;  ///< look in the disk cache first and store there
  /// Choices of the schedule; nullptr: those a search has found (with the cache only), if any.
  const Knobs* knobs = nullptr;
  CompileWatcher* watcher = nullptr;  ///< asked on the caller's thread; not for what is cached
};

/// Compiles `kernel` for `arch`. `renderer`: "LLVM" (in process) or "CLANG" (C text, clang as a
/// process), which give bit-identical results, empty: "LLVM"; for AMD "LLVM" or "HIP" (comgr); for
/// OpenCL "OPENCL" (text); for NVIDIA "NVRTC" (CUDA C, the default), "PTX" or "LLVM" (its NVPTX
/// target), all to a cubin, or with BM_NV_CODE=ptx to PTX text that ends in NUL, as the latter two
/// are too where no nvJitLink is installed. With DEBUG >= 4 the source goes to stderr. Thread: any;
/// `kernel` is only read. Errors: kNotFound (compiler not installed), kUnsupported (arch or
/// renderer), kCompile with the log.
Result<hal::CodeObject> compile(const ir::KernelIr& kernel, const hal::Arch& arch,
                                std::string_view renderer, CompileOptions options = {});

/// Whether a strategy makes what the inner reductions of `kernel` give once, in tiles that stay on
/// chip. With any other, a kernel with reductions inside reductions may compute them again for
/// every use; the fuser then stores them. Only chooses a schedule. False where there is no such
/// renderer.
bool would_fuse(const ir::KernelIr& kernel, const hal::Arch& arch, std::string_view renderer);

/// Decode attention as two kernels, see split.h; nothing: it is something else, or there is no such
/// renderer.
std::optional<SplitAttention> split_attention(const ir::KernelIr& kernel, const hal::Arch& arch,
                                              std::string_view renderer);

/// Whether reductions along the last loop of `kernel` are done by lanes of sub-groups, and all
/// others once a row: several results of adjacent elements then cost one pass.
bool would_share_segments(const ir::KernelIr& kernel, const hal::Arch& arch,
                          std::string_view renderer);

/// What stands for kernel, target and compiler version in lists of tuned schedules.
/// Errors: kUnsupported (arch or renderer).
Result<std::string> schedule_id(const ir::KernelIr& kernel, const hal::Arch& arch,
                                std::string_view renderer);

/// Every stage as text.
struct Explained {
  std::string ir;        ///< KernelIr
  std::string schedule;  ///< which loops became what
  std::string lowered;   ///< loop program
  std::string source;    ///< LLVM IR, C, OpenCL C, CUDA C or PTX
  std::string assembly;  ///< disassembly of the object; on NULL what is missing for it, if anything
  uint32_t block = 1;    ///< work-items of a group
  uint64_t shared_bytes = 0;  ///< shared memory of a group, what a launch asks for included
  ProgramCount count;         ///< of one launch; targets with work-groups only
  /// Of machine code for GPUs; nothing where the toolchain is missing.
  std::optional<CodeResources> resources;
  std::optional<Occupancy> occupancy;  ///< where `resources` and the card's row are there
};
/// `vars`: values of the kernel's variables for the counts; empty: half of the largest. Kernels of
/// NULL are made for the CPU or card that it stands for, and run nowhere. Errors: those of compile;
/// on NULL a missing toolchain is none.
Result<Explained> explain(const ir::KernelIr& kernel, const hal::Arch& arch,
                          std::string_view renderer, std::span<const int64_t> vars = {});

/// Assembly text of a code object made by `compile`. Errors: kNotFound (LLVM component or NVIDIA's
/// disassembler missing); kUnsupported (OpenCL: the device's driver compiles, see
/// hal::Device::disassemble).
Result<std::string> disassemble(const hal::CodeObject& code, const hal::Arch& arch);

}  // namespace bm::compiler
