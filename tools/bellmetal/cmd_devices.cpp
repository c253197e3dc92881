#include <algorithm>
#include <memory>
#include <utility>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "drivers/amd/cards.h"
#include "drivers/nv/cards.h"
#include "runtime/base/env.h"
#include "runtime/base/keep_forever.h"
#include "runtime/device.h"
#include "runtime/device_manager.h"
#include "runtime/target.h"
#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using runtime::DeviceListing;

int print_devices_json(const std::vector<DeviceListing>& devices) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const DeviceListing& d : devices) {
    nlohmann::ordered_json row = {{"name", d.name},
                                  {"driver", d.driver},
                                  {"description", d.description},
                                  {"usable", d.is_usable},
                                  {"asked", d.is_asked},
                                  {"renderer", d.renderer},
                                  {"arch", d.arch},
                                  {"memory_bytes", d.memory_total}};
    if (!d.problem.empty()) row["problem"] = d.problem;
    rows.push_back(std::move(row));
  }
  print_json({{"devices", std::move(rows)}});
  return kOk;
}

/// Units of the drivers of these names, upper case; without names of all, but those whose asking
/// loads much (an OpenCL driver brings a compiler of its own) are looked for on disk only.
/// Errors: kInvalidArgument.
Result<std::vector<DeviceListing>> list_some(const std::vector<std::string>& names) {
  if (names.empty()) {
    auto manager = std::make_unique<runtime::DeviceManager>(hal::builtin_drivers());
    std::vector<DeviceListing> all = manager->list(runtime::DeviceManager::Ask::kCheap);
    keep_forever(std::move(manager));
    return all;
  }
  auto table = std::make_unique<std::vector<hal::DriverInfo>>();
  std::vector<std::string_view> known;
  for (hal::DriverInfo driver : hal::builtin_drivers()) {
    known.emplace_back(driver.name);
    if (std::find(names.begin(), names.end(), driver.name) == names.end())
      driver.count = [](std::string_view) -> Result<uint32_t> { return 0U; };
    table->push_back(driver);
  }
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      return fail(Code::kInvalidArgument, "unknown driver \"{}\"{} (there are: {})", name,
                  runtime::did_you_mean(name, known), fmt::join(known, " "));
  auto manager = std::make_unique<runtime::DeviceManager>(*table);
  std::vector<DeviceListing> all = manager->list();
  // Opened devices live as long as the process, and refer to both.
  keep_forever(std::move(manager));
  keep_forever(std::move(table));
  std::erase_if(all, [&](const DeviceListing& d) {
    return std::find(names.begin(), names.end(), d.driver) == names.end();
  });
  return all;
}

/// Cards that DEV=<driver>:PCI could boot: those of BM_PCI, else those that no kernel driver uses.
/// None is touched.
std::vector<DeviceListing> list_free_cards(const std::string& driver, const CardVendor& vendor) {
  std::vector<DeviceListing> rows;
  const auto add = [&](const std::string& what) -> DeviceListing& {
    DeviceListing& row = rows.emplace_back();
    row.name = driver + ":PCI";
    row.driver = driver;
    row.description = what;
    return row;
  };
  uint32_t unit = 0;
  const auto add_usable = [&](const std::string& what, std::string_view where = {}) {
    const std::string name = unit == 0 ? driver + ":PCI" : fmt::format("{}:PCI:{}", driver, unit);
    DeviceListing& row = add(fmt::format("{}; DEV={} boots it{}", what, name, where));
    row.name = name;
    row.is_usable = true;
    ++unit;
  };
  System& system = real_system();
  const std::string& chosen = settings().pci;
  if (!chosen.empty()) {
    const auto cards = find_cards(system, vendor, chosen);
    if (!cards) add("").problem = cards.error().message;
    if (cards)
      for (const PciSelector& selector : *cards)
        add_usable(to_string(selector) + ", not looked at",
                   fmt::format(" where it is a card of {}'s", vendor.name));
    return rows;
  }
  const auto cards = list_cards(system, vendor);
  if (!cards) {
    add("").problem = cards.error().message;
    return rows;
  }
  for (const CardInfo& card : *cards) {
    const std::string what = fmt::format("{} {}", to_string(card.selector.address), card.name);
    if (card.is_free)
      add_usable(what + ", free");
    else if (card.driver.empty())
      add(what).problem = fmt::format("{} {}", what, card.remedy);
  }
  return rows;
}

int run_devices(std::vector<std::string> drivers, bool as_json) {
  for (std::string& name : drivers) name = runtime::upper_case(name);
  Result<std::vector<DeviceListing>> listed = list_some(drivers);
  if (!listed) return report(listed.error(), as_json);
  const std::pair<const char*, const CardVendor*> kBooted[] = {{"AMD", &amd::kCardVendor},
                                                               {"NV", &nv::kCardVendor}};
  for (const auto& [driver, vendor] : kBooted)
    if (drivers.empty() || std::find(drivers.begin(), drivers.end(), driver) != drivers.end())
      for (DeviceListing& row : list_free_cards(driver, *vendor)) listed->push_back(std::move(row));
  const std::vector<DeviceListing>& devices = *listed;
  if (as_json) return print_devices_json(devices);
  const bool color = has_color(stdout);
  Table table({{"NAME"}, {"RENDERER"}, {"ARCH"}, {"MEMORY", Table::Align::kRight}, {"WHAT"}});
  for (const DeviceListing& d : devices) {
    const std::string memory = d.memory_total > 0 ? human_bytes(d.memory_total) : "-";
    // Styled last cells do not disturb the columns: nothing is aligned after them.
    const std::string what =
        !d.is_usable ? styled(fmt::format("not usable: {}", d.problem), Style::kYellow, color)
        : d.is_asked ? d.description
                     : fmt::format("{}; not asked: \"bellmetal devices {}\" lists its devices",
                                   d.description, d.driver);
    table.add({d.name, d.renderer.empty() ? "-" : d.renderer, d.arch.empty() ? "-" : d.arch, memory,
               what});
  }
  fmt::print("{}", table.text());
  return kOk;
}

}  // namespace

void add_devices(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      "devices", "List the devices this build knows: usable, or what is missing");
  auto json = std::make_shared<bool>(false);
  auto drivers = std::make_shared<std::vector<std::string>>();
  command->add_option("DRIVER", *drivers, "Ask only these, for example CPU NV; the default is all");
  command->add_flag("--json", *json, "Print one JSON object");
  command->footer(
      examples("bellmetal devices\nbellmetal devices CPU NV\nbellmetal devices --json"));
  command->callback(
      [&run, json, drivers] { run = [json, drivers] { return run_devices(*drivers, *json); }; });
}

}  // namespace bm::cli
