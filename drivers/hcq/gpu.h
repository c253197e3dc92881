#pragma once
// What a device, its queues, buffers and programs share.

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "drivers/hcq/memory_pool.h"
#include "drivers/hcq/work_log.h"
#include "runtime/base/fork.h"
#include "runtime/base/result.h"
#include "runtime/hal/program.h"

namespace bm::hcq {

/// Whether a GPU can still be used. What finds faults is the vendor's.
struct Health {
  std::atomic<bool> has_fault{false};
  std::optional<Error> fault;  ///< the first; under the GPU's mutex
  /// Gives the GPU up. Never waits for the GPU's mutex: who holds it may be waiting for the GPU.
  void lose(const Error& cause);
  /// Makes what lose() was told the fault, unless there is one. Under the GPU's mutex.
  void adopt_loss();
  /// Refuses all that follows. Under the GPU's mutex.
  void close();
  /// The GPU works again. Under the GPU's mutex.
  void clear();

  std::atomic<bool> is_given_up{false};  ///< ends the rings' waits
  std::mutex given_up_mutex;
  std::optional<Error> given_up;  ///< under given_up_mutex
};

/// Thread: `mutex` protects everything but what is atomic; buffers and programs take it when freed.
template <class DriverType, class RingType, class ProgramType>
struct GpuState : Health {
  using Driver = DriverType;
  using Ring = RingType;
  using Program = ProgramType;
  GpuState(std::unique_ptr<Driver> the_driver, uint64_t slab_bytes)
      : driver(std::move(the_driver)), pool(*driver, slab_bytes) {}

  const auto& chip() const { return *driver->facts().chip; }

  std::mutex mutex;
  std::unique_ptr<Driver> driver;
  const ForkGuard fork;
  MemoryPool pool;
  /// Compute, copies of the copy queue, copies of the compute queue.
  std::vector<std::unique_ptr<Ring>> rings;
  std::vector<const Program*> programs;
  WorkLog log;
};

/// A kernel in GPU memory, listed with its GPU while it is there.
template <class Derived, class Gpu>
class GpuProgram : public hal::Program {
 public:
  const Gpu* gpu() const { return gpu_.get(); }
  bool holds(uint64_t address) const {
    return address >= image_.va() && address - image_.va() < image_.size();
  }

 protected:
  GpuProgram(std::shared_ptr<Gpu> gpu, hal::CodeObject code, Allocation image)
      : Program(std::move(code)), gpu_(std::move(gpu)), image_(std::move(image)) {}
  /// Last of what a constructor does.
  void enlist() {
    const std::lock_guard lock(gpu_->mutex);
    gpu_->programs.push_back(static_cast<const Derived*>(this));
  }
  /// First of what a destructor does.
  void retire() {
    if (gpu_->fork.is_parents()) return;  // a thread of the parent's may hold the mutex
    const std::lock_guard lock(gpu_->mutex);
    std::erase(gpu_->programs, static_cast<const Derived*>(this));
    image_.reset();
  }

  std::shared_ptr<Gpu> gpu_;
  Allocation image_;
};

}  // namespace bm::hcq
