#pragma once
// What a device, its queues, buffers and programs share.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/amd/chips.h"
#include "drivers/amd/driver_interface.h"
#include "drivers/amd/hardware_ring.h"
#include "drivers/amd/program/launch_plan.h"
#include "drivers/amd/scratch.h"
#include "drivers/hcq/gpu.h"
#include "runtime/base/result.h"

namespace bm::amd {

using hcq::Allocation;
using hcq::CommandSpace;
using hcq::MemoryPool;

struct Gpu;

/// A kernel in GPU memory.
class AmdProgram final : public hcq::GpuProgram<AmdProgram, Gpu> {
 public:
  AmdProgram(std::shared_ptr<Gpu> gpu, hal::CodeObject code, LaunchPlan plan, Allocation image);
  ~AmdProgram() override;

  const LaunchPlan& plan() const { return plan_; }
  uint64_t entry() const { return image_.va() + plan_.kernel.entry_offset; }
  uint64_t descriptor() const { return image_.va() + plan_.kernel.descriptor_offset; }

 private:
  LaunchPlan plan_;
};

struct Gpu : hcq::GpuState<DriverInterface, HardwareRing, AmdProgram> {
  using GpuState::GpuState;
  /// The first fault, once there was one. Asks the driver at most every few milliseconds, and not
  /// while another thread holds `mutex`: who waits for the GPU there asks by himself.
  Status health();
  /// The same under `mutex`; never asks the driver.
  Status health_locked();
  /// Asks the driver, under `mutex`.
  Status look_for_fault();
  /// The same error, or the fault in full where it only says that there was one. Under `mutex`.
  Status with_cause(Status status);

  Scratch scratch;
  /// Of peers whose video memory we reach over PCIe: see DriverInterface::map_peer().
  std::vector<std::shared_ptr<Memory>> peer_flushes;
  std::atomic<int64_t> last_look_ns{0};
  /// What the driver itself does on a queue, which is no submission and so in no log: of whoever
  /// finds a fault meanwhile. Under `mutex`.
  const char* own_work = nullptr;
  /// Kernel of the first launch that an AQL ring has not read past, also in a replay; empty where
  /// there is none. PM4 rings hold buffers, which are read as a whole.
  std::string kernel_at_read_index() const;
};

/// What the driver's record means, with the nearest allocation, kernel and remedy.
Error describe_fault(Gpu& gpu, const GpuFault& fault);

}  // namespace bm::amd
