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
// Tables hold what the model makes up; their layouts are smu13_driver_if_v13_0_0.h's for nobody.

#include <cstdint>
#include <functional>
#include <map>
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
  uint32_t power_limit_watts = 300;

 private:
  struct Mailbox {
    uint32_t *message = nullptr, *argument = nullptr, *answer = nullptr;
    int polls = 0;
    uint32_t pending = 0;
  };
  void declare(Mailbox& box, uint32_t message, uint32_t argument, uint32_t answer, bool is_debug);
  uint32_t run(uint32_t message, uint32_t* argument);
  uint32_t run_debug(uint32_t message);
  uint32_t level(uint32_t argument, uint32_t* out) const;
  uint32_t table(uint32_t number, bool is_to_memory);
  bool is_known(uint32_t message) const;

  RegisterBus& bus_;
  Hub& hub_;
  Mailbox main_, debug_;
  bool is_alive_ = false;
  uint32_t dram_high_ = 0, dram_low_ = 0, features_ = 0;
  bool has_dram_ = false;
};

}  // namespace bm::sim::amd
