#pragma once
// One opened GPU; inside of rm_ioctl.

#include <cstdint>
#include <map>
#include <memory>

#include "drivers/nv/driver_interface.h"
#include "drivers/nv/rm/address_space.h"
#include "drivers/nv/rm/device.h"
#include "drivers/nv/rm_ioctl/session.h"

namespace bm::nv {

class RmGpu final : public DriverInterface, public RmAddressSpace {
 public:
  static Result<std::unique_ptr<RmGpu>> open(std::shared_ptr<RmSession> session, const Card& card);
  ~RmGpu() override;

  const GpuFacts& facts() const override { return device_.facts(); }
  Result<std::unique_ptr<Memory>> allocate(const MemoryRequest& request) override;
  Result<std::shared_ptr<Memory>> map_peer(Memory& memory, hcq::DriverInterface& owner) override;
  Result<std::unique_ptr<Channel>> create_channel(const ChannelRequest& request) override;
  Doorbell<uint32_t> doorbell() override { return doorbell_; }
  uint64_t clock_ns() override;
  FaultDetails fault_details(Channel& channel) override;
  Result<int> event_fd(Channel& channel) override;
  Result<bool> wait_event(Channel& channel, int timeout_ms) override;
  uint64_t shared_window() const override { return session_->addresses().shared_window(); }
  uint64_t local_window() const override { return session_->addresses().local_window(); }

  Status add_channel(uint32_t channel, bool is_graphics) override;
  Status remove_channel(uint32_t channel) override;

  RmSession& session() { return *session_; }
  RmClient& client() { return session_->client(); }
  IoctlTransport& transport() { return session_->transport(); }
  const Card& card() const { return card_; }
  uint32_t device() const { return device_.device(); }
  int device_fd() const { return device_file_.get(); }
  const GpuUuid& uuid() const { return device_.facts().uuid; }

 private:
  RmGpu(std::shared_ptr<RmSession> session, const Card& card)
      : session_(std::move(session)),
        card_(card),
        device_(session_->client(),
                {.gpu = card.gpu_id, .text = card.text(), .least_video_memory = card.bar1_bytes}) {}
  Status open_address_space();

  std::shared_ptr<RmSession> session_;
  Card card_;
  DeviceFile device_file_;
  RmDevice device_;
  Doorbell<uint32_t> doorbell_;
  std::map<uint32_t, uint64_t> windows_;  ///< where UVM maps the buffers of each channel
  bool is_gpu_registered_ = false, is_space_registered_ = false;
};

}  // namespace bm::nv
