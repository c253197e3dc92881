#include "tools/bellmetal/bringup/top.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "drivers/amd/am/gpu.h"
#include "drivers/transport/pci_enumerate.h"
#include "drivers/transport/pci_lock.h"
#include "drivers/transport/pci_open.h"
#include "drivers/transport/sysfs.h"
#include "runtime/base/env.h"
#include "tools/bellmetal/bringup/chips.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/bringup/vendors.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;

bool is_card(const PciIdentity& identity) {
  const uint32_t base_class = identity.class_code >> 16;
  return (identity.vendor == kAmdVendor && (base_class == 0x03 || base_class == 0x12)) ||
         (identity.vendor == kNvidiaVendor && base_class == 0x03);
}

std::optional<uint64_t> number_in(System& system, const std::string& path) {
  const auto value = read_sysfs_number(system, path);
  if (!value || *value < 0) return std::nullopt;
  return static_cast<uint64_t>(*value);
}

template <class Number>
std::optional<Number> scaled(std::optional<uint64_t> value, uint64_t divisor) {
  if (!value) return std::nullopt;
  return static_cast<Number>(static_cast<double>(*value) / static_cast<double>(divisor));
}

/// The owner's note outlives the owner: it counts while that process is there.
void read_owner(System& system, const std::string& locks, CardRow* row) {
  std::string text;
  if (system.read_file(fmt::format("{}/bellmetal_{}.lock", locks, row->address), &text) != 0)
    return;
  const auto owner = parse_lock_owner(text);
  if (!owner || process_command(system, owner->pid) != owner->command) return;
  row->owner_pid = owner->pid;
  row->owner = owner->command;
}

/// Sensors are named by labels, which differ in number and order from card to card.
void read_sensors(System& system, const std::string& folder, CardRow* row) {
  std::vector<std::string> monitors;
  if (system.list(folder + "/hwmon", &monitors) != 0 || monitors.empty()) return;
  const std::string at = fmt::format("{}/hwmon/{}/", folder, monitors.front());
  constexpr uint64_t kMilli = 1000, kMicro = 1'000'000;
  for (int i = 1; i <= 3; ++i) {
    const auto value =
        scaled<double>(number_in(system, fmt::format("{}temp{}_input", at, i)), kMilli);
    const auto label = read_sysfs(system, fmt::format("{}temp{}_label", at, i));
    if (i == 1) row->temperature_c = value;
    if (label && *label == "junction") row->junction_c = value;
    if (label && *label == "mem") row->memory_c = value;
  }
  auto power = number_in(system, at + "power1_average");
  if (!power) power = number_in(system, at + "power1_input");
  row->power_w = scaled<double>(power, kMicro);
  row->power_limit_w = scaled<double>(number_in(system, at + "power1_cap"), kMicro);
  row->core_mhz = scaled<uint32_t>(number_in(system, at + "freq1_input"), kMicro);
  row->memory_mhz = scaled<uint32_t>(number_in(system, at + "freq2_input"), kMicro);
  row->fan_rpm = scaled<uint32_t>(number_in(system, at + "fan1_input"), 1);
}

void read_amdgpu(System& system, const std::string& folder, CardRow* row) {
  read_sensors(system, folder, row);
  row->busy_percent = scaled<uint32_t>(number_in(system, folder + "/gpu_busy_percent"), 1);
  row->memory_used_bytes = number_in(system, folder + "/mem_info_vram_used");
  row->memory_bytes = number_in(system, folder + "/mem_info_vram_total");
  std::string metrics;
  if (system.read_file(folder + "/gpu_metrics", &metrics) == 0)
    row->throttled_by = decode_throttling(metrics);
}

/// "Model: \t\t NVIDIA …" of the driver's own file.
void read_nvidia(System& system, CardRow* row) {
  std::string text;
  if (system.read_file(fmt::format("/proc/driver/nvidia/gpus/{}/information", row->address),
                       &text) == 0)
    if (const size_t at = text.find("Model:"); at != std::string::npos) {
      const size_t from = text.find_first_not_of(" \t", at + std::strlen("Model:"));
      if (from != std::string::npos) row->name = text.substr(from, text.find('\n', from) - from);
    }
  row->note = "its driver tells sensors to its own library only (nvidia-smi)";
}

CardRow read_card(System& system, const PciInfo& info, const std::string& locks) {
  CardRow row;
  row.address = to_string(info.identity.address);
  row.driver = info.driver;
  const std::string_view chip = info.identity.vendor == kAmdVendor
                                    ? chip_of_device(info.identity.device)
                                    : std::string_view();
  row.name = !info.device_name.empty() ? info.device_name
             : !chip.empty()
                 ? std::string(chip)
                 : fmt::format("{:04x}:{:04x}", info.identity.vendor, info.identity.device);
  row.link_speed = info.link_speed;
  row.link_width = info.link_width;
  read_owner(system, locks, &row);
  if (info.driver == "amdgpu") {
    read_amdgpu(system, pci_folder(info.identity.address), &row);
  } else if (info.driver == "nvidia") {
    read_nvidia(system, &row);
  } else if (row.owner_pid) {
    row.note =
        fmt::format("sensors and memory are known to its owner alone (pid {})", *row.owner_pid);
  } else if (!info.driver.empty() && info.driver.find("vfio") == std::string::npos) {
    row.note = fmt::format("sensors of {} are not read here", info.driver);
  } else {
    row.note = "no driver runs it, so its power management firmware tells nothing";
  }
  return row;
}

Json card_json(const CardRow& row) {
  Json json = {{"function", row.address}, {"name", row.name}, {"driver", row.driver}};
  const auto add = [&json](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  add("owner_pid", row.owner_pid);
  if (!row.owner.empty()) json["owner"] = row.owner;
  add("temperature_c", row.temperature_c);
  add("junction_temperature_c", row.junction_c);
  add("memory_temperature_c", row.memory_c);
  add("power_w", row.power_w);
  add("board_power_w", row.board_power_w);
  add("power_limit_w", row.power_limit_w);
  add("core_clock_mhz", row.core_mhz);
  add("memory_clock_mhz", row.memory_mhz);
  add("busy_percent", row.busy_percent);
  add("fan_rpm", row.fan_rpm);
  add("memory_used_bytes", row.memory_used_bytes);
  add("memory_bytes", row.memory_bytes);
  add("throttled_by", row.throttled_by);
  if (!row.link_speed.empty()) json["link_speed"] = row.link_speed;
  if (row.link_width != 0) json["link_lanes"] = row.link_width;
  if (!row.note.empty()) json["note"] = row.note;
  return json;
}

template <class Value>
std::string cell(const std::optional<Value>& value, const char* unit) {
  return value ? fmt::format("{:.0f} {}", static_cast<double>(*value), unit) : std::string("-");
}

size_t terminal_width() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/// False: Ctrl-C.
bool wait_a_while(uint32_t ms) {
  constexpr uint32_t kSliceMs = 50;
  for (uint32_t waited = 0; waited < ms && !is_interrupted(); waited += kSliceMs)
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(kSliceMs, ms - waited)));
  return !is_interrupted();
}

}  // namespace

std::optional<std::string> decode_throttling(const std::string& gpu_metrics) {
  // Header: size, format 1, content 3. Then the offset of indep_throttle_status.
  constexpr size_t kSize = 120, kStatus = 112;
  if (gpu_metrics.size() < kSize || gpu_metrics[2] != 1 || gpu_metrics[3] != 3) return std::nullopt;
  uint64_t status = 0;
  std::memcpy(&status, gpu_metrics.data() + kStatus, sizeof status);
  if (status == UINT64_MAX) return std::nullopt;  // not filled in
  // Power, current, temperature and the rest lie in words of 16 bits.
  constexpr const char* kGroups[] = {"power", "current", "temperature", "other"};
  std::string text;
  for (size_t i = 0; i < std::size(kGroups); ++i)
    if ((status >> (16 * i) & 0xffff) != 0)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", kGroups[i]);
  return text;
}

Result<std::vector<CardRow>> read_cards(System& system, const std::string& locks) {
  std::vector<CardRow> rows;
  for (const PciInfo& info : BM_TRY(enumerate_pci(system, is_card)))
    rows.push_back(read_card(system, info, locks));
  return rows;
}

std::string screen_text(const std::vector<CardRow>& cards, size_t width) {
  using enum Table::Align;
  Table table({{"card"},
               {"driver"},
               {"owner", kRight},
               {"temp", kRight},
               {"power", kRight},
               {"core", kRight},
               {"memory", kRight},
               {"busy", kRight},
               {"used", kRight},
               {"link"},
               {"throttled"},
               {"name"}});
  std::string notes;
  for (const CardRow& row : cards) {
    table.add({row.address, row.driver.empty() ? "-" : row.driver,
               row.owner_pid ? fmt::format("{} {}", *row.owner_pid, row.owner) : std::string("-"),
               cell(row.temperature_c, "C"), cell(row.power_w, "W"), cell(row.core_mhz, "MHz"),
               cell(row.memory_mhz, "MHz"), cell(row.busy_percent, "%"),
               row.memory_used_bytes && row.memory_bytes
                   ? fmt::format("{} of {}", human_bytes(*row.memory_used_bytes),
                                 human_bytes(*row.memory_bytes))
                   : std::string("-"),
               row.link_width == 0 ? std::string("-")
                                   : fmt::format("{} x{}", row.link_speed, row.link_width),
               !row.throttled_by           ? std::string("-")
               : row.throttled_by->empty() ? std::string("no")
                                           : *row.throttled_by,
               row.name});
    if (!row.note.empty()) notes += fmt::format("{}: {}\n", row.address, row.note);
  }
  if (cards.empty()) return "no card of AMD or NVIDIA in this machine\n";
  const std::string all = table.text() + notes;
  if (width == 0) return all;
  std::string cut;
  for (size_t at = 0; at < all.size();) {
    const size_t end = all.find('\n', at);
    std::string line = all.substr(at, end - at);
    // Cards' names are ASCII; a code point that is cut in two would only look odd.
    if (line.size() > width) line.resize(width);
    cut += line + "\n";
    at = end + 1;
  }
  return cut;
}

Result<CardRow> read_selected_card(System& system, const CardOptions& options) {
  std::string chosen;
  auto function = open_function(system, options, &chosen);
  CardRow row;
  row.address = chosen;
  if (!function) {
    row.note = function.error().message;
    // pci_lock.h: it names the owner.
    if (row.note.find("device busy") == std::string::npos)
      return tl::unexpected(std::move(function.error()));
    row.address = to_string(BM_TRY(parse_pci_selector(chosen)).address);
    read_owner(system, "/run/lock", &row);
    return row;
  }
  const PciIdentity identity = (*function)->identity();
  const std::string_view chip = chip_of_device(identity.device);
  row.name = chip.empty() ? fmt::format("{:04x}:{:04x}", identity.vendor, identity.device)
                          : std::string(chip);
  if (identity.vendor == kNvidiaVendor) {
    row.note =
        "sensors of an NVIDIA card are its resource manager's, which runs while a process has it";
    return row;
  }
  const auto sensors = amd::am::AmGpu::sensors_of_idle_card(
      std::move(*function),
      {.firmware = options.search(), .experimental = settings().amd_experimental});
  if (!sensors) {
    // A card that nobody has booted, or of another kind, is well; one that does not answer is not.
    if (sensors.error().code != Code::kUnsupported)
      return tl::unexpected(Error(sensors.error()).within(chosen));
    row.note = sensors.error().message;
    return row;
  }
  row.temperature_c = sensors->edge_c;
  row.junction_c = sensors->hotspot_c;
  row.memory_c = sensors->memory_c;
  row.power_w = sensors->socket_power_w;
  if (sensors->board_power_w) row.board_power_w = *sensors->board_power_w;
  if (sensors->power_limit_w) row.power_limit_w = *sensors->power_limit_w;
  row.core_mhz = sensors->average_core_mhz;
  row.memory_mhz = sensors->memory_mhz;
  row.busy_percent = sensors->busy_percent;
  row.fan_rpm = sensors->fan_rpm;
  row.throttled_by = sensors->throttled_by();
  return row;
}

int run_top(System& system, const TopOptions& options) {
  const bool as_json = options.card.as_json;
  const bool is_live = !options.once && !as_json && isatty(STDOUT_FILENO) == 1;
  const InterruptScope scope;
  const auto read = [&]() -> Result<std::vector<CardRow>> {
    if (options.card.selector.empty()) return read_cards(system);
    return std::vector<CardRow>{BM_TRY(read_selected_card(system, options.card))};
  };
  for (;;) {
    const auto cards = read();
    if (!cards) return report(cards.error(), as_json);
    if (as_json) {
      Json list = Json::array();
      for (const CardRow& row : *cards) list.push_back(card_json(row));
      print_json({{"cards", list}});
      return kOk;
    }
    if (!is_live) {
      fmt::print("{}", screen_text(*cards, 0));
      return kOk;
    }
    // Home, the screen, and whatever was below it before.
    fmt::print("\x1b[H{}\x1b[J", screen_text(*cards, terminal_width()));
    std::fflush(stdout);
    if (!wait_a_while(options.interval_ms)) {
      fmt::print("\n");
      return kOk;
    }
  }
}

}  // namespace bm::cli
