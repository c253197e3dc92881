#pragma once
// What launches of a kernel share: a pure function of chip, kernel and code object. Everything that
// no launch could have is refused here, before anything runs.

#include <cstddef>
#include <cstdint>
#include <span>

#include "drivers/amd/chips.h"
#include "drivers/amd/program/code_object.h"
#include "runtime/hal/command.h"
#include "runtime/hal/program.h"

namespace bm::amd {

struct LaunchPlan {
  KernelFacts kernel;
  uint32_t rsrc1 = 0, rsrc2 = 0, rsrc3 = 0;  ///< as COMPUTE_PGM_RSRC* take them
  uint32_t group_bytes = 0;
  uint32_t private_bytes = 0;   ///< of one lane, rounded up to 16
  uint32_t explicit_bytes = 0;  ///< arguments the caller gives
  uint32_t kernarg_bytes =
      0;                    ///< the block the kernel reads; more than explicit_bytes: hidden ones
  uint32_t dimensions = 1;  ///< of the grid, for the AQL packet
  uint32_t num_user_data = 0;  ///< user registers the kernel expects
  hal::Dim3 block;

  bool has_hidden_arguments() const { return kernarg_bytes > explicit_bytes; }
  /// The kernel needs memory of ours at each launch: an argument block or a dispatch packet.
  bool needs_block() const { return has_hidden_arguments() || kernel.takes_dispatch_packet; }
};

/// Errors: kInvalidArgument or kUnsupported naming the resource (threads, registers, LDS, scratch,
/// arguments) with limit and remedy. `lds_bytes`: of the device, 0: the chip's.
Result<LaunchPlan> plan_launch(const ChipRow& chip, uint32_t lds_bytes, const KernelFacts& kernel,
                               const hal::CodeObject& code);

/// Errors: kInvalidArgument for a grid beyond what the packets and the hardware take.
Status check_grid(const LaunchPlan& plan, const hal::Dim3& grid);

/// Fills what lies behind the caller's arguments: group counts and sizes of code object version 5,
/// zero otherwise. `block`: plan.kernarg_bytes, the caller's part filled already.
/// Source: AMDGPUUsage.rst, "Code Object V5 Metadata", hidden_block_count_x …
void fill_hidden_arguments(const LaunchPlan& plan, const hal::Dim3& grid,
                           std::span<std::byte> block);

}  // namespace bm::amd
