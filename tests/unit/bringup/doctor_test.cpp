// `bellmetal doctor` on machines of the tests: each subject fine, and each with what is to be done.

#include <sys/stat.h>

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/bringup/bench.h"
#include "tests/unit/transport/fake_machine.h"
#include "tools/bellmetal/bringup/doctor.h"

namespace bm::cli {
namespace {

/// Nothing of the real machine is seen.
class Machine final : public test::FakeMachine {
 public:
  Machine() {
    put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU 3000\n");
    put("/proc/cmdline", "BOOT_IMAGE=/vmlinuz quiet iommu=pt\n");
    put("/proc/meminfo", "MemTotal: 1 kB\nHugePages_Free:       4\n");
    put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    put("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n");
    put("/sys/class/iommu/dmar0/uevent", "");
    put("/sys/bus/pci/drivers/vfio-pci/new_id", "");
    put("/etc/group", "root:x:0:\nrender:x:105:\n");
    put("/etc/OpenCL/vendors/pocl.icd", "libpocl.so");
    libraries = {"libOpenCL.so.1", "libLLVM.so.19.1"};
  }
  void node(const std::string& path, uint32_t mode, uint32_t user, uint32_t group) {
    put(path, "");
    nodes[path] = {.mode = S_IFCHR | mode, .user = user, .group = group};
  }

  int read_file(const std::string& path, std::string* out) override {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(resolve(path));
    if (found == files_.end()) return -ENOENT;
    *out = found->second;
    return 0;
  }
  int list(const std::string& path, std::vector<std::string>* out) override {
    if (is_ours(path)) return FakeMachine::list(path, out);
    out->clear();
    for (const auto& [name, text] : files_)
      if (name.starts_with(path + "/")) out->push_back(name.substr(path.size() + 1));
    return out->empty() ? -ENOENT : 0;
  }
  int status(const std::string& path, FileStatus* out) override {
    const auto found = nodes.find(path);
    if (found == nodes.end()) return -ENOENT;
    *out = found->second;
    return 0;
  }
  ProcessUser user() override { return {.user = 1000, .groups = groups}; }
  bool has_library(const std::string& name) override {
    return std::ranges::find(libraries, name) != libraries.end();
  }
  uint64_t locked_memory_limit() override { return locked; }

  std::map<std::string, FileStatus> nodes;
  std::vector<uint32_t> groups = {1000, 105};
  std::vector<std::string> libraries;
  uint64_t locked = UINT64_MAX;
};

constexpr const char* kCard = "0000:03:00.0";

/// A card that vfio has, alone in its group, which this user may open.
void add_card(Machine& machine, const std::string& driver = "vfio-pci") {
  machine.add({.address = kCard,
               .vendor = 0x1002,
               .device = 0x744c,
               .driver = driver,
               .bars = {uint64_t{16} << 30, 0, 2 << 20, 0, 0, 1 << 20}});
  machine.put(std::string("/sys/bus/pci/devices/") + kCard + "/current_link_width", "16\n");
  machine.node("/dev/vfio/14", 0660, 0, 105);
}

std::vector<Finding> look(Machine& machine, const std::string& device = {}) {
  auto list = examine(machine, {.device = device, .cache_folder = "/home/u/.cache/bellmetal"});
  EXPECT_TRUE(list) << list.error().message;
  return list.value_or(std::vector<Finding>{});
}

Finding of(const std::vector<Finding>& list, const std::string& subject) {
  const auto found = std::ranges::find(list, subject, &Finding::subject);
  EXPECT_NE(found, list.end()) << subject;
  return found == list.end() ? Finding{} : *found;
}

TEST(Doctor, EverySubjectIsFineOnAMachineThatIs) {
  Machine machine;
  add_card(machine);
  for (const Finding& finding : look(machine, kCard)) {
    if (finding.subject.ends_with("firmware") || finding.subject == "comgr") continue;
    EXPECT_EQ(finding.remedy, "") << finding.subject << ": " << finding.seen;
  }
}

struct Case {
  const char* name;
  void (*plant)(Machine&);
  const char* subject;
  const char* remedy;
};
const Case kCases[] = {
    {"IommuOff", [](Machine& m) { m.remove("/sys/class/iommu"); }, "IOMMU", "VT-d or AMD-Vi"},
    {"IommuSwitchedOff",
     [](Machine& m) {
       m.remove("/sys/class/iommu");
       m.put("/proc/cmdline", "intel_iommu=off\n");
     },
     "IOMMU", "take iommu=off"},
    {"KernelOption", [](Machine& m) { m.put("/proc/cmdline", "pci=nomsi\n"); }, "kernel options",
     "take pci=nomsi away"},
    {"Lockdown",
     [](Machine& m) {
       m.put("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
     },
     "lockdown", "VFIO behind an IOMMU works"},
    {"LockedMemory", [](Machine& m) { m.locked = 8 << 20; }, "locked memory", "ulimit -l"},
    {"NoVfio", [](Machine& m) { m.remove("/sys/bus/pci/drivers/vfio-pci"); }, "vfio-pci",
     "modprobe vfio-pci"},
    {"NodeOfRoot", [](Machine& m) { m.node("/dev/vfio/14", 0600, 0, 0); }, "/dev/vfio/14",
     "udev rule"},
    {"NodeOfAGroup", [](Machine& m) { m.groups = {1000}; }, "/dev/vfio/14", "usermod -aG render"},
    {"Governor",
     [](Machine& m) {
       m.put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
     },
     "CPU governor", "cpupower"},
    {"HugePages",
     [](Machine& m) {
       m.put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
     },
     "huge pages", "echo madvise"},
    {"CacheOfOthers",
     [](Machine& m) {
       m.nodes["/home/u/.cache/bellmetal"] = {.mode = S_IFDIR | 0777, .user = 1000, .group = 1000};
     },
     "kernel cache", "chmod go-w"},
    {"SmallBar",
     [](Machine& m) {
       m.put("/sys/bus/pci/devices/0000:03:00.0/resource0_resize", "0000000000010000\n");
     },
     "0000:03:00.0 BAR 0", "--resize"},
    {"Holder", [](Machine& m) { m.add_process(77, "vm", "/dev/vfio/14"); }, "0000:03:00.0 holders",
     "end them first"},
    {"Sibling",
     [](Machine& m) {
       m.add({.address = "0000:03:00.1",
              .vendor = 0x1002,
              .device = 0xab30,
              .class_code = 0x040300,
              .driver = "snd_hda_intel"});
     },
     "0000:03:00.0 IOMMU group", "0000:03:00.1 (snd_hda_intel)"},
};

class DoctorCase : public ::testing::TestWithParam<Case> {};

TEST_P(DoctorCase, IsNamedWithItsRemedy) {
  Machine machine;
  add_card(machine);
  GetParam().plant(machine);
  const Finding finding = of(look(machine, kCard), GetParam().subject);
  EXPECT_NE(finding.remedy.find(GetParam().remedy), std::string::npos)
      << finding.seen << ": " << finding.remedy;
}

INSTANTIATE_TEST_SUITE_P(Planted, DoctorCase, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(Doctor, ACardOfTheKernelsIsToBeBound) {
  Machine machine;
  add_card(machine, "amdgpu");
  const Finding finding = of(look(machine, kCard), "0000:03:00.0 driver");
  EXPECT_EQ(finding.remedy, "bellmetal pci bind 0000:03:00.0");
  EXPECT_TRUE(finding.is_blocking);
}

TEST(Doctor, ANvidiaCardWithoutItsDriverIsLookedAtAsOneOfOurs) {
  Machine machine;
  machine.add({.vendor = 0x10de, .device = 0x2684, .driver = "nouveau"});
  const auto list = look(machine, "NV:PCI");
  EXPECT_EQ(of(list, "0000:03:00.0 driver").remedy, "bellmetal pci bind 0000:03:00.0");
  EXPECT_EQ(of(list, "0000:03:00.0 BAR 1").subject, "0000:03:00.0 BAR 1");
  EXPECT_NE(of(list, "0000:03:00.0 firmware").remedy.find("gpu firmware check"), std::string::npos);
}

TEST(Doctor, WithoutACardItSaysSoAndStillLooksAtTheRest) {
  Machine machine;
  machine.add(
      {.address = "0000:00:01.0", .vendor = 0x1af4, .device = 0x1000, .driver = "", .bars = {}});
  const auto list = look(machine);
  EXPECT_EQ(of(list, "AMD GPUs").remedy, "");
  EXPECT_EQ(of(list, "NVIDIA GPUs").seen, "none in this machine");
  for (const Finding& finding : list)
    EXPECT_FALSE(finding.is_blocking && !finding.remedy.empty()) << finding.subject;
  EXPECT_NE(of(look(machine, "AMD:PCI"), "AMD cards").remedy, "");
  EXPECT_NE(of(look(machine, "NV:PCI"), "NVIDIA cards").remedy, "");
  EXPECT_EQ(of(list, "processor").seen, "Some CPU 3000");
  EXPECT_EQ(of(list, "OpenCL drivers").seen, "pocl.icd");
  EXPECT_EQ(of(look(machine, "NV"), "NVIDIA driver").seen, "not loaded");
}

TEST(Doctor, TheExitCodeIsThatOfTheDeviceNamed) {
  Machine machine;
  const auto exit_of = [&](const std::string& device) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = run_doctor(machine, {.device = device, .cache_folder = {}, .as_json = true});
    const auto out = testing::internal::GetCapturedStdout();
    (void)testing::internal::GetCapturedStderr();
    EXPECT_FALSE(nlohmann::json::parse(out, nullptr, false).is_discarded()) << out;
    return code;
  };
  EXPECT_EQ(exit_of(""), kOk) << "no device was named";
  EXPECT_EQ(exit_of("CPU"), kOk);
  EXPECT_EQ(exit_of("CL"), kOk);
  EXPECT_EQ(exit_of("AMD"), kFailure) << "there is no /dev/kfd";
  EXPECT_EQ(exit_of("AMD:PCI"), kFailure);
  EXPECT_EQ(exit_of("NV"), kFailure);
  EXPECT_EQ(exit_of("TPU"), kUsage);
  EXPECT_EQ(exit_of("0000:44:00.0"), kUnavailable);
  machine.libraries.clear();
  EXPECT_EQ(exit_of("CL"), kFailure);
}

constexpr const char* kNvidia = "0000:04:00.0";
void add_nvidia(Machine& machine, const std::string& driver) {
  machine.add({.address = kNvidia,
               .vendor = 0x10de,
               .device = 0x2684,
               .driver = driver,
               .group = "15",
               .bars = {16 << 20, uint64_t{32} << 30, 0, 32 << 20}});
  machine.put(std::string("/sys/bus/pci/devices/") + kNvidia + "/current_link_width", "16\n");
  machine.node("/dev/vfio/15", 0660, 0, 105);
}
bool has_subject(const std::vector<Finding>& list, const std::string& part) {
  return std::ranges::any_of(
      list, [&](const Finding& one) { return one.subject.find(part) != std::string::npos; });
}

TEST(Doctor, AMachineWithNvidiaAloneShowsItsCard) {
  Machine machine;
  add_nvidia(machine, "vfio-pci");
  const auto list = look(machine);
  EXPECT_EQ(of(list, "0000:04:00.0 driver").remedy, "");
  EXPECT_EQ(of(list, "IOMMU").remedy, "");
  // Its own driver serves it as well: then it is of interest to who asks for NV:PCI.
  Machine served;
  add_nvidia(served, "nvidia");
  EXPECT_FALSE(has_subject(look(served), kNvidia));
  EXPECT_EQ(of(look(served, "NV:PCI"), "0000:04:00.0 driver").remedy,
            "bellmetal pci bind 0000:04:00.0");
}

TEST(Doctor, ADeviceIsNotJudgedByTheOtherVendorsCards) {
  Machine machine;
  add_card(machine, "amdgpu");
  add_nvidia(machine, "vfio-pci");
  const auto nvidia = look(machine, "NV:PCI"), amd = look(machine, "AMD:PCI");
  EXPECT_FALSE(has_subject(nvidia, kCard) || has_subject(nvidia, "comgr"));
  EXPECT_TRUE(has_subject(nvidia, kNvidia) && has_subject(nvidia, "NVRTC"));
  EXPECT_FALSE(is_blocked(nvidia));
  EXPECT_FALSE(has_subject(amd, kNvidia) || has_subject(amd, "NVRTC"));
  EXPECT_TRUE(is_blocked(amd)) << "the only card is amdgpu's";
  EXPECT_FALSE(has_subject(look(machine, kNvidia), "comgr"));
}

std::vector<Finding> look_with(Machine& machine, const std::string& pci,
                               const std::string& device = "AMD:PCI") {
  auto list = examine(machine, {.device = device, .pci = pci, .cache_folder = "/home/u/.cache"});
  EXPECT_TRUE(list) << list.error().message;
  return list.value_or(std::vector<Finding>{});
}

TEST(Doctor, BmPciSaysWhichCardsAreLookedAt) {
  Machine machine;
  add_card(machine, "amdgpu");
  machine.add({.address = "0000:0c:00.0",
               .vendor = 0x1002,
               .device = 0x744c,
               .driver = "vfio-pci",
               .group = "16",
               .bars = {uint64_t{16} << 30, 0, 2 << 20, 0, 0, 1 << 20}});
  machine.node("/dev/vfio/16", 0660, 0, 105);
  const auto list = look_with(machine, "0000:0c:00.0");
  EXPECT_FALSE(has_subject(list, kCard));
  EXPECT_EQ(of(list, "0000:0c:00.0 driver").remedy, "");
  EXPECT_EQ(of(look_with(machine, kCard), "0000:03:00.0 driver").remedy,
            "bellmetal pci bind 0000:03:00.0");
  EXPECT_TRUE(has_subject(look_with(machine, "0000:0c:00.0", ""), "0000:0c:00.0"));
  EXPECT_FALSE(has_subject(look_with(machine, "0000:0c:00.0", ""), kCard));
  // A device that is named is that one.
  EXPECT_TRUE(has_subject(look_with(machine, "0000:0c:00.0", kCard), kCard));
  EXPECT_FALSE(has_subject(look_with(machine, "0000:0c:00.0", "AMD"), "0000:0c:00.0"));
}

TEST(Doctor, BmPciThatCannotBeIsSaidToBeSo) {
  Machine machine;
  add_card(machine);
  add_nvidia(machine, "vfio-pci");
  const Finding word = of(look_with(machine, "card0"), "BM_PCI");
  EXPECT_NE(word.seen.find("'card0' names no PCI function"), std::string::npos) << word.seen;
  EXPECT_TRUE(is_blocked(look_with(machine, "card0")));
  const auto gone = look_with(machine, "0000:44:00.0");
  EXPECT_NE(of(gone, "vfio:0000:44:00.0").remedy.find("pci list"), std::string::npos);
  EXPECT_TRUE(is_blocked(gone));
  const auto other = look_with(machine, kNvidia);
  EXPECT_EQ(of(other, "vfio:0000:04:00.0").seen, "10de:2684");
  EXPECT_TRUE(is_blocked(other));
}

TEST(Doctor, ACardBehindASocketNeedsNothingOfTheMachineButTheSocket) {
  Machine machine;
  machine.remove("/sys/class/iommu");
  machine.remove("/sys/bus/pci/drivers/vfio-pci");
  machine.locked = 8 << 20;
  machine.node("/tmp/card.sock", 0600, 1000, 1000);
  for (const char* device : {"AMD:PCI", "PCI+AMD", "amd:pci", "NV:PCI"}) {
    const auto list = look_with(machine, "remote:/tmp/card.sock", device);
    EXPECT_EQ(of(list, "remote:/tmp/card.sock").remedy, "");
    EXPECT_FALSE(is_blocked(list)) << device;
  }
  EXPECT_FALSE(is_blocked(look_with(machine, "", "vfio-user:/tmp/card.sock")));
  EXPECT_FALSE(is_blocked(look_with(machine, "remote:localhost:6667")));
  EXPECT_NE(of(look_with(machine, "vfio-user:/tmp/none.sock"), "vfio-user:/tmp/none.sock").remedy,
            "");
  machine.nodes["/tmp/card.sock"].user = 0;
  EXPECT_TRUE(is_blocked(look_with(machine, "remote:/tmp/card.sock")));
}

TEST(Doctor, ACardOfSysfsHasNoDriverAndNoIommu) {
  Machine machine;
  machine.remove("/sys/class/iommu");
  machine.add({.vendor = 0x1002,
               .device = 0x744c,
               .driver = "",
               .group = "",
               .bars = {uint64_t{16} << 30, 0, 2 << 20, 0, 0, 1 << 20}});
  const std::string resource = std::string("/sys/bus/pci/devices/") + kCard + "/resource0";
  machine.node(resource, 0600, 0, 0);
  const auto list = look_with(machine, "sysfs:0000:03:00.0");
  EXPECT_EQ(of(list, "0000:03:00.0 driver").remedy, "");
  EXPECT_EQ(of(list, "0000:03:00.0 IOMMU group").remedy, "");
  EXPECT_NE(of(list, resource).remedy, "") << "it is root's";
  EXPECT_FALSE(has_subject(list, "vfio") || has_subject(list, "locked memory"));
  Machine bound;
  add_card(bound, "amdgpu");
  const auto other = look_with(bound, "sysfs:0000:03:00.0");
  EXPECT_EQ(of(other, "0000:03:00.0 driver").remedy,
            "bellmetal pci bind 0000:03:00.0 --driver none");
  EXPECT_NE(of(other, "0000:03:00.0 IOMMU group").remedy.find("use vfio:"), std::string::npos);
}

void add_bridge(Machine& machine, const char* name, const char* vendor, const char* product,
                const char* at) {
  const std::string folder = std::string("/sys/bus/usb/devices/") + name;
  machine.put(folder + "/idVendor", std::string(vendor) + "\n");
  machine.put(folder + "/idProduct", std::string(product) + "\n");
  machine.put(folder + "/busnum", "2\n");
  machine.put(folder + "/devnum", std::string(at) + "\n");
}

TEST(Doctor, BridgesOfUsb) {
  Machine machine;
  machine.add({.address = "0000:00:01.0", .vendor = 0x1af4, .device = 0x1000, .driver = ""});
  EXPECT_NE(of(look(machine, "AMD:USB"), "USB bridges").remedy.find("add1:0001"),
            std::string::npos);
  EXPECT_TRUE(is_blocked(look(machine, "AMD:USB")));
  EXPECT_FALSE(has_subject(look(machine), "USB") || has_subject(look(machine), "libusb"))
      << "nobody asked";
  add_bridge(machine, "2-1", "174c", "2464", "5");
  const auto stock = look(machine, "USB+AMD");
  EXPECT_NE(of(stock, "USB bridge 2-5").remedy.find("docs/hw/usb.md"), std::string::npos);
  EXPECT_TRUE(is_blocked(stock));
  add_bridge(machine, "2-2", "add1", "0001", "7");
  machine.node("/dev/bus/usb/002/007", 0664, 0, 0);
  const auto mine = look(machine, "AMD:USB");
  EXPECT_EQ(of(mine, "USB bridge 2-7").remedy, "");
  EXPECT_NE(of(mine, "/dev/bus/usb/002/007").remedy.find("ATTR{idVendor}==\"add1\""),
            std::string::npos);
  EXPECT_EQ(of(mine, "libusb").remedy, "apt install libusb-1.0-0");
  EXPECT_FALSE(has_subject(mine, "IOMMU") || has_subject(mine, "kfd"));
  machine.nodes["/dev/bus/usb/002/007"].mode = S_IFCHR | 0666;
  machine.libraries.push_back("libusb-1.0.so.0");
  EXPECT_FALSE(is_blocked(look(machine, "AMD:USB"))) << "one bridge that works is enough";
  EXPECT_TRUE(has_subject(look(machine), "USB bridge 2-7"));
}

TEST(Doctor, OneCardThatWorksIsEnough) {
  const Finding fine{.subject = "a", .seen = "", .remedy = "", .card = "0000:03:00.0"};
  const Finding bad{.subject = "b", .seen = "", .remedy = "do", .card = "0000:0c:00.0"};
  const Finding machine{.subject = "c", .seen = "", .remedy = "do"};
  Finding slower = machine;
  slower.is_blocking = false;
  EXPECT_FALSE(is_blocked({fine, bad, slower}));
  EXPECT_TRUE(is_blocked({bad}));
  EXPECT_TRUE(is_blocked({fine, machine}));
  EXPECT_FALSE(is_blocked({}));
}

TEST(Doctor, CudaNeedsItsLibrary) {
  Machine machine;
  machine.put("/proc/driver/nvidia/version", "NVRM version: 580\n");
  for (const char* node : {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"})
    machine.node(node, 0666, 0, 0);
  EXPECT_TRUE(is_blocked(look(machine, "CUDA")));
  EXPECT_FALSE(is_blocked(look(machine, "NV")));
  machine.libraries.push_back("libcuda.so.1");
  EXPECT_FALSE(is_blocked(look(machine, "CUDA")));
}

TEST(Doctor, ACacheThatIsNotUsedIsNoFolderOfKernels) {
  Machine machine;
  machine.node("/dev/null", 0666, 0, 0);
  const auto cache = [&machine](const std::string& folder) {
    return of(examine(machine, {.device = "CPU", .cache_folder = folder}).value(), "kernel cache");
  };
  EXPECT_NE(cache("kernels").remedy.find("absolute"), std::string::npos);
  EXPECT_NE(cache("/dev/null").seen.find("no folder"), std::string::npos);
  EXPECT_EQ(cache("/dev/null").remedy.find("chmod"), std::string::npos);
}

TEST(Doctor, EveryLineEndsWithFineOrWhatToDo) {
  const test::Outcome outcome = test::run_command({"doctor"});
  EXPECT_EQ(outcome.exit, kOk) << outcome.err;
  size_t lines = 0;
  for (size_t at = 0; at < outcome.out.size();) {
    const size_t end = outcome.out.find('\n', at);
    const std::string line = outcome.out.substr(at, end - at);
    at = end + 1;
    ++lines;
    EXPECT_TRUE(line.ends_with(": fine") || line.find("TO DO: ") != std::string::npos ||
                line.find("could be better: ") != std::string::npos)
        << line;
  }
  EXPECT_GE(lines, 7u);
}

}  // namespace
}  // namespace bm::cli
