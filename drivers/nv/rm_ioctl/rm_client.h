#pragma once
// The resource manager's client: one open /dev/nvidiactl, its root object, and the calls on it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drivers/nv/abi/abi.h"
#include "drivers/nv/rm_ioctl/status.h"
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

class RmClient;

/// Object of the resource manager, freed on destruction. Must not outlive its client.
class RmObject {
 public:
  RmObject() = default;
  RmObject(RmClient& client, uint32_t parent, uint32_t handle)
      : client_(&client), parent_(parent), handle_(handle) {}
  RmObject(RmObject&& other) noexcept
      : client_(other.client_), parent_(other.parent_), handle_(std::exchange(other.handle_, 0)) {}
  RmObject& operator=(RmObject&& other) noexcept {
    std::swap(client_, other.client_);
    std::swap(parent_, other.parent_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  RmObject(const RmObject&) = delete;
  RmObject& operator=(const RmObject&) = delete;
  ~RmObject() { reset(); }

  uint32_t handle() const { return handle_; }
  bool is_held() const { return handle_ != 0; }
  void reset();

 private:
  RmClient* client_ = nullptr;
  uint32_t parent_ = 0, handle_ = 0;
};

/// Thread: any; the kernel serialises. Errors name stage, call, object and status.
class RmClient {
 public:
  /// Opens the control node, learns the driver's release (`version_override` wins when not empty)
  /// and makes the root object.
  /// Errors: kNotFound (no driver or no nodes), kPermission, kUnsupported (too old); each with the
  /// remedy.
  static Result<std::unique_ptr<RmClient>> open(System& system,
                                                const std::string& version_override);
  ~RmClient();
  RmClient(const RmClient&) = delete;
  RmClient& operator=(const RmClient&) = delete;

  System& system() { return system_; }
  const abi::Abi& abi() const { return abi_; }
  const std::string& version() const { return version_; }  ///< as the driver says it
  uint32_t root() const { return root_; }
  int control_fd() const { return control_.get(); }

  Result<std::vector<Card>> cards();
  /// A new descriptor of a card's node, tied to this client.
  Result<DeviceFile> open_device(const Card& card);
  /// A new descriptor of the control node, for mapping one piece of system memory.
  Result<DeviceFile> open_control();

  Result<RmObject> allocate(Stage stage, uint32_t parent, uint32_t object_class,
                            abi::AnyParams* params = nullptr);
  /// Registers memory of this process, page aligned, for GPU access. `device_fd` is a card's.
  Result<RmObject> register_host(uint32_t device, int device_fd, void* memory, uint64_t bytes);
  /// `what` names the control in errors.
  Status control(Stage stage, uint32_t object, uint32_t command, std::string_view what,
                 abi::AnyParams& params);
  /// Asks the kernel to let the next mmap of `fd` at offset 0 show `memory`.
  Status prepare_mapping(uint32_t device, uint32_t memory, uint64_t bytes, int fd,
                         bool is_combined);
  Status free(uint32_t parent, uint32_t handle);

  /// ioctl of type 'F' on any of the driver's nodes: kernel errors only, no status.
  Status escape(Stage stage, int fd, uint32_t number, std::string_view what, abi::AnyParams& params,
                uint32_t count = 1);

 private:
  RmClient(System& system, DeviceFile control, abi::Abi abi, std::string version)
      : system_(system),
        control_(std::move(control)),
        abi_(std::move(abi)),
        version_(std::move(version)) {}
  Result<uint32_t> control_status(Stage stage, uint32_t object, uint32_t command,
                                  std::string_view what, abi::AnyParams& params, uint32_t bytes);

  System& system_;
  DeviceFile control_;
  abi::Abi abi_;
  std::string version_;
  uint32_t root_ = 0;
  std::atomic<uint32_t> next_handle_{0xb3110001};  ///< of objects whose handle we must choose
};

/// Opens one of the driver's nodes.
/// Errors: with what to do about a missing node, missing rights or a driver that did not start.
Result<DeviceFile> open_node(System& system, Stage stage, const std::string& path);

}  // namespace bm::nv
