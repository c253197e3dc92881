// `bellmetal gpu top`: a row a card from the kernel's files, and nothing written anywhere.

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/base/env.h"
#include "tests/unit/bringup/bench.h"
#include "tests/unit/transport/fake_machine.h"
#include "tools/bellmetal/bringup/top.h"

namespace bm::cli {
namespace {

using test::FakeMachine;

const std::string kCard = "/sys/bus/pci/devices/0000:03:00.0";

void add_amdgpu(FakeMachine& machine) {
  machine.add({.vendor = 0x1002, .device = 0x744c, .driver = "amdgpu"});
  machine.put(kCard + "/gpu_busy_percent", "37\n");
  machine.put(kCard + "/mem_info_vram_used", "1073741824\n");
  machine.put(kCard + "/mem_info_vram_total", "25753026560\n");
  const std::string at = kCard + "/hwmon/hwmon4/";
  machine.put(at + "temp1_input", "45000\n");
  machine.put(at + "temp1_label", "edge\n");
  machine.put(at + "temp2_input", "61500\n");
  machine.put(at + "temp2_label", "junction\n");
  machine.put(at + "power1_average", "123000000\n");
  machine.put(at + "power1_cap", "355000000\n");
  machine.put(at + "freq1_input", "2304000000\n");
  machine.put(at + "freq2_input", "1249000000\n");
}

std::string metrics(uint64_t throttled, char content = 3) {
  std::string text(120, '\0');
  text[0] = 120;
  text[2] = 1;
  text[3] = content;
  std::memcpy(text.data() + 112, &throttled, sizeof throttled);
  return text;
}

TEST(GpuTop, ACardOfAmdgpuHasItsSensors) {
  FakeMachine machine;
  add_amdgpu(machine);
  machine.put(kCard + "/gpu_metrics", metrics(uint64_t{1} << 32 | 1));
  const auto cards = read_cards(machine);
  ASSERT_TRUE(cards) << cards.error().message;
  ASSERT_EQ(cards->size(), 1u);
  const CardRow& row = cards->front();
  EXPECT_EQ(row.driver, "amdgpu");
  EXPECT_EQ(row.temperature_c, 45.0);
  EXPECT_EQ(row.junction_c, 61.5);
  EXPECT_EQ(row.power_w, 123.0);
  EXPECT_EQ(row.power_limit_w, 355.0);
  EXPECT_EQ(row.core_mhz, 2304u);
  EXPECT_EQ(row.memory_mhz, 1249u);
  EXPECT_EQ(row.busy_percent, 37u);
  EXPECT_EQ(row.memory_used_bytes, uint64_t{1} << 30);
  EXPECT_EQ(row.throttled_by, "power, temperature");
  EXPECT_FALSE(row.owner_pid);
  EXPECT_TRUE(machine.writes.empty());
}

TEST(GpuTop, MetricsOfAnotherVersionOrCutOffSayNothing) {
  EXPECT_EQ(decode_throttling(metrics(0)), "");
  EXPECT_EQ(decode_throttling(metrics(uint64_t{1} << 17)), "current");
  EXPECT_FALSE(decode_throttling(metrics(1, 1)));
  EXPECT_FALSE(decode_throttling(metrics(UINT64_MAX)));
  EXPECT_FALSE(decode_throttling(metrics(1).substr(0, 119)));
  EXPECT_FALSE(decode_throttling(""));
}

TEST(GpuTop, ACardThatSomebodyOwnsNamesHimAsLongAsHeLives) {
  FakeMachine machine;
  machine.add({.vendor = 0x1002, .device = 0x744c, .driver = "vfio-pci"});
  std::string locks = "/tmp/top-XXXXXX";
  ASSERT_NE(mkdtemp(locks.data()), nullptr);
  // As PciLock writes it: filled up with blanks.
  std::ofstream(locks + "/bellmetal_0000:03:00.0.lock")
      << "4242 1700000000 bellmetal" << std::string(75, ' ') << "\n";
  auto cards = read_cards(machine, locks);
  ASSERT_TRUE(cards) << cards.error().message;
  EXPECT_FALSE(cards->front().owner_pid) << "the note of a process that has ended";
  EXPECT_NE(cards->front().note.find("no driver"), std::string::npos);
  machine.add_process(4242, "bellmetal", "/dev/null");
  cards = read_cards(machine, locks);
  ASSERT_TRUE(cards);
  EXPECT_EQ(cards->front().owner_pid, 4242);
  EXPECT_EQ(cards->front().owner, "bellmetal");
  EXPECT_NE(cards->front().note.find("pid 4242"), std::string::npos);
  EXPECT_FALSE(cards->front().memory_used_bytes);
  std::filesystem::remove_all(locks);
}

TEST(GpuTop, ACardOfNvidiasDriverHasItsNameAndSaysWhereTheRestIs) {
  FakeMachine machine;
  machine.add({.vendor = 0x10de, .device = 0x2684, .driver = "nvidia"});
  machine.put("/proc/driver/nvidia/gpus/0000:03:00.0/information",
              "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ:   \t\t 120\n");
  const auto cards = read_cards(machine);
  ASSERT_TRUE(cards);
  EXPECT_EQ(cards->front().name, "NVIDIA GeForce RTX 4090");
  EXPECT_NE(cards->front().note.find("nvidia-smi"), std::string::npos);
}

TEST(GpuTop, ACardThatIsNamedIsAskedWhileNobodyHasIt) {
  const test::Bench bench({.chip = "gfx1100", .edge_c = 39});
  const auto cold = bench.gpu({"top", "--json"}).json();
  ASSERT_EQ(cold["cards"].size(), 1u) << cold;
  EXPECT_FALSE(cold["cards"][0].contains("power_w"));
  EXPECT_NE(cold["cards"][0]["note"].get<std::string>().find("gpu boot"), std::string::npos);
  ASSERT_EQ(bench.gpu({"boot"}).exit, kOk);
  const auto json = bench.gpu({"top", "--json"}).json();
  const auto& row = json["cards"][0];
  EXPECT_EQ(row["name"], "gfx1100") << row;
  EXPECT_EQ(row["function"], bench.selector());
  EXPECT_EQ(row["temperature_c"], 39);
  EXPECT_EQ(row["junction_temperature_c"], 48);
  EXPECT_EQ(row["power_limit_w"], 300);
  EXPECT_EQ(row["throttled_by"], "");
  EXPECT_FALSE(row.contains("note"));
  const test::Outcome text = bench.gpu({"top", "--once"});
  EXPECT_EQ(text.exit, kOk);
  EXPECT_NE(text.out.find("39 C"), std::string::npos) << text.out;
  EXPECT_TRUE(bench.gpu({"boot", "--json"}).json()["warm"]) << "it was not disturbed";
  EXPECT_EQ(bench.rig.violations(), "");
  EXPECT_EQ(test::run_command({"gpu", "top", "--pci", "remote:/nowhere/card.sock"}).exit,
            kUnavailable);
}

// What the user allows and names counts here as it does for a boot.
TEST(GpuTop, ACardThatIsOnTrialIsAskedWhereTheUserAllowsIt) {
  const test::Bench bench({.chip = "gfx942", .edge_c = 52});
  const ScopedSetting allowed("BM_AMD_EXPERIMENTAL", "gfx942");
  ASSERT_EQ(bench.gpu({"boot"}).exit, kOk);
  const auto card = [&] { return bench.gpu({"top", "--json"}).json()["cards"][0]; };
  const auto row = card();
  EXPECT_EQ(row["junction_temperature_c"], 61) << row;
  EXPECT_EQ(row["power_limit_w"], 300);
  EXPECT_FALSE(row.contains("temperature_c")) << "this board measures no edge";
  EXPECT_FALSE(row.contains("throttled_by"));
  EXPECT_FALSE(row.contains("note")) << row;
  const ScopedSetting forbidden("BM_AMD_EXPERIMENTAL", "");
  EXPECT_NE(card()["note"].get<std::string>().find("BM_AMD_EXPERIMENTAL"), std::string::npos);
  EXPECT_EQ(bench.rig.violations(), "");
}

// What a named card's owner is: the lock says, and the card is not touched.
TEST(GpuTop, ACardThatIsNamedAndOwnedSaysByWhom) {
  class Owned final : public FakeMachine {
   public:
    int create(const std::string& path, int flags, mode_t mode) override {
      if (!path.starts_with("/run/lock/")) return FakeMachine::create(path, flags, mode);
      const int fd = ::memfd_create("lock", MFD_CLOEXEC);
      const std::string note = "4242 1700000000 bellmetal\n";
      EXPECT_EQ(::pwrite(fd, note.data(), note.size(), 0), static_cast<ssize_t>(note.size()));
      return fd;
    }
    int flock(int, int) override { return -EWOULDBLOCK; }
  };
  Owned machine;
  machine.add({.vendor = 0x1002, .device = 0x744c, .driver = "vfio-pci"});
  machine.add_process(4242, "bellmetal", "/dev/null");
  const auto row =
      read_selected_card(machine, {.selector = "0000:03:00.0", .firmware_folders = {}});
  ASSERT_TRUE(row) << row.error().message;
  EXPECT_EQ(row->address, "0000:03:00.0");
  EXPECT_NE(row->note.find("held by pid 4242 (bellmetal)"), std::string::npos) << row->note;
  EXPECT_FALSE(row->power_w);
  EXPECT_TRUE(machine.writes.empty());
}

// A server that takes the connection and says nothing.
TEST(GpuTop, ACardThatDoesNotAnswerIsAnError) {
  std::string folder = "/tmp/top-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  uint16_t port = 0;
  const int listener = sim::listen_at(folder + "/card.sock", &port);
  ASSERT_GE(listener, 0);
  const test::Outcome outcome =
      test::run_command({"gpu", "top", "--once", "--pci", "vfio-user:" + folder + "/card.sock"});
  EXPECT_EQ(outcome.exit, kDeviceFailed);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("another process may have the card"), std::string::npos)
      << outcome.err;
  close(listener);
  std::filesystem::remove_all(folder);
}

TEST(GpuTop, TheScreenFitsTheTerminal) {
  FakeMachine machine;
  add_amdgpu(machine);
  const auto cards = read_cards(machine);
  ASSERT_TRUE(cards);
  const std::string wide = screen_text(*cards, 0), narrow = screen_text(*cards, 40);
  EXPECT_NE(wide.find("2304 MHz"), std::string::npos) << wide;
  EXPECT_NE(wide.find("1.0 GiB of 24.0 GiB"), std::string::npos) << wide;
  for (size_t at = 0; at < narrow.size(); at = narrow.find('\n', at) + 1)
    EXPECT_LE(narrow.find('\n', at) - at, 40u) << narrow;
  EXPECT_EQ(screen_text({}, 80), "no card of AMD or NVIDIA in this machine\n");
}

TEST(GpuTop, JsonHasTheUnitsInItsKeys) {
  FakeMachine machine;
  add_amdgpu(machine);
  testing::internal::CaptureStdout();
  TopOptions options;
  options.card.as_json = true;
  const int code = run_top(machine, options);
  const auto json = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  EXPECT_EQ(code, 0);
  EXPECT_EQ(json["cards"][0]["power_w"], 123.0);
  EXPECT_EQ(json["cards"][0]["core_clock_mhz"], 2304);
  EXPECT_EQ(json["cards"][0]["memory_used_bytes"], 1073741824);
  EXPECT_FALSE(json["cards"][0].contains("throttled_by"));
}

}  // namespace
}  // namespace bm::cli
