#pragma once
// A channel in a group of its own: whatever kills it leaves the others alone.

#include <memory>

#include "drivers/nv/driver_interface.h"
#include "drivers/nv/rm/address_space.h"
#include "drivers/nv/rm/device.h"

namespace bm::nv {

/// After a robust-channel error the whole group is dead. Destroying the channel and creating
/// another one with the same ring works: memory survives.
class RmChannel final : public Channel {
 public:
  /// `device` and `space` must outlive it.
  static Result<std::unique_ptr<Channel>> create(RmDevice& device, RmAddressSpace& space,
                                                 const ChannelRequest& request);
  ~RmChannel() override;

  void look() const override { device_.client().transport().poll_events(); }

  uint32_t handle() const { return channel_.handle(); }
  /// Session for questions about SM errors; 0 where the driver refused one.
  uint32_t debugger() const { return debugger_.handle(); }

  Result<int> event_fd();
  Result<bool> wait(int timeout_ms);

 private:
  RmChannel(RmDevice& device, RmAddressSpace& space) : device_(device), space_(space) {}
  Status make(const ChannelRequest& request, uint32_t engine);
  Status make_notifier();
  Status make_group(uint32_t engine);
  Status make_channel(const ChannelRequest& request, uint32_t engine);
  Status make_engine_object(const ChannelRequest& request, uint32_t engine);
  Status start();
  Status open_event();

  RmDevice& device_;
  RmAddressSpace& space_;
  /// One page of uncached system memory that the driver writes and the CPU reads.
  RmObject notifier_;
  std::unique_ptr<RmMapping> notifier_page_;
  RmObject group_, share_, channel_, context_, object_, debugger_;
  bool is_in_space_ = false;

  std::unique_ptr<RmEvent> arrivals_;
  RmObject event_;
};

}  // namespace bm::nv
