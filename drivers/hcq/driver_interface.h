#pragma once
// The waist that all GPUs with hardware command queues share: what memory pool, rings and devices
// need from whoever owns the GPU, be that a kernel driver or a boot of ours. Each vendor adds its
// queues, faults and facts.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "drivers/transport/mmio.h"
#include "runtime/base/result.h"

namespace bm::hcq {

/// What every vendor's facts begin with.
struct GpuFacts {
  std::string name;            ///< marketing name where the driver tells it
  std::string driver_version;  ///< "580.105.08", "KFD 1.17"
  uint64_t video_memory = 0;   ///< bytes
};

enum class MemoryDomain : uint8_t {
  kVideo,           ///< video memory, not seen by the CPU
  kVideoMapped,     ///< video memory, write-combined through the BAR; the CPU must only write
  kSystem,          ///< system memory, cached by the CPU, coherent; signals, staging, notifiers
  kSystemUncached,  ///< the same, never cached by the GPU, where the vendor tells the two apart
};

constexpr bool is_system(MemoryDomain domain) {
  return domain == MemoryDomain::kSystem || domain == MemoryDomain::kSystemUncached;
}

struct MemoryRequest {
  uint64_t size = 0;  ///< bytes; rounded up to the page size of the domain
  MemoryDomain domain = MemoryDomain::kVideo;
  bool is_contiguous = false;  ///< physically, where the domain lets one ask
  void* host = nullptr;        ///< register this page-aligned memory of the process (kSystem)
};

/// One allocation, mapped to its GPU; freed (unmapped everywhere) on destruction. Where the process
/// sees it, byte n of `view` is `va` + n: kernel drivers map it at the same address, a card of our
/// own has a window of addresses that nothing of the process shares.
class Memory {
 public:
  virtual ~Memory() = default;
  /// First byte in this process, or nullptr: not seen by the CPU, or behind a transport.
  std::byte* host() const { return view.host(); }
  uint64_t va = 0, size = 0;
  HostView view;        ///< the CPU's, of all its bytes; empty where it sees none
  uint32_t handle = 0;  ///< of the owner, where it names memory by one
  MemoryDomain domain = MemoryDomain::kVideo;
};

/// One GPU. Thread: callers serialise, but for what a vendor exempts. Errors name the call, or the
/// stage, and what to do.
class DriverInterface {
 public:
  virtual ~DriverInterface() = default;
  virtual const GpuFacts& facts() const = 0;
  virtual Result<std::unique_ptr<Memory>> allocate(const MemoryRequest& request) = 0;
  /// Makes memory of another GPU of the same process reachable here at the same address.
  /// kUnsupported where the pair has no peer access: the caller copies through the host.
  /// What is written there over PCIe may wait in the owner's host data path: a word written to the
  /// memory returned, after the data and before anybody is told, lets it through. nullptr: nothing
  /// waits (system memory, a link of their own, a vendor without such a path).
  /// Source: Linux 6.12, amdgpu_device.c, amdgpu_device_flush_hdp(); RCCL, prims_simple.h,
  /// postPeer(), which has the sender write that register of the receiver.
  virtual Result<std::shared_ptr<Memory>> map_peer(Memory& memory, DriverInterface& owner) = 0;
  /// The process ends, and no queue is left: see hal::Leaving. Kernel drivers see to it themselves.
  virtual void leave() {}
};

}  // namespace bm::hcq
