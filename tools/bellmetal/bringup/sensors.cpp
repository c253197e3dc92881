#include "tools/bellmetal/bringup/sensors.h"

#include <fmt/format.h>

namespace bm::cli {

std::string sensors_text(const amd::am::Sensors& sensors) {
  std::string text = fmt::format("{} W", sensors.socket_power_w);
  if (sensors.power_limit_w) text += fmt::format(" of {} W", *sensors.power_limit_w);
  if (sensors.board_power_w) text += fmt::format(" (board {} W)", *sensors.board_power_w);
  if (sensors.edge_c) text += fmt::format(", edge {} C", *sensors.edge_c);
  text += fmt::format(", hotspot {} C, memory {} C, core {} MHz, memory {} MHz, busy {} %",
                      sensors.hotspot_c, sensors.memory_c, sensors.average_core_mhz,
                      sensors.memory_mhz, sensors.busy_percent);
  if (sensors.fan_rpm) text += fmt::format(", fan {} rpm", *sensors.fan_rpm);
  if (sensors.throttlers && !sensors.throttlers->empty()) {
    text += ", throttled by";
    for (const amd::am::Throttler& one : *sensors.throttlers)
      text += fmt::format(" {} ({} %)", one.name, one.percent);
  }
  return text;
}

nlohmann::ordered_json sensors_json(const amd::am::Sensors& sensors) {
  nlohmann::ordered_json json = {{"power_w", sensors.socket_power_w}};
  const auto add = [&json](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  add("board_power_w", sensors.board_power_w);
  add("power_limit_w", sensors.power_limit_w);
  add("temperature_c", sensors.edge_c);
  json["junction_temperature_c"] = sensors.hotspot_c;
  json["memory_temperature_c"] = sensors.memory_c;
  json["core_clock_mhz"] = sensors.average_core_mhz;
  json["core_clock_now_mhz"] = sensors.core_mhz;
  json["memory_clock_mhz"] = sensors.memory_mhz;
  json["average_memory_clock_mhz"] = sensors.average_memory_mhz;
  json["busy_percent"] = sensors.busy_percent;
  json["memory_busy_percent"] = sensors.memory_busy_percent;
  add("fan_rpm", sensors.fan_rpm);
  add("fan_percent", sensors.fan_percent);
  add("throttled_by", sensors.throttled_by());
  if (sensors.throttlers) {
    auto throttlers = nlohmann::ordered_json::object();
    for (const amd::am::Throttler& one : *sensors.throttlers)
      throttlers[std::string(one.name)] = one.percent;
    json["throttling_percent"] = throttlers;
  }
  add("energy_counter", sensors.energy_counter);
  json["measurements"] = sensors.counter;
  return json;
}

}  // namespace bm::cli
