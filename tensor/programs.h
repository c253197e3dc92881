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

/// Programs that a process keeps unless limit_programs says otherwise: about 80 MB on the CPU,
/// where each takes some 20 kB. Compiled code of those that went is still in the disk cache.
inline constexpr size_t kMostPrograms = 4'096;

/// Keeps at most `most` programs from now on. A program that a capture holds stays, and counts; one
/// that its device may still run goes when that work is through. Thread: any.
void limit_programs(size_t most);
/// Programs kept now.
size_t programs_kept();

struct WantedKernel {
  runtime::Device* device = nullptr;
  KernelPtr kernel;
};

/// Compiled and loaded kernels in the order asked for, kept for later ones that are equal: the last
/// kMostPrograms, and those that captures and calls still hold. Equal ones are compiled once,
/// different ones by several threads (BM_THREADS); with BM_TUNE one after the other, each searched
/// for its fastest schedule. Errors: those of compiling and loading the first kernel that fails.
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
  void add(const ProgramPtr& program, const KernelPtr& kernel);

  using Programs = std::unordered_map<const hal::Program*, KernelPtr>;
  const std::vector<KernelPtr>& kernels() const { return kernels_; }
  const Programs& programs() const { return programs_; }

 private:
  std::vector<KernelPtr> kernels_;
  Programs programs_;
  std::vector<ProgramPtr> held_;  ///< so that no later program takes the address of one of these
  KernelRecorder* outer_;
};

}  // namespace bm
