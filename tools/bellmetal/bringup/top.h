#pragma once
// What the cards of a machine do: read from the kernel's files alone, so that no card is touched
// and none that somebody owns is disturbed. A card that was asked for by name is asked itself.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "drivers/transport/system.h"
#include "runtime/base/result.h"
#include "tools/bellmetal/bringup/card.h"

namespace bm::cli {

/// Absent: nobody says.
struct CardRow {
  std::string address, name;
  std::string driver;  ///< of the kernel; empty: none
  std::optional<int> owner_pid;
  std::string owner;  ///< its command
  std::optional<double> temperature_c, junction_c, memory_c, power_w, power_limit_w;
  std::optional<uint32_t> core_mhz, memory_mhz, busy_percent, fan_rpm;
  std::optional<double> board_power_w;
  std::optional<uint64_t> memory_used_bytes, memory_bytes;
  std::optional<std::string> throttled_by;  ///< empty: by nothing
  std::string link_speed;
  uint32_t link_width = 0;
  std::string note;  ///< why there is nothing more
};

/// Display and compute functions of AMD and NVIDIA. Sources: Linux, Documentation/gpu/amdgpu/
/// thermal.rst (hwmon, gpu_busy_percent, mem_info_vram_*, gpu_metrics), pci_lock.h (owners).
/// `locks`: the folder that PciLock::acquire() was given. Errors: those of enumerate_pci().
Result<std::vector<CardRow>> read_cards(System& system, const std::string& locks = "/run/lock");

/// What limits a card, of the words of gpu_metrics version 1.3: "power", "current", "temperature",
/// joined by commas; nothing for another version. Source: kgd_pp_interface.h, struct
/// gpu_metrics_v1_3; amdgpu_smu.h, SMU_THROTTLER_*_BIT.
std::optional<std::string> decode_throttling(const std::string& gpu_metrics);

/// A screen of at most `width` columns; 0: as wide as it gets. Lines end with a newline.
std::string screen_text(const std::vector<CardRow>& cards, size_t width);

/// The card that a selector names, by its firmware's own sensors: it is opened for a moment, with
/// its lock, and neither booted nor reset. A card that somebody owns, or that no process of ours
/// has left warm, has the reason for its note. Errors: those of open_function() but "device busy";
/// those of AmGpu::sensors_of_idle_card() but kUnsupported.
Result<CardRow> read_selected_card(System& system, const CardOptions& options);

struct TopOptions {
  CardOptions card;  ///< a selector: that card alone
  bool once = false;
  uint32_t interval_ms = 1000;
};
int run_top(System& system, const TopOptions& options);

}  // namespace bm::cli
