#pragma once
// The amdgpu driver's compute interface: our own definitions, because the system's header may be
// older than the kernel (and does not compile everywhere).
//
// Source: Linux, include/uapi/linux/kfd_ioctl.h of 6.1, 6.12 and 7.2. The kernel copies as many
// bytes as the number says and takes shorter or longer structures.

#include <cstddef>
#include <cstdint>

namespace bm::amd::kfd {

enum Direction : uint32_t { kWrite = 1, kRead = 2, kReadWrite = 3 };
constexpr unsigned long request(Direction direction, size_t bytes, uint32_t number) {
  return static_cast<unsigned long>(direction) << 30 | bytes << 16 | 'K' << 8 | number;
}

struct GetVersion {
  uint32_t major, minor;
  static constexpr unsigned long kRequest = request(kRead, 8, 0x01);
};
struct CreateQueue {
  uint64_t ring_base, write_pointer, read_pointer;
  uint64_t doorbell_offset;  ///< out
  uint32_t ring_bytes, gpu_id, type, percentage, priority;
  uint32_t queue_id;  ///< out
  uint64_t eop_address, eop_bytes;
  uint64_t save_address;
  uint32_t save_bytes, control_stack_bytes;
  uint32_t sdma_engine, metadata_ring_bytes;
  static constexpr unsigned long kRequest = request(kReadWrite, 96, 0x02);
};
struct DestroyQueue {
  uint32_t queue_id, pad;
  static constexpr unsigned long kRequest = request(kReadWrite, 8, 0x03);
};
struct CreateEvent {
  uint64_t page_offset;   ///< in: handle of the page's memory, on the first call
  uint32_t trigger_data;  ///< out
  uint32_t type, auto_reset, node_id;
  uint32_t event_id, slot;  ///< out
  static constexpr unsigned long kRequest = request(kReadWrite, 32, 0x08);
};
struct DestroyEvent {
  uint32_t event_id, pad;
  static constexpr unsigned long kRequest = request(kWrite, 8, 0x09);
};
struct SetEvent {
  uint32_t event_id, pad;
  static constexpr unsigned long kRequest = request(kWrite, 8, 0x0a);
};
struct MemoryException {
  uint32_t not_present, read_only, no_execute, imprecise;
  uint64_t address;
  uint32_t gpu_id, error_type;
};
struct HardwareException {
  uint32_t reset_type, reset_cause, memory_lost, gpu_id;
};
struct EventData {
  union {
    MemoryException memory;
    HardwareException hardware;
    uint64_t last_event_age;
  };
  uint64_t extension;
  uint32_t event_id, pad;
};
struct WaitEvents {
  uint64_t events;
  uint32_t count, wait_for_all, timeout_ms;
  uint32_t result;  ///< out
  static constexpr unsigned long kRequest = request(kReadWrite, 24, 0x0c);
};
struct GetApertures {
  uint64_t to;     ///< ProcessApertures[count]
  uint32_t count;  ///< in: room; out: how many
  uint32_t pad;
  static constexpr unsigned long kRequest = request(kReadWrite, 16, 0x14);
};
struct ProcessApertures {
  uint64_t lds_base, lds_limit, scratch_base, scratch_limit, memory_base, memory_limit;
  uint32_t gpu_id, pad;
};
struct AcquireVm {
  uint32_t drm_fd, gpu_id;
  static constexpr unsigned long kRequest = request(kWrite, 8, 0x15);
};
struct AllocMemory {
  uint64_t va, bytes;
  uint64_t handle;       ///< out
  uint64_t mmap_offset;  ///< in for user memory: its address; out otherwise
  uint32_t gpu_id, flags;
  static constexpr unsigned long kRequest = request(kReadWrite, 40, 0x16);
};
struct FreeMemory {
  uint64_t handle;
  static constexpr unsigned long kRequest = request(kWrite, 8, 0x17);
};
struct MapMemory {
  uint64_t handle, gpu_ids;
  uint32_t count, succeeded;
  static constexpr unsigned long kRequest = request(kReadWrite, 24, 0x18);
  static constexpr unsigned long kUnmapRequest = request(kReadWrite, 24, 0x19);
};
struct SmiEvents {
  uint32_t gpu_id, fd;
  static constexpr unsigned long kRequest = request(kReadWrite, 8, 0x1f);
};
struct AvailableMemory {
  uint64_t available;
  uint32_t gpu_id, pad;
  static constexpr unsigned long kRequest = request(kReadWrite, 16, 0x23);
};
struct RuntimeEnable {
  uint64_t debug;
  uint32_t mode, capabilities;
  static constexpr unsigned long kRequest = request(kReadWrite, 16, 0x25);
};
/// KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK; bit 1, _TTMP_SAVE_MASK, would save trap temporaries.
inline constexpr uint32_t kRuntimeEnableMode = 1;

static_assert(GetVersion::kRequest == 0x80084b01 && CreateQueue::kRequest == 0xc0604b02);
static_assert(sizeof(CreateQueue) == 96 && offsetof(CreateQueue, ring_bytes) == 32 &&
              offsetof(CreateQueue, queue_id) == 52 && offsetof(CreateQueue, save_address) == 72 &&
              offsetof(CreateQueue, sdma_engine) == 88);
static_assert(sizeof(CreateEvent) == 32 && CreateEvent::kRequest == 0xc0204b08);
static_assert(sizeof(MemoryException) == 32 && sizeof(HardwareException) == 16);
static_assert(sizeof(EventData) == 48 && offsetof(EventData, event_id) == 40);
static_assert(sizeof(WaitEvents) == 24 && WaitEvents::kRequest == 0xc0184b0c);
static_assert(sizeof(AllocMemory) == 40 && AllocMemory::kRequest == 0xc0284b16);
static_assert(sizeof(MapMemory) == 24 && MapMemory::kUnmapRequest == 0xc0184b19);
static_assert(GetApertures::kRequest == 0xc0104b14 && sizeof(ProcessApertures) == 56);
static_assert(sizeof(AvailableMemory) == 16 && sizeof(RuntimeEnable) == 16);
static_assert(AcquireVm::kRequest == 0x40084b15 && FreeMemory::kRequest == 0x40084b17);

// KFD_IOC_ALLOC_MEM_FLAGS_*.
inline constexpr uint32_t kAllocVram = 1u << 0, kAllocGtt = 1u << 1, kAllocUserPointer = 1u << 2,
                          kAllocMmioRemap = 1u << 4, kAllocUncached = 1u << 25,
                          kAllocCoherent = 1u << 26, kAllocAqlQueue = 1u << 27,
                          kAllocNoSubstitute = 1u << 28, kAllocPublic = 1u << 29,
                          kAllocExecutable = 1u << 30, kAllocWritable = 1u << 31;
// KFD_IOC_QUEUE_TYPE_*.
inline constexpr uint32_t kQueueCompute = 0, kQueueSdma = 1, kQueueComputeAql = 2;
// KFD_IOC_EVENT_*.
inline constexpr uint32_t kEventSignal = 0, kEventHardware = 3, kEventMemory = 8;
// KFD_IOC_WAIT_RESULT_*.
inline constexpr uint32_t kWaitComplete = 0, kWaitTimeout = 1, kWaitFail = 2;
// KFD_HW_EXCEPTION_*.
inline constexpr uint32_t kResetWholeGpu = 0, kCauseEcc = 1;
inline constexpr uint32_t kSignalSlots = 4096;
inline constexpr uint64_t kEventPageBytes = 0x8000;
// KFD_MMIO_REMAP_HDP_MEM_FLUSH_CNTL: what is written there lets through what waits to be written
// into the GPU's video memory.
inline constexpr uint64_t kFlushOffset = 0;
// KFD_SMI_EVENT_*, as bits of the mask.
inline constexpr uint64_t kSmiFault = 1u << (1 - 1), kSmiPreReset = 1u << (3 - 1),
                          kSmiPostReset = 1u << (4 - 1);

}  // namespace bm::amd::kfd
