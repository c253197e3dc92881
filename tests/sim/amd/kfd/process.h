#pragma once
// What the amdgpu driver keeps for one process that opened /dev/kfd, and the calls it makes, with
// the kernel's own argument checks.
//
// What it refuses, and the function of Linux 6.12.117, drivers/gpu/drm/amd, that does so (files of
// amdkfd/ unless named); each has a test in tests/unit/amd/engine_test.cpp.
//   K1  CREATE_QUEUE: percentage over 100, priority over 15, a ring that is no power of two
//   (EINVAL),
//       an unknown type (ENOTSUPP): kfd_chardev.c, set_queue_properties_from_user(). A ring of less
//       than 1 KiB counts as one of 1 KiB.
//   K2  CREATE_QUEUE: ring, pointers, EOP buffer, save area that are no mappings of their own and
//   of
//       exactly the size, the page of pointers included (EINVAL): kfd_queue.c,
//       kfd_queue_buffer_get(), kfd_queue_acquire_buffers().
//   K3  CREATE_QUEUE: EOP buffer below the node's size, control stack unequal, save area below the
//       node's (EINVAL): kfd_queue_acquire_buffers(), kfd_queue_ctx_save_restore_size().
//   K4  CREATE_QUEUE without ACQUIRE_VM (ESRCH), memory without it (ENODEV):
//       kfd_process.c, kfd_bind_process_to_device().
//   K5  ACQUIRE_VM of what is no render node of that GPU (EINVAL), by a second file (EBUSY):
//       kfd_chardev.c, kfd_ioctl_acquire_vm().
//   K6  ALLOC_MEMORY: no bytes, PUBLIC video memory on a small BAR (EINVAL), a register page of
//       another size than a page (EINVAL), or where there is none (ENOMEM): kfd_chardev.c,
//       kfd_ioctl_alloc_memory_of_gpu(); addresses that overlap (EINVAL): amdgpu/amdgpu_vm.c,
//       amdgpu_vm_bo_map().
//   K7  FREE_MEMORY of what is mapped (EBUSY): amdgpu/amdgpu_amdkfd_gpuvm.c,
//       amdgpu_amdkfd_gpuvm_free_memory_of_gpu(); of the event page (EPERM): kfd_chardev.c,
//       kfd_ioctl_free_memory_of_gpu().
//   K8  UNMAP_MEMORY of what a queue uses (EBUSY): amdgpu/amdgpu_amdkfd_gpuvm.c,
//       unmap_bo_from_gpuvm().
//   K9  MAP_MEMORY of no GPUs, or with more done than asked for (EINVAL), of no handle (ENOMEM):
//       kfd_ioctl_map_memory_to_gpu().
//   K10 RUNTIME_ENABLE twice (EBUSY), with queues (EEXIST): kfd_chardev.c, runtime_enable(); a mode
//       without bit 0 disables: kfd_ioctl_runtime_enable(). Never a debugger here.
//   K11 the event page set twice (EINVAL): kfd_events.c, kfd_kmap_event_page(). Event 0 is
//   nobody's:
//       kfd_event_init_process() (older kernels gave it away: Options::gives_event_zero).
//   K12 doorbells mapped with another length than the process's slice (EINVAL): kfd_doorbell.c,
//       kfd_doorbell_mmap().
//   K13 numbers it does not have (ENOTTY), structures shorter or longer are cut or filled with
//   zeroes:
//       kfd_chardev.c, kfd_ioctl().

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/amd/engine/engine.h"
#include "tests/sim/amd/kfd/machine.h"
#include "tests/sim/amd/kfd/memory.h"
#include "tests/sim/notify/process.h"

namespace bm::sim::amd {

/// A descriptor of one of the nodes.
struct File {
  enum class Kind { kKfd, kRender, kLog } kind = Kind::kKfd;
  uint32_t gpu = 0;
  uint64_t serial = 0;  ///< tells open files apart
};

/// The caller's descriptors.
struct Caller {
  std::function<const File*(int fd)> file;
  /// Makes `source`, a descriptor of ours, one of the caller's: its number there, or -errno.
  std::function<int(int source, File file)> give;
};

/// Opens a node: 0 or -errno. Errors: ENOENT for what is none, the planted ones.
int open_node(const Machine& machine, const std::string& path, File* file);

/// Thread: any.
class Process {
 public:
  Process(Machine& machine, std::shared_ptr<notify::Process> client);
  ~Process();

  /// One ioctl on /dev/kfd: 0 or -errno.
  int call(unsigned long request, uint64_t argument, const Caller& caller);
  /// Whether call() may take long: others must not wait for it.
  bool may_block(unsigned long request, uint64_t argument) const;
  /// The process is gone: its queues stop, and waits of other threads end, for good.
  void close();

  DeviceMemory& memory() { return memory_; }
  int doorbell_descriptor() const { return doorbell_fd_; }
  /// Bytes of one GPU's doorbells, and the only length they are mapped with.
  static constexpr uint64_t kDoorbellBytes = 0x2000;

  void raise_memory_fault(uint32_t gpu, uint64_t address, bool is_write);
  void raise_reset(uint32_t gpu, bool is_whole);
  /// For tests: whether everything was given back, and what was called.
  size_t queues() const;
  /// Of the queues there are, in the order they were made.
  std::vector<uint32_t> priorities() const;
  size_t events() const;
  uint64_t calls() const { return calls_.load(); }
  std::string last_death() const;
  bool is_runtime_enabled() const;

 private:
  struct Event {
    uint32_t type = 0;
    bool resets = false, is_set = false;
    uint32_t slot = 0;
    std::vector<std::byte> data = std::vector<std::byte>(32);
  };
  struct OpenQueue {
    uint32_t gpu = 0, priority = 0;
    std::unique_ptr<Queue> queue;
    std::vector<uint64_t> memory;  ///< addresses of the objects it uses
  };
  struct Log {
    uint32_t gpu = 0;
    int fd = -1;
    uint64_t mask = 0;
  };

  bool is_planted(const char* name);
  int dispatch(uint32_t number, std::byte* a, const Caller& caller);
  int acquire_vm(const std::byte* a, const Caller& caller);
  int alloc_memory(std::byte* a);
  int map_memory(std::byte* a, bool maps);
  int create_queue(std::byte* a);
  int check_queue(const std::byte* a, std::vector<uint64_t>* used);
  int update_queue(const std::byte* a);
  int apertures(std::byte* a);
  int runtime_enable(const std::byte* a);
  int destroy_queue(uint32_t id);
  int create_event(std::byte* a);
  int set_event_page(uint64_t handle);
  int destroy_event(uint32_t id);
  int set_event(uint32_t id, bool is_set);
  int wait_events(std::byte* a);
  int open_log(std::byte* a, const Caller& caller);
  void interrupt(uint32_t event_id);
  void evict(uint32_t gpu);
  void die(uint32_t gpu, const Death& death);
  void write_log(uint32_t gpu, uint32_t number, const std::string& text);
  uint64_t* slot_of(uint32_t slot);
  bool has_vm(uint32_t gpu_id) const;

  Machine& machine_;
  std::shared_ptr<notify::Process> client_;
  DeviceMemory memory_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_closed_ = false;
  bool is_runtime_enabled_ = false;
  std::map<uint32_t, uint64_t> has_vm_;  ///< by which file
  std::map<uint32_t, Event> events_;
  uint64_t event_page_ = 0;          ///< handle
  std::vector<uint64_t> own_slots_;  ///< the kernel's, where the process gave no page
  std::map<uint32_t, OpenQueue> queues_;
  std::set<uint32_t> evicted_;  ///< GPUs where no queue of the process runs any more
  uint32_t next_queue_ = 0;
  std::vector<Log> logs_;
  uint32_t resets_ = 0;
  int doorbell_fd_ = -1;
  uint64_t* doorbells_ = nullptr;
  std::array<uint64_t, 2> dead_doorbells_{0, UINT64_MAX};  ///< never rung: AQL's start at -1
  std::atomic<uint64_t> calls_{0};
  std::atomic<int> planted_calls_{0};
  std::string last_death_;
};

}  // namespace bm::sim::amd
