#pragma once
// Runs PTX kernels on the interpreter of tests/sim/ptx.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/hal/arch.h"
#include "runtime/hal/program.h"
#include "tests/sim/ptx/interpreter.h"

namespace bm::test {

/// A card that the interpreter stands in for.
hal::Arch ptx_arch();

struct PtxRun {
  uint64_t lane_instructions = 0;
  sim::ptx::Traffic traffic;
};

/// Runs a kernel whose image is PTX text once on `buffers`, by param; bytes beyond a buffer's end
/// are not mapped. `shift` bytes are added to every buffer's aligned address.
Result<PtxRun> run_on_ptx(const hal::CodeObject& code, std::span<std::vector<std::byte>> buffers,
                          std::span<const int64_t> vars, uint64_t shift = 0);

}  // namespace bm::test
