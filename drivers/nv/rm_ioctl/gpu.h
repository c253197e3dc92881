#pragma once
// One opened GPU; inside of rm_ioctl.

#include <array>
#include <memory>
#include <vector>

#include "drivers/nv/chips.h"
#include "drivers/nv/driver_interface.h"
#include "drivers/nv/rm_ioctl/session.h"

namespace bm::nv {

class RmGpu final : public DriverInterface {
 public:
  static Result<std::unique_ptr<RmGpu>> open(std::shared_ptr<RmSession> session, const Card& card);
  ~RmGpu() override;

  const GpuFacts& facts() const override { return facts_; }
  Result<std::unique_ptr<Memory>> allocate(const MemoryRequest& request) override;
  Result<std::shared_ptr<Memory>> map_peer(Memory& memory, hcq::DriverInterface& owner) override;
  Result<std::unique_ptr<Channel>> create_channel(const ChannelRequest& request) override;
  volatile uint32_t* doorbell() override;
  uint64_t clock_ns() override;
  FaultDetails fault_details(Channel& channel) override;
  Result<int> event_fd(Channel& channel) override;
  Result<bool> wait_event(Channel& channel, int timeout_ms) override;
  uint64_t shared_window() const override { return session_->addresses().shared_window(); }
  uint64_t local_window() const override { return session_->addresses().local_window(); }

  RmSession& session() { return *session_; }
  RmClient& client() { return session_->client(); }
  const Card& card() const { return card_; }
  const ClassChoice& classes() const { return classes_; }
  uint32_t device() const { return device_.handle(); }
  uint32_t subdevice() const { return subdevice_.handle(); }
  uint32_t va_space() const { return va_space_.handle(); }
  int device_fd() const { return device_file_.get(); }
  const GpuUuid& uuid() const { return facts_.uuid; }
  /// Engine types of the copy engines with runlists of their own, as far as the driver tells.
  const std::vector<uint32_t>& copy_engines() const { return copy_engines_; }

 private:
  RmGpu(std::shared_ptr<RmSession> session, const Card& card)
      : session_(std::move(session)), card_(card) {}
  Status open_objects();
  Result<std::vector<uint32_t>> class_list();
  Status map_doorbell();
  Status open_address_space();
  Status read_facts();
  Result<std::array<uint32_t, 5>> read_gr_info();
  void read_optional_facts();
  void read_copy_engines();
  void drop_graphics_copies();

  std::shared_ptr<RmSession> session_;
  Card card_;
  GpuFacts facts_;
  ClassChoice classes_;
  std::vector<uint32_t> copy_engines_;

  DeviceFile device_file_;
  RmObject device_, subdevice_, usermode_, va_space_;
  volatile std::byte* page_ = nullptr;  ///< doorbell and clock
  bool is_gpu_registered_ = false, is_space_registered_ = false;
};

}  // namespace bm::nv
