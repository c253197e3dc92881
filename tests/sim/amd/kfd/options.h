#pragma once
// What the modelled machine is, and what goes wrong in it.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace bm::sim::amd {

class DeviceMemory;

/// A kernel launch as the command processor hands it to the compute units.
struct Launch {
  uint32_t gpu = 0, gpu_id = 0;
  uint64_t entry = 0;
  std::array<uint32_t, 3> groups{}, threads{};
  uint32_t rsrc1 = 0, rsrc2 = 0, rsrc3 = 0;
  std::vector<uint32_t> user_data;  ///< initial scalar registers
  uint64_t scratch = 0;             ///< base, 0: none
  uint32_t scratch_wave_bytes = 0;
  uint32_t lds_bytes = 0;
  bool is_wave32 = false;
};

/// What a dying queue tells the driver.
struct Death {
  enum class Kind { kMemory, kBadPacket, kException } kind = Kind::kBadPacket;
  uint64_t address = 0;
  bool is_write = false;
  std::string text;
};

struct Options {
  std::string chip = "gfx1100";  ///< gfx942, gfx1100, gfx1102, gfx1201
  uint32_t gpus = 1;
  uint32_t minor = 17;  ///< of the interface's version
  uint32_t xccs = 1;
  uint64_t vram_bytes = uint64_t{1} << 30;
  bool has_large_bar = true;
  bool publishes_sizes = false;         ///< cwsr_size and ctl_stack_size in sysfs, as from 7.2 on
  bool has_bus_block = true;            ///< in ip_discovery
  int kfd_error = 0, render_error = 0;  ///< errno of opening the nodes
  /// Calls to /dev/kfd before the one that fails with `failed_call_error`; < 0: none fails.
  int failing_call = -1;
  int failing_error = 12;   // ENOMEM
  bool is_stalled = false;  ///< queues exist and never move
  uint32_t delay_us = 0;    ///< before each packet
  /// Runs kernels; what it returns kills the queue. Empty: launches do nothing.
  std::function<std::optional<Death>(DeviceMemory&, const Launch&)> execute = {};
};

}  // namespace bm::sim::amd
