#pragma once
// The resource manager through the nvidia kernel driver: /dev/nvidiactl, the cards' nodes, and the
// calls on them.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drivers/nv/abi/abi.h"
#include "drivers/nv/rm/status.h"
#include "drivers/nv/rm/transport.h"
#include "drivers/transport/system.h"

namespace bm::nv {

/// Descriptor of a System, closed on destruction.
class DeviceFile {
 public:
  DeviceFile() = default;
  DeviceFile(System& system, int fd) : system_(&system), fd_(fd) {}
  DeviceFile(DeviceFile&& other) noexcept
      : system_(other.system_), fd_(std::exchange(other.fd_, -1)) {}
  DeviceFile& operator=(DeviceFile&& other) noexcept {
    std::swap(system_, other.system_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  DeviceFile(const DeviceFile&) = delete;
  DeviceFile& operator=(const DeviceFile&) = delete;
  ~DeviceFile() {
    if (fd_ >= 0) system_->close(fd_);
  }
  int get() const { return fd_; }

 private:
  System* system_ = nullptr;
  int fd_ = -1;
};

/// One GPU as the driver lists it.
struct Card {
  uint32_t gpu_id = 0, minor = 0;
  uint32_t domain = 0, bus = 0, slot = 0, function = 0;
  uint32_t device_id = 0;  ///< PCI
  uint64_t bar1_bytes = 0;
  std::string path() const;  ///< "/dev/nvidia0"
  std::string text() const;  ///< "10de:2335 at 0000:01:00.0"
};

/// Thread: any; the kernel serialises. Errors name stage, call, object and status.
class IoctlTransport final : public RmTransport {
 public:
  /// Opens the control node and learns the driver's release (`version_override` wins when not
  /// empty).
  /// Errors: kNotFound (no driver or no nodes), kPermission, kUnsupported (too old); each with the
  /// remedy.
  static Result<std::unique_ptr<IoctlTransport>> open(System& system,
                                                      const std::string& version_override);

  const abi::Abi& abi() const override { return abi_; }
  const std::string& version() const override { return version_; }
  Result<RmAnswer> alloc(Stage stage, std::string_view what, const RmAllocCall& asked) override;
  Result<uint32_t> control(Stage stage, std::string_view what, const RmControlCall& asked) override;
  Result<uint32_t> free(Stage stage, std::string_view what, uint32_t client, uint32_t parent,
                        uint32_t handle) override;
  Result<std::unique_ptr<RmMapping>> map(Stage stage, const RmMapCall& call) override;
  Result<std::unique_ptr<RmEvent>> open_event(uint32_t gpu, uint32_t client,
                                              uint32_t device) override;
  std::string driver_log() override;

  System& system() { return system_; }
  int control_fd() const { return control_.get(); }
  Result<std::vector<Card>> cards();
  /// A new descriptor of a card's node, tied to this control node.
  Result<DeviceFile> open_device(const Card& card);
  /// Registers memory of this process, page aligned, for GPU access; the object's handle.
  /// `device_fd` is a card's.
  Result<uint32_t> register_host(uint32_t client, uint32_t device, int device_fd, void* memory,
                                 uint64_t bytes);
  /// Asks the kernel to let the next mmap of `fd` at offset 0 show `memory`.
  Status prepare_mapping(uint32_t client, uint32_t device, uint32_t memory, uint64_t bytes, int fd,
                         bool is_combined);

 private:
  class Mapping;
  class Event;
  IoctlTransport(System& system, DeviceFile control, abi::Abi abi, std::string version)
      : system_(system),
        control_(std::move(control)),
        abi_(std::move(abi)),
        version_(std::move(version)) {}
  Result<Card> card_of(uint32_t gpu);
  Result<DeviceFile> open_node_of(uint32_t gpu);
  /// ioctl of type 'F' on any of the driver's nodes: kernel errors only, no status.
  Status escape(Stage stage, int fd, uint32_t number, std::string_view what,
                abi::AnyParams& params);

  System& system_;
  DeviceFile control_;
  abi::Abi abi_;
  std::string version_;
  std::mutex mutex_;
  std::vector<Card> listed_;                       ///< by cards(), last
  std::atomic<uint32_t> next_handle_{0xb3110001};  ///< of objects whose handle we must choose
};

/// Opens one of the driver's nodes.
/// Errors: with what to do about a missing node, missing rights or a driver that did not start.
Result<DeviceFile> open_node(System& system, Stage stage, const std::string& path);

}  // namespace bm::nv
