#pragma once
// What the power management firmware measures: its metrics table, a data row an interface.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::amd::am {

/// Something that holds clocks down now. Name: THROTTLER_*_BIT without its ends, "TEMP_HOTSPOT".
struct Throttler {
  std::string_view name;
  uint32_t percent = 0;  ///< of the time
};

/// Averages are the firmware's own, over some milliseconds. Absent: this firmware does not say.
struct Sensors {
  uint32_t core_mhz = 0, memory_mhz = 0;  ///< now; of several chiplets the first one's
  /// Deep sleep counts only where the block is busy: as the kernel's driver reports them.
  uint32_t average_core_mhz = 0, average_memory_mhz = 0;
  uint32_t busy_percent = 0, memory_busy_percent = 0;
  uint32_t socket_power_w = 0;
  std::optional<uint32_t> board_power_w;
  uint32_t hotspot_c = 0, memory_c = 0;
  std::optional<uint32_t> edge_c;
  std::optional<uint32_t> fan_rpm, fan_percent;  ///< absent: the board has none
  /// Counts up. Its unit is in no public source; newer firmware leaves it out.
  std::optional<uint32_t> energy_counter;
  uint32_t counter = 0;  ///< one up whenever the firmware measures
  /// Absent: it counts how long each throttled, which takes two readings.
  std::optional<std::vector<Throttler>> throttlers;
  std::optional<uint32_t> power_limit_w;  ///< GetPptLimit's; not of the table

  /// "power", "current", "temperature", "other", joined by commas; empty: nothing throttles.
  std::optional<std::string> throttled_by() const;
};

/// Offsets in bytes into SmuMetrics_t. Clocks (MHz), counter and energy are words of 32 bits,
/// percentages of throttlers bytes, all others words of 16 bits: MHz, %, W, degrees Celsius, rpm.
struct MetricsLayout {
  uint16_t gfxclk, uclk;                 ///< CurrClock
  uint16_t gfxclk_before, gfxclk_after;  ///< AverageGfxclkFrequency{Pre,Post}Ds
  uint16_t memclk_before, memclk_after;  ///< AverageMemclkFrequency{Pre,Post}Ds
  uint16_t counter;                      ///< MetricsCounter
  uint16_t gfx_activity, uclk_activity;  ///< AverageGfxActivity, AverageUclkActivity
  uint16_t energy;                       ///< EnergyAccumulator
  uint16_t socket_power, board_power;    ///< AverageSocketPower, AverageTotalBoardPower
  uint16_t edge, hotspot, memory;        ///< AvgTemperature
  uint16_t fan_percent, fan_rpm;         ///< AvgFanPwm (a byte), AvgFanRpm
  uint16_t throttling;                   ///< ThrottlingPercentage
  uint16_t bytes;                        ///< sizeof(SmuMetrics_t)
  std::span<const std::string_view> throttlers;
};

/// The same of MetricsTableV0_t: one table for all of a socket. Words of 32 bits, counter and
/// bytes aside with ten bits of fraction: MHz, %, W, degrees Celsius.
struct SocketLayout {
  uint16_t counter;                       ///< AccumulationCounter
  uint16_t socket_c, memory_c;            ///< MaxSocketTemperature, MaxHbmTemperature
  uint16_t power;                         ///< SocketPower
  uint16_t uclk;                          ///< UclkFrequency
  uint16_t gfx_busy, memory_utilization;  ///< SocketGfxBusy, DramBandwidthUtilization
  uint16_t gfxclk, chiplets;              ///< GfxclkFrequency, a word a chiplet
  uint16_t bytes;                         ///< up to the last of these
};

/// A version of MP1. Sources: Linux 6.12 and later, pmfw_if/smu13_driver_if_v13_0_0.h,
/// smu13_driver_if_v13_0_7.h, smu14_driver_if_v14_0.h (SmuMetrics_t as of 2023; the firmware of
/// 2022 had a shorter one); *_get_smu_metrics_data() and *_get_gpu_metrics() of smu_v13_0_0_ppt.c,
/// smu_v13_0_7_ppt.c and smu_v14_0_2_ppt.c (units, thresholds, until when energy counts). Of
/// 13.0.6: Linux 6.14, pmfw_if/smu_v13_0_6_pmfw.h, smu_v13_0_6_get_smu_metrics_data().
struct MetricsRow {
  uint8_t major, minor, revision;
  const MetricsLayout* layout;
  uint32_t busy_percent;                 ///< SMU_*_BUSY_THRESHOLD: above it a block is busy
  uint32_t last_with_energy;             ///< firmware version; 0: none
  const SocketLayout* socket = nullptr;  ///< instead of `layout`

  bool is_of_socket() const { return socket != nullptr; }
  size_t bytes() const { return is_of_socket() ? socket->bytes : layout->bytes; }
  /// Of a whole table. Errors: kCorrupt (too short).
  Result<uint32_t> counter(std::span<const std::byte> table) const;
};
/// nullptr: another interface.
const MetricsRow* find_metrics_row(uint8_t major, uint8_t minor, uint8_t revision);

/// `firmware`: version, as GetSmuVersion gives it. `chiplet`: whose clock, of several. Errors:
/// kCorrupt (too short, all ones, no such chiplet).
Result<Sensors> decode_metrics(const MetricsRow& row, std::span<const std::byte> table,
                               uint32_t firmware, uint32_t chiplet = 0);

}  // namespace bm::amd::am
