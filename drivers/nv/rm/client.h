#pragma once
// The resource manager's client: a root object, and the calls on what lies below it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "drivers/nv/abi/abi.h"
#include "drivers/nv/rm/status.h"
#include "drivers/nv/rm/transport.h"

namespace bm::nv {

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

/// Thread: any; the resource manager serialises. Errors name stage, call, object and status.
class RmClient {
 public:
  /// Makes the root object. `transport` must outlive the client.
  static Result<std::unique_ptr<RmClient>> create(RmTransport& transport);
  ~RmClient();
  RmClient(const RmClient&) = delete;
  RmClient& operator=(const RmClient&) = delete;

  RmTransport& transport() { return transport_; }
  const abi::Abi& abi() const { return transport_.abi(); }
  const std::string& version() const { return transport_.version(); }
  uint32_t root() const { return root_; }

  Result<RmObject> allocate(Stage stage, uint32_t parent, uint32_t object_class,
                            abi::AnyParams* params = nullptr);
  /// `what` names the control in errors; `pointed`: what a pointer in `params` leads to.
  Status control(Stage stage, uint32_t object, uint32_t command, std::string_view what,
                 abi::AnyParams& params, std::span<std::byte> pointed = {});
  Status free(uint32_t parent, uint32_t handle);

 private:
  RmClient(RmTransport& transport, uint32_t root) : transport_(transport), root_(root) {}

  RmTransport& transport_;
  const uint32_t root_;
};

}  // namespace bm::nv
