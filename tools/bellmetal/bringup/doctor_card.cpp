#include "tools/bellmetal/bringup/doctor_card.h"

#include <algorithm>
#include <charconv>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "drivers/transport/pci_enumerate.h"
#include "drivers/transport/sysfs.h"
#include "drivers/transport/usb/asm24.h"
#include "firmware/amd/set.h"
#include "firmware/store.h"
#include "tools/bellmetal/bringup/chips.h"
#include "tools/bellmetal/bringup/nvidia.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/bringup/vendors.h"

namespace bm::cli {
namespace {

bool is_examined(const PciIdentity& identity) {
  const uint32_t base_class = identity.class_code >> 16;
  return (identity.vendor == kAmdVendor && (base_class == 0x03 || base_class == 0x12)) ||
         (identity.vendor == kNvidiaVendor && base_class == 0x03);
}

/// NVIDIA's own driver serves its cards as well as ours would: such ones are looked at by name.
bool is_served_by_vendor(const PciInfo& info) {
  return info.identity.vendor == kNvidiaVendor && info.driver == "nvidia";
}

/// The one that shows video memory.
uint32_t memory_bar(const PciInfo& info) { return info.identity.vendor == kNvidiaVendor ? 1 : 0; }

bool is_bridge(System& system, const PciAddress& address) {
  constexpr int64_t kBridgeClass = 0x06;
  const auto code = read_sysfs_number(system, pci_folder(address) + "/class");
  return code && *code >> 16 == kBridgeClass;
}

bool has_word(const std::string& line, std::string_view word) {
  const std::string padded = " " + line + " ";
  return padded.find(fmt::format(" {} ", word)) != std::string::npos;
}

Finding examine_iommu(System& system, const std::string& options) {
  std::vector<std::string> units, groups;
  const bool is_on = system.list("/sys/class/iommu", &units) == 0 && !units.empty();
  (void)system.list("/sys/kernel/iommu_groups", &groups);
  Finding finding{.subject = "IOMMU", .ways = kWayPci};
  if (is_on) {
    finding.seen = fmt::format("on ({}), {} groups", fmt::join(units, ", "), groups.size());
    return finding;
  }
  finding.seen = "off";
  finding.remedy =
      has_word(options, "intel_iommu=off") || has_word(options, "amd_iommu=off") ||
              has_word(options, "iommu=off")
          ? "take iommu=off from the kernel's command line"
          : "switch VT-d or AMD-Vi on in the machine's setup; on Intel add intel_iommu=on to the "
            "kernel's command line";
  return finding;
}

Finding examine_options(const std::string& options) {
  Finding finding{.subject = "kernel options",
                  .seen = options.empty() ? "/proc/cmdline cannot be read" : options,
                  .ways = kWayPci,
                  .is_blocking = false};
  for (const char* const bad :
       {"intel_iommu=off", "amd_iommu=off", "iommu=off", "nomsi", "pci=nomsi"})
    if (has_word(options, bad)) finding.remedy = fmt::format("take {} away", bad);
  if (finding.remedy.empty() && !has_word(options, "iommu=pt"))
    finding.seen += " (iommu=pt would make DMA of other devices faster)";
  return finding;
}

Finding examine_lockdown(System& system) {
  const std::string state = first_line(system, "/sys/kernel/security/lockdown");
  Finding finding{.subject = "lockdown",
                  .seen = state.empty() ? "not in this kernel" : state,
                  .ways = kWayPci,
                  .is_blocking = false};
  if (state.find("[none]") == std::string::npos && !state.empty())
    finding.remedy = "sysfs: is refused under lockdown; VFIO behind an IOMMU works";
  return finding;
}

Finding examine_memlock(System& system) {
  constexpr uint64_t kEnough = uint64_t{1} << 30;  // rings, staging and a model's streams
  const uint64_t limit = system.locked_memory_limit();
  Finding finding{.subject = "locked memory", .ways = kWayPci};
  if (system.user().user == 0 || limit == UINT64_MAX) {
    finding.seen = "no limit";
    return finding;
  }
  finding.seen = "at most " + human_bytes(limit);
  if (limit < kEnough)
    finding.remedy =
        "DMA memory is locked: ulimit -l unlimited, or a line \"USER - memlock "
        "unlimited\" in /etc/security/limits.d";
  return finding;
}

Finding examine_vfio(System& system) {
  std::vector<std::string> names;
  const bool is_loaded = system.list("/sys/bus/pci/drivers/vfio-pci", &names) == 0;
  return {.subject = "vfio-pci",
          .seen = is_loaded ? "loaded" : "not loaded",
          .remedy = is_loaded ? "" : "modprobe vfio-pci",
          .ways = kWayPci};
}

Finding examine_driver(const PciInfo& info, const std::string& card, PciSelector::Way way) {
  const bool is_sysfs = way == PciSelector::Way::kSysfs;
  Finding finding{.subject = card + " driver",
                  .seen = info.driver.empty() ? "none" : info.driver,
                  .ways = kWayPci};
  if (is_sysfs ? !info.driver.empty() : info.driver.find("vfio") == std::string::npos)
    finding.remedy = fmt::format("bellmetal pci bind {}{}", card, is_sysfs ? " --driver none" : "");
  return finding;
}

/// Physical addresses are the card's own only where nothing translates them (pci_sysfs.h).
Finding examine_translation(const PciInfo& info, const std::string& card) {
  Finding finding{.subject = card + " IOMMU group", .ways = kWayPci};
  finding.seen = !info.iommu_group
                     ? std::string("none")
                     : fmt::format("{}, {}", *info.iommu_group,
                                   info.iommu_type.empty() ? "kind not known" : info.iommu_type);
  if (info.iommu_group && info.iommu_type != "identity")
    finding.remedy = fmt::format("an IOMMU translates its accesses: use vfio:{}", card);
  return finding;
}

Finding examine_group(System& system, const PciInfo& info, const std::string& card) {
  Finding finding{.subject = card + " IOMMU group", .ways = kWayPci};
  if (!info.iommu_group) {
    finding.seen = "none";
    finding.remedy = "none translates its accesses: do what the line IOMMU says";
    return finding;
  }
  std::vector<std::string> others, in_the_way;
  for (const PciAddress& member : info.group) {
    if (member == info.identity.address || is_bridge(system, member)) continue;
    others.push_back(to_string(member));
    const auto driver = sysfs_link_name(system, pci_folder(member) + "/driver");
    if (driver && !driver->empty() && driver->find("vfio") == std::string::npos)
      in_the_way.push_back(fmt::format("{} ({})", to_string(member), *driver));
  }
  finding.seen = others.empty()
                     ? fmt::format("{}, alone in it", *info.iommu_group)
                     : fmt::format("{}, with {}", *info.iommu_group, fmt::join(others, ", "));
  if (!in_the_way.empty())
    finding.remedy =
        fmt::format("bellmetal pci bind {} takes {} as well", card, fmt::join(in_the_way, ", "));
  return finding;
}

/// Sizes that the memory BAR can have: a mask of powers of two from 1 MiB on (sysfs-bus-pci,
/// resourceN_resize).
uint64_t largest_size(System& system, const PciInfo& info) {
  const std::string text = first_line(
      system,
      fmt::format("{}/resource{}_resize", pci_folder(info.identity.address), memory_bar(info)));
  uint64_t mask = 0;
  const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), mask, 16);
  if (problem != std::errc() || mask == 0) return 0;
  return uint64_t{1} << (63 - __builtin_clzll(mask) + 20);
}

Finding examine_bar(System& system, const PciInfo& info, const std::string& card) {
  const uint64_t size = info.bars[memory_bar(info)].size;
  const uint64_t largest = largest_size(system, info);
  Finding finding{.subject = fmt::format("{} BAR {}", card, memory_bar(info)),
                  .seen = size == 0 ? "no memory" : human_bytes(size),
                  .ways = kWayPci,
                  .is_blocking = size == 0};
  if (size == 0)
    finding.remedy = "the machine gave it no addresses: switch Above 4G Decoding on in its setup";
  else if (largest > size)
    finding.remedy = fmt::format(
        "it could have {}: bellmetal pci bind {} --resize, or Resizable BAR "
        "in the machine's setup",
        human_bytes(largest), card);
  return finding;
}

Finding examine_link(const PciInfo& info, const std::string& card) {
  Finding finding{.subject = card + " link",
                  .seen = info.link_width == 0
                              ? std::string("no PCI Express link is shown")
                              : fmt::format("{} x{}", info.link_speed, info.link_width),
                  .ways = kWayPci,
                  .is_blocking = false};
  if (info.link_width < info.max_link_width)
    finding.remedy = fmt::format("it could be x{}: look at the slot and how the card sits in it",
                                 info.max_link_width);
  return finding;
}

Finding examine_display(const PciInfo& info, const std::string& card) {
  Finding finding{.subject = card + " screens", .seen = "none", .ways = kWayPci};
  if (!info.displays.empty()) finding.seen = fmt::format("{}", fmt::join(info.displays, ", "));
  if (info.is_boot_display) finding.seen += ", the machine's firmware uses it";
  if (!info.displays.empty() || info.is_boot_display)
    finding.remedy =
        "a card that shows a screen is not taken: plug the screen into another one, or "
        "pci bind --display";
  return finding;
}

Finding examine_holders(System& system, const PciInfo& info, const std::string& card) {
  bool is_complete = false;
  const auto holders = find_pci_holders(system, info, &is_complete);
  Finding finding{.subject = card + " holders",
                  .seen = is_complete ? "none" : "none that this user may see",
                  .ways = kWayPci};
  if (holders.empty()) return finding;
  std::vector<std::string> names;
  for (const PciHolder& one : holders)
    names.push_back(fmt::format("{} (pid {}) has {}", one.command, one.pid, one.path));
  finding.seen = fmt::format("{}", fmt::join(names, ", "));
  finding.remedy = "end them first";
  return finding;
}

/// By the function's id: which chip it is for certain stands in its discovery table.
void examine_firmware(const PciInfo& info, const std::string& card, std::vector<Finding>* list) {
  const auto chip = chip_of_device(info.identity.device);
  Finding finding{.subject = card + " firmware", .ways = kWayPci};
  const auto id = chip.empty() ? Result<firmware::amd::ChipId>(fail(Code::kNotFound, "unknown"))
                               : known_chip_id(chip);
  const auto set = id ? firmware::amd::firmware_set(*id)
                      : Result<firmware::amd::FirmwareSet>(fail(Code::kNotFound, "unknown"));
  if (!set) {
    finding.seen = fmt::format("device {:04x} is not known by its id", info.identity.device);
    finding.remedy = fmt::format("bellmetal gpu firmware check --pci {}", card);
    finding.is_blocking = false;
    list->push_back(std::move(finding));
    return;
  }
  const auto problems = firmware::amd::check_set(*set, firmware::default_search());
  finding.seen = problems.empty() ? fmt::format("every file of {} is there", chip)
                                  : fmt::format("{}: {}", chip, problems.front());
  if (!problems.empty())
    finding.remedy = fmt::format("bellmetal gpu firmware list --chip {}", chip);
  list->push_back(std::move(finding));
}

uint32_t way_of(const PciInfo& info) {
  if (info.identity.vendor == kAmdVendor) return kWayAmdPci;
  return info.identity.vendor == kNvidiaVendor ? kWayNvPci : kWayPci;
}

void examine_card(System& system, const PciInfo& info, PciSelector::Way way,
                  std::vector<Finding>* list) {
  const std::string card = to_string(info.identity.address);
  const size_t first = list->size();
  list->push_back(examine_driver(info, card, way));
  if (way == PciSelector::Way::kSysfs) {
    list->push_back(examine_translation(info, card));
    list->push_back(examine_node(
        system, fmt::format("{}/resource{}", pci_folder(info.identity.address), memory_bar(info)),
        kWayPci, "the card has no memory there: bellmetal pci list shows its BARs"));
  } else {
    list->push_back(examine_group(system, info, card));
  }
  if (way == PciSelector::Way::kVfio && info.iommu_group &&
      info.driver.find("vfio") != std::string::npos)
    list->push_back(examine_node(system, fmt::format("/dev/vfio/{}", *info.iommu_group), kWayPci,
                                 fmt::format("bellmetal pci bind {}", card)));
  list->push_back(examine_bar(system, info, card));
  list->push_back(examine_link(info, card));
  list->push_back(examine_display(info, card));
  list->push_back(examine_holders(system, info, card));
  if (info.identity.vendor == kAmdVendor) examine_firmware(info, card, list);
  if (info.identity.vendor == kNvidiaVendor)
    list->push_back({.subject = card + " firmware",
                     .seen = "its chip says which files; it is read from the card",
                     .remedy = fmt::format("bellmetal gpu firmware check --pci {}", card),
                     .ways = kWayPci,
                     .is_blocking = false});
  for (Finding& finding : std::span(*list).subspan(first)) {
    finding.card = card;
    finding.ways = way_of(info);
  }
}

constexpr std::string_view vendor_name(uint32_t ways) {
  return (ways & kWayPci) == kWayPci ? "AMD or NVIDIA" : (ways & kWayNvPci) != 0 ? "NVIDIA" : "AMD";
}

/// What can be said of a function without asking whoever has it.
void examine_function(System& system, const PciSelector& function, uint32_t ways,
                      std::vector<Finding>* list) {
  const std::string name = to_string(function);
  if (!function.server.empty()) {
    Finding finding{.subject = name,
                    .seen = "a port of this machine, asked when the card is opened",
                    .ways = kWayPci};
    if (function.server.starts_with('/'))
      finding = examine_node(system, function.server, kWayPci,
                             "start the program that serves the card, or change the path");
    finding.subject = name;
    finding.card = name;
    list->push_back(std::move(finding));
    return;
  }
  const auto info = describe_pci(system, function.address);
  if (!info || (way_of(*info) & ways) == 0) {
    list->push_back(
        {.subject = name,
         .seen = !info ? info.error().message
                       : fmt::format("{:04x}:{:04x}", info->identity.vendor, info->identity.device),
         .remedy =
             fmt::format("name a card of {} in its place: bellmetal pci list", vendor_name(ways)),
         .ways = kWayPci,
         .card = name});
    return;
  }
  examine_card(system, *info, function.way, list);
}

bool is_any(std::span<const PciSelector> functions, PciSelector::Way way) {
  return std::ranges::find(functions, way, &PciSelector::way) != functions.end();
}

}  // namespace

void examine_machine_for_cards(System& system, std::span<const PciSelector> functions,
                               std::vector<Finding>* list) {
  const bool is_vfio = functions.empty() || is_any(functions, PciSelector::Way::kVfio);
  const std::string options = first_line(system, "/proc/cmdline");
  if (is_vfio) list->push_back(examine_iommu(system, options));
  if (is_vfio || is_any(functions, PciSelector::Way::kSysfs)) {
    list->push_back(examine_options(options));
    list->push_back(examine_lockdown(system));
  }
  if (!is_vfio) return;
  list->push_back(examine_memlock(system));
  list->push_back(examine_vfio(system));
}

bool has_examined_card(System& system) {
  const auto found = enumerate_pci(system, is_examined);
  return !found || !std::ranges::all_of(*found, is_served_by_vendor);
}

void examine_cards(System& system, std::span<const PciSelector> functions, uint32_t ways,
                   bool is_named, std::vector<Finding>* list) {
  for (const PciSelector& function : functions) examine_function(system, function, ways, list);
  if (!functions.empty()) return;
  auto found = enumerate_pci(system, is_examined);
  if (found)
    std::erase_if(*found, [&](const PciInfo& info) {
      return (way_of(info) & ways) == 0 || (!is_named && is_served_by_vendor(info));
    });
  if (!found || found->empty()) {
    list->push_back({.subject = (ways & kWayPci) == kWayPci ? "AMD and NVIDIA cards"
                                : (ways & kWayNvPci) != 0   ? "NVIDIA cards"
                                                            : "AMD cards",
                     .seen = found ? "none" : "no PCI bus is shown: " + found.error().message,
                     .remedy = "put one in; modelled ones are named in BM_PCI (remote:/path)",
                     .ways = kWayPci});
    return;
  }
  for (const PciInfo& info : *found) examine_card(system, info, PciSelector::Way::kVfio, list);
}

void examine_usb_bridges(System& system, bool is_named, std::vector<Finding>* list) {
  const std::string folder = "/sys/bus/usb/devices";
  std::vector<std::string> names;
  const bool has_usb = system.list(folder, &names) == 0;
  const size_t first = list->size();
  const auto number = [&](const std::string& name, const char* file, int base) {
    uint32_t value = 0;
    const std::string text = first_line(system, fmt::format("{}/{}/{}", folder, name, file));
    (void)std::from_chars(text.data(), text.data() + text.size(), value, base);
    return value;
  };
  constexpr int kHexadecimal = 16, kDecimal = 10;
  for (const std::string& name : names) {
    const auto vendor = static_cast<uint16_t>(number(name, "idVendor", kHexadecimal));
    const auto product = static_cast<uint16_t>(number(name, "idProduct", kHexadecimal));
    const Asm24Kind kind = asm24_kind(vendor, product);
    if (kind == Asm24Kind::kNone) continue;
    const uint32_t bus = number(name, "busnum", kDecimal), at = number(name, "devnum", kDecimal);
    Finding bridge{.subject = fmt::format("USB bridge {}-{}", bus, at),
                   .seen = fmt::format("{:04x}:{:04x}", vendor, product),
                   .ways = kWayAmdUsb};
    bridge.card = bridge.subject;
    if (kind == Asm24Kind::kStock) {
      bridge.seen += ", with the firmware it is sold with";
      bridge.remedy =
          "that keeps its PCI bus to itself: docs/hw/usb.md says which firmware gives it away";
      list->push_back(std::move(bridge));
      continue;
    }
    const std::string card = bridge.card;
    list->push_back(std::move(bridge));
    Finding node = examine_node(system, fmt::format("/dev/bus/usb/{:03}/{:03}", bus, at),
                                kWayAmdUsb, "udev makes it when the bridge is plugged in again");
    if (!node.remedy.empty() && node.seen.ends_with("may not use it"))
      node.remedy = fmt::format(
          "a udev rule such as SUBSYSTEM==\"usb\", ATTR{{idVendor}}==\"{:04x}\", MODE=\"0660\", "
          "GROUP=\"render\" gives it",
          vendor);
    node.card = card;
    list->push_back(std::move(node));
  }
  if (list->size() == first) {
    if (!is_named) return;
    list->push_back({.subject = "USB bridges",
                     .seen = has_usb ? "none" : "no USB is shown",
                     .remedy = "plug in one with an ASM2462 or ASM2464PD (add1:0001 or 3801:0001)",
                     .ways = kWayAmdUsb});
  }
  list->push_back(
      {.subject = "libusb",
       .seen = system.has_library("libusb-1.0.so.0") ? "libusb-1.0.so.0" : "not found",
       .remedy = system.has_library("libusb-1.0.so.0") ? "" : "apt install libusb-1.0-0",
       .ways = kWayAmdUsb});
  list->push_back({.subject = "firmware behind bridges",
                   .seen = "its chip says which files; it is read from the card",
                   .remedy = "bellmetal gpu firmware check --chip gfx1201, or what its chip is",
                   .ways = kWayAmdUsb,
                   .is_blocking = false});
}

}  // namespace bm::cli
