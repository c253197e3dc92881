#pragma once
// What a device, its queues, buffers and programs share.

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/amd/chips.h"
#include "drivers/amd/driver_interface.h"
#include "drivers/amd/lane.h"
#include "drivers/hcq/memory_pool.h"
#include "drivers/amd/program/launch_plan.h"
#include "drivers/amd/scratch.h"
#include "runtime/base/result.h"
#include "runtime/hal/command.h"
#include "runtime/hal/program.h"

namespace bm::amd {

struct Gpu;

/// A kernel in GPU memory.
class AmdProgram final : public hal::Program {
 public:
  AmdProgram(std::shared_ptr<Gpu> gpu, hal::CodeObject code, LaunchPlan plan, Allocation image);
  ~AmdProgram() override;

  const LaunchPlan& plan() const { return plan_; }
  const Gpu* gpu() const { return gpu_.get(); }
  uint64_t entry() const { return image_.va() + plan_.kernel.entry_offset; }
  uint64_t descriptor() const { return image_.va() + plan_.kernel.descriptor_offset; }
  bool holds(uint64_t address) const {
    return address >= image_.va() && address - image_.va() < image_.size();
  }

 private:
  std::shared_ptr<Gpu> gpu_;
  LaunchPlan plan_;
  Allocation image_;
};

/// What was submitted last, for messages about faults and hangs. Noting costs no allocation.
class WorkLog {
 public:
  void note_kernel(std::string_view name);
  /// `names` of a whole recording: kept by reference.
  void note_replay(std::shared_ptr<const std::string> names);
  void note(const hal::Copy& copy) { copies_[next_copy_++ % copies_.size()] = copy; }
  void note(const hal::Wait& wait) { waits_[next_wait_++ % waits_.size()] = wait; }
  /// "a, b, c (dispatch 17)", latest last.
  std::string kernels() const;
  /// Copies that touch what is no memory of the pool; empty when there is none.
  std::string suspects(const MemoryPool& pool) const;
  /// Waits whose word is still too small; empty when there is none.
  std::string unmet(const MemoryPool& pool) const;

 private:
  static constexpr size_t kNames = 4, kBytes = 64;
  std::array<std::array<char, kBytes>, kNames> names_{};
  uint64_t dispatches_ = 0;
  std::shared_ptr<const std::string> replayed_;
  bool is_replay_last_ = false;
  std::array<hal::Copy, 8> copies_{};
  size_t next_copy_ = 0;
  std::array<hal::Wait, 4> waits_{};
  size_t next_wait_ = 0;
};

/// Thread: `mutex` protects everything but what is atomic; buffers and programs take it when freed.
struct Gpu {
  Gpu(std::unique_ptr<DriverInterface> the_kernel, uint64_t slab_bytes)
      : kernel(std::move(the_kernel)), pool(*kernel, slab_bytes) {}

  const ChipRow& chip() const { return *kernel->facts().chip; }
  /// The first fault, once there was one. Asks the driver at most every few milliseconds, and not
  /// while another thread holds `mutex`: who waits for the GPU there asks by himself.
  Status health();
  /// The same under `mutex`; never asks the driver.
  Status health_locked();
  /// Asks the driver, under `mutex`.
  Status look_for_fault();
  /// The same error, or the fault in full where it only says that there was one. Under `mutex`.
  Status with_cause(Status status);

  std::mutex mutex;
  std::unique_ptr<DriverInterface> kernel;
  MemoryPool pool;
  Scratch scratch;
  /// Compute, copies of the copy queue, copies of the compute queue.
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<const AmdProgram*> programs;
  /// Of peers whose video memory we reach over PCIe: see DriverInterface::map_peer().
  std::vector<std::shared_ptr<Memory>> peer_flushes;
  WorkLog log;
  std::atomic<bool> has_fault{false};
  std::atomic<int64_t> last_look_ns{0};
  std::optional<Error> fault;  ///< under mutex
  /// Kernel of the first launch that an AQL ring has not read past, also in a replay; empty where
  /// there is none. PM4 rings hold buffers, which are read as a whole.
  std::string kernel_at_read_index() const;
  /// Gives the GPU up. Never waits for `mutex`: who holds it may be waiting for the GPU.
  void lose(const Error& cause);
  std::atomic<bool> is_given_up{false};  ///< ends the lanes' waits
  std::mutex given_up_mutex;
  std::optional<Error> given_up;  ///< under given_up_mutex
};

/// What the driver's record means, with the nearest allocation, kernel and remedy.
Error describe_fault(Gpu& gpu, const GpuFault& fault);

}  // namespace bm::amd
