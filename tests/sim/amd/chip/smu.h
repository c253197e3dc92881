#pragma once
// The power management firmware's mailboxes.
//
// Sources: Linux 6.12, pm/swsmu/smu_cmn.c (__smu_cmn_send_msg(), answers), smu_v13_0_0_ppt.c,
// smu_v13_0_7_ppt.c, smu_v14_0_2_ppt.c (registers, debug mailbox, mode 1), pmfw_if/
// smu_v13_0_0_ppsmc.h, smu_v13_0_7_ppsmc.h, smu_v14_0_2_ppsmc.h (messages).
//
// It answers once its firmware was loaded through the PSP. What it refuses:
//   M1  messages its interface has not: 0xFE (PPSMC_Result_UnknownCmd), a violation.
//   M2  a message while the answer to the last one was not cleared: 0xFC and a violation.
//   M3  tables before SetDriverDramAddr*: 0xFD (CmdRejectedPrereq), a violation; clocks and levels
//       that there are not: 0xFF (Failed).
//   M4  table numbers that its interface has not (TABLE_COUNT): 0xFF, a violation.
//   M6  MI300X: its firmware is the board's and answers from power-on. GfxDriverReset of another
//   mode than
//       1; messages of its interface that nothing here has asked for: smu_v13_0_6_ppsmc.h.
//       ResetSDMA of engines that there are not, or that still have a queue (they are stopped
//       first: amdgpu_sdma_reset_engine()); before 85.121.0 it does not know the message.
//   M5  power limits above the board's or of 0 W, with anything above bit 15 (smu_v13_0.c sends
//       watts alone), of a power source that there is not: 0xFF, a violation.
// The metrics table is written as smu13_driver_if_v13_0_0.h, smu13_driver_if_v13_0_7.h and
// smu14_driver_if_v14_0.h declare SmuMetrics_t, member after member; MI300X's as the platform
// driver of MI300A's host side declares it (arch/x86/include/uapi/asm/amd_hsmp.h, struct
// hsmp_metric_table; ten bits of fraction: amdsmi_interface.py of AMD SMI). What it holds follows
// from what the card did since the last one: activity from packets, power from activity and limit,
// temperatures from ChipOptions. All other tables hold a pattern that nobody reads.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "tests/sim/amd/chip/bus.h"
#include "tests/sim/amd/chip/gmc.h"

namespace bm::sim::amd {

/// Thread: the register bus's.
class Smu {
 public:
  Smu(RegisterBus& bus, Hub& hub);
  void start() { is_alive_ = true; }
  bool is_alive() const { return is_alive_; }
  void reset();
  /// Mode 1: everything but the bus interface starts anew.
  std::function<void()> on_mode1;
  /// By message; 0: no answer, ever. Answers with it.
  std::map<uint32_t, uint32_t> planted_answer;
  /// False: there are not those engines, or they are at work.
  std::function<bool(uint32_t engines)> on_reset_copies;
  /// Of all engines, since power-on.
  std::function<uint64_t()> packets;
  uint32_t version = 0;     ///< MI300X's
  uint32_t unmeasured = 0;  ///< metrics tables of MI300X that it still hands out as zeroes
  uint32_t edge_c = 41;
  uint32_t board_limit_watts = 300, power_limit_watts = 300;

 private:
  struct Mailbox {
    uint32_t *message = nullptr, *argument = nullptr, *answer = nullptr;
    int polls = 0;
    uint32_t pending = 0;
  };
  void declare(Mailbox& box, uint32_t message, uint32_t argument, uint32_t answer, bool is_debug);
  uint32_t run(uint32_t message, uint32_t* argument);
  uint32_t run_mi300(uint32_t message, uint32_t* argument);
  uint32_t run_debug(uint32_t message);
  uint32_t level(uint32_t argument, uint32_t* out) const;
  uint32_t table(uint32_t number, bool is_to_memory);
  uint32_t set_limit(uint32_t argument);
  uint32_t get_limit(uint32_t* argument);
  uint32_t publish(std::span<const uint8_t> bytes);
  std::vector<uint8_t> metrics();
  std::vector<uint8_t> socket_metrics();
  /// Per cent since the last time; and watts, within the limit.
  uint32_t measure_activity();
  uint32_t watts_at(uint32_t activity) const;
  bool is_known(uint32_t message) const;

  RegisterBus& bus_;
  Hub& hub_;
  Mailbox main_, debug_;
  bool is_alive_ = false;
  uint32_t dram_high_ = 0, dram_low_ = 0, features_ = 0;
  bool has_dram_ = false;
  uint64_t packets_seen_ = 0;
  uint32_t measured_ = 0, energy_ = 0;
};

}  // namespace bm::sim::amd
