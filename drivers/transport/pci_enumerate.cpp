#include "drivers/transport/pci_enumerate.h"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>

#include "drivers/transport/sysfs.h"

namespace bm {
namespace {

const char* const kDevices = "/sys/bus/pci/devices";
// Flags of a resource, Linux include/linux/ioport.h.
constexpr uint64_t kResourceIo = 0x100, kResourceMemory = 0x200, kResourcePrefetch = 0x2000;
constexpr uint64_t kResource64 = 0x100000;
/// Where distributions keep the list of names (pciutils, hwdata).
const char* const kNameLists[] = {"/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids"};
constexpr int64_t kMaxNameList = 16 << 20;
constexpr size_t kMaxDescriptors = 100'000;

std::string text_or_empty(System& system, const std::string& path) {
  Result<std::string> text = read_sysfs(system, path);
  return text ? std::move(*text) : std::string();
}

std::vector<std::string> names_in(System& system, const std::string& path) {
  std::vector<std::string> names;
  if (system.list(path, &names) < 0) names.clear();
  return names;
}

std::vector<PciAddress> addresses_in(System& system, const std::string& path) {
  std::vector<PciAddress> addresses;
  for (const std::string& name : names_in(system, path))
    if (const Result<PciAddress> address = parse_pci_address(name)) addresses.push_back(*address);
  std::sort(addresses.begin(), addresses.end());
  return addresses;
}

Result<uint32_t> field(System& system, const std::string& folder, const char* name, int64_t most) {
  const int64_t value = BM_TRY(read_sysfs_number(system, folder + "/" + name));
  if (value < 0 || value > most)
    return fail(Code::kCorrupt, "{}/{} holds {:#x}", folder, name, value);
  return static_cast<uint32_t>(value);
}

Result<PciIdentity> identify(System& system, const PciAddress& address) {
  const std::string folder = pci_folder(address);
  PciIdentity identity{.address = address};
  identity.vendor = static_cast<uint16_t>(BM_TRY(field(system, folder, "vendor", 0xffff)));
  identity.device = static_cast<uint16_t>(BM_TRY(field(system, folder, "device", 0xffff)));
  identity.subsystem_vendor =
      static_cast<uint16_t>(field(system, folder, "subsystem_vendor", 0xffff).value_or(0));
  identity.subsystem_device =
      static_cast<uint16_t>(field(system, folder, "subsystem_device", 0xffff).value_or(0));
  identity.class_code = BM_TRY(field(system, folder, "class", 0xffffff));
  identity.revision = static_cast<uint8_t>(field(system, folder, "revision", 0xff).value_or(0));
  return identity;
}

/// A line per resource, "first last flags", the BARs first.
Result<std::array<PciBar, kPciBars>> read_resources(System& system, const std::string& folder) {
  const std::string text = BM_TRY(read_sysfs(system, folder + "/resource"));
  std::array<PciBar, kPciBars> bars{};
  size_t at = 0;
  for (uint32_t i = 0; i < kPciBars; ++i) {
    uint64_t first = 0, last = 0, flags = 0;
    if (std::sscanf(text.c_str() + at, "%" SCNx64 " %" SCNx64 " %" SCNx64, &first, &last, &flags) !=
            3 ||
        last < first)
      return fail(Code::kCorrupt, "{}/resource: line {} describes no resource", folder, i + 1);
    if (flags & (kResourceIo | kResourceMemory))
      bars[i] = {.size = last - first + 1,
                 .address = first,
                 .is_memory = (flags & kResourceMemory) != 0,
                 .is_64_bit = (flags & kResource64) != 0,
                 .is_prefetchable = (flags & kResourcePrefetch) != 0};
    at = std::min(text.find('\n', at), text.size() - 1) + 1;
  }
  return bars;
}

void read_link_state(System& system, const std::string& folder, PciInfo& info) {
  info.link_speed = text_or_empty(system, folder + "/current_link_speed");
  info.max_link_speed = text_or_empty(system, folder + "/max_link_speed");
  info.link_width = field(system, folder, "current_link_width", 64).value_or(0);
  info.max_link_width = field(system, folder, "max_link_width", 64).value_or(0);
}

/// Nodes, screens and consoles that the kernel's drivers made of the function.
void read_uses(System& system, const std::string& folder, PciInfo& info) {
  info.is_boot_display = text_or_empty(system, folder + "/boot_vga") == "1";
  for (const std::string& node : names_in(system, folder + "/drm")) {
    if (!node.starts_with("card") && !node.starts_with("renderD")) continue;
    info.nodes.push_back("/dev/dri/" + node);
    for (const std::string& part : names_in(system, folder + "/drm/" + node))
      if (part.starts_with(node + "-") &&
          text_or_empty(system, folder + "/drm/" + node + "/" + part + "/enabled") == "enabled")
        info.displays.push_back(part);
  }
  for (const std::string& node : names_in(system, folder + "/graphics")) {
    if (!node.starts_with("fb")) continue;
    info.nodes.push_back("/dev/" + node);
    info.displays.push_back(node);
  }
  for (const std::string& card : names_in(system, folder + "/sound"))
    for (const std::string& part : names_in(system, folder + "/sound/" + card))
      if (part.starts_with("pcm") || part.starts_with("control"))
        info.nodes.push_back("/dev/snd/" + part);
  if (info.iommu_group) {
    info.nodes.push_back(fmt::format("/dev/vfio/{}", *info.iommu_group));
    info.nodes.push_back(fmt::format("/dev/vfio/noiommu-{}", *info.iommu_group));
  }
}

Result<PciInfo> describe(System& system, const PciIdentity& identity) {
  const std::string folder = pci_folder(identity.address);
  PciInfo info;
  info.identity = identity;
  info.bars = BM_TRY(read_resources(system, folder));
  info.driver = BM_TRY(sysfs_link_name(system, folder + "/driver"));
  info.driver_override = text_or_empty(system, folder + "/driver_override");
  if (info.driver_override == "(null)") info.driver_override.clear();
  if (const std::string name = BM_TRY(sysfs_link_name(system, folder + "/iommu_group"));
      !name.empty()) {
    uint32_t group = 0;
    const char* const end = name.data() + name.size();
    if (std::from_chars(name.data(), end, group).ptr != end)
      return fail(Code::kCorrupt, "{}/iommu_group leads to '{}'", folder, name);
    info.iommu_group = group;
    info.iommu_type = text_or_empty(system, folder + "/iommu_group/type");
    info.group = addresses_in(system, folder + "/iommu_group/devices");
  }
  for (uint8_t function = 0; function < 8; ++function) {
    PciAddress other = identity.address;
    other.function = function;
    if (other != identity.address && read_sysfs(system, pci_folder(other) + "/vendor"))
      info.siblings.push_back(other);
  }
  if (const auto node = read_sysfs_number(system, folder + "/numa_node"); node && *node >= 0)
    info.numa_node = static_cast<uint32_t>(*node);
  read_link_state(system, folder, info);
  read_uses(system, folder, info);
  return info;
}

/// pci.ids: "vvvv  name" in column one, "\tdddd  name" below it (pciutils, man pci.ids).
class NameList {
 public:
  explicit NameList(System& system) {
    for (const char* const path : kNameLists) {
      const SystemFd fd(system, system.open(path, O_RDONLY));
      const int64_t bytes = fd.is_open() ? system.file_size(fd.get()) : 0;
      if (bytes <= 0 || bytes > kMaxNameList) continue;
      text_.resize(static_cast<size_t>(bytes));
      const ssize_t got = system.pread(fd.get(), text_.data(), text_.size(), 0);
      text_.resize(got < 0 ? 0 : static_cast<size_t>(got));
      if (!text_.empty()) return;
    }
  }
  void name(PciInfo& info) const {
    const size_t vendor = find(0, fmt::format("\n{:04x}  ", info.identity.vendor));
    if (vendor == std::string::npos) return;
    info.vendor_name = rest_of_line(vendor);
    // The vendor's part ends where a line begins with neither a tab nor a comment.
    size_t end = vendor;
    while ((end = text_.find('\n', end)) != std::string::npos && ++end < text_.size())
      if (text_[end] != '\t' && text_[end] != '#') break;
    const size_t device = find(vendor, fmt::format("\n\t{:04x}  ", info.identity.device));
    if (device < end) info.device_name = rest_of_line(device);
  }

 private:
  size_t find(size_t from, const std::string& text) const {
    const size_t at = text_.find(text, from);
    return at == std::string::npos ? at : at + text.size();
  }
  std::string rest_of_line(size_t at) const { return text_.substr(at, text_.find('\n', at) - at); }
  std::string text_;
};

}  // namespace

Result<std::vector<PciAddress>> list_pci(System& system) {
  std::vector<std::string> names;
  if (const int error = system.list(kDevices, &names); error < 0)
    return fail(code_from_errno(-error), "this machine shows no PCI devices: {}: {}", kDevices,
                errno_text(-error));
  return addresses_in(system, kDevices);
}

Result<PciInfo> describe_pci(System& system, const PciAddress& address) {
  const Result<PciIdentity> identity = identify(system, address);
  if (!identity && identity.error().code == Code::kNotFound)
    return fail(Code::kNotFound, "there is no PCI function {}", to_string(address));
  BM_TRY(identity);
  PciInfo info = BM_TRY(describe(system, *identity));
  NameList(system).name(info);
  return info;
}

Result<std::vector<PciInfo>> enumerate_pci(
    System& system, const std::function<bool(const PciIdentity&)>& is_wanted) {
  std::vector<PciInfo> found;
  for (const PciAddress& address : BM_TRY(list_pci(system))) {
    const Result<PciIdentity> identity = identify(system, address);
    if (!identity || !is_wanted(*identity)) continue;
    Result<PciInfo> info = describe(system, *identity);
    if (info) found.push_back(std::move(*info));
  }
  if (found.empty()) return found;
  const NameList names(system);
  for (PciInfo& info : found) names.name(info);
  return found;
}

std::string process_command(System& system, int pid) {
  return text_or_empty(system, fmt::format("/proc/{}/comm", pid));
}

std::vector<PciHolder> find_pci_holders(System& system, const PciInfo& info, bool* is_complete) {
  // Descriptors of sysfs files are named by where the folder really lies.
  const std::string inside = "/" + to_string(info.identity.address) + "/";
  const auto is_its_own = [&](const std::string& path) {
    return (path.starts_with("/sys/devices/") && path.find(inside) != std::string::npos) ||
           std::find(info.nodes.begin(), info.nodes.end(), path) != info.nodes.end();
  };
  std::vector<PciHolder> holders;
  size_t looked_at = 0;
  bool is_whole = true;
  for (const std::string& process : names_in(system, "/proc")) {
    int pid = 0;
    const char* const end = process.data() + process.size();
    if (std::from_chars(process.data(), end, pid).ptr != end) continue;
    const std::string folder = "/proc/" + process + "/fd";
    std::vector<std::string> descriptors;
    if (const int error = system.list(folder, &descriptors); error < 0) {
      is_whole &= error == -ENOENT || error == -ESRCH;  // It has ended meanwhile.
      continue;
    }
    for (const std::string& descriptor : descriptors) {
      if (++looked_at > kMaxDescriptors) break;
      std::string path;
      if (system.read_link(folder + "/" + descriptor, &path) < 0 || !is_its_own(path)) continue;
      holders.push_back({pid, process_command(system, pid), path});
      break;
    }
  }
  if (is_complete != nullptr) *is_complete = is_whole && looked_at <= kMaxDescriptors;
  return holders;
}

}  // namespace bm
