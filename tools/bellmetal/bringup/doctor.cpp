#include "tools/bellmetal/bringup/doctor.h"

#include <sys/stat.h>

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "drivers/transport/pci_enumerate.h"
#include "tools/bellmetal/bringup/doctor_card.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/bringup/vendors.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Whether this process may read and write a node, by its mode alone (ACLs may allow more).
bool may_use(System& system, const FileStatus& file) {
  const ProcessUser user = system.user();
  constexpr uint32_t kReadWrite = 6;
  const auto has = [&](uint32_t shift) { return (file.mode >> shift & kReadWrite) == kReadWrite; };
  if (user.user == 0) return true;
  if (user.user == file.user) return has(6);
  if (std::ranges::find(user.groups, file.group) != user.groups.end()) return has(3);
  return has(0);
}

/// What a group is called; its number where nobody says.
std::string group_name(System& system, uint32_t group) {
  std::string text;
  if (system.read_file("/etc/group", &text) == 0)
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string line = text.substr(at, end - at);
      at = end + 1;
      const size_t name = line.find(':');
      const size_t number = name == std::string::npos ? name : line.find(':', name + 1);
      if (number != std::string::npos &&
          line.substr(number + 1).starts_with(fmt::format("{}:", group)))
        return line.substr(0, name);
    }
  return fmt::format("{}", group);
}

}  // namespace

Finding examine_node(System& system, const std::string& path, uint32_t ways,
                     const std::string& if_missing) {
  FileStatus file;
  const int error = system.status(path, &file);
  if (error == -ENOENT || error == -ENOTDIR)
    return {.subject = path, .seen = "not there", .remedy = if_missing, .ways = ways};
  if (error < 0)
    return {.subject = path,
            .seen = errno_text(-error),
            .remedy = "make its folder readable",
            .ways = ways};
  const std::string seen = fmt::format("mode {:o}, user {}, group {}", file.mode & 0777, file.user,
                                       group_name(system, file.group));
  if (may_use(system, file)) return {.subject = path, .seen = seen, .ways = ways};
  const bool has_group = (file.mode & 0060) == 0060 && file.group != 0;
  return {.subject = path,
          .seen = seen + "; this user may not use it",
          .remedy = has_group
                        ? fmt::format("join the group: usermod -aG {} USER, and log in again",
                                      group_name(system, file.group))
                        : fmt::format("give it to a group by a udev rule, or chown USER {}", path),
          .ways = ways};
}

std::string first_line(System& system, const std::string& path) {
  std::string text;
  if (system.read_file(path, &text) != 0) return {};
  return text.substr(0, text.find('\n'));
}

namespace {

std::vector<std::string> names_in(System& system, const std::string& path) {
  std::vector<std::string> names;
  if (system.list(path, &names) != 0) names.clear();
  return names;
}

/// The value of "key : value" or "key: value" in a file of procfs.
std::string value_of(System& system, const std::string& path, std::string_view key) {
  std::string text;
  if (system.read_file(path, &text) != 0) return {};
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

Finding examine_cpu(System& system) {
  const std::string model = value_of(system, "/proc/cpuinfo", "model name");
  return {.subject = "processor",
          .seen = model.empty() ? "its name is not in /proc/cpuinfo" : model,
          .ways = kWayCpu,
          .is_blocking = false};
}

Finding examine_governor(System& system) {
  const std::string governor =
      first_line(system, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  Finding finding{
      .subject = "CPU governor",
      .seen = governor.empty() ? "none: the machine's firmware or host decides" : governor,
      .ways = kWayAll,
      .is_blocking = false};
  if (governor == "powersave" || governor == "conservative" || governor == "ondemand")
    finding.remedy = "for speed and steady timings: cpupower frequency-set -g performance";
  return finding;
}

Finding examine_huge_pages(System& system) {
  const std::string state = first_line(system, "/sys/kernel/mm/transparent_hugepage/enabled");
  const std::string free = value_of(system, "/proc/meminfo", "HugePages_Free");
  Finding finding{
      .subject = "huge pages",
      .seen = fmt::format("transparent: {}; reserved and free: {}",
                          state.empty() ? "not in this kernel" : state, free.empty() ? "0" : free),
      .ways = kWayPci | kWayCpu,
      .is_blocking = false};
  if (state.find("[never]") != std::string::npos)
    finding.remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  return finding;
}

Finding examine_cache(System& system, const std::string& folder) {
  Finding finding{.subject = "kernel cache", .is_blocking = false};
  if (folder.empty()) {
    finding.seen = "no folder: kernels are compiled in every process";
    finding.remedy = "set BM_CACHE_DIR or HOME";
    return finding;
  }
  if (!folder.starts_with('/')) {
    finding.seen = folder + " is relative, and holds code that runs: it is not used";
    finding.remedy = "name it by its absolute path in BM_CACHE_DIR";
    return finding;
  }
  FileStatus file;
  const int error = system.status(folder, &file);
  if (error == -ENOENT) {
    finding.seen = folder + " will be made";
    return finding;
  }
  if (error < 0) {
    finding.seen = fmt::format("{}: {}", folder, errno_text(-error));
    finding.remedy = "set BM_CACHE_DIR to a folder of this user's";
    return finding;
  }
  if (!S_ISDIR(file.mode)) {
    finding.seen = folder + " is no folder";
    finding.remedy = "set BM_CACHE_DIR to a folder of this user's";
    return finding;
  }
  const ProcessUser user = system.user();
  finding.seen = fmt::format("{}, mode {:o}, user {}", folder, file.mode & 0777, file.user);
  if (file.user != user.user && file.user != 0)
    finding.remedy = "it is somebody else's, and holds code that runs: set BM_CACHE_DIR";
  else if ((file.mode & 0022) != 0)
    finding.remedy = fmt::format("others can write code into it: chmod go-w {}", folder);
  return finding;
}

Finding examine_library(System& system, const std::string& subject,
                        std::initializer_list<const char*> names, uint32_t ways,
                        const std::string& remedy, bool is_blocking) {
  for (const char* const name : names)
    if (system.has_library(name))
      return {.subject = subject, .seen = name, .ways = ways, .is_blocking = is_blocking};
  return {.subject = subject,
          .seen = "not found",
          .remedy = remedy,
          .ways = ways,
          .is_blocking = is_blocking};
}

void examine_opencl(System& system, std::vector<Finding>* list) {
  list->push_back(examine_library(system, "OpenCL loader", {"libOpenCL.so.1"}, kWayCl,
                                  "apt install ocl-icd-libopencl1", true));
  std::string icds;
  for (const std::string& name : names_in(system, "/etc/OpenCL/vendors"))
    if (name.ends_with(".icd")) icds += (icds.empty() ? "" : ", ") + name;
  list->push_back(
      {.subject = "OpenCL drivers",
       .seen = icds.empty() ? "none in /etc/OpenCL/vendors" : icds,
       .remedy = icds.empty() ? "apt install pocl-opencl-icd, or the card's driver" : "",
       .ways = kWayCl});
}

void examine_amd(System& system, std::vector<Finding>* list) {
  list->push_back(examine_node(system, "/dev/kfd", kWayKfd,
                               "no amdgpu kernel driver with compute: modprobe amdgpu"));
  bool has_node = false;
  for (const std::string& name : names_in(system, "/dev/dri"))
    if (name.starts_with("renderD")) {
      has_node = true;
      list->push_back(examine_node(system, "/dev/dri/" + name, kWayKfd, ""));
    }
  if (!has_node)
    list->push_back({.subject = "render nodes",
                     .seen = "none in /dev/dri",
                     .remedy = "no kernel driver has a GPU: modprobe amdgpu",
                     .ways = kWayKfd});
  list->push_back(examine_library(system, "comgr", {"libamd_comgr.so.3", "libamd_comgr.so.2"},
                                  kWayKfd | kWayAmdPci | kWayAmdUsb,
                                  "only for HIP source: apt install libamd-comgr2", false));
}

/// `ways`: what is wanted; the CUDA driver's own library is needed by nothing else.
void examine_nvidia(System& system, uint32_t ways, std::vector<Finding>* list) {
  constexpr uint32_t kDriver = kWayNv | kWayCuda;
  const std::string version = first_line(system, "/proc/driver/nvidia/version");
  list->push_back(
      {.subject = "NVIDIA driver",
       .seen = version.empty() ? "not loaded" : version,
       .remedy = version.empty() ? "apt install nvidia-driver, then modprobe nvidia" : "",
       .ways = kDriver});
  bool has_card = false;
  for (const std::string& name : names_in(system, "/dev"))
    if (name.starts_with("nvidia") && name.size() > 6 && name[6] >= '0' && name[6] <= '9') {
      has_card = true;
      list->push_back(examine_node(system, "/dev/" + name, kDriver, ""));
    }
  if (!version.empty() || has_card) {
    const char* const remedy = "nvidia-modprobe makes it";
    list->push_back(examine_node(system, "/dev/nvidiactl", kDriver, remedy));
    list->push_back(examine_node(system, "/dev/nvidia-uvm", kDriver,
                                 "modprobe nvidia-uvm, then nvidia-modprobe -u"));
  }
  if (!has_card)
    list->push_back({.subject = "NVIDIA nodes",
                     .seen = "no /dev/nvidia0",
                     .remedy = "give a card to NVIDIA's driver, then run nvidia-modprobe",
                     .ways = kDriver});
  const bool is_cuda = ways == kWayCuda;
  list->push_back(examine_library(
      system, "CUDA driver library", {"libcuda.so.1"}, kWayCuda,
      is_cuda ? "apt install libcuda1" : "only for DEV=CUDA: apt install libcuda1", is_cuda));
  list->push_back(examine_library(system, "NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12"},
                                  kDriver | kWayNvPci, "apt install the CUDA toolkit's libnvrtc",
                                  false));
}

/// Whether the PCI bus shows a display or accelerator of `vendor`; true where it shows nothing.
bool has_gpu_of(System& system, uint16_t vendor) {
  const auto found = enumerate_pci(system, [vendor](const PciIdentity& identity) {
    const uint32_t base_class = identity.class_code >> 16;
    return identity.vendor == vendor && (base_class == 0x03 || base_class == 0x12);
  });
  return !found || !found->empty();
}

struct WayName {
  std::string_view name;
  uint32_t ways;
};
constexpr WayName kWays[] = {{"CPU", kWayCpu},       {"CL", kWayCl},       {"NV", kWayNv},
                             {"NV:PCI", kWayNvPci},  {"CUDA", kWayCuda},   {"AMD", kWayKfd},
                             {"NV:NVK", kWayNv},     {"AMD:KFD", kWayKfd}, {"AMD:PCI", kWayAmdPci},
                             {"AMD:USB", kWayAmdUsb}};

/// "PCI+AMD" is "AMD:PCI", in any case.
std::string way_name(std::string_view device) {
  const size_t plus = device.find('+');
  std::string name(plus == std::string_view::npos ? device : device.substr(plus + 1));
  if (plus != std::string_view::npos) name.append(":").append(device.substr(0, plus));
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return name;
}

/// Which ways a device has; the function that it names, if it is one, goes to `named`.
Result<uint32_t> ways_of(System& system, const std::string& device,
                         std::vector<PciSelector>* named) {
  if (device.empty()) return static_cast<uint32_t>(kWayAll);
  const auto* const row = std::ranges::find(kWays, way_name(device), &WayName::name);
  if (row != std::end(kWays)) return row->ways;
  const auto selector = parse_pci_selector(device);
  if (!selector)
    return fail(
        Code::kInvalidArgument,
        "'{}' is no device that can be looked at: CPU, CL, NV, NV:PCI, CUDA, AMD, AMD:PCI, AMD:USB "
        "or a PCI function (0000:03:00.0, sysfs:…, remote:/path, vfio-user:/path)",
        device);
  named->push_back(*selector);
  if (!selector->server.empty()) return static_cast<uint32_t>(kWayPci);
  const uint16_t vendor = BM_TRY(describe_pci(system, selector->address)).identity.vendor;
  return static_cast<uint32_t>(vendor == kAmdVendor      ? kWayAmdPci
                               : vendor == kNvidiaVendor ? kWayNvPci
                                                         : kWayPci);
}

}  // namespace

Result<std::vector<Finding>> examine(System& system, const DoctorOptions& options) {
  std::vector<PciSelector> functions;
  const uint32_t ways = BM_TRY(ways_of(system, options.device, &functions));
  std::vector<Finding> list;
  list.push_back(examine_cpu(system));
  list.push_back(examine_governor(system));
  list.push_back(examine_huge_pages(system));
  list.push_back(examine_cache(system, options.cache_folder));
  // The component that brings LLVM is built against one release.
  list.push_back(examine_library(system, "LLVM", {"libLLVM.so.19.1", "libLLVM-19.so.1"}, kWayAll,
                                 "without it kernels are C for clang or gcc: apt install libllvm19",
                                 false));
  examine_opencl(system, &list);
  // What a machine without such a GPU lacks is of interest to who names the device alone.
  const bool is_named = !options.device.empty();
  const bool wants_amd = is_named || has_gpu_of(system, kAmdVendor);
  if (wants_amd)
    examine_amd(system, &list);
  else
    list.push_back({.subject = "AMD GPUs",
                    .seen = "none in this machine; modelled ones are named by --pci remote:/path",
                    .ways = kWayKfd});
  if (is_named || has_gpu_of(system, kNvidiaVendor))
    examine_nvidia(system, ways, &list);
  else
    list.push_back({.subject = "NVIDIA GPUs", .seen = "none in this machine", .ways = kWayNv});
  if ((ways & kWayPci) != 0 && functions.empty() && !options.pci.empty()) {
    auto chosen = parse_pci_selectors(options.pci);
    if (chosen)
      functions = std::move(*chosen);
    else
      list.push_back({.subject = "BM_PCI",
                      .seen = chosen.error().message,
                      .remedy = "write it so, or unset it",
                      .ways = kWayPci});
  }
  if ((ways & kWayPci) != 0 && (is_named || !functions.empty() || has_examined_card(system))) {
    examine_machine_for_cards(system, functions, &list);
    examine_cards(system, functions, ways, is_named, &list);
  }
  if ((ways & kWayAmdUsb) != 0) examine_usb_bridges(system, is_named, &list);
  std::erase_if(list, [ways](const Finding& finding) { return (finding.ways & ways) == 0; });
  return list;
}

bool is_blocked(const std::vector<Finding>& findings) {
  // Of several cards one that works is enough.
  std::vector<std::string_view> cards, blocked;
  for (const Finding& one : findings) {
    const bool is_blocking = one.is_blocking && !one.remedy.empty();
    if (one.card.empty() && is_blocking) return true;
    if (one.card.empty()) continue;
    cards.push_back(one.card);
    if (is_blocking) blocked.push_back(one.card);
  }
  return !cards.empty() && std::ranges::all_of(cards, [&](std::string_view card) {
    return std::ranges::find(blocked, card) != blocked.end();
  });
}

int run_doctor(System& system, const DoctorOptions& options) {
  const auto list = examine(system, options);
  if (!list) return report(list.error(), options.as_json);
  const bool is_named = !options.device.empty();
  const bool is_stopped = is_blocked(*list);
  const int code = is_named && is_stopped ? kFailure : kOk;
  if (options.as_json) {
    Json findings = Json::array();
    for (const Finding& one : *list)
      findings.push_back({{"subject", one.subject},
                          {"found", one.seen},
                          {"fine", one.remedy.empty()},
                          {"blocking", one.is_blocking},
                          {"to_do", one.remedy}});
    print_json({{"device", options.device}, {"usable", !is_stopped}, {"findings", findings}});
    return code;
  }
  size_t width = 0;
  for (const Finding& one : *list) width = std::max(width, one.subject.size());
  for (const Finding& one : *list)
    fmt::print("{:<{}}  {}: {}\n", one.subject, width, one.seen,
               one.remedy.empty() ? "fine"
               : one.is_blocking  ? "TO DO: " + one.remedy
                                  : "could be better: " + one.remedy);
  if (is_named)
    fmt::print("{}: {}\n", options.device,
               is_stopped ? "something is to be done first" : "nothing is in the way");
  return code;
}

}  // namespace bm::cli
