#pragma once
// Runs compiled kernels for AMD's GPUs on an instruction interpreter.

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/arch.h"
#include "runtime/hal/program.h"

namespace bm::test {

/// A GPU of four compute units.
hal::Arch amd_arch(std::string_view chip);

struct AmdRun {
  uint64_t instructions = 0;                               ///< of all waves
  std::unordered_map<std::string_view, uint64_t> opcodes;  ///< executed, by name
  uint64_t lds_conflicts = 0;  ///< passes that only conflicts of banks need
};

/// Loads the code object with the driver's loader and runs it once. Buffers start `shift` bytes
/// after an address with many zeros.
Result<AmdRun> run_on_amd(const hal::CodeObject& code, std::span<std::vector<std::byte>> buffers,
                          std::span<const int64_t> vars, uint64_t shift = 0);

}  // namespace bm::test
