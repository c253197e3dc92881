#include "drivers/transport/pci_take.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "drivers/transport/pci_lock.h"
#include "drivers/transport/pci_open.h"
#include "drivers/transport/pci_vfio.h"
#include "tests/patience.h"
#include "tests/unit/transport/failing_system.h"
#include "tests/unit/transport/fake_machine.h"
#include "tests/unit/transport/fake_vfio.h"

namespace bm {
namespace {

using test::FailingSystem;
using test::FakeMachine;

constexpr PciAddress kGpu{0, 3, 0, 0}, kAudio{0, 3, 0, 1};
const std::string kFolder = "/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0";

/// A card of two functions in one IOMMU group, and a folder for journals and locks.
struct Rig {
  Rig() {
    char name[] = "/tmp/bm-take-XXXXXX";
    folder = ::mkdtemp(name);
    options.journal_folder = folder + "/journals";
    machine.add({});
    machine.add({.address = "0000:03:00.1",
                 .device = 0xab28,
                 .class_code = 0x040300,
                 .driver = "snd_hda_intel",
                 .bars = {16 << 10}});
    machine.add({.address = "0000:00:01.0", .class_code = 0x060400, .driver = "pcieport"});
  }
  ~Rig() {
    ::unlink((options.journal_folder + "/0000:03:00.0.journal").c_str());
    ::unlink((folder + "/bellmetal_0000:03:00.0.lock").c_str());
    ::rmdir(options.journal_folder.c_str());
    ::rmdir(folder.c_str());
  }
  FakeMachine machine;
  std::string folder;
  PciTakeOptions options;
};

TEST(PciTake, ACardAndItsGroupAreTakenAndGivenBackExactly) {
  Rig rig;
  rig.machine.put("/sys/bus/pci/devices/0000:03:00.1/driver_override", "snd_hda_intel\n");
  const std::string before = rig.machine.dump();
  const std::vector<PciChange> plan = *plan_pci_take(rig.machine, kGpu, rig.options);
  EXPECT_EQ(plan, (std::vector<PciChange>{{kGpu, "fakegpu", "vfio-pci", ""},
                                          {kAudio, "snd_hda_intel", "vfio-pci", "snd_hda_intel"}}));
  EXPECT_EQ(rig.machine.dump(), before) << "a plan changes nothing";
  EXPECT_EQ(*take_pci(rig.machine, kGpu, rig.options), plan);
  EXPECT_EQ(rig.machine.driver_of("0000:03:00.0"), "vfio-pci");
  EXPECT_EQ(rig.machine.driver_of("0000:03:00.1"), "vfio-pci");
  EXPECT_EQ(rig.machine.driver_of("0000:00:01.0"), "pcieport") << "bridges stay";
  EXPECT_EQ(list_pci_journals(rig.machine, rig.options.journal_folder),
            (std::vector<PciAddress>{kGpu}));
  EXPECT_TRUE(take_pci(rig.machine, kGpu, rig.options)->empty()) << "once more changes nothing";
  ASSERT_TRUE(restore_pci(rig.machine, kGpu, rig.options));
  EXPECT_EQ(rig.machine.dump(), before);
  EXPECT_EQ(restore_pci(rig.machine, kGpu, rig.options).error().code, Code::kNotFound);
}

TEST(PciTake, WithoutADriverForSysfs) {
  Rig rig;
  rig.options.driver = "none";
  const std::string before = rig.machine.dump();
  ASSERT_TRUE(take_pci(rig.machine, kGpu, rig.options));
  EXPECT_EQ(rig.machine.driver_of("0000:03:00.0"), "");
  EXPECT_EQ(rig.machine.driver_of("0000:03:00.1"), "snd_hda_intel") << "its group stays";
  ASSERT_TRUE(restore_pci(rig.machine, kGpu, rig.options));
  EXPECT_EQ(rig.machine.dump(), before);
}

TEST(PciTake, CardsInUseAreRefusedWithTheReason) {
  const auto refusal = [](Rig& rig, Code code) {
    const std::string before = rig.machine.dump();
    const auto taken = take_pci(rig.machine, kGpu, rig.options);
    EXPECT_EQ(rig.machine.dump(), before);
    EXPECT_FALSE(taken);
    if (taken) return std::string();
    EXPECT_EQ(taken.error().code, code);
    return taken.error().message;
  };
  Rig boot;
  boot.machine.put(kFolder + "/boot_vga", "1\n");
  EXPECT_EQ(
      refusal(boot, Code::kUnsupported),
      "0000:03:00.0 drives the firmware's screen, which would go dark; --display takes it all "
      "the same");
  boot.options.is_display_taken = true;
  EXPECT_TRUE(take_pci(boot.machine, kGpu, boot.options));
  Rig screen;
  screen.machine.put(kFolder + "/drm/card0/card0-DP-1/enabled", "enabled\n");
  EXPECT_NE(refusal(screen, Code::kUnsupported).find("card0-DP-1"), std::string::npos);
  Rig held;
  held.machine.put(kFolder + "/drm/renderD128/dev", "226:128\n");
  held.machine.add_process(42, "python3", "/dev/dri/renderD128");
  EXPECT_EQ(refusal(held, Code::kIo),
            "0000:03:00.0 is in use by pid 42 (python3, /dev/dri/renderD128); end it first");
  Rig sibling;
  sibling.machine.put("/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.1/sound/card1/pcmC1D3p/dev",
                      "116:9\n");
  sibling.machine.add_process(43, "pipewire", "/dev/snd/pcmC1D3p");
  EXPECT_NE(refusal(sibling, Code::kIo).find("pid 43 (pipewire"), std::string::npos);
  Rig disk;
  disk.machine.add({.address = "0000:04:00.0", .class_code = 0x010802, .driver = "nvme"});
  EXPECT_NE(refusal(disk, Code::kPermission).find("0000:04:00.0, which nvme drives"),
            std::string::npos);
  Rig plain;
  plain.machine.remove(kFolder + "/iommu_group");
  EXPECT_NE(refusal(plain, Code::kUnsupported).find("no IOMMU"), std::string::npos);
}

TEST(PciTake, AModuleThatIsMissingLeavesTheCardAsItWas) {
  Rig rig;
  rig.machine.remove("/sys/bus/pci/drivers/vfio-pci");
  const std::string before = rig.machine.dump();
  const auto taken = take_pci(rig.machine, kGpu, rig.options);
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().message.find("modprobe vfio-pci"), std::string::npos);
  EXPECT_EQ(rig.machine.dump(), before);
  EXPECT_TRUE(list_pci_journals(rig.machine, rig.options.journal_folder).empty());
}

TEST(PciTake, AnUnbindThatNeverEndsIsATimeout) {
  Rig rig;
  rig.options.limit = std::chrono::milliseconds(20);
  static std::atomic<bool> is_held;
  static std::atomic<int> waiting;
  is_held = true;
  waiting = 0;
  rig.machine.on_write = [](const std::string& path, const std::string&) {
    if (!path.ends_with("/unbind")) return 0;
    ++waiting;
    while (is_held) std::this_thread::yield();
    --waiting;
    return -ENODEV;
  };
  const auto taken = take_pci(rig.machine, kGpu, rig.options);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::kTimeout);
  EXPECT_NE(taken.error().message.find("still holds the device"), std::string::npos);
  is_held = false;
  // Its threads use the machine; they end before it does.
  while (waiting != 0) std::this_thread::yield();
}

TEST(PciTake, WhateverCallIsTheLastTheJournalUndoesIt) {
  for (uint64_t nth = 0;; ++nth) {
    Rig rig;
    const std::string before = rig.machine.dump();
    FailingSystem system(rig.machine, nth, EIO);
    const auto taken = take_pci(system, kGpu, rig.options);
    EXPECT_EQ(system.open_files(), 0u);
    if (!system.has_failed()) {
      EXPECT_TRUE(taken);
      break;
    }
    // A process that died here would leave this behind; the next one restores.
    const auto restored = restore_pci(rig.machine, kGpu, rig.options);
    EXPECT_TRUE(restored || restored.error().code == Code::kNotFound) << nth;
    EXPECT_EQ(rig.machine.dump(), before) << nth;
  }
}

TEST(PciTake, JournalsThatCannotBeAreRefused) {
  const std::vector<PciChange> changes = {{kGpu, "amdgpu", "vfio-pci", ""},
                                          {kAudio, "", "vfio-pci", "x"}};
  const std::string text = format_pci_journal(changes);
  EXPECT_EQ(*parse_pci_journal(text), changes);
  for (size_t cut = 0; cut + 1 < text.size(); ++cut)
    EXPECT_EQ(parse_pci_journal(text.substr(0, cut)).error().code, Code::kCorrupt) << cut;
  for (const char* const bad :
       {"bellmetal-pci 2\nend\n", "bellmetal-pci 1\n0000:03:00.0 a b\nend\n",
        "bellmetal-pci 1\n0000:03:00.0 ../../x b -\nend\n",
        "bellmetal-pci 1\n0000:03:00.0 a b c d\nend\n"})
    EXPECT_EQ(parse_pci_journal(bad).error().code, Code::kCorrupt) << bad;
  using namespace std::string_literals;
  EXPECT_EQ(parse_pci_journal("bellmetal-pci 1\n0000:03:00.0 a\0b c -\nend\n"s).error().code,
            Code::kCorrupt)
      << "a name that would be cut when it is written again";
  EXPECT_FALSE(parse_pci_journal("bellmetal-pci 1\n0000:03:00.9 a b -\nend\n"));
}

TEST(PciLock, OneOwnerAtATimeAndItsNameIsInTheMessage) {
  Rig rig;
  {
    const auto lock = PciLock::acquire(real_system(), kGpu, rig.folder);
    ASSERT_TRUE(lock) << lock.error().message;
    const auto second = PciLock::acquire(real_system(), kGpu, rig.folder);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().message.find(
                  fmt::format("device busy: 0000:03:00.0 is held by pid {} (", ::getpid())),
              0u)
        << second.error().message;
    EXPECT_TRUE(second.error().message.ends_with(" UTC"));
  }
  EXPECT_TRUE(PciLock::acquire(real_system(), kGpu, rig.folder)) << "a note alone holds nothing";
}

TEST(PciLock, AChildOfForkDoesNotHoldIt) {
  Rig rig;
  pid_t child = -1;
  {
    const auto lock = PciLock::acquire(real_system(), kGpu, rig.folder);
    ASSERT_TRUE(lock) << lock.error().message;
    child = ::fork();
    if (child == 0)
      for (;;) ::pause();
  }
  // The child lets go of it as its first act, which may come after the parent's next ones.
  const auto end = std::chrono::steady_clock::now() + test::patience(std::chrono::seconds(5));
  bool is_free = false;
  while (!is_free && std::chrono::steady_clock::now() < end)
    is_free = PciLock::acquire(real_system(), kGpu, rig.folder).has_value();
  EXPECT_TRUE(is_free) << "its parent let it go";
  ASSERT_GT(child, 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(PciLock, LinksAndMissingFoldersAreRefused) {
  Rig rig;
  const std::string path = rig.folder + "/bellmetal_0000:03:00.0.lock";
  ASSERT_EQ(::symlink("/etc/passwd", path.c_str()), 0);
  const auto lock = PciLock::acquire(real_system(), kGpu, rig.folder);
  EXPECT_EQ(lock.error().code, Code::kPermission);
  EXPECT_EQ(PciLock::acquire(real_system(), kGpu, rig.folder + "/none").error().code,
            Code::kNotFound);
  EXPECT_EQ(parse_lock_owner("123 1700000000 bell\x1b[2Jmetal\n")->command, "bell?[2Jmetal");
  for (const char* const bad : {"", "x", "0 1 a", "12", "12 ", "12 x", "12 13"})
    EXPECT_EQ(parse_lock_owner(bad).error().code, Code::kCorrupt) << bad;
  for (uint64_t nth = 0; nth < 4; ++nth) {
    Rig fresh;
    FailingSystem system(real_system(), nth);
    (void)PciLock::acquire(system, kGpu, fresh.folder);
    EXPECT_EQ(system.open_files(), 0u);
  }
}

TEST(PciOpen, SelectorsAndWhatIsNone) {
  for (const char* const text :
       {"vfio:0000:03:00.0", "sysfs:0000:03:00.0", "remote:/run/a.sock", "remote:localhost:6667",
        "remote:/run/a.sock#2", "vfio-user:/run/b.sock"})
    EXPECT_EQ(to_string(*parse_pci_selector(text)), text);
  EXPECT_EQ(to_string(*parse_pci_selector("03:00.0")), "vfio:0000:03:00.0");
  for (const char* const text :
       {"", "vfio:", "vfio:x", "usb:1", "remote:", "remote:/", "remote:host", "remote:/a#x",
        "vfio-user:relative", "vfio-user:", "sysfs:/path"}) {
    const auto selector = parse_pci_selector(text);
    ASSERT_FALSE(selector) << text;
    EXPECT_EQ(selector.error().code, Code::kInvalidArgument);
  }
  FakeMachine machine;
  EXPECT_EQ(open_pci(machine, *parse_pci_selector("vfio:0000:03:00.0")).error().code,
            Code::kNotFound);
  EXPECT_EQ(open_pci(machine, *parse_pci_selector("sysfs:0000:03:00.0")).error().code,
            Code::kNotFound);
  EXPECT_EQ(open_pci(real_system(), *parse_pci_selector("remote:/nowhere")).error().code,
            Code::kNotFound);
  EXPECT_EQ(open_pci(real_system(), *parse_pci_selector("vfio-user:/nowhere")).error().code,
            Code::kNotFound);
}

TEST(PciOpen, AFunctionIsLockedWhileItIsOpen) {
  Rig rig;
  test::FakeVfio vfio;
  const VfioPciOptions options{.address = kGpu, .lock_folder = rig.folder};
  std::unique_ptr<PciFunction> first = *open_vfio_pci(vfio, options);
  const auto second = open_vfio_pci(vfio, options);
  EXPECT_NE(second.error().message.find("device busy"), std::string::npos);
  first.reset();
  EXPECT_TRUE(open_vfio_pci(vfio, options));
}

}  // namespace
}  // namespace bm
