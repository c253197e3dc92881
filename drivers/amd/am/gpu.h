#pragma once
// A GPU owned by this process alone: booted from its BARs and firmware files, without a kernel
// driver. The waist of drivers/amd over the blocks of this folder.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "drivers/amd/am/autopsy.h"
#include "drivers/amd/am/bridge_copies.h"
#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/card.h"
#include "drivers/amd/am/compute.h"
#include "drivers/amd/am/copy_engine.h"
#include "drivers/amd/am/gmc.h"
#include "drivers/amd/am/host_path.h"
#include "drivers/amd/am/interrupts.h"
#include "drivers/amd/am/kept_table.h"
#include "drivers/amd/am/psp.h"
#include "drivers/amd/am/smu.h"
#include "drivers/amd/am/video_memory.h"
#include "drivers/amd/driver_interface.h"
#include "drivers/amd/kept_video_memory.h"
#include "drivers/memory/iova.h"
#include "drivers/transport/pci.h"
#include "firmware/store.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

struct Options {
  firmware::Search firmware;
  Clock* clock = nullptr;           ///< nullptr: the machine's
  bool always_reset = false;        ///< no warm boot
  StageWatcher* watcher = nullptr;  ///< of stages; outlives the GPU
  /// Chips that are booted by way of trial, separated by commas: discover().
  std::string experimental{};
  /// Of the package, from the end of the boot until the card is left in order; 0: as it is.
  uint32_t power_limit_w = 0;
  /// Bus addresses that this generation sends: dma_set_mask_and_coherent() in gmc_v11_0.c and
  /// gmc_v12_0.c.
  uint32_t address_bits = 44;
};

/// Boots the card behind `function`. Errors name the stage, what was seen there and the stages
/// before it: kUnsupported, kNotFound (firmware, with package), kDeviceLost, kTimeout, kIo,
/// kCorrupt.
Result<std::unique_ptr<DriverInterface>> open_am(std::unique_ptr<PciFunction> function,
                                                 const Options& options);

class AmGpu;

/// A way to a GPU for those who may outlive it.
struct GpuLink {
  std::mutex mutex;
  AmGpu* gpu = nullptr;  ///< nullptr: closed
};

class AmGpu final : public DriverInterface, public KeptVideoMemory {
 public:
  static Result<std::unique_ptr<AmGpu>> open(std::unique_ptr<PciFunction> function,
                                             const Options& options);
  ~AmGpu() override;

  const GpuFacts& facts() const override { return facts_; }

  Result<std::unique_ptr<Memory>> allocate(const MemoryRequest& request) override;
  uint64_t available_memory() override;
  void clear_with(Clear clear) override { clear_ = std::move(clear); }
  /// System memory only; video memory of two cards goes through the host (kUnsupported).
  Result<std::shared_ptr<Memory>> map_peer(Memory& memory, hcq::DriverInterface& owner) override;

  Result<std::unique_ptr<HardwareQueue>> create_queue(const QueueRequest& request) override;
  /// Where the transport has interrupts, until one comes; else for a moment. Never touches the
  /// card.
  Result<bool> wait_event(uint32_t timeout_ms) override;

  std::optional<GpuFault> take_fault() override;
  bool can_recover() const override { return true; }
  /// kCard: mode 1, after which nothing is left to shut down and only an open helps.
  Status recover(RecoveryStage stage) override;

  // KeptVideoMemory: kept.cpp.
  Result<Found> attach(const hal::KeptKey& key, uint64_t bytes) override;
  Status keep(Memory& memory, uint64_t bytes, const hal::KeptKey& key, uint64_t checksum) override;
  Result<uint64_t> forget_all_but(std::span<const hal::KeptKey> keys) override;
  std::vector<KeptRecord> kept_records() override;
  /// Nothing of the card is touched afterwards; the next open finds it warm.
  void leave() override;

  /// What the boot did; for `--stats` and tests.
  const StageLog& stages() const { return bus_.stages; }
  const BusCounts& counts() const { return bus_.counts(); }
  bool was_warm() const { return was_warm_; }
  /// Where the card reaches no memory of the host: how bytes go to and fro. Else nullptr.
  HostPath* host_path() { return path_ ? &*path_ : nullptr; }
  /// Bytes of video memory (BAR0) that page tables have now.
  std::vector<BusRange> page_table_places() const;
  /// What its power management firmware measures now. Thread: any. Bounded: about a second.
  /// Errors: kUnsupported (another interface), kTimeout, kIo, kDeviceLost, kCorrupt.
  Result<Sensors> sensors();
  /// The same of a card that no process runs and that one of ours left in order: nothing is booted,
  /// and no register written but the SMU's mailbox (and MM_INDEX, where BAR0 does not show the
  /// discovery table). Errors: those; kUnsupported for a card in another state.
  static Result<Sensors> sensors_of_idle_card(std::unique_ptr<PciFunction> function,
                                              const Options& options);
  /// Why the card hangs, memory of this process included. Bounded: `limit_us` where every access
  /// takes a transfer, milliseconds with mapped BARs.
  Autopsy autopsy(uint64_t limit_us = AutopsyOptions{}.limit_us);
  /// How the graphics hub translates an address now.
  PageWalk walk(uint64_t va);
  /// Its verdict and what explains it, in a few words: for the message of a hang, which it delays
  /// by 300 ms at most.
  std::string recent_errors() override;

 private:
  friend class AmMemory;
  friend class AmQueue;
  AmGpu(std::unique_ptr<PciFunction> function, const Options& options, Clock& clock)
      : function_(std::move(function)), options_(options), bus_(*function_, clock) {
    bus_.stages.set_watcher(options_.watcher);
  }

  struct Step {
    const char* name;
    Status (AmGpu::*work)();
  };
  Status run(std::span<const Step> steps);
  Status boot();
  // Stages, in order. Each leaves what the next ones need or says why not.
  Status map_bars();
  Status read_discovery();
  Status load_files();
  Status lay_out();
  Status find_state();
  bool is_left_in_order();
  Status reset_card();
  Status start_dma();
  Status start_bus();
  Status create_tables();
  Status start_mmhub();
  Status start_interrupts();
  Status load_psp();
  Status create_psp_ring();
  Status protect_memory();
  Status send_files();
  Status start_smu();
  Status wait_rlc();
  Status start_gfxhub();
  Status start_compute();
  Status start_copies();
  Status prove_compute();
  Status mark();
  Status start_bridge_copies();
  Status restart_bridge_copies();
  /// From here on long ranges go by the BARs.
  void drop_bridge_copies();
  Status set_power_limit();
  Status restore_power_limit();
  Result<Sensors> read_sensors();
  uint32_t copy_queues() const {
    return function_->staging() != nullptr ? kCopyQueues : kBridgeQueue;
  }
  // Of a recovery.
  Status stop_all_queues();
  Status reset_compute();
  Status reset_copies();
  Status reset_all();
  Status recover_locked(RecoveryStage stage);
  void forget_faults();
  /// Before a shut down after a fault or hang: whether the card may be left as it is.
  void settle();
  void read_facts();
  Status shut_down();
  /// What map_peer() has mapped at `va`, if anything, is gone afterwards.
  void drop_peer(uint64_t va);
  std::optional<GpuFault> look();
  bool may_look();
  uint32_t magic() const;
  // Kept memory, under the mutex.
  Status restore_kept();
  Status write_kept();
  const KeptRecord* find_kept(uint64_t physical) const;
  /// Bytes of records; of those that nobody has attached.
  uint64_t kept_bytes(bool only_unattached) const;
  /// Forgets the record nobody has attached for longest; false: there is none.
  bool drop_oldest_kept();
  Result<uint64_t> drop_records(const std::function<bool(const KeptRecord&)>& is_dropped);
  /// Memory goes back, unless it is kept.
  void release_video(uint64_t physical);

  std::unique_ptr<PciFunction> function_;
  const Options options_;
  std::mutex mutex_;  ///< of everything below but wait_event()'s
  Bus bus_;
  Card card_;
  Firmware firmware_;
  std::optional<VideoMemory> memory_;
  std::optional<Gmc> gmc_;
  std::optional<Psp> psp_;
  std::optional<Smu> smu_;
  std::optional<InterruptRings> interrupts_;
  std::optional<Compute> compute_;
  std::optional<CopyEngines> copies_;
  std::optional<memory::IovaAllocator> iovas_;
  std::optional<HostPath> path_;
  std::unique_ptr<BridgeCopies> bridge_copies_;  ///< used by the path
  /// System memory of other GPUs, by its address there and here.
  struct Peer {
    uint64_t bytes = 0;
    void* host = nullptr;
    std::optional<uint64_t> iova{};
  };
  std::map<uint64_t, Peer> peers_;
  std::map<uint64_t, HostView> host_views_;  ///< of system memory, by its address on the GPU
  std::shared_ptr<GpuLink> link_ = std::make_shared<GpuLink>();
  std::optional<uint32_t> window_;  ///< of the process's
  KeptTable kept_;
  std::set<uint64_t> attached_;  ///< kept memory that this process has mapped, by its place
  uint64_t kept_place_ = 0;      ///< of the table
  GpuFacts facts_;
  std::optional<GpuFault> fault_;
  std::optional<HubFault> taken_fault_;  ///< what the registers held before they were cleared
  Clear clear_;
  std::vector<std::unique_ptr<Memory>> abandoned_;  ///< whose clearing failed, perhaps not over
  /// Memory that page tables or a TLB may still lead to, until the card was shut down.
  std::vector<std::unique_ptr<DmaMemory>> reachable_;
  uint64_t next_look_us_ = 0;
  std::optional<uint32_t> own_power_limit_w_;      ///< the board's, to be given back
  std::string autoload_problem_;                   ///< what the RLC did not say
  uint32_t compute_taken_ = 0, copies_taken_ = 0;  ///< bits
  bool psp_survived_ = false;                      ///< a reset
  bool is_up_ = false, was_warm_ = false, has_msi_ = false, has_hang_ = false, has_left_ = false;
  bool was_at_work_ = false;  ///< a queue was stopped in the middle of something: not left in order
  bool is_reset_ = false;     ///< by a recovery: engines run nothing, tables are gone
};

}  // namespace bm::amd::am
