#pragma once
// What the modelled machine is, and what goes wrong in it.

#include <cstdint>
#include <string>

#include "tests/sim/amd/engine/state.h"

namespace bm::sim::amd {

struct Options {
  std::string chip = "gfx1100";  ///< gfx942, gfx1030, gfx1100, gfx1102, gfx1201
  uint32_t gpus = 1;
  uint32_t major = 1, minor = 17;  ///< the interface's version
  uint32_t xccs = 1;
  uint64_t vram_bytes = uint64_t{1} << 30;
  uint64_t vram_taken = 0;  ///< of each GPU, by other processes
  bool has_large_bar = true;
  bool has_peers = true;                ///< GPUs may map each other's memory
  bool has_direct_links = false;        ///< between GPUs: XGMI instead of PCIe
  bool has_flush_page = true;           ///< of registers that flush writes over PCIe
  bool publishes_sizes = false;         ///< cwsr_size and ctl_stack_size in sysfs, as from 7.2 on
  bool has_bus_block = true;            ///< in ip_discovery
  bool gives_event_zero = false;        ///< to the first event, as older kernels did
  bool tells_resets = true;             ///< waits return what a reset was, as from 2025 on
  bool resets_on_exception = true;      ///< false: the wave halts, and only the log knows
  uint32_t target_version = 0;          ///< gfx_target_version that sysfs tells; 0: the chip's
  int kfd_error = 0, render_error = 0;  ///< errno of opening the nodes
  /// Calls to /dev/kfd whose name starts with `failing_name` before the one that fails; < 0: none
  /// fails. `failing_times`: of them in a row.
  int failing_call = -1;
  int failing_error = 12;  // ENOMEM
  int failing_times = 1;
  std::string failing_name = {};
  bool is_stalled = false;         ///< queues exist and never move
  bool has_lost_doorbell = false;  ///< what is written to doorbells reaches nobody
  uint32_t delay_us = 0;           ///< before each packet
  /// Runs kernels; what it returns kills the queue. Empty: launches do nothing.
  Execute execute = {};
};

/// Names of the calls, by number; nullptr for numbers that mean nothing.
const char* call_name(uint32_t number);

}  // namespace bm::sim::amd
