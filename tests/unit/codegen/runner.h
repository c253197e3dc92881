#pragma once
// Runs compiled kernels in the test process: the object is linked by the system's compiler driver and
// opened with dlopen, so these tests need no driver of ours.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/compile.h"

namespace bm::test {

/// Architecture of the machine the tests run on, as wide as it goes.
hal::Arch native_arch();
/// x86-64 without any extension: no FMA, no float16 conversions, no rounding instruction.
hal::Arch baseline_arch();

class LoadedKernel {
 public:
  ~LoadedKernel();
  static Result<std::unique_ptr<LoadedKernel>> load(const hal::CodeObject& code);
  /// Runs all blocks of the grid.
  void run(std::span<void* const> buffers, std::span<const int64_t> vars) const;
  const hal::CodeObject& code() const { return code_; }

 private:
  hal::CodeObject code_;
  void* handle_ = nullptr;
  void (*entry_)(const uint64_t*, uint64_t, uint64_t) = nullptr;
};

}  // namespace bm::test
