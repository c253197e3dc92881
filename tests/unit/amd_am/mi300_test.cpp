// MI300X (gfx942) on the modelled card: one device of eight chiplets, whose code the instruction
// interpreter executes.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "drivers/amd/am/autopsy.h"
#include "drivers/amd/device.h"
#include "drivers/transport/clock.h"
#include "runtime/base/env.h"
#include "tests/patience.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/unit/amd_am/rig.h"

namespace bm::amd {
namespace {

using namespace std::chrono_literals;
using sim::amd::ChipOptions;

/// "scale" of tests/unit/amd/data: out[i] = n + 3 i, 64 elements a group; arguments {out, n}.
struct ScaleKernel {
  std::atomic<uint64_t> runs{0};
  std::atomic<uint64_t> fault_address{0};
  sim::amd::Execute execute = sim::amd::interpreter("gfx942");
  std::atomic<bool> is_held{false}, is_shown{false};  ///< shows two waves and waits

  std::optional<sim::amd::Death> operator()(sim::amd::GpuMemory& memory,
                                            const sim::amd::Launch& launch) {
    if (const uint64_t address = fault_address.exchange(0); address != 0)
      return sim::amd::Death{.kind = sim::amd::Death::Kind::kMemory,
                             .address = address,
                             .is_write = true,
                             .text = "a wave's store",
                             .is_of_wave = true};
    if (is_held) {
      launch.board->show({{.pc = 0x7f0000001000, .exec = 0xf, .is_in_barrier = true},
                          {.pc = 0x7f0000001234,
                           .exec = 0xff00000000,
                           .is_halted = true,
                           .has_illegal_instruction = true}});
      is_shown = true;
      while (is_held && !launch.cancel->load()) std::this_thread::sleep_for(50us);
    }
    ++runs;
    return execute(memory, launch);
  }
};

class AmMi300 : public ::testing::Test {
 protected:
  AmMi300()
      : kernel(std::make_shared<ScaleKernel>()),
        rig({.chip = "gfx942",
             .execute = [run = kernel](sim::amd::GpuMemory& pages, const sim::amd::Launch& launch) {
               return (*run)(pages, launch);
             }}) {}
  void open() {
    auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
    ASSERT_EQ((*gpu)->facts().xccs, 8u);
    auto made = make_device(std::move(*gpu), {.slab_bytes = 8 << 20});
    ASSERT_TRUE(made) << made.error().message;
    device = std::move(*made);
    auto buffer = device->allocate({.size = 65536, .host_visible = true, .zero = true});
    ASSERT_TRUE(buffer) << buffer.error().message;
    memory = std::move(*buffer);
    value = 0;
  }
  void close() {
    memory.reset();
    device.reset();
  }
  std::unique_ptr<hal::Program> load() {
    hal::CodeObject code;
    code.entry = "scale";
    code.arch = "gfx942";
    code.num_buffers = code.num_vars = 1;
    code.block = {64, 1, 1};
    std::ifstream file("tests/unit/amd/data/gfx942.o", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto bytes = std::as_bytes(std::span(text));
    code.image.assign(bytes.begin(), bytes.end());
    auto program = device->load(code);
    EXPECT_TRUE(program) << program.error().message;
    return program ? std::move(*program) : nullptr;
  }
  uint64_t* words() { return reinterpret_cast<uint64_t*>(memory->host()); }
  hal::GpuVa va(uint64_t word) { return hal::offset(memory->va(), word * 8); }
  Status run(hal::QueueKind kind, std::vector<hal::Command> commands,
             std::chrono::milliseconds limit = test::patience(30s)) {
    commands.push_back(hal::Signal{va(0), ++value});
    BM_TRY(device->queue(kind).submit(commands));
    const auto until = std::chrono::steady_clock::now() + limit;
    while (std::atomic_ref<uint64_t>(words()[0]).load() < value) {
      BM_TRY(device->status());
      if (std::chrono::steady_clock::now() > until) return fail(Code::kTimeout, "nothing came");
      std::this_thread::sleep_for(50us);
    }
    return {};
  }
  Status scale(hal::Program& program, uint64_t out, uint64_t n, uint32_t groups) {
    words()[8] = out;
    words()[9] = n;
    return run(hal::QueueKind::kCompute, {hal::Dispatch{&program, va(8), {groups, 1, 1}}});
  }

  std::shared_ptr<ScaleKernel> kernel;
  test::CardRig rig;
  std::unique_ptr<hal::Device> device;
  std::unique_ptr<hal::Buffer> memory;
  uint64_t value = 0;
};

TEST_F(AmMi300, KernelsAndCopiesRunColdAndWarm) {
  std::mt19937_64 random(std::random_device{}());
  for (int turn = 0; turn < 2; ++turn) {
    open();
    ASSERT_NE(device, nullptr);
    const auto program = load();
    ASSERT_NE(program, nullptr);
    const uint64_t n = random() >> 8;
    const Status ran = scale(*program, hal::raw(va(1024)), n, 20);
    ASSERT_TRUE(ran) << ran.error().message << "\n" << rig.violations();
    for (uint64_t i = 0; i < 20 * 64; ++i) ASSERT_EQ(words()[1024 + i], n + 3 * i) << i;
    // Video memory, by both ways a copy can go; long enough for pages of 2 MiB.
    auto video = device->allocate({.size = 5 << 20});
    ASSERT_TRUE(video) << video.error().message;
    for (const auto kind : {hal::QueueKind::kCompute, hal::QueueKind::kCopy}) {
      const uint64_t start = random();
      for (uint64_t i = 0; i < 512; ++i) words()[1024 + i] = start + i * i;
      std::memset(&words()[4096], 0, 4096);
      const auto place = hal::offset((*video)->va(), (4 << 20) + 8192);
      const Status copied =
          run(kind, {hal::Copy{place, va(1024), 4096}, hal::Copy{va(4096), place, 4096}});
      ASSERT_TRUE(copied) << copied.error().message << "\n" << rig.violations();
      for (uint64_t i = 0; i < 512; ++i) ASSERT_EQ(words()[4096 + i], start + i * i);
    }
    video->reset();
    close();
  }
  EXPECT_EQ(kernel->runs, 2u);
  EXPECT_EQ(rig.violations(), "");
}

TEST_F(AmMi300, MemoryOfTheProcessIsReached) {
  open();
  ASSERT_NE(device, nullptr);
  std::vector<uint64_t> mine(20'000);
  for (uint64_t i = 0; i < mine.size(); ++i) mine[i] = 3 * i;
  auto wrapped = device->allocate({.size = (mine.size() - 1) * 8, .external = mine.data() + 1});
  ASSERT_TRUE(wrapped) << wrapped.error().message;
  auto video = device->allocate({.size = (*wrapped)->size()});
  ASSERT_TRUE(video) << video.error().message;
  ASSERT_TRUE(
      run(hal::QueueKind::kCopy, {hal::Copy{(*video)->va(), (*wrapped)->va(), (*video)->size()}}));
  std::fill(mine.begin() + 1, mine.end(), 1);
  ASSERT_TRUE(run(hal::QueueKind::kCompute,
                  {hal::Copy{(*wrapped)->va(), (*video)->va(), (*video)->size()}}));
  for (uint64_t i = 0; i < mine.size(); ++i) ASSERT_EQ(mine[i], 3 * i);
  EXPECT_EQ(rig.violations(), "");
}

TEST_F(AmMi300, AKernelsFaultIsToldWithItsAddressAndTheNextBootWorks) {
  open();
  ASSERT_NE(device, nullptr);
  const auto program = load();
  ASSERT_NE(program, nullptr);
  kernel->fault_address = uint64_t{0x1234} << 24;
  const Status ran = scale(*program, hal::raw(va(1024)), 1, 1);
  ASSERT_FALSE(ran);
  EXPECT_NE(ran.error().message.find("0x1234000000"), std::string::npos) << ran.error().message;
  close();
  open();
  ASSERT_NE(device, nullptr);
  const auto again = load();
  ASSERT_NE(again, nullptr);
  const Status next = scale(*again, hal::raw(va(1024)), 5, 2);
  EXPECT_TRUE(next) << next.error().message;
}

TEST_F(AmMi300, WavesAreFoundByTheSequencersRegisters) {
  // From before the boot to the end: taking a function and giving it back stop the card's DMA.
  sim::amd::ChipFunction function(rig.card);
  open();
  ASSERT_NE(device, nullptr);
  const auto program = load();
  ASSERT_NE(program, nullptr);
  kernel->is_held = true;
  Status ran;
  std::thread other([&] { ran = scale(*program, hal::raw(va(1024)), 5, 2); });
  const auto until = std::chrono::steady_clock::now() + test::patience(10s);
  while (!kernel->is_shown && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(50us);
  EXPECT_TRUE(kernel->is_shown);
  am::Bus bus(function, real_clock());
  EXPECT_TRUE(bus.open());
  const auto card = am::discover(bus, "gfx942");
  EXPECT_TRUE(card);
  if (card) {
    const am::Autopsy seen = am::examine(bus, *card, {.compute_queues = 1});
    EXPECT_EQ(seen.verdict.cause, am::HangCause::kIllegalInstruction) << seen.text();
    // One wave after the other lies on the next SIMD of the first compute unit.
    for (const char* const line :
         {"\nXCC0 SE0 SH0 CU0 SIMD0 wave 0: PC 0x7f0000001000, EXEC 0xf, at a barrier\n",
          "\nXCC0 SE0 SH0 CU0 SIMD1 wave 0: PC 0x7f0000001234, EXEC 0xff00000000, illegal "
          "instruction, halted\n",
          "\nnot looked at: copy queues of gfx942\n"})
      EXPECT_NE(seen.text().find(line), std::string::npos) << seen.text();
    EXPECT_TRUE(seen.waves.is_whole);
    EXPECT_EQ(seen.waves.waves.size(), 2u) << "no other chiplet has any";
  }
  kernel->is_held = false;
  other.join();
  EXPECT_TRUE(ran) << ran.error().message;
  EXPECT_EQ(rig.violations(), "");
}

TEST_F(AmMi300, ACopysFaultIsTheMultimediaHubs) {
  open();
  ASSERT_NE(device, nullptr);
  const hal::GpuVa nowhere{uint64_t{0x4321} << 24};
  const Status ran = run(hal::QueueKind::kCopy, {hal::Copy{va(1024), nowhere, 4096}});
  ASSERT_FALSE(ran);
  EXPECT_NE(ran.error().message.find("0x4321000000"), std::string::npos) << ran.error().message;
}

TEST_F(AmMi300, AHungCopyEngineIsResetByThePowerManagementFirmware) {
  open();
  ASSERT_NE(device, nullptr);
  rig.card->options().sdma_cure = ChipOptions::Cure::kEngineReset;
  rig.card->options().hangs_sdma = true;
  {
    const ScopedSetting bound("BM_WAIT_TIMEOUT_MS", "200");
    EXPECT_FALSE(run(hal::QueueKind::kCopy, {hal::Copy{va(1024), va(2048), 4096}}, 400ms));
  }
  const Status recovered = device->recover();
  ASSERT_TRUE(recovered) << recovered.error().message;
  EXPECT_FALSE(rig.card->options().hangs_sdma) << "the engine was not reset";
  value = 0;
  words()[0] = 0;
  for (uint64_t i = 0; i < 512; ++i) words()[2048 + i] = 7 * i;
  const Status copied = run(hal::QueueKind::kCopy, {hal::Copy{va(1024), va(2048), 4096}});
  ASSERT_TRUE(copied) << copied.error().message << "\n" << rig.violations();
  for (uint64_t i = 0; i < 512; ++i) ASSERT_EQ(words()[1024 + i], 7 * i);
  EXPECT_EQ(rig.violations(), "");
}

// What a firmware older than 85.121.0 has is a halt, which this hang outlives.
TEST(AmMi300Recovery, AFirmwareWithoutTheMessageIsNotAskedForIt) {
  test::CardRig rig({.chip = "gfx942", .pmfw_version = 0x00557800});
  auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  EXPECT_TRUE((*gpu)->recover(RecoveryStage::kCopyEngines));
  const auto& stages = (*gpu)->stages().stages();
  const auto stage = std::ranges::find(stages, "recovery: copy engines", &Stage::name);
  ASSERT_NE(stage, stages.end());
  EXPECT_NE(stage->seen.find("85.120.0 resets no copy engine, 85.121.0 does"), std::string::npos)
      << stage->seen;
  EXPECT_EQ(rig.violations(), "");
}

TEST(AmMi300Sensors, AreThoseOfTheSocketIdleAndBusy) {
  test::CardRig rig({.chip = "gfx942", .edge_c = 47, .board_limit_watts = 350});
  auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  ASSERT_TRUE((*gpu)->sensors());  // what the boot did
  const auto idle = (*gpu)->sensors();
  ASSERT_TRUE(idle) << idle.error().message;
  EXPECT_EQ(idle->busy_percent, 0u);
  EXPECT_EQ(idle->memory_busy_percent, 0u);
  EXPECT_EQ(idle->core_mhz, 132u);
  EXPECT_EQ(idle->memory_mhz, 900u);
  EXPECT_EQ(idle->socket_power_w, 13u);
  EXPECT_EQ(idle->power_limit_w, 350u);
  EXPECT_EQ(idle->hotspot_c, 56u);
  EXPECT_EQ(idle->memory_c, 63u);
  EXPECT_FALSE(idle->edge_c || idle->fan_rpm || idle->fan_percent || idle->board_power_w);
  EXPECT_FALSE(idle->throttled_by()) << "it counts, and one reading says nothing";

  rig.card->engines().packets += 3;
  const auto busy = (*gpu)->sensors();
  ASSERT_TRUE(busy) << busy.error().message;
  EXPECT_EQ(busy->busy_percent, 60u);
  EXPECT_EQ(busy->memory_busy_percent, 30u);
  EXPECT_EQ(busy->core_mhz, 2100u);
  EXPECT_EQ(busy->memory_mhz, 1300u);
  EXPECT_EQ(busy->socket_power_w, 13u + 60 * 407 / 100);
  EXPECT_EQ(busy->counter, idle->counter + 1);
  EXPECT_EQ(rig.violations(), "");
}

TEST(AmMi300Sensors, TheClockIsThatOfTheFirstChipletThereIs) {
  const am::MetricsRow* const row = am::find_metrics_row(13, 0, 6);
  ASSERT_NE(row, nullptr);
  std::vector<std::byte> table(row->bytes());
  const uint32_t words[] = {1701u << 10, (1702u << 10) + 0x200};
  std::memcpy(&table[table.size() - 32], words, sizeof words);
  EXPECT_EQ(am::decode_metrics(*row, table, 0, 0)->core_mhz, 1701u);
  EXPECT_EQ(am::decode_metrics(*row, table, 0, 1)->core_mhz, 1703u);
  EXPECT_EQ(am::decode_metrics(*row, table, 0, 8).error().code, Code::kCorrupt);
  EXPECT_EQ(am::decode_metrics(*row, std::span(table).first(1400), 0).error().code, Code::kCorrupt);
}

TEST(AmMi300Sensors, AFirmwareThatMeasuresNothingIsATimeout) {
  test::CardRig rig({.chip = "gfx942"});
  auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  rig.card->smu().unmeasured = UINT32_MAX;
  const auto seen = (*gpu)->sensors();
  ASSERT_FALSE(seen);
  EXPECT_EQ(seen.error().code, Code::kTimeout) << seen.error().message;
  EXPECT_NE(seen.error().message.find("measured nothing"), std::string::npos);
}

Result<std::unique_ptr<am::AmGpu>> open_with_limit(test::CardRig& rig, uint32_t watts) {
  return am::AmGpu::open(std::make_unique<sim::amd::ChipFunction>(rig.card),
                         {.firmware = rig.folder.search(),
                          .clock = &rig.clock,
                          .experimental = rig.experimental,
                          .power_limit_w = watts});
}

TEST(AmMi300PowerLimit, HoldsUntilTheCardIsClosedAndIsNeverAboveTheBoards) {
  test::CardRig rig({.chip = "gfx942", .board_limit_watts = 250});
  {
    auto gpu = open_with_limit(rig, 100);
    ASSERT_TRUE(gpu) << gpu.error().message;
    EXPECT_EQ(rig.card->smu().power_limit_watts, 100u);
    ASSERT_TRUE((*gpu)->sensors());
    rig.card->engines().packets += 5;
    const auto seen = (*gpu)->sensors();
    ASSERT_TRUE(seen);
    EXPECT_EQ(seen->socket_power_w, 100u);
    EXPECT_EQ(seen->power_limit_w, 100u);
  }
  EXPECT_EQ(rig.card->smu().power_limit_watts, 250u);
  const auto above = open_with_limit(rig, 251);
  ASSERT_FALSE(above);
  EXPECT_EQ(above.error().code, Code::kInvalidArgument) << above.error().message;
  EXPECT_EQ(rig.violations(), "");
}

// A member of a hive: nothing is written to it, nothing is reset.
TEST(AmMi300Links, ACardThatIsLinkedToOthersIsRefusedBeforeAnythingIsWritten) {
  test::CardRig rig({.chip = "gfx942",
                     .vram_bytes = 256 << 20,
                     .bar0_bytes = 256 << 20,
                     .start = ChipOptions::Start::kDriverWasHere});
  auto& registers = rig.card->registers();
  // mmhub_1_8_0_sh_mask.h, PF_MAX_REGION.
  registers.write(*registers.address_of(sim::amd::Ip::kMmhub, "MC_VM_XGMI_LFB_CNTL"), 7u << 4);
  const uint64_t before = rig.card->counts().register_writes;
  const auto gpu = rig.open();
  ASSERT_FALSE(gpu);
  EXPECT_EQ(gpu.error().code, Code::kUnsupported);
  for (const char* const wanted : {"'discovery'", "linked to 7 others (XGMI)", "DEV=AMD:KFD"})
    EXPECT_NE(gpu.error().message.find(wanted), std::string::npos) << gpu.error().message;
  EXPECT_EQ(rig.card->counts().register_writes, before);
  EXPECT_EQ(rig.card->counts().memory_written_bytes, 0u);
  EXPECT_EQ(rig.violations(), "");
}

/// What the model refuses of this chip alone: a card that was booted right, and then one register
/// is not as it was.
class AmMi300Model : public ::testing::Test {
 protected:
  using Ip = sim::amd::Ip;
  AmMi300Model() : rig({.chip = "gfx942"}) {}
  void SetUp() override {
    auto opened = rig.open();
    ASSERT_TRUE(opened) << opened.error().message;
    gpu = std::move(*opened);
    auto made = gpu->allocate({.size = 1 << 16, .domain = MemoryDomain::kSystemUncached});
    ASSERT_TRUE(made) << made.error().message;
    ring = std::move(*made);
  }
  void start(QueueType type) {
    auto made = gpu->create_queue({.type = type, .ring = ring.get()});
    ASSERT_TRUE(made) << made.error().message;
    queue = std::move(*made);
    ASSERT_EQ(rig.violations(), "");
  }
  void set(Ip ip, uint32_t instance, const char* name, uint32_t value) {
    auto& registers = rig.card->registers();
    registers.select_instance(ip, instance);
    registers.write(*registers.address_of(ip, name), value);
    registers.select_instance(ip, 0);
  }
  // psp_gfx_if.h: GFX_CMD_ID_*, GFX_FW_TYPE_CP_MEC.
  static constexpr uint32_t kSetupTmr = 5, kLoadFirmware = 6, kDestroyTmr = 7, kAutoload = 0x21,
                            kPartition = 0x27, kTypeMec = 4;
  uint32_t get(Ip ip, const char* name) {
    auto& registers = rig.card->registers();
    return registers.read(*registers.address_of(ip, name));
  }
  /// Words in the middle of video memory as the card has them; their address.
  uint64_t place(std::span<const uint32_t> words, uint64_t offset = 0) {
    const uint64_t at = rig.card->vram().size() / 2 + offset;
    rig.card->vram().write(at, std::as_bytes(words));
    return at + (uint64_t{get(Ip::kMmhub, "MC_VM_FB_LOCATION_BASE")} << 24);
  }
  /// Status of a command that goes through the PSP's ring.
  uint32_t psp(uint32_t id, std::initializer_list<uint32_t> arguments) {
    constexpr uint64_t kCommandAt = 1 << 20, kFenceAt = kCommandAt + 4096;
    constexpr size_t kAnswer = 864 / 4;
    std::vector<uint32_t> command(256);
    command[2] = id;
    std::ranges::copy(arguments, command.begin() + 7);
    command[kAnswer] = 0xbad;
    const uint64_t at = place(command, kCommandAt), fence = place(std::array{0u}, kFenceAt);
    const std::array<uint32_t, 16> frame = {
        static_cast<uint32_t>(at),    static_cast<uint32_t>(at >> 32),    1024,
        static_cast<uint32_t>(fence), static_cast<uint32_t>(fence >> 32), 1};
    const uint32_t written = get(Ip::kMp0, "MP0_SMN_C2PMSG_67");
    const uint64_t frames =
        (uint64_t{get(Ip::kMp0, "MP0_SMN_C2PMSG_70")} << 32 | get(Ip::kMp0, "MP0_SMN_C2PMSG_69")) -
        (uint64_t{get(Ip::kMmhub, "MC_VM_FB_LOCATION_BASE")} << 24);
    rig.card->vram().write(frames + uint64_t{written} * 4, std::as_bytes(std::span(frame)));
    set(Ip::kMp0, 0, "MP0_SMN_C2PMSG_67", written + 16);
    uint32_t status = 0;
    rig.card->vram().read(rig.card->vram().size() / 2 + kCommandAt + kAnswer * 4,
                          std::as_writable_bytes(std::span(&status, 1)));
    return status;
  }
  void expect_violation(const char* text) {
    EXPECT_NE(rig.violations().find(text), std::string::npos) << rig.violations();
  }
  test::CardRig rig;
  std::unique_ptr<am::AmGpu> gpu;
  std::unique_ptr<Memory> ring;
  std::unique_ptr<HardwareQueue> queue;
};

TEST_F(AmMi300Model, ADoorbellThatAChipletIsFencedOffFromDoesNotArrive) {
  start(QueueType::kAql);
  set(Ip::kNbio, 0, "XCC_DOORBELL_FENCE", 4);
  queue->doorbell.ring(0);
  expect_violation("XCC_DOORBELL_FENCE of the first die holds it back");
}

TEST_F(AmMi300Model, ADoorbellOfACopyEngineNeedsItsOwnRange) {
  start(QueueType::kSdma);
  set(Ip::kNbio, 0, "DOORBELL0_CTRL_ENTRY_1", 0);
  queue->doorbell.ring(0);
  expect_violation("DOORBELL0_CTRL_ENTRY_1 holds it back");
}

TEST_F(AmMi300Model, ARegisterOfAnotherDieThatNobodyKnowsIsRefused) {
  set(Ip::kNbio, 0, "BIF_BX0_PCIE_INDEX2", 0x1000);
  set(Ip::kNbio, 0, "BIF_BX0_PCIE_INDEX2_HI", 5);
  set(Ip::kNbio, 0, "BIF_BX0_PCIE_DATA2", 1);
  expect_violation("of another die");
}

TEST_F(AmMi300Model, ACopyEngineThatDoesNotTranslateIsRefused) {
  start(QueueType::kSdma);
  set(Ip::kSdma, 0, "SDMA_CNTL", 1);
  queue->doorbell.ring(0);
  expect_violation("without UTC_L1_ENABLE");
}

TEST_F(AmMi300Model, AQueueThatOneChipletDoesNotHaveIsRefused) {
  start(QueueType::kAql);
  const auto me = rig.card->registers().field(Ip::kGc, "GRBM_GFX_CNTL", "MEID");
  set(Ip::kGc, 3, "GRBM_GFX_CNTL", me.put(1));
  set(Ip::kGc, 3, "CP_HQD_ACTIVE", 0);
  set(Ip::kGc, 3, "GRBM_GFX_CNTL", 0);
  queue->doorbell.ring(0);
  expect_violation("is not chiplet 3's");
}

// P9 of psp.h.

TEST_F(AmMi300Model, AutoloadIsACommandThatItsPspHasNot) {
  EXPECT_EQ(psp(kAutoload, {}), 0x100u);
  expect_violation("AUTOLOAD_RLC on a chip that has none");
}

TEST_F(AmMi300Model, FirmwareBeforeAnEmptySetupTmrIsRefused) {
  const std::vector<uint32_t> image(0x1000, 0x5a5a5a5a);
  const auto load = [&] {
    const uint64_t at = place(image);
    return psp(kLoadFirmware, {static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
                               static_cast<uint32_t>(image.size() * 4), kTypeMec});
  };
  EXPECT_EQ(load(), 0u) << rig.violations();
  EXPECT_EQ(psp(kDestroyTmr, {}), 0u);
  EXPECT_EQ(rig.violations(), "");
  EXPECT_NE(load(), 0u);
  expect_violation("LOAD_IP_FW of type 4 before SETUP_TMR");
  EXPECT_EQ(psp(kSetupTmr, {0, 0, 0}), 0u);
  EXPECT_EQ(load(), 0u);
}

TEST_F(AmMi300Model, PartitionsThatDoNotDivideTheChipletsAreRefused) {
  for (const uint32_t fits : {2u, 4u, 8u, 1u}) {
    EXPECT_EQ(psp(kPartition, {fits}), 0u);
    EXPECT_EQ(rig.card->psp().partitions(), fits);
  }
  EXPECT_EQ(rig.violations(), "");
  for (const uint32_t misfit : {0u, 3u, 16u}) {
    EXPECT_NE(psp(kPartition, {misfit}), 0u);
    expect_violation(
        ("SPATIAL_PART of " + std::to_string(misfit) + " partitions of 8 chiplets").c_str());
  }
  EXPECT_EQ(rig.card->psp().partitions(), 1u);
}

TEST_F(AmMi300Model, PartitionsBeforeTheGraphicsCoresFilesAreRefused) {
  // As after a reset, with a ring that lies elsewhere.
  rig.card->psp().reset();
  rig.card->psp().leave_running();
  set(Ip::kMp0, 0, "MP0_SMN_C2PMSG_67", 0);
  EXPECT_NE(psp(kPartition, {1}), 0u);
  expect_violation("SPATIAL_PART before the graphics core's files");
}

TEST_F(AmMi300Model, MessagesThatTheSmuHasNotAreRefused) {
  auto& registers = rig.card->registers();
  const uint32_t mailbox = rig.card->row().ip(Ip::kMp1).bases[0];
  registers.write(mailbox + 0x29a, 0);  // answer
  registers.write(mailbox + 0x282, 0x6);
  expect_violation("SMU: message 0x6 is not modelled");
}

TEST_F(AmMi300Model, ADirectoryOfAnotherBlockSizeIsRefused) {
  auto& hub = rig.card->hub(sim::amd::HubKind::kGc);
  constexpr uint64_t kAddress = 0x0000'ffff'ffff'f000, kBlockSize = uint64_t{31} << 59;
  const auto entry_at = [&](uint64_t table, uint32_t shift) {
    return (table & kAddress) + (ring->va >> shift & 0x1ff) * 8;
  };
  const auto load = [&](uint64_t place) {
    uint64_t word = 0;
    rig.card->vram().read(place, std::as_writable_bytes(std::span(&word, 1)));
    return word;
  };
  const uint64_t pdb1 = load(entry_at(hub.root(), 39));
  const uint64_t place = entry_at(pdb1, 30);
  const uint64_t damaged = load(place) & ~kBlockSize;
  rig.card->vram().write(place, std::as_bytes(std::span(&damaged, 1)));
  set(Ip::kGc, 0, "VM_L2_CNTL2", 3);
  static_cast<void>(hub.translate(ring->va, sim::amd::HubAccess::kRead));
  expect_violation("block fragment size of 0");
}

}  // namespace
}  // namespace bm::amd
