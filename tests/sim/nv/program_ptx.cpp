// Kernels by the PTX interpreter. Convention of models that execute PTX: the program's address
// holds PTX text ending in NUL; constant bank 0 carries the number of buffers in word 80 and of
// scalars in word 81, and from byte 0x160 eight bytes for each argument.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/sim/nv/bytes.h"
#include "tests/sim/nv/damage.h"
#include "tests/sim/nv/program.h"
#include "tests/sim/ptx/interpreter.h"

namespace bm::sim::nv {
namespace {

constexpr uint64_t kMaxText = 16 << 20;
constexpr size_t kCountWords = 80, kArguments = 0x160;

// Warp exceptions. Source: Linux nvgpu, hw_gr_gv11b.h, gr_gpc0_tpc0_sm0_hww_warp_esr_error_*.
constexpr uint32_t kIllegalInstruction = 0x9, kOutOfRangeAddress = 0xe, kMisalignedAddress = 0xf,
                   kInvalidAddressSpace = 0x10;

class PtxMemory final : public ptx::Memory {
 public:
  PtxMemory(GpuMemory& memory, const ShaderWindows& windows) : memory_(memory), windows_(windows) {}
  std::byte* at(uint64_t address, uint32_t bytes, ptx::Access access) override {
    if (windows_.cover(address)) [[unlikely]] {
      is_in_window_ = true;
      return nullptr;
    }
    const Use use = access == ptx::Access::kRead    ? Use::kRead
                    : access == ptx::Access::kWrite ? Use::kWrite
                                                    : Use::kAtomic;
    return memory_.at(address, bytes, use);
  }

  bool is_in_window() const { return is_in_window_; }

 private:
  GpuMemory& memory_;
  const ShaderWindows windows_;
  bool is_in_window_ = false;
};

bool read_text(GpuMemory& memory, uint64_t address, std::string* out) {
  std::array<char, 4096> chunk;
  while (out->size() < kMaxText) {
    // Up to the end of the page, because nothing says where the text ends but its NUL.
    const uint64_t at = address + out->size(), part = 4096 - at % 4096;
    if (!memory.read(at, chunk.data(), part)) return false;
    const auto* end = static_cast<const char*>(std::memchr(chunk.data(), 0, part));
    out->append(chunk.data(), end == nullptr ? part : static_cast<size_t>(end - chunk.data()));
    if (end != nullptr) return true;
  }
  return false;
}

Outcome exception(const Descriptor& descriptor, uint32_t warp_error, std::string what,
                  uint64_t address = 0, uint32_t sm = 0) {
  return EngineFault{
      kGraphicsException, std::move(what), std::nullopt,
      SmError{
          .sm = sm, .global = 1, .warp = warp_error, .pc = descriptor.program, .address = address}};
}

/// Blocks are dealt to multiprocessors in turn.
uint32_t sm_of(const Gpu& gpu, const ptx::Fault& fault) {
  const Chip& chip = gpu.chip();
  return fault.block.x % (chip.gpcs * chip.tpcs_per_gpc * chip.sms_per_tpc);
}

Outcome to_outcome(const Gpu& gpu, const Descriptor& descriptor, GpuMemory& memory,
                   const ptx::Fault& fault) {
  using Kind = ptx::Fault::Kind;
  const uint32_t sm = sm_of(gpu, fault);
  switch (fault.kind) {
    case Kind::kCancelled: return {};
    case Kind::kUnmapped: {
      // Asked again, for the address alone: what was refused first may have been a whole warp.
      const Use use = fault.access == ptx::Access::kRead    ? Use::kRead
                      : fault.access == ptx::Access::kWrite ? Use::kWrite
                                                            : Use::kAtomic;
      memory.at(fault.address, 1, use);
      return EngineFault{kMmuFault, fault.text(), memory.fault(),
                         SmError{.sm = sm,
                                 .global = 1,
                                 .warp = 0,
                                 .pc = descriptor.program,
                                 .address = fault.address}};
    }
    case Kind::kMisaligned:
      return exception(descriptor, kMisalignedAddress, fault.text(), fault.address, sm);
    case Kind::kSharedOutOfRange:
    case Kind::kLocalOutOfRange:
    case Kind::kParamOutOfRange:
      return exception(descriptor, kOutOfRangeAddress, fault.text(), fault.address, sm);
    case Kind::kInvalidLaunch:
    case Kind::kUninitialisedShared:
    case Kind::kSharedRace:
    case Kind::kIllegal:
    case Kind::kBarrierDeadlock:
    case Kind::kInstructionLimit: break;
  }
  return exception(descriptor, kIllegalInstruction, fault.text(), fault.address, sm);
}

/// Arguments as the kernel's parameters want them, from the eight-byte slots of bank 0.
Outcome pack(const Descriptor& descriptor, std::span<const std::byte> bank,
             const ptx::KernelInfo& kernel, std::vector<std::byte>* out) {
  const uint32_t buffers = get(bank, 4 * kCountWords), scalars = get(bank, 4 * kCountWords + 4);
  const uint64_t count = uint64_t{buffers} + scalars;
  if (count != kernel.params.size() || kArguments + 8 * count > bank.size())
    return exception(descriptor, kIllegalInstruction,
                     fmt::format("bank 0 has {} buffers and {} scalars, {} takes {} parameters",
                                 buffers, scalars, kernel.name, kernel.params.size()));
  out->assign(kernel.param_bytes, std::byte{0});
  for (size_t i = 0; i < count; ++i) {
    const ptx::Param& param = kernel.params[i];
    std::memcpy(out->data() + param.offset, bank.data() + kArguments + 8 * i,
                std::min<size_t>(param.bytes, 8));
  }
  return {};
}

}  // namespace

Outcome run_program(Gpu& gpu, Channel& channel, GpuMemory& memory, const Descriptor& descriptor,
                    const ShaderWindows& windows) {
  std::vector<std::byte> bank(descriptor.banks[0].size);
  if (!memory.read(descriptor.banks[0].address, bank.data(), bank.size()))
    return mmu_fault(memory, "constant bank 0");
  if (const HostKernel kernel = gpu.host_kernel(descriptor.program)) {
    kernel(descriptor.grid, descriptor.block, bank);
    return {};
  }
  std::string text;
  if (!read_text(memory, descriptor.program, &text)) return mmu_fault(memory, "program");
  damage_text(gpu, &text);
  std::shared_ptr<const ptx::Module> module = gpu.cached_module(text);
  if (module == nullptr) {
    auto parsed = ptx::parse(text);
    if (!parsed)
      return exception(descriptor, kIllegalInstruction,
                       "program is not PTX that can be run: " + parsed.error().message);
    module = std::move(*parsed);
    gpu.cache_module(text, module);
  }
  if (module->kernels().empty())
    return exception(descriptor, kIllegalInstruction, "the program has no kernel");
  const ptx::KernelInfo& kernel = module->kernels().front();
  std::vector<std::byte> params;
  if (Outcome outcome = pack(descriptor, bank, kernel, &params)) return outcome;
  if (kernel.shared_bytes > descriptor.shared)
    return exception(descriptor, kOutOfRangeAddress,
                     fmt::format("{} uses {} bytes of shared memory, the descriptor gives {}",
                                 kernel.name, kernel.shared_bytes, descriptor.shared));
  PtxMemory ptx_memory(memory, windows);
  ptx::Launch launch;
  launch.kernel = kernel.name;
  launch.grid = {descriptor.grid[0], descriptor.grid[1], descriptor.grid[2]};
  launch.block = {descriptor.block[0], descriptor.block[1], descriptor.block[2]};
  launch.params = params;
  launch.dynamic_shared = kernel.uses_dynamic_shared ? descriptor.shared - kernel.shared_bytes : 0;
  launch.max_instructions = gpu.knobs().max_instructions;
  launch.cancel = &channel.is_stopping;
  const auto result = ptx::run(*module, launch, ptx_memory);
  if (result) return {};
  if (ptx_memory.is_in_window())
    return exception(descriptor, kInvalidAddressSpace,
                     "invalid address space: a global access inside the window of shared or local "
                     "memory; " +
                         result.error().text(),
                     result.error().address, sm_of(gpu, result.error()));
  return to_outcome(gpu, descriptor, memory, result.error());
}

}  // namespace bm::sim::nv
