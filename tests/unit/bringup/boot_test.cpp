// `bellmetal gpu boot`: what it prints of a boot that goes well and of one that does not.

#include <fcntl.h>

#include <fstream>
#include <iterator>

#include "drivers/transport/pci_trace.h"
#include "runtime/base/env.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/unit/bringup/bench.h"
#include "tools/bellmetal/bringup/bringup.h"

namespace bm::cli {
namespace {

using test::Bench;
using test::Outcome;

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(GpuBoot, EveryStageHasNumberNameTimeAndConditions) {
  const Bench bench;
  const Outcome outcome = bench.gpu({"boot", "--json"});
  ASSERT_EQ(outcome.exit, kOk) << outcome.out << outcome.err;
  const auto json = outcome.json();
  EXPECT_TRUE(json["booted"]);
  EXPECT_FALSE(json["warm"]);
  ASSERT_GT(json["stages"].size(), 15u);
  for (size_t i = 0; i < json["stages"].size(); ++i) {
    const auto& stage = json["stages"][i];
    EXPECT_EQ(stage["number"], i + 1);
    for (const char* key : {"name", "time_us", "needs", "leaves"})
      EXPECT_TRUE(stage.contains(key)) << stage;
  }
  EXPECT_EQ(json["stages"].front()["name"], "map");
  EXPECT_EQ(json["stages"].back()["name"], "mark");
  EXPECT_EQ(bench.rig.violations(), "");
}

TEST(GpuBoot, ASecondBootIsWarmAndShorter) {
  const Bench bench;
  const auto first = bench.gpu({"boot", "--json"}).json();
  const auto second = bench.gpu({"boot", "--json"}).json();
  EXPECT_TRUE(second["warm"]) << second;
  EXPECT_LT(second["stages"].size(), first["stages"].size());
  const auto again = bench.gpu({"boot", "--reset", "--json"}).json();
  EXPECT_FALSE(again["warm"]) << again;
}

TEST(GpuBoot, TextSaysWhatEachStageFound) {
  const Bench bench;
  const Outcome outcome = bench.gpu({"boot"});
  ASSERT_EQ(outcome.exit, kOk) << outcome.err;
  for (const char* words : {" 1  map", "4096 MiB of video memory are visible", "needs   ",
                            "leaves  ", "gfx1201, GC 12.0.1", "booted gfx1201 cold"})
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << "\n" << outcome.out;
}

// As on a terminal, which has both.
TEST(GpuBoot, AWarningStandsOnALineOfItsOwn) {
  const Bench bench;
  testing::internal::CaptureStdout();
  const int own = ::dup(STDERR_FILENO);
  ASSERT_EQ(::dup2(STDOUT_FILENO, STDERR_FILENO), STDERR_FILENO);
  BootOptions options;
  options.card = {.selector = bench.selector(), .firmware_folders = {bench.rig.folder.path()}};
  const int code = run_boot(real_system(), options);
  std::fflush(stderr);
  ::dup2(own, STDERR_FILENO);
  ::close(own);
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, kOk) << out;
  const size_t warning = out.find("[amd] warning: ");
  ASSERT_NE(warning, std::string::npos) << out;
  EXPECT_EQ(out[warning - 1], '\n') << out;
}

TEST(GpuBoot, AFailedBootShowsItsStagesAndTheCause) {
  const Bench bench({.smu_answer = {{0x6, 0xfc}}});
  const Outcome text = bench.gpu({"boot", "--reset"});
  EXPECT_EQ(text.exit, kFailure) << text.err;
  EXPECT_NE(text.out.find("FAILED"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("PSP ring"), std::string::npos) << "stages before it are shown, too";
  EXPECT_NE(text.err.find("boot stage 'SMU'"), std::string::npos) << text.err;

  const Outcome outcome = bench.gpu({"boot", "--reset", "--json"});
  EXPECT_EQ(outcome.exit, kFailure);
  const auto json = outcome.json();
  EXPECT_FALSE(json["booted"]);
  EXPECT_EQ(json["stages"].back()["name"], "SMU");
  EXPECT_NE(json["stages"].back()["error"].get<std::string>().find("0xfc"), std::string::npos);
  EXPECT_NE(json["error"]["message"].get<std::string>().find("SMU"), std::string::npos);
}

TEST(GpuBoot, StatsAreTheTransportsAndTablesAreNeverRead) {
  const Bench bench({.execute = sim::amd::interpreter("gfx1201")});
  const auto json = bench.gpu({"boot", "--stats", "--json"}).json();
  const auto& seen = json["accesses"];
  ASSERT_EQ(seen["bars"].size(), 3u) << seen;
  EXPECT_EQ(seen["bars"][1]["writes"], 1) << "the kernel's doorbell";
  const auto& registers = seen["bars"][2];
  EXPECT_EQ(registers["bar"], 5);
  uint64_t reads = 0, writes = 0;
  for (const auto& stage : json["stages"]) {
    reads += stage["register_reads"].get<uint64_t>();
    writes += stage["register_writes"].get<uint64_t>();
  }
  // The driver's own counts are of stages alone.
  EXPECT_GE(registers["reads"].get<uint64_t>() + registers["read_bursts"].get<uint64_t>(), reads);
  EXPECT_GE(registers["writes"].get<uint64_t>() + registers["write_bursts"].get<uint64_t>(),
            writes);
}

// Counted at both ends: by the transport, and by the card over pages that it walked as tables.
TEST(GpuBoot, ABootAndAKernelWriteAtMostFiveHundredTimesToPageTablesAndReadNone) {
  const Bench bench({.execute = sim::amd::interpreter("gfx1201")});
  const Outcome outcome = bench.gpu({"boot", "--stats", "--json"});
  ASSERT_EQ(outcome.exit, kOk) << outcome.out << outcome.err;
  const auto json = outcome.json();
  EXPECT_EQ(json["kernel"]["stored"], 0xb0071e55);
  const auto& seen = json["accesses"];
  EXPECT_GT(seen["page_table_writes"], 0);
  EXPECT_LE(seen["page_table_writes"], 500);
  EXPECT_EQ(seen["page_table_reads"], 0);
  EXPECT_GT(seen["bus_writes"].get<uint64_t>(), seen["page_table_writes"].get<uint64_t>());
  EXPECT_EQ(bench.rig.card->engines().launches, 1u);
  const auto tables = bench.rig.card->host_table_accesses();
  EXPECT_GT(tables.writes, 0u);
  EXPECT_LE(tables.writes, 500u);
  EXPECT_EQ(tables.reads, 0u);
  EXPECT_EQ(bench.rig.violations(), "");
}

TEST(GpuBoot, StatsHaveSensorsAndAPowerLimitThatIsGivenBack) {
  const Bench bench({.edge_c = 47, .execute = sim::amd::interpreter("gfx1201")});
  const auto json = bench.gpu({"boot", "--stats", "--power-limit", "150", "--json"}).json();
  EXPECT_EQ(json["stages"].back()["name"], "power limit") << json;
  EXPECT_EQ(json["stages"].back()["found"], "150 W, 300 W before");
  const auto& sensors = json["sensors"];
  EXPECT_EQ(sensors["temperature_c"], 47) << sensors;
  EXPECT_EQ(sensors["power_limit_w"], 150);
  EXPECT_GT(sensors["busy_percent"], 0) << "the kernel before it";
  EXPECT_EQ(bench.rig.card->smu().power_limit_watts, 300u);
  const auto without = bench.gpu({"boot", "--json"}).json();
  EXPECT_FALSE(without.contains("sensors"));
  EXPECT_TRUE(without["warm"]);
  const Outcome text = bench.gpu({"boot", "--stats"});
  EXPECT_NE(text.out.find(" W of 300 W (board 324 W), edge 47 C, hotspot 56 C"), std::string::npos)
      << text.out;
  const Outcome high = bench.gpu({"boot", "--power-limit", "301"});
  EXPECT_EQ(high.exit, kUsage) << high.err;
  EXPECT_NE(high.err.find("up to 300 W"), std::string::npos) << high.err;
  // The board alone says how much is too much.
  const Outcome higher = bench.gpu({"boot", "--power-limit", "5000"});
  EXPECT_EQ(higher.exit, kUsage) << higher.err;
  EXPECT_NE(higher.err.find("up to 300 W"), std::string::npos) << higher.err;
  EXPECT_EQ(bench.gpu({"boot", "--power-limit", "0"}).exit, kUsage);
  const ScopedSetting setting("BM_AMD_POWER_LIMIT", "120");
  EXPECT_EQ(bench.gpu({"boot", "--json"}).json()["stages"].back()["found"], "120 W, 300 W before");
  EXPECT_EQ(bench.rig.violations(), "");
}

TEST(GpuBoot, EveryChipRunsTheKernel) {
  for (const char* chip : {"gfx1100", "gfx1101", "gfx1102", "gfx1200"}) {
    const Bench bench({.chip = chip, .execute = sim::amd::interpreter(chip)});
    const Outcome outcome = bench.gpu({"boot", "--kernel"});
    EXPECT_EQ(outcome.exit, kOk) << outcome.out << outcome.err;
    EXPECT_NE(outcome.out.find("one kernel stored 0xb0071e55"), std::string::npos) << outcome.out;
    EXPECT_EQ(bench.rig.violations(), "") << chip;
  }
}

TEST(GpuBoot, AKernelThatNeverEndsIsAnErrorAfterABootThatWentWell) {
  Bench bench;
  bench.rig.card->engines().knobs.is_hung = true;
  const Outcome outcome = bench.gpu({"boot", "--kernel", "--json"});
  EXPECT_EQ(outcome.exit, kDeviceFailed) << outcome.out;
  const auto json = outcome.json();
  EXPECT_TRUE(json["booted"]);
  EXPECT_NE(json["error"]["message"].get<std::string>().find("the first kernel"), std::string::npos)
      << json["error"];
}

TEST(GpuBoot, TheTraceHoldsEveryAccessInOrderAndTheStages) {
  const Bench bench({.execute = sim::amd::interpreter("gfx1201")});
  const std::string path = bench.file("boot.trace");
  const Outcome outcome = bench.gpu({"boot", "--trace", path, "--stats", "--json"});
  ASSERT_EQ(outcome.exit, kOk) << outcome.out;
  const auto trace = parse_pci_trace(contents(path));
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->identity.vendor, 0x1002);
  uint64_t reads = 0, last_us = 0;
  std::vector<std::string> stages;
  for (const PciAccess& access : trace->accesses) {
    if (access.kind == PciAccess::Kind::kRead && access.bar == 5) reads += access.repeats;
    if (access.kind == PciAccess::Kind::kMark) stages.push_back(access.text);
    EXPECT_GE(access.us, last_us);
    last_us = access.us;
  }
  // What the card has counted at the other end, closing included.
  EXPECT_EQ(reads, bench.rig.card->counts().register_reads);
  EXPECT_GE(reads, outcome.json()["accesses"]["bars"][2]["reads"].get<uint64_t>());
  ASSERT_FALSE(stages.empty());
  EXPECT_EQ(stages.front(), "stage map");
}

/// Sees how files are made.
class WatchedSystem final : public System {
 public:
  int create(const std::string& path, int flags, mode_t mode) override {
    flags_seen = flags;
    return System::create(path, flags, mode);
  }
  int flags_seen = 0;
};

TEST(GpuBoot, ALineOfTheTraceIsOnTheDiskBeforeTheMachineCanStop) {
  const Bench bench;
  WatchedSystem system;
  ASSERT_TRUE(TraceFile::create(system, bench.file("a.trace")));
  EXPECT_EQ(system.flags_seen & O_DSYNC, O_DSYNC) << "what the kernel keeps is gone with it";
}

TEST(GpuBoot, AnErrorFollowsTheStageThatItIsOf) {
  const Bench bench;
  const std::string path = bench.file("both");
  BootOptions options;
  options.card.selector = bench.selector();
  options.card.firmware_folders = {"/nowhere"};
  std::fflush(stdout);
  const int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
  const int both = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  ASSERT_TRUE(out >= 0 && err >= 0 && both >= 0);
  dup2(both, STDOUT_FILENO);
  dup2(both, STDERR_FILENO);
  const int code = run_boot(real_system(), options);
  std::fflush(stdout);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  for (const int fd : {out, err, both}) close(fd);
  EXPECT_EQ(code, kUnavailable);
  const std::string text = contents(path);
  const size_t cause = text.find("    cause   "), error = text.find("boot stage 'firmware'");
  ASSERT_NE(cause, std::string::npos) << text;
  ASSERT_NE(error, std::string::npos) << text;
  EXPECT_LT(cause, error) << text;
}

TEST(GpuBoot, AFolderOfFirmwareTakesNoWordsOfTheCommand) {
  const Bench bench;
  const Outcome boot = test::run_command({"gpu", "boot", "--pci", bench.selector(),
                                          "--firmware-dir", bench.rig.folder.path(), "surplus"});
  EXPECT_EQ(boot.exit, kUsage) << boot.out;
  const Outcome read =
      test::run_command({"gpu", "regs", "read", "--pci", bench.selector(), "--firmware-dir",
                         bench.rig.folder.path(), "SCRATCH_REG7"});
  EXPECT_EQ(read.exit, kOk) << read.err;
}

TEST(GpuBoot, ATraceThatCannotBeWrittenIsAnErrorBeforeTheCardIsTouched) {
  const Bench bench;
  const Outcome outcome = bench.gpu({"boot", "--trace", "/nowhere/boot.trace"});
  EXPECT_EQ(outcome.exit, kBadFile);
  EXPECT_NE(outcome.err.find("/nowhere/boot.trace"), std::string::npos) << outcome.err;
  EXPECT_EQ(bench.rig.card->counts().register_writes, 0u);
}

TEST(GpuBoot, WithoutACardItSaysWhereToLook) {
  const Outcome outcome = test::run_command({"gpu", "boot", "--pci", "remote:/nowhere/card.sock"});
  EXPECT_EQ(outcome.exit, kUnavailable) << outcome.err;
  EXPECT_NE(outcome.err.find("/nowhere/card.sock"), std::string::npos) << outcome.err;
  EXPECT_EQ(test::run_command({"gpu", "boot", "--pci", "nonsense"}).exit, kUsage);
}

}  // namespace
}  // namespace bm::cli
