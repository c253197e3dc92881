#pragma once
// The memory queue descriptor: all that the compute command processor knows of a queue. Its dwords
// from 0x80 on are the queue's registers, in their order.

#include <array>
#include <cstdint>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/generation.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

inline constexpr uint32_t kMqdBytes = 2048;
using MqdWords = std::array<uint32_t, kMqdBytes / 4>;

/// Dwords of struct v11_compute_mqd and v12_compute_mqd (v11_structs.h, v12_structs.h), which agree
/// on all of these, as does struct v9_mqd (v9_structs.h) but for the masks of engines 4 to 7.
namespace mqd {
inline constexpr size_t kHeader = 0x0, kPipelineStat = 0xb, kThreadMask0 = 0x17,
                        kThreadMask1 = 0x18, kThreadMask2 = 0x1a, kThreadMask3 = 0x1b,
                        kMiscReserved = 0x20, kThreadMask4 = 0x2c, kThreadMask7 = 0x2f,
                        // struct v9_mqd, where several chiplets serve a queue.
    kLogicalXcc = 0x27, kChunkSize = 0x29, kStride = 0xe2, kRegisters = 0x80, kBaseLow = 0x80,
                        kActive = 0x82, kVmid = 0x83, kPersistentState = 0x84, kPipePriority = 0x85,
                        kQueuePriority = 0x86, kQuantum = 0x87, kRingLow = 0x88,
                        kReadPointer = 0x8a, kReportLow = 0x8b, kPollLow = 0x8d, kDoorbell = 0x8f,
                        kQueueControl = 0x91, kIbControl = 0x95, kStatus0 = 0xa0,
                        kMqdControl = 0xa2, kEopLow = 0xa5, kEopControl = 0xa7, kEopRead = 0xa8,
                        kAql = 0xb5, kWriteLow = 0xb6, kRegistersEnd = 0xb8;
}  // namespace mqd

struct MqdRequest {
  uint64_t address = 0;  ///< of the descriptor itself, the memory controller's
  uint64_t ring = 0, ring_bytes = 0;
  uint64_t read_pointer = 0, write_pointer = 0;
  uint64_t eop = 0, eop_bytes = 0;
  uint32_t doorbell_dword = 0;
  uint32_t priority = 7;  ///< 0 … 15
  bool is_aql = false;
  uint32_t xcc = 0, xccs = 1;  ///< which of those that serve the queue
  uint32_t stride = 0;         ///< bytes between their descriptors
};

/// Source: init_mqd(), update_mqd() in kfd_mqd_manager_v11.c and _v12.c;
/// gfx_v11_0_compute_mqd_init() for what a queue without the kernel's compute interface has. VMID
/// 0. Several chiplets: init_mqd_v9_4_3() in kfd_mqd_manager_v9.c.
MqdWords encode_mqd(Bus& bus, const Generation& generation, const MqdRequest& request);

}  // namespace bm::amd::am
