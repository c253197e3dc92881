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

/// Thread: any.
class Session {
 public:
  /// The session of `system` that is open in this process, or a new one: the kernel knows one per
  /// process, and GPUs reach each other's memory only within it. `window` counts for a new one
  /// only.
  static Result<std::shared_ptr<Session>> share(System& system, uint64_t window);
  static Result<std::shared_ptr<Session>> open(System& system, uint64_t window);
  ~Session();

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

  Result<Event> create_event(uint32_t type, bool resets, uint64_t page_handle = 0);
  void destroy_event(const Event& event);

  /// Makes the page of event slots reachable for a GPU; the first GPU allocates it. `render`: its
  /// render node.
  Status share_event_page(uint32_t gpu_id, int render);
  /// Undoes it before the GPU is closed.
  void leave_event_page(uint32_t gpu_id);
  /// GPU address of an event's slot.
  uint64_t slot_address(const Event& event) const {
    return page_address_ + uint64_t{event.slot} * 8;
  }

 private:
  explicit Session(System& system) : system_(system) {}
  Status start(uint64_t window);
  Status take_window(uint64_t base);
  Status make_event_page(uint32_t gpu_id, int render);
  void free_event_page();

  System& system_;
  Descriptor kfd_;
  uint32_t minor_ = 0;
  std::mutex mutex_, page_mutex_;
  uint64_t window_ = 0, window_bytes_ = 0;
  std::optional<Tlsf> ranges_;  ///< of the window, where one was asked for
  uint64_t page_handle_ = 0, page_address_ = 0;
  Event first_event_;
};

}  // namespace bm::amd::kfd
