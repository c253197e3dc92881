#pragma once
// Power management firmware: a mailbox of message, argument and answer.

#include <cstdint>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/card.h"
#include "drivers/amd/am/gmc.h"
#include "drivers/amd/am/smu_metrics.h"
#include "drivers/amd/am/video_memory.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

/// Text of an answer: "busy (0xfc)". Source: SMU_RESP_* in smu_cmn.c.
std::string_view smu_answer(uint32_t answer);

class Smu {
 public:
  Smu(Bus& bus, Gmc& gmc, VideoMemory& memory, const SmuMessages& messages)
      : bus_(bus), gmc_(gmc), memory_(memory), messages_(messages) {}

  Status allocate_boot();
  /// Whether its firmware answers, within 100 ms.
  bool is_alive();
  /// Tells it where tables go and switches its features on.
  Status start();
  /// Resets the whole card but the bus. The caller waits for the card to come back.
  /// Source: smu_v13_0_0_mode1_reset(), smu_v14_0_2_mode1_reset(): a message of the debug mailbox;
  /// smu_v13_0_6_mode1_reset(): GfxDriverReset.
  Status reset_card();
  uint32_t version() const { return version_; }

  /// What it measures now, the power limit included. start() has told it where tables go, in this
  /// process or in an earlier one. Writes nothing but the mailbox; the table is written by the
  /// firmware. Bounded: about a second. `chiplet`: of several, whose clock is told. Errors:
  /// kTimeout, kIo (its answer), kCorrupt.
  Result<Sensors> read_sensors(const MetricsRow& row, uint32_t chiplet);
  /// Of the package on mains, in watts (PPT0).
  Result<uint32_t> power_limit();
  /// Sets it and reads it back. `most`: what the board allows. Errors: kInvalidArgument (above it,
  /// 0); kIo (refused, or another limit than this was read back); kTimeout.
  Status set_power_limit(uint32_t watts, uint32_t most);

  /// Copy engines that the firmware can reset one by one, by bit; their queues are off before.
  /// Errors: kUnsupported (it has no such message, or is too old for it), kIo, kTimeout.
  Status reset_copies(uint32_t engines);

 private:
  Result<uint32_t> version_now(uint64_t timeout_us);
  Result<uint32_t> read_table(const MetricsRow& row, std::span<std::byte> table);
  Result<uint32_t> send(uint32_t message, uint32_t argument, uint64_t timeout_us);
  void post(uint32_t message, uint32_t argument);

  Bus& bus_;
  Gmc& gmc_;
  VideoMemory& memory_;
  const SmuMessages& messages_;
  uint64_t table_ = 0;
  uint32_t version_ = 0;
};

/// Doorbells of the bus block, straps and power of the host data path.
/// Source: nbio_v4_3_enable_doorbell_aperture(), nbio_v4_3_init_registers(),
/// hdp_v6_0_update_clock_gating(); the same names in nbif_v6_3_1.c and hdp_v7_0.c.
/// nbio_v7_9_init_registers(), nbio_v7_9_enable_doorbell_aperture() where chiplets are fenced off.
Status start_bus_block(Bus& bus, const Card& card);
/// Which doorbells reach the command processor. Source: nbio_v4_3_gc_doorbell_init(); nbio 7.9 has
/// no such entry.
void open_compute_doorbells(Bus& bus);
/// … and the copy engines: `first` and `each` in dwords. Source: nbio_v4_3_sdma_doorbell_range();
/// nbio_v7_9_sdma_doorbell_range(), for engines of the first die.
void open_copy_doorbells(Bus& bus, uint32_t first, uint32_t each, uint32_t engines);

}  // namespace bm::amd::am
