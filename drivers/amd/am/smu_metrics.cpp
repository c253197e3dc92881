#include "drivers/amd/am/smu_metrics.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/byte_reader.h"

namespace bm::amd::am {
namespace {

// THROTTLER_*_BIT, in the order of their bits.
constexpr std::string_view kThrottlers13[] = {
    "TEMP_EDGE",    "TEMP_HOTSPOT", "TEMP_HOTSPOT_G", "TEMP_HOTSPOT_M", "TEMP_MEM",
    "TEMP_VR_GFX",  "TEMP_VR_MEM0", "TEMP_VR_MEM1",   "TEMP_VR_SOC",    "TEMP_VR_U",
    "TEMP_LIQUID0", "TEMP_LIQUID1", "TEMP_PLX",       "TDC_GFX",        "TDC_SOC",
    "TDC_U",        "PPT0",         "PPT1",           "PPT2",           "PPT3",
    "FIT",          "GFX_APCC_PLUS"};
constexpr std::string_view kThrottlers14[] = {"TEMP_EDGE",
                                              "TEMP_HOTSPOT",
                                              "TEMP_HOTSPOT_GFX",
                                              "TEMP_HOTSPOT_SOC",
                                              "TEMP_MEM",
                                              "TEMP_VR_GFX",
                                              "TEMP_VR_SOC",
                                              "TEMP_VR_MEM0",
                                              "TEMP_VR_MEM1",
                                              "TEMP_LIQUID0",
                                              "TEMP_LIQUID1",
                                              "TEMP_PLX",
                                              "TDC_GFX",
                                              "TDC_SOC",
                                              "PPT0",
                                              "PPT1",
                                              "PPT2",
                                              "PPT3",
                                              "FIT",
                                              "GFX_APCC_PLUS",
                                              "GFX_DVO"};

// 13.0.0's and 13.0.7's structures are alike.
constexpr MetricsLayout kLayout13{.gfxclk = 0,
                                  .uclk = 8,
                                  .gfxclk_before = 54,
                                  .gfxclk_after = 56,
                                  .memclk_before = 62,
                                  .memclk_after = 64,
                                  .counter = 80,
                                  .gfx_activity = 104,
                                  .uclk_activity = 106,
                                  .energy = 112,
                                  .socket_power = 116,
                                  .board_power = 118,
                                  .edge = 120,
                                  .hotspot = 122,
                                  .memory = 128,
                                  .fan_percent = 150,
                                  .fan_rpm = 152,
                                  .throttling = 154,
                                  .bytes = 240,
                                  .throttlers = kThrottlers13};
constexpr MetricsLayout kLayout14{.gfxclk = 0,
                                  .uclk = 8,
                                  .gfxclk_before = 46,
                                  .gfxclk_after = 48,
                                  .memclk_before = 54,
                                  .memclk_after = 56,
                                  .counter = 104,
                                  .gfx_activity = 124,
                                  .uclk_activity = 126,
                                  .energy = 132,
                                  .socket_power = 136,
                                  .board_power = 138,
                                  .edge = 140,
                                  .hotspot = 142,
                                  .memory = 148,
                                  .fan_percent = 168,
                                  .fan_rpm = 170,
                                  .throttling = 172,
                                  .bytes = 260,
                                  .throttlers = kThrottlers14};

constexpr SocketLayout kLayoutMi300{.counter = 0,
                                    .socket_c = 4,
                                    .memory_c = 12,
                                    .power = 48,
                                    .uclk = 112,
                                    .gfx_busy = 1272,
                                    .memory_utilization = 1276,
                                    .gfxclk = 1372,
                                    .chiplets = 8,
                                    .bytes = 1404};

constexpr MetricsRow kMetricsRows[] = {
    {13, 0, 0, &kLayout13, 15, 0x004e1e00}, {13, 0, 6, nullptr, 0, 0, &kLayoutMi300},
    {13, 0, 7, &kLayout13, 15, 0x00521400}, {13, 0, 10, &kLayout13, 15, 0x00500800},
    {14, 0, 2, &kLayout14, 5, 0},           {14, 0, 3, &kLayout14, 5, 0},
};

template <class Word>
Result<uint32_t> word_at(std::span<const std::byte> table, uint16_t offset) {
  ByteReader reader(table);
  BM_TRY(reader.seek(offset));
  return static_cast<uint32_t>(BM_TRY(reader.read<Word>()));
}

/// Calculation errors of the firmware: smu_safe_u16_nn() in smu_cmn.h.
uint32_t not_negative(uint32_t value) { return value > INT16_MAX ? 0 : value; }

std::string_view group_of(std::string_view throttler) {
  if (throttler.starts_with("PPT")) return "power";
  if (throttler.starts_with("TDC_")) return "current";
  if (throttler.starts_with("TEMP_")) return "temperature";
  return "other";
}

Result<Sensors> decode_socket(const SocketLayout& at, std::span<const std::byte> table,
                              uint32_t chiplet) {
  if (chiplet >= at.chiplets)
    return fail(Code::kCorrupt, "a metrics table of {} chiplets, the first one here is {}",
                at.chiplets, chiplet);
  // SMUQ10_ROUND() of smu_cmn.h.
  const auto rounded = [&](size_t offset) -> Result<uint32_t> {
    const uint32_t word = BM_TRY(word_at<uint32_t>(table, static_cast<uint16_t>(offset)));
    return (word >> 10) + (word >> 9 & 1);
  };
  Sensors out;
  out.core_mhz = out.average_core_mhz = BM_TRY(rounded(at.gfxclk + size_t{chiplet} * 4));
  out.memory_mhz = out.average_memory_mhz = BM_TRY(rounded(at.uclk));
  out.busy_percent = BM_TRY(rounded(at.gfx_busy));
  out.memory_busy_percent = BM_TRY(rounded(at.memory_utilization));
  out.socket_power_w = BM_TRY(rounded(at.power));
  out.hotspot_c = BM_TRY(rounded(at.socket_c));
  out.memory_c = BM_TRY(rounded(at.memory_c));
  out.counter = BM_TRY(word_at<uint32_t>(table, at.counter));
  return out;
}

}  // namespace

std::optional<std::string> Sensors::throttled_by() const {
  if (!throttlers) return std::nullopt;
  std::string text;
  for (const std::string_view group : {"power", "current", "temperature", "other"})
    if (std::ranges::any_of(*throttlers,
                            [&](const Throttler& one) { return group_of(one.name) == group; }))
      text += fmt::format("{}{}", text.empty() ? "" : ", ", group);
  return text;
}

const MetricsRow* find_metrics_row(uint8_t major, uint8_t minor, uint8_t revision) {
  const auto* const row = std::ranges::find_if(kMetricsRows, [&](const MetricsRow& one) {
    return one.major == major && one.minor == minor && one.revision == revision;
  });
  return row == std::end(kMetricsRows) ? nullptr : row;
}

Result<uint32_t> MetricsRow::counter(std::span<const std::byte> table) const {
  return word_at<uint32_t>(table, is_of_socket() ? socket->counter : layout->counter);
}

Result<Sensors> decode_metrics(const MetricsRow& row, std::span<const std::byte> table,
                               uint32_t firmware, uint32_t chiplet) {
  if (table.size() < row.bytes())
    return fail(Code::kCorrupt, "a metrics table of {} bytes, {} wanted", table.size(),
                row.bytes());
  table = table.first(row.bytes());
  if (std::ranges::all_of(table, [](std::byte one) { return one == std::byte{0xff}; }))
    return fail(Code::kCorrupt, "the metrics table is all ones");
  if (row.is_of_socket()) return decode_socket(*row.socket, table, chiplet);
  const MetricsLayout& at = *row.layout;
  const auto word = [&](uint16_t offset) { return word_at<uint16_t>(table, offset); };
  Sensors out;
  out.core_mhz = BM_TRY(word_at<uint32_t>(table, at.gfxclk));
  out.memory_mhz = BM_TRY(word_at<uint32_t>(table, at.uclk));
  out.busy_percent = BM_TRY(word(at.gfx_activity));
  out.memory_busy_percent = not_negative(BM_TRY(word(at.uclk_activity)));
  out.average_core_mhz =
      BM_TRY(word(out.busy_percent <= row.busy_percent ? at.gfxclk_after : at.gfxclk_before));
  out.average_memory_mhz = BM_TRY(
      word(out.memory_busy_percent <= row.busy_percent ? at.memclk_after : at.memclk_before));
  out.socket_power_w = BM_TRY(word(at.socket_power));
  // Zero where the board has no total (SkuTable_t, TotalBoardPowerSupport).
  if (const uint32_t board = BM_TRY(word(at.board_power)); board != 0) out.board_power_w = board;
  out.edge_c = BM_TRY(word(at.edge));
  out.hotspot_c = BM_TRY(word(at.hotspot));
  out.memory_c = BM_TRY(word(at.memory));
  out.fan_percent = BM_TRY(word_at<uint8_t>(table, at.fan_percent));
  out.fan_rpm = BM_TRY(word(at.fan_rpm));
  out.counter = BM_TRY(word_at<uint32_t>(table, at.counter));
  if (firmware <= row.last_with_energy)
    out.energy_counter = BM_TRY(word_at<uint32_t>(table, at.energy));
  out.throttlers.emplace();
  for (size_t i = 0; i < at.throttlers.size(); ++i) {
    const auto offset = static_cast<uint16_t>(at.throttling + i);
    if (const uint32_t percent = BM_TRY(word_at<uint8_t>(table, offset)); percent != 0)
      out.throttlers->push_back({at.throttlers[i], percent});
  }
  return out;
}

}  // namespace bm::amd::am
