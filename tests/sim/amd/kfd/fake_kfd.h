#pragma once
// The amdgpu driver's compute interface in the process under test, at the seam drivers use.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "drivers/transport/system.h"
#include "tests/sim/amd/kfd/machine.h"
#include "tests/sim/amd/kfd/process.h"

namespace bm::sim::amd {

/// Paths that are not the driver's go to the real system. Descriptors are real ones. Thread: any.
class FakeKfd : public System {
 public:
  explicit FakeKfd(Options options);
  ~FakeKfd() override;
  /// The next process on the same machine: the driver knows nothing of this one there. This one
  /// must have closed its devices.
  std::unique_ptr<FakeKfd> next_process() const;

  int open(const std::string& path, int flags) override;
  int close(int fd) override;
  int ioctl(int fd, unsigned long request, void* argument) override;
  int mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
           void** out) override;
  int read_file(const std::string& path, std::string* out) override;
  int list(const std::string& path, std::vector<std::string>* out) override;
  int kernel_log(std::string* out) override {
    *out = machine_->kernel_log();
    return 0;
  }

  Machine& machine() { return *machine_; }
  Knobs& knobs() { return machine_->knobs; }
  DeviceMemory& memory() { return process_.memory(); }
  /// Changes what goes wrong from now on: whether queues execute is read when they are created.
  Options& options() { return machine_->options; }
  /// Raises a memory fault or a reset as the hardware's interrupts would.
  void raise_memory_fault(uint32_t gpu, uint64_t address, bool is_write) {
    process_.raise_memory_fault(gpu, address, is_write);
  }
  void raise_reset(uint32_t gpu, bool is_whole) { process_.raise_reset(gpu, is_whole); }
  /// For tests: whether everything was given back, and what was called.
  size_t open_files() const;  ///< render nodes, which are kept, not counted
  size_t queues() const { return process_.queues(); }
  std::vector<uint32_t> priorities() const { return process_.priorities(); }
  size_t events() const { return process_.events(); }
  uint64_t calls() const { return process_.calls(); }
  std::string last_death() const { return process_.last_death(); }
  bool is_runtime_enabled() const { return process_.is_runtime_enabled(); }

 private:
  FakeKfd(std::shared_ptr<Machine> machine, pid_t process);
  const std::shared_ptr<Machine> machine_;
  Process process_;
  mutable std::mutex mutex_;
  std::map<int, File> files_;
};

}  // namespace bm::sim::amd
