#include "drivers/amd/program/launch_plan.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "drivers/amd/regs/registers.h"
#include "runtime/base/bits.h"

namespace bm::amd {
namespace {

constexpr uint32_t kMostThreads = 1024;
constexpr uint32_t kScratchRound = 16;

RegisterField lds_field(RegisterSet set) {
  switch (set) {
    case RegisterSet::kGc9_4_3: return kGc943ComputePgmRsrc2LdsSize;
    case RegisterSet::kGc10_3: return kGc1030ComputePgmRsrc2LdsSize;
    case RegisterSet::kGc11: return kGc1100ComputePgmRsrc2LdsSize;
    case RegisterSet::kGc12: return kGc1200ComputePgmRsrc2LdsSize;
  }
  __builtin_unreachable();
}
bool is_wgp_mode(RegisterSet set, uint32_t rsrc1) {
  switch (set) {
    case RegisterSet::kGc9_4_3: return false;
    case RegisterSet::kGc10_3: return kGc1030ComputePgmRsrc1WgpMode.get(rsrc1) != 0;
    case RegisterSet::kGc11: return kGc1100ComputePgmRsrc1WgpMode.get(rsrc1) != 0;
    case RegisterSet::kGc12: return kGc1200ComputePgmRsrc1WgpMode.get(rsrc1) != 0;
  }
  __builtin_unreachable();
}

Status check_block(const hal::CodeObject& code) {
  const hal::Dim3& block = code.block;
  const bool is_large = block.x > kMostThreads || block.y > kMostThreads || block.z > kMostThreads;
  const uint64_t threads = is_large ? 0 : uint64_t{block.x} * block.y * block.z;
  if (threads != 0 && threads <= kMostThreads) return {};
  return fail(Code::kInvalidArgument, "kernel '{}': a block of {} x {} x {} threads; at most {}",
              code.entry, block.x, block.y, block.z, kMostThreads);
}

/// All waves of a group must be resident at once.
Status check_registers(const ChipRow& chip, const KernelFacts& kernel,
                       const hal::CodeObject& code) {
  const uint32_t threads = code.block.x * code.block.y * code.block.z;
  if (kernel.vgprs > chip.max_vgprs)
    return fail(Code::kInvalidArgument, "kernel '{}': {} vector registers, {} has {}", code.entry,
                kernel.vgprs, chip.name, chip.max_vgprs);
  const uint32_t lanes = kernel.is_wave32 ? 32 : 64;
  const uint32_t simds = chip.simds_per_cu * (is_wgp_mode(chip.registers, kernel.rsrc1) ? 2u : 1u);
  const uint32_t waves = ceil_div(ceil_div(threads, lanes), simds);  // on one SIMD
  // A wave of 64 lanes takes two rows of the file where waves of 32 lanes are native.
  const uint32_t rows = chip.has_wave32 && !kernel.is_wave32 ? 2 : 1;
  const uint32_t each = ceil_div(kernel.vgprs * rows, uint32_t{chip.vgpr_unit}) * chip.vgpr_unit;
  if (waves <= chip.waves_per_simd && waves * each <= chip.vgprs_per_simd) return {};
  return fail(
      Code::kInvalidArgument,
      "kernel '{}': {} waves of {} vector registers on each SIMD exceed the {} waves and {} "
      "registers of {}; compile it for smaller blocks (amdgpu-flat-work-group-size) or with "
      "fewer registers",
      code.entry, waves, kernel.vgprs, chip.waves_per_simd, chip.vgprs_per_simd, chip.name);
}

Status plan_lds(const ChipRow& chip, uint32_t limit, const hal::CodeObject& code,
                LaunchPlan& plan) {
  plan.group_bytes = std::max(plan.kernel.group_bytes, code.shared_memory_bytes);
  if (plan.group_bytes > limit)
    return fail(Code::kUnsupported, "kernel '{}': {} bytes of LDS per block, {} has {}", code.entry,
                plan.group_bytes, chip.name, limit);
  const RegisterField field = lds_field(chip.registers);
  plan.rsrc2 = (plan.kernel.rsrc2 & ~field.put(field.max())) |
               field.put(ceil_div(plan.group_bytes, chip.lds_unit));
  return {};
}

Status plan_scratch(const ChipRow& chip, const hal::CodeObject& code, LaunchPlan& plan) {
  plan.private_bytes = plan.kernel.private_bytes;
  const uint64_t most = uint64_t{chip.scratch_wave_size.max()} * chip.scratch_unit / 64;
  if (plan.private_bytes > most - kScratchRound)
    return fail(Code::kUnsupported,
                "kernel '{}': {} bytes of scratch per thread, {} takes at most {}; keep large "
                "arrays out of the stack",
                code.entry, plan.private_bytes, chip.name, most - kScratchRound);
  plan.private_bytes = align_up(plan.private_bytes, kScratchRound);
  return {};
}

Status plan_arguments(const hal::CodeObject& code, LaunchPlan& plan) {
  constexpr uint32_t kMostArguments = 1 << 20;
  const uint64_t words = uint64_t{code.num_buffers} + code.num_vars;
  if (words * 8 > kMostArguments || plan.kernel.kernarg_bytes > kMostArguments)
    return fail(Code::kInvalidArgument, "kernel '{}': {} arguments, {} bytes", code.entry, words,
                plan.kernel.kernarg_bytes);
  plan.explicit_bytes = static_cast<uint32_t>(words * 8);
  plan.kernarg_bytes = plan.kernel.kernarg_bytes;
  if (plan.kernarg_bytes < plan.explicit_bytes)
    return fail(Code::kInvalidArgument,
                "kernel '{}' takes {} bytes of arguments; {} buffers and {} variables are {} bytes",
                code.entry, plan.kernarg_bytes, code.num_buffers, code.num_vars,
                plan.explicit_bytes);
  const KernelFacts& kernel = plan.kernel;
  plan.num_user_data = (kernel.takes_private_buffer ? 4 : 0) + (kernel.takes_flat_scratch ? 2 : 0) +
                       (kernel.takes_dispatch_packet ? 2 : 0) + (kernel.takes_queue ? 2 : 0) +
                       (kernel.takes_kernarg ? 2 : 0) + (kernel.takes_dispatch_id ? 2 : 0) +
                       (kernel.takes_private_size ? 1 : 0);
  return {};
}

}  // namespace

Result<LaunchPlan> plan_launch(const ChipRow& chip, uint32_t lds_bytes, const KernelFacts& kernel,
                               const hal::CodeObject& code) {
  LaunchPlan plan;
  plan.kernel = kernel;
  plan.block = code.block;
  BM_TRY(check_block(code));
  BM_TRY(check_registers(chip, kernel, code));
  const uint32_t limit = lds_bytes == 0 ? chip.lds_bytes : std::min(lds_bytes, chip.lds_bytes);
  BM_TRY(plan_lds(chip, limit, code, plan));
  BM_TRY(plan_scratch(chip, code, plan));
  BM_TRY(plan_arguments(code, plan));
  plan.rsrc1 = kernel.rsrc1;
  if (chip.needs_privilege) plan.rsrc1 |= kGc1100ComputePgmRsrc1Priv.put(1);
  plan.rsrc3 = kernel.rsrc3;
  plan.dimensions = 3;
  return plan;
}

Status check_grid(const LaunchPlan& plan, const hal::Dim3& grid) {
  const std::array<std::pair<uint32_t, uint32_t>, 3> axes{
      {{grid.x, plan.block.x}, {grid.y, plan.block.y}, {grid.z, plan.block.z}}};
  // AQL counts work-items in 32 bits; PM4 is held to the same so that both modes take one contract.
  for (const auto& [groups, threads] : axes)
    if (uint64_t{groups} * threads > UINT32_MAX)
      return fail(Code::kInvalidArgument,
                  "kernel '{}': {} blocks of {} threads in one dimension; at most {} threads",
                  plan.kernel.name, groups, threads, UINT32_MAX);
  return {};
}

void fill_hidden_arguments(const LaunchPlan& plan, const hal::Dim3& grid,
                           std::span<std::byte> block) {
  if (!plan.has_hidden_arguments()) return;
  const std::span<std::byte> hidden = block.subspan(plan.explicit_bytes);
  std::ranges::fill(hidden, std::byte{0});
  // Three group counts, three 16-bit group sizes, three remainders (none: whole groups only), then
  // at 64 the grid's dimensions.
  std::array<std::byte, 66> values{};
  const std::array<uint32_t, 3> counts{grid.x, grid.y, grid.z};
  const std::array<uint16_t, 3> sizes{static_cast<uint16_t>(plan.block.x),
                                      static_cast<uint16_t>(plan.block.y),
                                      static_cast<uint16_t>(plan.block.z)};
  const auto dimensions = static_cast<uint16_t>(plan.dimensions);
  std::memcpy(values.data(), counts.data(), sizeof counts);
  std::memcpy(values.data() + 12, sizes.data(), sizeof sizes);
  std::memcpy(values.data() + 64, &dimensions, sizeof dimensions);
  std::memcpy(hidden.data(), values.data(), std::min(hidden.size(), values.size()));
}

}  // namespace bm::amd
