#pragma once
// A GPU owned by this process alone, whose resource manager is its own GSP: the waist of drivers/nv
// over the blocks of this folder. Stages P12 to P16 of the boot.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "drivers/nv/driver_interface.h"
#include "drivers/nv/rm_gsp/card_row.h"
#include "drivers/nv/rm_gsp/golden_context.h"
#include "drivers/nv/rm_gsp/host_path.h"
#include "drivers/nv/rm_gsp/memory.h"
#include "drivers/nv/rm_gsp/mmu.h"
#include "drivers/nv/rm_gsp/rm_transport.h"
#include "drivers/nv/rm_gsp/running_card.h"
#include "drivers/nv/rm/address_space.h"
#include "drivers/nv/rm/device.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

class GspGpu final : public DriverInterface, public RmAddressSpace {
 public:
  /// Errors name the stage: "stage P14 (golden context): …".
  static Result<std::unique_ptr<GspGpu>> open(std::unique_ptr<RunningCard> card);
  ~GspGpu() override;

  const GpuFacts& facts() const override { return device_->facts(); }
  Result<std::unique_ptr<Memory>> allocate(const MemoryRequest& request) override;
  /// System memory only; video memory of two cards goes through the host (kUnsupported).
  Result<std::shared_ptr<Memory>> map_peer(Memory& memory, hcq::DriverInterface& owner) override;
  Result<std::unique_ptr<Channel>> create_channel(const ChannelRequest& request) override;
  Doorbell<uint32_t> doorbell() override { return doorbell_; }
  uint64_t clock_ns() override { return transport_->clock_ns(); }
  FaultDetails fault_details(Channel& channel) override;
  Result<int> event_fd(Channel& channel) override;
  Result<bool> wait_event(Channel& channel, int timeout_ms) override;
  void clear_with(Clear clear) override { clear_ = std::move(clear); }
  bool wants_clearing() const override { return true; }
  uint64_t shared_window() const override;
  uint64_t local_window() const override;

  // RmAddressSpace: the GSP was given the page tables, and the context's buffers, when the objects
  // were made.
  Status add_channel(uint32_t channel, bool is_graphics) override;
  Status remove_channel(uint32_t channel) override;

  /// nullptr: the card reaches memory of the host.
  hcq::HostPath* host_path() { return path_ ? &*path_ : nullptr; }
  const AddressSpace& space() const { return *space_; }
  const Mmu& mmu() const { return *mmu_; }
  CardMemory& memory() { return *memory_; }

 private:
  friend class GspMemory;
  struct Peer {
    Block block;
    uint64_t bytes = 0;
  };
  explicit GspGpu(std::unique_ptr<RunningCard> card) : card_(std::move(card)) {}
  Status start();
  Status read_card();
  Status start_memory();
  Status make_golden();
  Status open_objects();
  void drop_peer(uint64_t va);

  // In the order in which they need each other.
  std::unique_ptr<RunningCard> card_;
  const CardRow* row_ = nullptr;
  std::optional<RmCalls> calls_;
  StaticInfo info_;
  std::vector<RunlistEngine> engines_;
  uint64_t method_buffer_bytes_ = 0;
  std::unique_ptr<CardMemory> memory_;
  std::optional<BarPath> path_;
  std::unique_ptr<Mmu> mmu_;
  std::optional<uint32_t> window_;  ///< of the process's
  std::unique_ptr<AddressSpace> space_;
  ChannelNumbers numbers_;
  std::optional<GoldenContext> golden_;
  std::unique_ptr<GspTransport> transport_;
  std::unique_ptr<RmClient> client_;
  std::unique_ptr<RmDevice> device_;
  Doorbell<uint32_t> doorbell_;
  Clear clear_;
  std::vector<std::unique_ptr<Memory>> abandoned_;  ///< whose clearing failed, perhaps not over
  std::map<uint64_t, Peer> peers_;  ///< system memory of other GPUs, by its address there and here
};

}  // namespace bm::nv::gsp
