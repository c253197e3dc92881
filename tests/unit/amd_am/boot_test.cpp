// Boots of modelled cards: each generation, each state that a card can be found in, each stage that
// can fail.

#include <unistd.h>

#include <algorithm>

#include <gtest/gtest.h>

#include "drivers/amd/device.h"
#include "runtime/base/env.h"
#include "tests/unit/amd_am/rig.h"

namespace bm::amd::am {
namespace {

using sim::amd::ChipOptions;
using test::CardRig;

bool has_stage(const AmGpu& gpu, std::string_view name) {
  return std::ranges::find(gpu.stages().stages(), name, &Stage::name) !=
         gpu.stages().stages().end();
}

/// Message of a boot that must fail.
std::string failure(CardRig& rig) {
  const auto gpu = rig.open();
  return gpu ? "it booted" : gpu.error().message;
}

class AmBoot : public ::testing::TestWithParam<const char*> {};

TEST_P(AmBoot, FromPowerOnThenWarm) {
  CardRig rig({.chip = GetParam()});
  {
    const auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
    EXPECT_FALSE((*gpu)->was_warm());
    EXPECT_EQ((*gpu)->facts().chip->name, GetParam());
    EXPECT_TRUE((*gpu)->facts().has_indirect_copies);
  }
  {
    const auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
    EXPECT_TRUE((*gpu)->was_warm());
    EXPECT_FALSE(has_stage(**gpu, "PSP ring"));
  }
  EXPECT_EQ(rig.violations(), "");
}

TEST_P(AmBoot, AfterThePreviousProcessCrashed) {
  CardRig rig({.chip = GetParam()});
  {
    auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message;
    const auto ring = (*gpu)->allocate({.size = 1 << 16, .domain = MemoryDomain::kSystemUncached});
    ASSERT_TRUE(ring) << ring.error().message;
    const auto queue = (*gpu)->create_queue({.ring = ring->get()});
    ASSERT_TRUE(queue) << queue.error().message;
    // A process that is killed tells the card nothing.
    rig.card->unplug();
  }
  rig.card->plug_in();
  const auto next = rig.open();
  ASSERT_TRUE(next) << next.error().message << "\n" << rig.violations();
  EXPECT_FALSE((*next)->was_warm());
  EXPECT_TRUE(has_stage(**next, "reset"));
  EXPECT_EQ(rig.violations(), "");
}

// What was left in order is not any more when the next process has begun with it.
TEST_P(AmBoot, AfterAProcessThatEndedInTheMiddleOfAWarmBoot) {
  CardRig rig({.chip = GetParam()});
  ASSERT_TRUE(rig.open());
  uint64_t accesses = rig.card->accesses();
  ASSERT_TRUE(rig.open());
  accesses = rig.card->accesses() - accesses;
  // From the end on, since most accesses are those of the discovery table.
  uint32_t ended = 0;
  for (uint64_t before_end = 40; ended < 3 && before_end < accesses; before_end += 20) {
    rig.card->options().fault_access = rig.card->accesses() + accesses - before_end;
    rig.card->options().fault = sim::amd::BusFault::kUnplug;
    const std::string message = failure(rig);
    rig.card->options().fault = sim::amd::BusFault::kNone;
    rig.card->plug_in();
    const bool has_begun = message.find("layout, state") != std::string::npos;
    if (has_begun) ++ended;
    {
      const auto next = rig.open();
      ASSERT_TRUE(next) << next.error().message << "\n" << rig.violations();
      EXPECT_TRUE(!has_begun || !(*next)->was_warm()) << message;
    }
    const auto warm = rig.open();
    ASSERT_TRUE(warm) << warm.error().message;
    EXPECT_TRUE((*warm)->was_warm());
  }
  EXPECT_EQ(ended, 3u);
  EXPECT_EQ(rig.violations(), "");
}

TEST_P(AmBoot, AfterTheKernelDriverWasHere) {
  CardRig rig({.chip = GetParam(), .start = ChipOptions::Start::kDriverWasHere});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
  EXPECT_FALSE((*gpu)->was_warm());
  EXPECT_TRUE(has_stage(**gpu, "reset"));
  EXPECT_EQ(rig.violations(), "");
}

INSTANTIATE_TEST_SUITE_P(Chips, AmBoot,
                         ::testing::Values("gfx942", "gfx1100", "gfx1101", "gfx1102", "gfx1200",
                                           "gfx1201"),
                         [](const auto& chip) { return std::string(chip.param); });

TEST(AmBootExperimental, IsRefusedWithTheWayToTurnItOn) {
  CardRig rig({.chip = "gfx942"});
  rig.experimental = "gfx1100,gfx9420";
  const std::string message = failure(rig);
  EXPECT_NE(message.find("BM_AMD_EXPERIMENTAL=gfx942"), std::string::npos) << message;
  rig.experimental = "gfx1100,gfx942";
  EXPECT_TRUE(rig.open());
  EXPECT_EQ(rig.violations(), "");
}

// Before 85.115.0 the board's firmware wants the second set of the SOS file's parts.
TEST(AmBootExperimental, OldPowerManagementFirmwareGetsTheOtherSystem) {
  CardRig rig({.chip = "gfx942", .pmfw_version = 0x00557200});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
  EXPECT_EQ(rig.violations(), "");
}

TEST(AmBootFaults, ThePspsRefusalNamesFileAndStatus) {
  CardRig rig({.psp_status = {{6, 0x1234}}});
  const std::string message = failure(rig);
  EXPECT_NE(message.find("boot stage 'protected memory'"), std::string::npos) << message;
  EXPECT_NE(message.find("LOAD_IP_FW SMU"), std::string::npos) << message;
  EXPECT_NE(message.find("0x1234"), std::string::npos) << message;
}

TEST(AmBootFaults, TheSmusAnswerIsDecoded) {
  CardRig rig({.smu_answer = {{0x6, 0xfc}}});
  const std::string message = failure(rig);
  EXPECT_NE(message.find("boot stage 'SMU'"), std::string::npos) << message;
  EXPECT_NE(message.find("busy with something else (0xfc)"), std::string::npos) << message;
}

// Models of cards have such tables; a sum that is there and wrong stays an error (Discovery.*).
TEST(AmBootModels, ADiscoveryTableWithoutSumsIsTaken) {
  CardRig rig({.has_no_sums = true});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  EXPECT_EQ(rig.violations(), "");
}

TEST(AmBootModels, WithoutBootloadCompleteAPacketDecides) {
  for (const char* chip : {"gfx1100", "gfx1200"}) {
    CardRig rig({.chip = chip, .hides_bootload = true});
    for (const bool is_warm : {false, true}) {
      const auto gpu = rig.open();
      ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
      EXPECT_EQ((*gpu)->was_warm(), is_warm);
      EXPECT_TRUE(has_stage(**gpu, "RLC autoload proof"));
    }
    EXPECT_EQ(rig.violations(), "");
  }
  CardRig fine;
  const auto gpu = fine.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  EXPECT_FALSE(has_stage(**gpu, "RLC autoload proof"));
}

TEST(AmBootFaults, AnAutoloadThatLeavesNothingRunningNamesTheRegister) {
  CardRig rig({.hangs_mec = true, .hides_bootload = true});
  const std::string message = failure(rig);
  EXPECT_NE(message.find("boot stage 'RLC autoload proof'"), std::string::npos) << message;
  EXPECT_NE(message.find("RLC_RLCS_BOOTLOAD_STATUS"), std::string::npos) << message;
  EXPECT_NE(message.find("was not executed"), std::string::npos) << message;
}

TEST(AmBootFaults, ASilentSmuIsATimeoutThatNamesTheMessage) {
  CardRig rig({.smu_answer = {{0x2, 0}}});
  const std::string message = failure(rig);
  EXPECT_NE(message.find("SMU message 0x2"), std::string::npos) << message;
  EXPECT_NE(message.find("no answer"), std::string::npos) << message;
}

TEST(AmBootFaults, AMissingFileStopsTheBootBeforeAnythingIsWritten) {
  CardRig rig({.chip = "gfx1100", .bar0_bytes = uint64_t{4} << 30});
  std::filesystem::remove(std::filesystem::path(rig.folder.path()) / "amdgpu/gc_11_0_0_mec.bin");
  const std::string message = failure(rig);
  EXPECT_NE(message.find("boot stage 'firmware'"), std::string::npos) << message;
  EXPECT_NE(message.find("gc_11_0_0_mec.bin"), std::string::npos) << message;
  EXPECT_EQ(rig.card->counts().register_writes, 0u);
}

TEST(AmBootFaults, ACardThatIsPulledOutIsLostAtOnce) {
  CardRig rig;
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  rig.card->unplug();
  const auto begun = std::chrono::steady_clock::now();
  const auto memory = (*gpu)->allocate({.size = 4096});
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Code::kDeviceLost) << memory.error().message;
  const auto fault = (*gpu)->take_fault();
  ASSERT_TRUE(fault);
  EXPECT_TRUE(fault->is_whole_reset);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
}

TEST(AmBootFaults, AHungCommandProcessorIsResetAndTheNextBootWorks) {
  for (const char* const chip : {"gfx942", "gfx1201"}) {
    CardRig rig({.chip = chip});
    {
      const auto gpu = rig.open();
      ASSERT_TRUE(gpu) << gpu.error().message;
      rig.card->options().hangs_mec = true;
      const auto ring =
          (*gpu)->allocate({.size = 1 << 16, .domain = MemoryDomain::kSystemUncached});
      ASSERT_TRUE(ring);
      const auto queue = (*gpu)->create_queue({.ring = ring->get()});
      ASSERT_TRUE(queue) << queue.error().message;
    }
    rig.card->options().hangs_mec = false;
    const auto next = rig.open();
    ASSERT_TRUE(next) << next.error().message << "\n" << rig.violations();
  }
}

TEST(AmBootFaults, ASemaphoreThatAKilledProcessHoldsIsTakenBack) {
  CardRig rig;
  sim::amd::RegisterBus& registers = rig.card->registers();
  const auto semaphore = registers.address_of(sim::amd::Ip::kMmhub, "MMVM_INVALIDATE_ENG17_SEM");
  ASSERT_TRUE(semaphore);
  ASSERT_EQ(registers.read(*semaphore), 1u);
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  EXPECT_EQ(rig.violations(), "");
}

TEST(AmBootFaults, AFileThatWasCutOffIsNotGivenToACard) {
  CardRig rig({.chip = "gfx1100"});
  const std::string victim = rig.folder.path() + "/amdgpu/gc_11_0_0_mec.bin";
  ASSERT_EQ(::truncate(victim.c_str(), 1000), 0) << victim;
  ScopedSetting folder("BM_FIRMWARE_DIR", rig.folder.path());
  const auto device = open_card(std::make_unique<sim::amd::ChipFunction>(rig.card), "");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, Code::kCorrupt) << device.error().message;
  EXPECT_NE(device.error().message.find("boot stage 'firmware'"), std::string::npos)
      << device.error().message;
}

/// Whatever a single access does, a boot ends, and says where, or works; and the next one works,
/// whatever state the first one has left the card in.
void sweep(sim::amd::ChipOptions options, uint64_t cases) {
  const std::string chip = options.chip;
  const auto fault = options.fault;
  uint64_t accesses = 0;
  {
    options.fault = sim::amd::BusFault::kNone;
    CardRig rig(options);
    const auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message;
    accesses = rig.card->accesses();
  }
  options.fault = fault;
  options.stall_ms = 1;
  for (uint64_t n = 1; n <= accesses; n += accesses / cases + 1) {
    options.fault_access = n;
    CardRig rig(options);
    {
      const auto gpu = rig.open();
      const std::string said = gpu ? "boot stage ''" : gpu.error().message;
      EXPECT_NE(said.find("boot stage '"), std::string::npos)
          << chip << ", access " << n << ": " << said;
    }
    // Faults of what a process does as it leaves are not this one's.
    rig.card->options().fault = sim::amd::BusFault::kNone;
    rig.card->plug_in();
    const auto next = rig.open();
    EXPECT_TRUE(next) << chip << ", the boot after access " << n << ": "
                      << (next ? "" : next.error().message);
  }
}

constexpr uint64_t kSample = 60;
TEST(AmBusFaults, AllOnesOnce) {
  sweep({.chip = "gfx1100", .fault = sim::amd::BusFault::kAllOnes}, kSample);
}
TEST(AmBusFaults, AWrongAnswer) {
  sweep({.chip = "gfx1201", .fault = sim::amd::BusFault::kWrongAnswer}, kSample);
}
TEST(AmBusFaults, AStall) {
  sweep({.chip = "gfx1102", .fault = sim::amd::BusFault::kStall}, kSample);
}
TEST(AmBusFaults, PulledOut) {
  sweep({.chip = "gfx1200", .fault = sim::amd::BusFault::kUnplug}, kSample);
}

TEST(AmBusFaults, AWrongAnswerOfChiplets) {
  sweep({.chip = "gfx942", .fault = sim::amd::BusFault::kWrongAnswer}, kSample / 3);
}
TEST(AmBusFaults, ChipletsPulledOut) {
  sweep({.chip = "gfx942", .fault = sim::amd::BusFault::kUnplug}, kSample / 3);
}

/// In the long run: every access of a boot on every chip. Nine tenths of the accesses through a
/// small BAR 0 read the discovery table, dword by dword and on all chips alike: one does that.
class AmEveryAccess : public ::testing::TestWithParam<sim::amd::BusFault> {};
TEST_P(AmEveryAccess, DISABLED_OnAnyChip) {
  for (const char* const chip : {"gfx942", "gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"}) {
    sim::amd::ChipOptions options{.chip = chip, .fault = GetParam()};
    if (std::string_view(chip) != "gfx1201") options.bar0_bytes = options.vram_bytes;
    sweep(options, UINT64_MAX);
  }
}
INSTANTIATE_TEST_SUITE_P(Faults, AmEveryAccess,
                         ::testing::Values(sim::amd::BusFault::kAllOnes,
                                           sim::amd::BusFault::kWrongAnswer,
                                           sim::amd::BusFault::kStall,
                                           sim::amd::BusFault::kUnplug));

TEST(AmCost, PageTablesAreWrittenInBurstsAndNeverRead) {
  CardRig rig({.chip = "gfx1100", .bar0_bytes = uint64_t{4} << 30});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  std::vector<std::unique_ptr<Memory>> memory;
  for (const MemoryDomain domain : {MemoryDomain::kVideo, MemoryDomain::kSystem,
                                    MemoryDomain::kSystemUncached, MemoryDomain::kVideo}) {
    auto made = (*gpu)->allocate({.size = 32 << 20, .domain = domain});
    ASSERT_TRUE(made) << made.error().message;
    memory.push_back(std::move(*made));
  }
  EXPECT_LE((*gpu)->counts().table_writes, 500u) << (*gpu)->stages().table();
  // The PSP's answers are all that is read back.
  const uint64_t reads = (*gpu)->counts().memory_reads;
  memory.clear();
  EXPECT_EQ((*gpu)->counts().memory_reads, reads);
}

TEST(AmMemory, AddressesOnTheGpuAndInTheProcessAreDifferentThings) {
  CardRig rig;
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  auto memory = (*gpu)->allocate({.size = 8192, .domain = MemoryDomain::kSystem});
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_GE((*memory)->va, Gmc::kWindowBase);
  EXPECT_EQ((*memory)->view.size(), 8192u);
  (*memory)->view.store<uint32_t>(16, 0x1234);
  EXPECT_EQ((*memory)->view.load<uint32_t>(16), 0x1234u);
  const uint64_t before = (*gpu)->available_memory();
  {
    auto video = (*gpu)->allocate({.size = 1 << 20, .domain = MemoryDomain::kVideoMapped});
    ASSERT_TRUE(video) << video.error().message;
    EXPECT_LT((*gpu)->available_memory(), before);
  }
  EXPECT_EQ((*gpu)->available_memory(), before);
  EXPECT_EQ(rig.violations(), "");
}

TEST(AmQueues, ThereAreAsManyAsTheCardHas) {
  CardRig rig({.chip = "gfx1100"});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  const auto ring = (*gpu)->allocate({.size = 1 << 16, .domain = MemoryDomain::kSystemUncached});
  ASSERT_TRUE(ring);
  std::vector<std::unique_ptr<HardwareQueue>> queues;
  for (uint32_t i = 0; i < kComputeQueues; ++i) {
    auto queue = (*gpu)->create_queue({.ring = ring->get()});
    ASSERT_TRUE(queue) << queue.error().message;
    queues.push_back(std::move(*queue));
  }
  const auto more = (*gpu)->create_queue({.ring = ring->get()});
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Code::kOutOfMemory);
  queues.pop_back();
  EXPECT_TRUE((*gpu)->create_queue({.ring = ring->get()}));
  EXPECT_EQ(rig.violations(), "");
}

}  // namespace
}  // namespace bm::amd::am
