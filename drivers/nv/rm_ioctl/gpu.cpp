#include "drivers/nv/rm_ioctl/gpu.h"

#include "drivers/nv/rm/channel.h"
#include "drivers/nv/rm/fault.h"
#include "drivers/nv/rm_ioctl/rm.h"
#include "runtime/base/bits.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace bm::nv {
namespace {

// open-gpu-doc, clc361.h and later usermode classes: what lies in the page.
constexpr uint64_t kClockLow = 0x80, kClockHigh = 0x84, kDoorbell = 0x90;
// Room for the buffers of one graphics context. Only addresses; UVM places them, and refuses the
// channel when they do not fit.
constexpr uint64_t kContextWindow = 256_MiB, kCopyWindow = 2_MiB;

}  // namespace

Result<std::unique_ptr<RmGpu>> RmGpu::open(std::shared_ptr<RmSession> session, const Card& card) {
  std::unique_ptr<RmGpu> gpu(new RmGpu(std::move(session), card));
  gpu->device_file_ = BM_TRY(gpu->transport().open_device(card));
  RmDevice& device = gpu->device_;
  BM_TRY(device.open_objects());
  BM_TRY(device.map_usermode());
  gpu->doorbell_ = BM_TRY(Doorbell<uint32_t>::at(device.usermode(), kDoorbell));
  BM_TRY(device.open_va_space());
  BM_TRY(gpu->open_address_space());
  BM_TRY(device.read_facts());
  return gpu;
}

/// The page tables belong to the unified memory module.
Status RmGpu::open_address_space() {
  if (session_->has(uuid()))
    return fail(Code::kUnsupported, "{} is already open in this process", card_.text());
  BM_TRY(session_->uvm().register_gpu(uuid()));
  is_gpu_registered_ = true;
  session_->add(uuid());
  BM_TRY(session_->uvm().register_va_space(uuid(), device_.va_space()));
  is_space_registered_ = true;
  return {};
}

Status RmGpu::add_channel(uint32_t channel, bool is_graphics) {
  const uint64_t bytes = is_graphics ? kContextWindow : kCopyWindow;
  const uint64_t window = BM_TRY(session_->addresses().take_low(bytes, kCopyWindow));
  Status registered = session_->uvm().register_channel(uuid(), channel, window, bytes);
  if (registered)
    windows_[channel] = window;
  else
    session_->addresses().give_back(window);
  return registered;
}

Status RmGpu::remove_channel(uint32_t channel) {
  const auto found = windows_.find(channel);
  BM_CHECK(found != windows_.end());
  const Status removed = session_->uvm().unregister_channel(uuid(), channel);
  session_->addresses().give_back(found->second);
  windows_.erase(found);
  return removed;
}

RmGpu::~RmGpu() {
  // Closing the nodes does the same; a sandbox may not know these calls.
  const auto report = [](const Status& status) {
    if (!status) log("nv", LogLevel::kInfo, "{}", status.error().message);
  };
  if (is_space_registered_) report(session_->uvm().unregister_va_space(uuid()));
  if (is_gpu_registered_) {
    report(session_->uvm().unregister_gpu(uuid()));
    session_->remove(uuid());
  }
}

Result<std::unique_ptr<Channel>> RmGpu::create_channel(const ChannelRequest& request) {
  return RmChannel::create(device_, *this, request);
}

FaultDetails RmGpu::fault_details(Channel& channel) {
  return read_fault_details(device_, static_cast<RmChannel&>(channel));
}

Result<int> RmGpu::event_fd(Channel& channel) {
  return static_cast<RmChannel&>(channel).event_fd();
}

Result<bool> RmGpu::wait_event(Channel& channel, int timeout_ms) {
  return static_cast<RmChannel&>(channel).wait(timeout_ms);
}

uint64_t RmGpu::clock_ns() {
  const auto word = [&](uint64_t offset) { return device_.usermode().read32(offset); };
  // The low half may wrap between the two reads.
  uint32_t high = word(kClockHigh), low = word(kClockLow);
  for (uint32_t again = word(kClockHigh); again != high; again = word(kClockHigh)) {
    high = again;
    low = word(kClockLow);
  }
  return uint64_t{high} << 32 | low;
}

Result<std::unique_ptr<DriverInterface>> open_rm(System& system, const RmOptions& options) {
  std::shared_ptr<RmSession> session =
      BM_TRY(RmSession::share(system, options.window, options.version_override));
  const std::vector<Card> cards = BM_TRY(session->transport().cards());
  if (options.index >= cards.size())
    return fail(Code::kNotFound, "stage 7 (cards): no NVIDIA GPU {}: the driver lists {}",
                options.index, cards.size());
  return BM_TRY(RmGpu::open(std::move(session), cards[options.index]));
}

Result<uint32_t> count_rm(System& system) {
  std::unique_ptr<IoctlTransport> transport;
  {
    Result<std::unique_ptr<IoctlTransport>> opened = IoctlTransport::open(system, {});
    if (!opened && opened.error().code == Code::kNotFound) return 0u;
    transport = BM_TRY(std::move(opened));
  }
  // A driver that gives no client gives no GPU either.
  const std::unique_ptr<RmClient> client = BM_TRY(RmClient::create(*transport));
  const std::vector<Card> cards = BM_TRY(transport->cards());
  return static_cast<uint32_t>(cards.size());
}

}  // namespace bm::nv
