#pragma once
// What the engines of a channel share, and what each refuses. `D` is open-gpu-doc c8607fe, `M`
// open-gpu-kernel-modules 595.45.04; a name in brackets is the test, in tests/unit/sim_nv.
//
// Host (host_engine.cpp). Robust-channel code 32 (M nverror.h, ROBUST_CHANNEL_PBDMA_ERROR) unless
// another is named:
//   method headers of opcodes 0 with a count, 2 and 6; methods of a subchannel without object;
//     host methods that do not exist (D clc56f.h, NVC56F_DMA_*)  [BrokenPushBuffers…]
//   SET_OBJECT of a class the channel has no object of: 69 on graphics' runlist; a copy class there
//     on another subchannel than 4 (M uvm_push_macros.h, UVM_SUBCHANNEL_CE)  [BrokenPushBuffers…]
//   semaphores: misaligned, operation 7, above 2^40 before Hopper's channel class (D clc56f.h,
//     NVC56F_SEM_ADDR_HI_OFFSET 7:0; M clc86f.h, 24:0); unmapped: 31  [BrokenPushBuffers…]
//   memory operations other than the barrier (D dev_pbdma.ref, GA100, NV_UDMA_MEM_OP_D)
//   GPPut outside of the ring, control entries with an opcode (D clc56f.h, NVC56F_GP_ENTRY1_OPCODE)
//     [BrokenRingsDie]
//   it never writes GPGet where the class has none, and late elsewhere (M clc96f.h, clca6f.h; D
//     dev_ram.ref, RAMUSERD)  [BlackwellsChannelsNeverTell…, TheRingWraps…]
//
// Compute (compute_engine.cpp, descriptor.cpp). Code 13 (ROBUST_CHANNEL_GR_EXCEPTION):
//   methods that the class does not have (D clc5c0.h … clcec0.h)  [BrokenPushBuffers…]
//   descriptors of versions the class does not take: 2.3 is Turing's, 3.0 Ampere's, Ada's and
//     Hopper's, 4.0 Hopper's, 5.0 Blackwell's (D clXXc0qmd.h)  [DescriptorsOfOtherGenerations…]
//   fields outside the limits: grid, block, registers, barriers, shared memory and its split,
//     program, constant banks (D clXXc0qmd.h; CUDA C++ Programming Guide 13.0, "Technical
//     Specifications per Compute Capability")  [BadDescriptorsAreExceptions]
//   a descriptor changed in memory is not seen until it is invalidated: PCAS actions 1, 3, 10,
//     INVALIDATE_SKED_CACHES, a dependent's action 3 (D clc6c0.h,
//     NVC6C0_SEND_SIGNALING_PCAS2_B_PCAS_ACTION_*)  [ADescriptorIsReadOnce…]
//   PCAS actions that count dependences; inline data to block-linear memory, of nothing, or without
//     LAUNCH_DMA  [BadComputeMethodsAreExceptions]
//   local memory smaller than its threads or not mapped  [BadComputeMethodsAreExceptions]
//   windows of shared and local memory that are not aligned, global accesses inside them
//     [WindowsOfSharedAndLocalMemory…]
//
// Copy (copy_engine.cpp). Code 39 + n (ROBUST_CHANNEL_CE0_ERROR …), 31 for unmapped memory:
//   transfer type 3, physical addresses of users, block-linear layout, semaphore reductions and
//     conditional ones (neither is modelled), misaligned semaphores, addresses beyond the class's,
//     64-bit payloads before AMPERE_DMA_COPY_B (D clc5b5.h … clcab5.h, NVC7B5_LAUNCH_DMA_*,
//     OFFSET_IN_UPPER)  [BadCopiesDie…]

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
