#pragma once
// What the modelled card is, and what goes wrong in it.

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/sim/amd/engine/state.h"

namespace bm::sim::amd {

/// What an access to the function gives.
enum class BusFault : uint8_t {
  kNone,
  kAllOnes,      ///< that one read gives ones, that one write is dropped
  kStall,        ///< it takes stall_ms
  kWrongAnswer,  ///< that one read gives its value with every bit turned
  kUnplug,       ///< from then on everything is ones
};

struct ChipOptions {
  std::string chip = "gfx1201";  ///< gfx942, gfx1100, gfx1101, gfx1102, gfx1200, gfx1201
  uint16_t device_id = 0;        ///< 0: the chip's first
  uint64_t vram_bytes = uint64_t{4} << 30;
  uint64_t bar0_bytes = uint64_t{256} << 20;  ///< at power-on; resizable up to vram_bytes
  bool has_iommu = true;
  /// Bus addresses that cannot be IOVAs, start and bytes: by default those of MSI on x86.
  std::vector<std::pair<uint64_t, uint64_t>> reserved = {{0xfee00000, 0x100000}};
  uint64_t physical_base = 0x1'0000'0000;  ///< where memory for DMA lies without an IOMMU
  bool has_function_reset = true;
  uint32_t discovery_version = 4;
  /// MI300X: of its power management firmware, before 85.115.0 the SOS file's second set is wanted.
  uint32_t pmfw_version = 0x00557a00;
  /// Doorbells take dwords, the lower half first: a USB bridge sends nothing wider. tinygrad's
  /// driver rings so (support/usb.py, pcie_mem_write()).
  bool takes_half_doorbells = false;
  bool holds_writes = true;  ///< false: what the host writes through BAR 0 waits for no flush
  enum class Start : uint8_t {
    kCold,
    kDriverWasHere,  ///< another driver left: secure OS and SMU run, the hubs are set up
  } start = Start::kCold;
  /// RS64 program counters that the MEC starts from, in units of 4 bytes; 0: any but 0. The value
  /// is that of every gc_11_*_mec.bin and gc_12_*_mec.bin in Debian's packages of 2023 to 2026.
  uint64_t mec_start = 0x0001'c000'0000'0c00;
  /// How long registers are all ones after a mode 1 reset.
  uint32_t reset_ms = 5;
  uint32_t edge_c = 41;  ///< what the die's edge has, in degrees; other places are hotter
  uint32_t board_limit_watts = 300;  ///< no power limit may be above it
  Execute execute = {};              ///< of kernels; empty: launches do nothing

  // Planted faults.
  BusFault fault = BusFault::kNone;
  uint64_t fault_access = 0;  ///< the how manieth access to BARs and configuration; from 1
  uint32_t stall_ms = 200;
  std::map<uint32_t, uint32_t> psp_status = {};  ///< by GFX_CMD_ID_*
  std::map<uint32_t, uint32_t> smu_answer = {};  ///< by PPSMC_MSG_*; 0: none, ever
  bool loses_interrupts = false;
  bool hangs_mec = false;  ///< queues fetch nothing, and do not go away when they are asked to
  bool hangs_sdma = false;
  bool hangs_psp = false;       ///< its boot loader takes a command and never becomes ready again
  bool gates_graphics = false;  ///< the graphics core has no clock: its registers read as 0
  bool hides_bootload = false;  ///< BOOTLOAD_COMPLETE stays clear though firmware is loaded
  bool has_no_sums = false;     ///< of the discovery table and its parts
  /// What ends the hangs of MEC and SDMA.
  enum class Cure : uint8_t {
    kNothing,
    kEngineReset,  ///< GRBM_SOFT_RESET, the MEC's also by the reset of its first pipe
    kCardReset,    ///< mode 1
  } mec_cure = Cure::kNothing,
    sdma_cure = Cure::kNothing;
};

/// "all-ones,N" "stall,N[,MS]" "wrong-answer,N" "unplug,N" "psp,COMMAND,STATUS"
/// "smu,MESSAGE,ANSWER" "mec-hang[,CURE]" "sdma-hang[,CURE]" "psp-hang" "gfx-gated"
/// "lost-interrupts" "no-bootload-flag" "no-sums"; CURE: "engine", "card"; several with semicolons.
/// False: none of these. The environment's SIM_AMD_CHIP_FAULT is read by Chip's users through this.
bool plant_fault(std::string_view text, ChipOptions& options);

}  // namespace bm::sim::amd
