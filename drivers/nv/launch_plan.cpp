#include <algorithm>
#include <bit>
#include <charconv>

#include "drivers/nv/loaded_program.h"
#include "drivers/nv/methods/bank0.h"
#include "runtime/base/bits.h"

namespace bm::nv {
namespace {

// CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability".
constexpr uint32_t kMostThreads = 1024, kMostBlockZ = 64, kMostBlocksPerSm = 32;
constexpr uint32_t kRegisterFile = 65536, kWarp = 32, kRegisterUnit = 256, kWarpUnit = 4;
/// Registers assumed for PTX text: what fits 1024 threads twice.
constexpr uint32_t kPtxRegisters = 32;
constexpr uint32_t kSharedUnit = 128, kLocalUnit = 32;

/// PCAS actions that end with the grid's start (clc6c0.h): schedule; invalidate, copy, schedule;
/// prefetch, schedule; all of it.
bool is_scheduling(uint8_t action) {
  return action == 2 || action == 3 || action == 9 || action == 10;
}

uint32_t threads_of(const hal::Dim3& block) { return block.x * block.y * block.z; }

/// Registers a block takes from its SM: whole warps in groups of four, 256 at a time.
uint32_t block_registers(uint32_t registers, uint32_t threads) {
  const uint32_t warps = align_up(ceil_div(threads, kWarp), kWarpUnit);
  return warps * align_up(std::max(registers, 1u) * kWarp, kRegisterUnit);
}

Status check_block(const KernelInfo& kernel, const hal::CodeObject& code) {
  const hal::Dim3& block = code.block;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || block.x > kMostThreads || block.y > kMostThreads || block.z > kMostBlockZ ||
      threads > kMostThreads)
    return fail(Code::kInvalidArgument,
                "kernel '{}': a block of {} x {} x {} threads; at most {} in all and {} in z",
                code.entry, block.x, block.y, block.z, kMostThreads, kMostBlockZ);
  if (kernel.max_threads != 0 && threads > kernel.max_threads)
    return fail(Code::kInvalidArgument,
                "kernel '{}': {} threads per block, it was compiled for at most {}", code.entry,
                threads, kernel.max_threads);
  if (kernel.required_block && *kernel.required_block != block)
    return fail(Code::kInvalidArgument,
                "kernel '{}': a block of {} x {} x {} threads, it was compiled for {} x {} x {}",
                code.entry, block.x, block.y, block.z, kernel.required_block->x,
                kernel.required_block->y, kernel.required_block->z);
  return {};
}

Status check_registers(const hal::CodeObject& code, uint32_t registers) {
  const uint32_t threads = threads_of(code.block);
  if (block_registers(registers, threads) <= kRegisterFile) return {};
  return fail(Code::kInvalidArgument,
              "kernel '{}': {} registers for each of {} threads exceed the {} of an SM; compile it "
              "for smaller blocks or with fewer registers",
              code.entry, registers, threads, kRegisterFile);
}

/// Blocks of this kernel that fit one SM by threads and registers.
uint32_t resident_blocks(const SmLimits& limits, uint32_t registers, uint32_t threads) {
  const uint32_t by_warps = limits.warps_per_sm / std::max(ceil_div(threads, kWarp), 1u);
  const uint32_t by_registers = kRegisterFile / block_registers(registers, threads);
  return std::clamp(std::min(by_warps, by_registers), 1u, kMostBlocksPerSm);
}

/// Smallest split of L1 with room for `bytes`, or the largest one.
uint32_t shared_config(const ChipRow& chip, uint64_t bytes) {
  for (const uint16_t kib : chip.shared_configs_kib)
    if (uint64_t{kib} * 1024 >= bytes) return kib;
  return chip.shared_configs_kib.back();
}

Status plan_shared(const ChipRow& chip, const SmLimits& limits, const KernelInfo& kernel,
                   const hal::CodeObject& code, LaunchShape& shape) {
  const uint32_t declared =
      kernel.is_ptx ? std::max(kernel.shared_bytes, code.shared_memory_bytes) : kernel.shared_bytes;
  const uint64_t own = uint64_t{declared} - std::min(declared, kernel.shared_reserved_bytes) +
                       code.launch_memory_bytes;
  if (code.shared_memory_bytes > chip.static_shared_limit || own > chip.max_shared_per_block())
    return fail(Code::kUnsupported,
                "kernel '{}': {} bytes of shared memory per block, {} has {} ({} in code that was "
                "not made for it alone)",
                code.entry, std::max<uint64_t>(own, code.shared_memory_bytes), chip.name,
                chip.max_shared_per_block(), chip.static_shared_limit);
  // A program may keep nothing for itself although the system takes its part.
  const uint32_t kept =
      code.launch_memory_bytes == 0 ? declared : std::max(declared, kernel.shared_reserved_bytes);
  shape.shared_bytes = align_up(kept + code.launch_memory_bytes, kSharedUnit);
  const uint32_t blocks = resident_blocks(limits, shape.registers, threads_of(code.block));
  shape.max_shared_config_kib = chip.shared_configs_kib.back();
  // PTX does not count what the system keeps of each block; machine code does.
  const uint64_t block_bytes = shape.shared_bytes + (kernel.is_ptx ? chip.shared_reserved : 0);
  shape.shared_config_kib = shared_config(chip, block_bytes * blocks);
  shape.min_shared_config_kib = shared_config(chip, block_bytes);
  return {};
}

Status plan_parameters(const KernelInfo& kernel, const hal::CodeObject& code, LaunchPlan& plan) {
  const uint32_t words = code.num_buffers + code.num_vars;
  const uint32_t bytes = words * 8;
  if (!kernel.is_ptx && (kernel.param_bytes != bytes || kernel.param_base != plan.bank0.params))
    return fail(
        Code::kInvalidArgument,
        "kernel '{}' takes {} bytes of parameters at {:#x}; {} buffers and {} variables are "
        "{} bytes at {:#x}",
        code.entry, kernel.param_bytes, kernel.param_base, code.num_buffers, code.num_vars, bytes,
        plan.bank0.params);
  plan.bank0_bytes = align_up(std::max(plan.bank0.params + bytes, kernel.banks[0].bytes), 16u);
  return {};
}

}  // namespace

Result<LaunchForm> parse_launch_form(const ChipRow& chip, std::string_view text) {
  LaunchForm form = {chip.qmd, chip.launch_action};
  if (text.empty()) return form;
  const size_t comma = text.find(',');
  const std::string_view version = text.substr(0, comma);
  bool is_known = false;
  for (const QmdVersion known : {chip.qmd, chip.qmd_compat}) {
    if (version != qmd_version_text(known)) continue;
    form.descriptor = known;
    is_known = true;
  }
  if (comma != std::string_view::npos) {
    const std::string_view action = text.substr(comma + 1);
    const bool is_number =
        !action.empty() &&
        std::from_chars(action.data(), action.data() + action.size(), form.action).ptr ==
            action.data() + action.size();
    is_known = is_known && is_number && is_scheduling(form.action);
  }
  if (is_known) return form;
  return fail(Code::kInvalidArgument,
              "launches as '{}': {} takes descriptors {} and {}, then optionally a comma and the "
              "action 2, 3, 9 or 10",
              text, chip.name, qmd_version_text(chip.qmd), qmd_version_text(chip.qmd_compat));
}

Result<LaunchPlan> plan_launch(const ChipRow& chip, const SmLimits& limits,
                               const KernelInfo& kernel, const hal::CodeObject& code) {
  LaunchPlan plan;
  plan.version = kernel.cluster ? chip.qmd : limits.form.descriptor;
  plan.method = chip.launch;
  plan.action = limits.form.action;
  plan.is_ptx = kernel.is_ptx;
  plan.bank0 = bank0_layout(chip, kernel.is_ptx);
  BM_TRY(check_block(kernel, code));
  LaunchShape& shape = plan.shape;
  shape.registers = kernel.is_ptx && kernel.registers == 0 ? kPtxRegisters : kernel.registers;
  BM_TRY(check_registers(code, shape.registers));
  // A descriptor without barriers could not run __syncthreads() of a text we do not look into.
  shape.barriers = kernel.is_ptx ? std::max(kernel.barriers, 1u) : kernel.barriers;
  BM_TRY(plan_shared(chip, limits, kernel, code, shape));
  plan.dynamic_shared = code.launch_memory_bytes;
  plan.reserved_shared = chip.shared_reserved;
  if (kernel.stack_bytes != 0)
    shape.local_bytes = align_up(kernel.stack_bytes + kStackReserve, kLocalUnit);
  shape.sass_version = sass_version(limits.sm);
  shape.block = code.block;
  shape.program = kernel.code_offset;
  shape.program_bytes = kernel.code_bytes;
  if (kernel.cluster) {
    if (!chip.has_clusters)
      return fail(Code::kUnsupported, "kernel '{}' needs thread block clusters, {} has none",
                  code.entry, chip.name);
    shape.has_cluster = true;
    shape.cluster = *kernel.cluster;
  }
  for (size_t bank = 1; bank < shape.banks.size(); ++bank)
    shape.banks[bank] = {kernel.banks[bank].offset, kernel.banks[bank].bytes};
  BM_TRY(plan_parameters(kernel, code, plan));
  return plan;
}

Status check_grid(const hal::CodeObject& code, const hal::Dim3& grid) {
  if (grid.x <= kLargestGridX && grid.y <= kLargestGridYZ && grid.z <= kLargestGridYZ) return {};
  return fail(Code::kInvalidArgument,
              "kernel '{}': a grid of {} x {} x {} blocks; at most {} in x, {} in y and z",
              code.entry, grid.x, grid.y, grid.z, kLargestGridX, kLargestGridYZ);
}

}  // namespace bm::nv
