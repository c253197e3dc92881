#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "drivers/transport/pci_enumerate.h"
#include "drivers/transport/pci_lock.h"
#include "drivers/transport/pci_take.h"
#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string address, driver = "vfio-pci", journals = PciTakeOptions().journal_folder;
  bool is_all = false, is_dry = false, is_display_taken = false, is_resized = false;
  bool as_json = false;

  PciTakeOptions take() const {
    return {.driver = driver,
            .is_display_taken = is_display_taken,
            .is_resized = is_resized,
            .journal_folder = journals};
  }
};

/// Displays, co-processors and whatever else computes; bridges, disks and the like only on demand.
bool is_accelerator(const PciIdentity& identity) {
  const uint32_t base_class = identity.class_code >> 16;
  return base_class == 0x03 || base_class == 0x0b || base_class == 0x12;
}

std::string name_of(const PciInfo& info) {
  const std::string ids = fmt::format("{:04x}:{:04x}", info.identity.vendor, info.identity.device);
  if (info.device_name.empty()) return ids;
  return fmt::format("{} {} ({})", info.vendor_name, info.device_name, ids);
}

/// Whether bellmetal could open it now, or what is in the way.
std::string usable(const PciInfo& info) {
  if (info.identity.class_code >> 16 == 0x06) return "a bridge";
  if (info.driver.find("vfio") != std::string::npos) return "usable: vfio";
  if (!info.driver.empty()) return "kernel's: pci bind " + to_string(info.identity.address);
  if (!info.iommu_group || info.iommu_type == "identity") return "usable by root: sysfs";
  return "no driver: pci bind " + to_string(info.identity.address);
}

Json to_json(System& system, const PciInfo& info) {
  Json json = {{"address", to_string(info.identity.address)},
               {"vendor", fmt::format("{:04x}", info.identity.vendor)},
               {"device", fmt::format("{:04x}", info.identity.device)},
               {"class", fmt::format("{:06x}", info.identity.class_code)},
               {"revision", info.identity.revision},
               {"name", name_of(info)},
               {"driver", info.driver}};
  json["bars"] = Json::array();
  for (uint32_t i = 0; i < kPciBars; ++i)
    if (const PciBar& bar = info.bars[i]; bar.size != 0)
      json["bars"].push_back({{"index", i},
                              {"address", bar.address},
                              {"bytes", bar.size},
                              {"memory", bar.is_memory},
                              {"prefetchable", bar.is_prefetchable}});
  if (info.iommu_group) json["iommu_group"] = *info.iommu_group;
  if (!info.iommu_type.empty()) json["iommu_type"] = info.iommu_type;
  const auto names = [](const std::vector<PciAddress>& addresses) {
    Json list = Json::array();
    for (const PciAddress& one : addresses) list.push_back(to_string(one));
    return list;
  };
  json["group_members"] = names(info.group);
  json["siblings"] = names(info.siblings);
  if (info.numa_node) json["numa_node"] = *info.numa_node;
  if (!info.link_speed.empty()) {
    json["link_speed"] = info.link_speed;
    json["link_width"] = info.link_width;
    json["max_link_speed"] = info.max_link_speed;
    json["max_link_width"] = info.max_link_width;
  }
  json["boot_display"] = info.is_boot_display;
  json["displays"] = info.displays;
  json["holders"] = Json::array();
  for (const PciHolder& holder : find_pci_holders(system, info))
    json["holders"].push_back(
        {{"pid", holder.pid}, {"command", holder.command}, {"path", holder.path}});
  json["state"] = usable(info);
  return json;
}

int run_list(const Options& options) {
  System& system = real_system();
  const auto found = enumerate_pci(system, [&options](const PciIdentity& identity) {
    return options.is_all || is_accelerator(identity);
  });
  if (!found) return report(found.error(), options.as_json);
  if (options.as_json) {
    Json list = Json::array();
    for (const PciInfo& info : *found) list.push_back(to_json(system, info));
    print_json({{"functions", list}});
    return kOk;
  }
  if (found->empty()) {
    fmt::print("no display or accelerator among {} PCI functions; --all lists them\n",
               list_pci(system).value_or(std::vector<PciAddress>()).size());
    return kOk;
  }
  Table table({{"address"}, {"driver"}, {"group"}, {"BARs"}, {"link"}, {"state"}, {"name"}});
  for (const PciInfo& info : *found) {
    std::string bars;
    for (const PciBar& bar : info.bars)
      if (bar.size != 0 && bar.is_memory)
        bars += (bars.empty() ? "" : ", ") + human_bytes(bar.size);
    table.add({to_string(info.identity.address), info.driver.empty() ? "-" : info.driver,
               info.iommu_group ? fmt::format("{}", *info.iommu_group) : "-", bars,
               info.link_width == 0 ? "-" : fmt::format("{} x{}", info.link_speed, info.link_width),
               usable(info), name_of(info)});
  }
  fmt::print("{}", table.text());
  return kOk;
}

int print_changes(const std::vector<PciChange>& changes, bool is_back, const Options& options) {
  const auto word = [](const std::string& name) { return name.empty() ? "no driver" : name; };
  if (options.as_json) {
    Json list = Json::array();
    for (const PciChange& change : changes)
      list.push_back({{"address", to_string(change.address)},
                      {"from", is_back ? change.to : change.from},
                      {"to", is_back ? change.from : change.to}});
    print_json({{"changes", list}, {"done", !options.is_dry}});
    return kOk;
  }
  if (changes.empty()) fmt::print("nothing to change\n");
  for (const PciChange& change : changes)
    fmt::print("{}{}: {} -> {}\n", options.is_dry ? "would change " : "", to_string(change.address),
               word(is_back ? change.to : change.from), word(is_back ? change.from : change.to));
  return kOk;
}

int run_bind(const Options& options) {
  System& system = real_system();
  const Result<PciAddress> address = parse_pci_address(options.address);
  if (!address) return report(address.error(), options.as_json);
  const auto changes = options.is_dry ? plan_pci_take(system, *address, options.take())
                                      : take_pci(system, *address, options.take());
  if (!changes) return report(changes.error(), options.as_json);
  return print_changes(*changes, false, options);
}

int run_restore(const Options& options) {
  System& system = real_system();
  std::vector<PciAddress> addresses = list_pci_journals(system, options.journals);
  if (!options.address.empty()) {
    const Result<PciAddress> address = parse_pci_address(options.address);
    if (!address) return report(address.error(), options.as_json);
    addresses = {*address};
  }
  std::vector<PciChange> all;
  for (const PciAddress& address : addresses) {
    const auto changes = options.is_dry ? read_pci_journal(system, address, options.journals)
                                        : restore_pci(system, address, options.take());
    if (!changes) return report(changes.error(), options.as_json);
    all.insert(all.end(), changes->begin(), changes->end());
  }
  return print_changes(all, true, options);
}

}  // namespace

void add_pci(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("pci", "PCI functions: list them, take one from its driver, give it back");
  command->require_subcommand(1);
  auto options = std::make_shared<Options>();

  CLI::App* list =
      command->add_subcommand("list", "Displays and accelerators, with who drives them");
  list->add_flag("--all", options->is_all, "Every PCI function");
  list->callback([&run, options] { run = [options] { return run_list(*options); }; });

  CLI::App* bind =
      command->add_subcommand("bind", "Hand a function and its IOMMU group to vfio-pci");
  bind->add_option("ADDRESS", options->address, "As 0000:03:00.0")->required();
  bind->add_option("--driver", options->driver, "Another driver, or none (root's sysfs files)");
  bind->add_flag("--display", options->is_display_taken, "Even if a screen goes dark");
  bind->add_flag("--resize", options->is_resized, "Give resizable BARs their largest size first");
  bind->callback([&run, options] { run = [options] { return run_bind(*options); }; });

  CLI::App* restore = command->add_subcommand("restore", "Give back what `pci bind` took");
  restore->add_option("ADDRESS", options->address, "One of them; all without it");
  restore->callback([&run, options] { run = [options] { return run_restore(*options); }; });

  for (CLI::App* action : {bind, restore}) {
    action->add_flag("--dry-run", options->is_dry, "Say what would change, and change nothing");
    action->add_option("--journal", options->journals, "Folder of what was changed");
  }
  for (CLI::App* action : {list, bind, restore})
    action->add_flag("--json", options->as_json, "Print one JSON object");
  const char* lines =
      "bellmetal pci list\nbellmetal pci bind 0000:03:00.0 --dry-run\n"
      "bellmetal pci restore 0000:03:00.0 --json";
  for (CLI::App* one : {command, list, bind, restore}) one->footer(examples(lines));
}

}  // namespace bm::cli
