#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/card.h"
#include "drivers/transport/clock.h"
#include "drivers/transport/pci_config.h"
#include "tools/bellmetal/bringup/bringup.h"
#include "tools/bellmetal/bringup/chips.h"
#include "tools/bellmetal/bringup/nvidia.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;
using firmware::amd::Discovery;
using firmware::amd::IpBlock;

Json function_json(PciFunction& function, const std::string& chosen) {
  const PciIdentity& id = function.identity();
  Json json = {
      {"function", chosen},
      {"vendor", fmt::format("{:04x}", id.vendor)},
      {"device", fmt::format("{:04x}", id.device)},
      {"subsystem", fmt::format("{:04x}:{:04x}", id.subsystem_vendor, id.subsystem_device)},
      {"class", fmt::format("{:06x}", id.class_code)},
      {"revision", id.revision}};
  json["bars"] = Json::array();
  for (uint32_t i = 0; i < kPciBars; ++i) {
    const PciBar& bar = function.bars()[i];
    if (bar.size == 0) continue;
    Json one = {{"index", i},
                {"bytes", bar.size},
                {"address", bar.address},
                {"prefetchable", bar.is_prefetchable}};
    if (const auto sizes = resizable_bar_sizes(function, i); sizes && !sizes->empty())
      one["resizable_bytes"] = *sizes;
    json["bars"].push_back(std::move(one));
  }
  std::string config;
  constexpr uint32_t kHeader = 64;  // bytes that every function has
  for (uint32_t offset = 0; offset < kHeader; offset += 4) {
    const auto word = function.read_config(offset, 4);
    config += word ? fmt::format("{}{:08x}", config.empty() ? "" : " ", *word) : " ????????";
  }
  json["configuration"] = config;
  return json;
}

Json block_json(const Discovery& discovery, const IpBlock& ip) {
  Json bases = Json::array();
  for (const uint64_t base : ip.base_address) bases.push_back(base);
  return {{"block", hardware_name(ip.hw_id)},
          {"hardware_id", ip.hw_id},
          {"instance", ip.instance_number},
          {"die", ip.die},
          {"version", fmt::format("{}.{}.{}", ip.major, ip.minor, ip.revision)},
          {"base_dwords", bases},
          {"harvested", discovery.is_harvested(ip.hw_id, ip.instance_number)}};
}

void print_text(const Json& json) {
  fmt::print("{}: {}:{}, subsystem {}, class {}, revision {:#x}\n",
             json["function"].get<std::string>(), json["vendor"].get<std::string>(),
             json["device"].get<std::string>(), json["subsystem"].get<std::string>(),
             json["class"].get<std::string>(), json["revision"].get<uint32_t>());
  for (const Json& bar : json["bars"])
    fmt::print(
        "BAR {}: {} at {:#x}{}{}\n", bar["index"].get<uint32_t>(),
        human_bytes(bar["bytes"].get<uint64_t>()), bar["address"].get<uint64_t>(),
        bar["prefetchable"].get<bool>() ? ", prefetchable" : "",
        bar.contains("resizable_bytes")
            ? fmt::format(", up to {}", human_bytes(bar["resizable_bytes"].back().get<uint64_t>()))
            : "");
  fmt::print("configuration: {}\n", json["configuration"].get<std::string>());
}

void print_amd(const Json& json) {
  fmt::print("video memory: {}\nIP discovery table: version {}, {} blocks\n",
             human_bytes(json["video_memory_bytes"].get<uint64_t>()),
             json["discovery_version"].get<uint32_t>(), json["blocks"].size());
  Table table({{"block"},
               {"instance", Table::Align::kRight},
               {"version"},
               {"state"},
               {"bases, in dwords"}});
  for (const Json& block : json["blocks"]) {
    std::string bases;
    for (const Json& base : block["base_dwords"])
      bases += fmt::format("{}{:#x}", bases.empty() ? "" : " ", base.get<uint64_t>());
    table.add({block["block"].get<std::string>(),
               fmt::format("{}", block["instance"].get<uint32_t>()),
               block["version"].get<std::string>(),
               block["harvested"].get<bool>() ? "harvested" : "there", bases});
  }
  fmt::print("{}", table.text());
  if (json.contains("shader_engines"))
    fmt::print(
        "graphics: {} shader engines, {} arrays each, {} compute units an array before "
        "harvesting\n",
        json["shader_engines"].get<uint32_t>(), json["arrays_per_engine"].get<uint32_t>(),
        json["compute_units_per_array"].get<uint64_t>());
}

}  // namespace

int run_discover(System& system, const CardOptions& options) {
  std::string chosen;
  const auto function = open_function(system, options, &chosen);
  if (!function) return report(function.error(), options.as_json);
  Json json = function_json(**function, chosen);
  if ((*function)->identity().vendor == kNvidiaVendor) {
    if (const Status seen = discover_nvidia(**function, &json); !seen)
      return report(seen.error(), options.as_json);
    if (options.as_json) {
      print_json(json);
    } else {
      print_text(json);
      print_nvidia(json);
    }
    return kOk;
  }
  amd::am::Bus bus(**function, real_clock());
  if (const Status opened = bus.open(); !opened) return report(opened.error(), options.as_json);
  const auto table = amd::am::read_discovery(bus);
  if (!table) return report(table.error(), options.as_json);
  const Discovery& discovery = table->discovery;
  json["video_memory_bytes"] = table->video_bytes;
  json["discovery_version"] = discovery.ip_discovery_version;
  json["unknown_blocks"] = discovery.unknown_ips;
  json["blocks"] = Json::array();
  for (const IpBlock& ip : discovery.ips) json["blocks"].push_back(block_json(discovery, ip));
  json["harvest"] = Json::array();
  for (const auto& gone : discovery.harvest)
    json["harvest"].push_back(
        {{"block", hardware_name(gone.hw_id)}, {"instance", gone.number_instance}});
  if (discovery.gc) {
    json["shader_engines"] = discovery.gc->gc_num_se;
    json["arrays_per_engine"] = discovery.gc->arrays_per_engine();
    json["compute_units_per_array"] = discovery.gc->cus_per_array();
  }
  if (options.as_json) {
    print_json(json);
  } else {
    print_text(json);
    print_amd(json);
  }
  return kOk;
}

}  // namespace bm::cli
