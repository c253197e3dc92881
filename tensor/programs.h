#pragma once
// Kernels → loaded programs, each once per process; many at a time side by side.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "compiler/ir/kernel.h"
#include "runtime/device.h"
#include "runtime/hal/program.h"

namespace bm {

using ProgramPtr = std::shared_ptr<const hal::Program>;
using KernelPtr = std::shared_ptr<const ir::KernelIr>;

struct WantedKernel {
  runtime::Device* device = nullptr;
  KernelPtr kernel;
};

/// Compiled and loaded kernels in the order asked for, kept for the life of the process. Equal ones
/// are compiled once, different ones by several threads (BM_THREADS); with BM_TUNE one after the
/// other, each searched for its fastest schedule.
/// Errors: those of compiling and loading the first kernel that fails.
Result<std::vector<ProgramPtr>> programs_for(std::span<const WantedKernel> wanted);

/// Code of kernels for an architecture that need not be here, in order, by several threads.
/// Errors: those of compiling the first kernel that fails.
Result<std::vector<hal::CodeObject>> compile_kernels(std::span<const KernelPtr> kernels,
                                                     const hal::Arch& arch,
                                                     std::string_view renderer);

/// While it lives, keeps what this thread asks for: every kernel once, and which program it became.
/// The innermost one counts.
class KernelRecorder {
 public:
  KernelRecorder();
  ~KernelRecorder();
  KernelRecorder(const KernelRecorder&) = delete;
  KernelRecorder& operator=(const KernelRecorder&) = delete;
  static KernelRecorder* current();
  void add(const hal::Program* program, const KernelPtr& kernel);

  using Programs = std::unordered_map<const hal::Program*, KernelPtr>;
  const std::vector<KernelPtr>& kernels() const { return kernels_; }
  const Programs& programs() const { return programs_; }

 private:
  std::vector<KernelPtr> kernels_;
  Programs programs_;
  KernelRecorder* outer_;
};

}  // namespace bm
