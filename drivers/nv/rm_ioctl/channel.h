#pragma once
// A channel in a group of its own: whatever kills it leaves the others alone.

#include <memory>

#include "drivers/nv/rm_ioctl/gpu.h"
#include "drivers/nv/rm_ioctl/memory.h"

namespace bm::nv {

/// After a robust-channel error the whole group is dead. Destroying the channel and creating
/// another one with the same ring works: memory survives.
class RmChannel final : public Channel {
 public:
  static Result<std::unique_ptr<Channel>> create(RmGpu& gpu, const ChannelRequest& request);
  ~RmChannel() override;

  uint32_t handle() const { return channel_.handle(); }
  /// Session for questions about SM errors; 0 where the driver refused one.
  uint32_t debugger() const { return debugger_.handle(); }

  Result<int> event_fd();
  Result<bool> wait(int timeout_ms);

 private:
  explicit RmChannel(RmGpu& gpu) : gpu_(gpu) {}
  Status make(const ChannelRequest& request, uint32_t engine);
  Status make_group(uint32_t engine);
  Status make_channel(const ChannelRequest& request, uint32_t engine);
  Status make_engine_object(const ChannelRequest& request, uint32_t engine);
  Status start();
  Status open_event();

  RmGpu& gpu_;
  std::unique_ptr<NotifierPage> notifier_;
  RmObject group_, share_, channel_, context_, object_, debugger_;
  uint64_t window_ = 0;  ///< where UVM maps the channel's buffers
  bool is_registered_ = false;

  DeviceFile event_file_;
  RmObject event_;
};

}  // namespace bm::nv
