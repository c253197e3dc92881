#pragma once
// What the GPUs of one process share: the driver's descriptor, its events, and addresses.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "drivers/amd/kfd/abi.h"
#include "drivers/amd/kfd/errors.h"
#include "drivers/transport/system.h"
#include "runtime/base/result.h"
#include "runtime/base/tlsf.h"

namespace bm::amd::kfd {

/// Descriptor closed through the System it came from.
class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(System& system, int fd) : system_(&system), fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept
      : system_(other.system_), fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(system_, other.system_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) system_->close(fd_);
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  System* system_ = nullptr;
  int fd_ = -1;
};

struct Event {
  uint32_t id = 0, slot = 0;
};

/// The kernel knows a process until it ends: a GPU belongs to the render node it was first opened
/// by, and the page of event slots is set once. Descriptors are numbers here, they go with the
/// process. Source: Linux 6.12, kfd_chardev.c, kfd_ioctl_acquire_vm(); kfd_events.c,
/// kfd_kmap_event_page(); kfd_process.c, kfd_create_process().
struct KeptForProcess {
  std::mutex mutex;
  std::map<uint32_t, int> renders;  ///< by render minor
  uint64_t page_handle = 0, page_address = 0;
  /// Addresses of BM_AMD_WINDOW, by its start: what the kernel could not be made to free stays
  /// taken.
  struct Window {
    uint64_t base = 0, bytes = 0;
    std::optional<Tlsf> ranges;
    ~Window();
  };
  std::map<uint64_t, std::unique_ptr<Window>> windows;
  /// Why the kernel lets no queue of this process run any more: by GPU, and on all of them. It
  /// never takes that back: after a memory fault the process is evicted from that GPU, after a
  /// reset of any GPU from all. Source: Linux 6.12, kfd_debug.c, kfd_set_dbg_ev_from_interrupt();
  /// kfd_device_queue_manager.c, kfd_dqm_evict_pasid(), create_queue_cpsch(); kfd_device.c,
  /// kgd2kfd_pre_reset(), kgd2kfd_post_reset(); kfd_process.c, kfd_suspend_all_processes().
  std::map<uint32_t, std::string> evictions;
  std::string eviction_from_all;
};

/// Thread: any.
class Session {
 public:
  /// The session of `system` that is open in this process, or a new one: the kernel knows one per
  /// process, and GPUs reach each other's memory only within it. `window` counts for a new one
  /// only.
  static Result<std::shared_ptr<Session>> share(System& system, uint64_t window);
  static Result<std::shared_ptr<Session>> open(System& system, uint64_t window);

  System& system() { return system_; }
  uint32_t minor() const { return minor_; }

  /// One call to /dev/kfd. `what` and `hint` for the message.
  template <class Call>
  Status call(Call& arguments, std::string_view name, std::string_view what = "",
              std::string_view hint = "") {
    return raw_call(Call::kRequest, &arguments, name, what, hint);
  }
  Status raw_call(unsigned long request, void* arguments, std::string_view name,
                  std::string_view what, std::string_view hint);
  /// The same, its errno instead of a message: 0 or -errno.
  int try_call(unsigned long request, void* arguments) {
    return system_.ioctl(kfd_.get(), request, arguments);
  }
  int kfd() const { return kfd_.get(); }

  /// Addresses nobody else uses, a multiple of 4096 bytes, kept from the process (PROT_NONE).
  Result<uint64_t> take_addresses(uint64_t bytes, uint64_t alignment);
  /// Maps `fd` (or nothing at -1: takes the pages away) over addresses taken.
  Status map_cpu(uint64_t address, uint64_t bytes, int fd, uint64_t offset);
  void give_back(uint64_t address, uint64_t bytes);

  /// The process's descriptor of a render node; opened by the first who asks, closed by nobody.
  Result<int> render_node(uint32_t minor);

  /// Remembers that the kernel has stopped this process on a GPU (0: on all), for good.
  void note_eviction(uint32_t gpu_id, std::string cause);
  /// kDeviceLost once that has happened.
  Status check_eviction(uint32_t gpu_id);

  Result<Event> create_event(uint32_t type, bool resets, uint64_t page_handle = 0);
  void destroy_event(const Event& event);

  /// Makes the page of event slots reachable for a GPU; the first GPU of the process allocates it,
  /// for good. `render`: its render node.
  Status share_event_page(uint32_t gpu_id, int render);
  /// Undoes it before the GPU is closed.
  void leave_event_page(uint32_t gpu_id);
  /// GPU address of an event's slot.
  uint64_t slot_address(const Event& event) const {
    return kept_->page_address + uint64_t{event.slot} * 8;
  }

 private:
  explicit Session(System& system)
      : system_(system), kept_(system.keep<KeptForProcess>("amdgpu")) {}
  Status start(uint64_t window);
  Status take_window(uint64_t base);
  Status make_event_page(uint32_t gpu_id, int render);
  Result<uint64_t> take_anywhere(uint64_t bytes, uint64_t alignment);

  System& system_;
  std::shared_ptr<KeptForProcess> kept_;
  Descriptor kfd_;
  uint32_t minor_ = 0;
  KeptForProcess::Window* window_ = nullptr;  ///< where one was asked for
};

}  // namespace bm::amd::kfd
