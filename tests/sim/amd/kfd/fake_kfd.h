#pragma once
// The amdgpu driver's compute interface in the process under test, at the seam drivers use, with
// the kernel's own argument checks.
//
// Source: Linux 6.12, drivers/gpu/drm/amd/amdkfd: kfd_chardev.c, kfd_queue.c, kfd_events.c.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "drivers/transport/system.h"
#include "tests/sim/amd/kfd/engine.h"
#include "tests/sim/amd/kfd/memory.h"
#include "tests/sim/amd/kfd/options.h"

namespace bm::sim::amd {

/// Paths that are not the driver's go to the real system. Descriptors are real ones. Thread: any.
class FakeKfd : public System {
 public:
  explicit FakeKfd(Options options);
  ~FakeKfd() override;

  int open(const std::string& path, int flags) override;
  int close(int fd) override;
  int ioctl(int fd, unsigned long request, void* argument) override;
  int mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
           void** out) override;
  int read_file(const std::string& path, std::string* out) override;
  int list(const std::string& path, std::vector<std::string>* out) override;

  DeviceMemory& memory() { return memory_; }
  /// Changes what goes wrong from now on: whether queues execute is read when they are created.
  Options& options() { return options_; }
  /// Raises a memory fault or a reset as the hardware's interrupts would.
  void raise_memory_fault(uint32_t gpu, uint64_t address, bool is_write);
  void raise_reset(uint32_t gpu, bool is_whole);
  /// For tests: whether everything was given back, and what was called.
  size_t open_files() const;
  size_t queues() const;
  size_t events() const;
  uint64_t calls() const { return calls_.load(); }
  std::string last_death() const;

 private:
  struct Event {
    uint32_t type = 0;
    bool resets = false, is_set = false;
    uint32_t slot = 0;
    std::vector<std::byte> data = std::vector<std::byte>(32);
  };
  struct File {
    enum class Kind { kKfd, kRender, kLog } kind = Kind::kKfd;
    uint32_t gpu = 0;
  };
  int dispatch(uint32_t number, void* argument);
  int create_queue(void* argument);
  int destroy_queue(void* argument);
  int create_event(void* argument);
  int wait_events(void* argument);
  int alloc_memory(void* argument);
  int map_memory(void* argument, bool maps);
  void signal(uint32_t event_id);
  void die(uint32_t gpu, const Death& death);
  int gpu_of(uint32_t gpu_id) const;

  Options options_;
  std::map<std::string, std::string> sysfs_;
  DeviceMemory memory_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, File> files_;
  std::map<uint32_t, bool> has_vm_;
  std::map<uint32_t, Event> events_;
  uint32_t next_event_ = 1;
  uint64_t event_page_ = 0;
  std::map<uint32_t, std::unique_ptr<Queue>> queues_;
  std::map<uint32_t, std::vector<uint64_t>> queue_memory_;
  uint32_t next_queue_ = 0;
  int doorbell_fd_ = -1;
  uint64_t* doorbells_ = nullptr;
  std::atomic<uint64_t> calls_{0};
  std::string last_death_;
};

}  // namespace bm::sim::amd
