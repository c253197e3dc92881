#pragma once
// What the engines of a channel share.

#include <cstdint>
#include <optional>
#include <string>

#include "tests/sim/nv/gpu.h"
#include "tests/sim/nv/gpu_memory.h"

namespace bm::sim::nv {

// Robust-channel codes. Source: open-gpu-kernel-modules 580.142, nverror.h.
constexpr uint32_t kGraphicsException = 13, kMmuFault = 31, kPbdmaError = 32, kClassError = 69;

/// Empty: done.
using Outcome = std::optional<EngineFault>;

Outcome mmu_fault(const GpuMemory& memory, std::string_view who);
/// Code of copy engine `n`: ROBUST_CHANNEL_CE_ERROR(n).
uint32_t copy_error(uint32_t engine);

/// A semaphore release: `words` 1 (32 bits), 2 (64 bits) or 4 (64 bits, then nanoseconds).
Outcome release(Gpu& gpu, GpuMemory& memory, uint64_t address, uint64_t payload, uint32_t words);

/// A method of the bound object. `offset` in bytes, 0x100 and above.
Outcome compute_method(Gpu& gpu, Channel& channel, Subchannel& subchannel, uint32_t offset,
                       uint32_t value);
Outcome copy_method(Gpu& gpu, Channel& channel, Subchannel& subchannel, uint32_t offset,
                    uint32_t value);

/// Runs the kernel of the launch descriptor at `address`, what depends on it, and its releases.
Outcome run_descriptor(Gpu& gpu, Channel& channel, const Subchannel& subchannel, uint64_t address);

}  // namespace bm::sim::nv
