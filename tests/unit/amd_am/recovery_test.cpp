// A card that hangs or faults under work: the device is lost, and comes back where it is or by
// being opened again, in the same process, with nobody else the worse for it.

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "runtime/base/env.h"
#include "tests/unit/amd_am/card_bench.h"

namespace bm::amd {
namespace {

using hal::QueueKind;
using Cure = sim::amd::ChipOptions::Cure;

constexpr uint64_t kNowhere = 0x7ead'0000'0000, kWords = 512;
/// Longer than a busy machine takes to load a program and to clear memory for it.
const uint32_t kLimitMs = std::max(planted::kWaitMs, 1500u);

/// What a program has before something goes wrong: memory, a program and a recording of it.
class Survivors {
 public:
  Status make(CardBench& bench) {
    bench_ = &bench;
    video_ = BM_TRY(bench.allocate(kWords * 8));
    seen_ = BM_TRY(bench.allocate(kWords * 8, true));
    hal::Buffer* const argument = BM_TRY(bench.allocate(8, true));
    const uint64_t va = hal::raw(video_->va());
    std::memcpy(argument->host(), &va, sizeof va);
    const hal::Program* const step = BM_TRY(bench.load(bench.code("step")));
    for (uint64_t i = 0; i < kWords; ++i) {
      const uint64_t number = i * i + 7;
      std::memcpy(seen_->host() + i * 8, &number, 8);
    }
    BM_TRY(bench.copy(QueueKind::kCopy, va, hal::raw(seen_->va()), kWords * 8));
    const hal::Command commands[] = {hal::Dispatch{step, argument->va(), {}},
                                     hal::Copy{seen_->va(), video_->va(), kWords * 8}};
    recording_ = BM_TRY(bench.hal().queue(QueueKind::kCompute).record(commands, {}));
    return {};
  }
  /// Replays what was recorded before.
  Status check() {
    std::memset(seen_->host(), 0, kWords * 8);
    BM_TRY(bench_->hal().queue(QueueKind::kCompute).replay(*recording_, {}));
    BM_TRY(bench_->run(QueueKind::kCompute, {}));
    first_ = first_ * 3 + 1;
    for (uint64_t i = 0; i < kWords; ++i) {
      uint64_t number = 0;
      std::memcpy(&number, seen_->host() + i * 8, 8);
      const uint64_t wanted = i == 0 ? first_ : i * i + 7;
      if (number != wanted)
        return fail(Code::kInternal, "word {} is {}, not {}", i, number, wanted);
    }
    return {};
  }

 private:
  CardBench* bench_ = nullptr;
  hal::Buffer *video_ = nullptr, *seen_ = nullptr;
  std::unique_ptr<hal::Recording> recording_;
  uint64_t first_ = 7;
};

struct Fault {
  const char* name;
  Code code;
  /// Stage that must have been needed, and one that must not.
  const char *needs, *needs_not;
  Status (*plant)(CardBench& bench);
  Cure cure = Cure::kNothing;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

Status hangs_compute(CardBench& bench) {
  bench.faults().hangs_mec = true;
  return bench.run(QueueKind::kCompute, {});
}
Status hangs_copies(CardBench& bench) {
  bench.faults().hangs_sdma = true;
  return bench.run(QueueKind::kCopy, {});
}
Status spins(CardBench& bench) { return bench.launch("spinner", 0); }
Status reads_nowhere(CardBench& bench) { return bench.launch("reader", kNowhere); }
Status copies_from_nowhere(CardBench& bench) {
  hal::Buffer* const to = BM_TRY(bench.allocate(4096));
  return bench.copy(QueueKind::kCopy, hal::raw(to->va()), kNowhere, 4096);
}
Status traps(CardBench& bench) { return bench.launch("trapper", 0); }

constexpr const char *kQueues = "recovery: queues", *kProcessor = "recovery: command processor",
                     *kEngines = "recovery: copy engines", *kCard = "recovery: card";

const Fault kFaults[] = {
    {"HungProcessor", Code::kTimeout, kProcessor, kEngines, hangs_compute, Cure::kEngineReset},
    {"HungCopyEngine", Code::kTimeout, kEngines, kProcessor, hangs_copies, Cure::kEngineReset},
    {"EndlessKernel", Code::kTimeout, kQueues, kProcessor, spins},
    {"PageFaultOfAKernel", Code::kDeviceFault, kQueues, kProcessor, reads_nowhere},
    {"PageFaultOfACopy", Code::kDeviceFault, kQueues, kEngines, copies_from_nowhere},
    {"Trap", Code::kDeviceFault, kQueues, kProcessor, traps},
};
const Fault kLosing[] = {
    {"HungProcessor", Code::kTimeout, kCard, "nothing", hangs_compute, Cure::kCardReset},
    {"HungCopyEngine", Code::kTimeout, kCard, "nothing", hangs_copies, Cure::kCardReset},
};

bool has_stage(const CardBench& bench, std::string_view name) {
  const auto& stages = bench.gpu().stages().stages();
  return std::ranges::find(stages, name, &Stage::name) != stages.end();
}

struct Machine {
  const char* chip;
  PacketMode packets;
};
void PrintTo(const Machine& machine, std::ostream* out) { *out << machine.chip; }
constexpr Machine kMachines[] = {{"gfx1100", PacketMode::kPm4}, {"gfx1201", PacketMode::kAql}};

class AmRecovery : public testing::TestWithParam<std::tuple<Fault, Machine>> {
 protected:
  const Fault& fault() const { return std::get<0>(GetParam()); }
  void SetUp() override {
    const Machine& machine = std::get<1>(GetParam());
    bench_.emplace(machine.chip, machine.packets);
    const Status opened = bench_->open();
    ASSERT_TRUE(opened) << opened.error().message;
    auto other = bench_->open_unit(1);
    ASSERT_TRUE(other) << other.error().message;
    other_ = std::move(*other);
    auto memory = other_->hal().allocate({.size = 4096, .host_visible = true});
    auto kept = other_->hal().allocate({.size = 4096});
    ASSERT_TRUE(memory && kept);
    seen_ = std::move(*memory);
    kept_ = std::move(*kept);
    std::memset(seen_->host(), 0x5a, 4096);
    copy_on_other(kept_->va(), seen_->va());
  }
  /// Plants the fault and expects to be told of it.
  void plant() {
    bench_->faults().mec_cure = bench_->faults().sdma_cure = fault().cure;
    std::optional<ScopedSetting> wait;
    if (fault().code == Code::kTimeout)
      wait.emplace("BM_WAIT_TIMEOUT_MS", std::to_string(kLimitMs));
    const Status told = fault().plant(*bench_);
    ASSERT_FALSE(told) << "nothing was reported";
    EXPECT_EQ(told.error().code, fault().code) << told.error().message;
    EXPECT_FALSE(bench_->hal().status());
  }
  void copy_on_other(hal::GpuVa to, hal::GpuVa from) {
    const hal::Command commands[] = {hal::Copy{to, from, 4096}};
    const auto point = other_->stream().submit(QueueKind::kCopy, commands);
    ASSERT_TRUE(point) << point.error().message;
    const Status done = other_->stream().wait(*point);
    ASSERT_TRUE(done) << done.error().message;
  }
  void expect_other_is_well() {
    EXPECT_TRUE(other_->hal().status());
    std::memset(seen_->host(), 0, 4096);
    copy_on_other(seen_->va(), kept_->va());
    EXPECT_EQ(seen_->host()[4095], std::byte{0x5a});
  }
  void TearDown() override {
    seen_.reset();
    kept_.reset();
    other_.reset();
    if (bench_) bench_->close();
  }

  const ScopedSetting quiet_{"BM_LOG", "amd=0"};
  std::optional<CardBench> bench_;
  std::unique_ptr<runtime::Device> other_;
  std::unique_ptr<hal::Buffer> seen_, kept_;
};

class AmRecoveryInPlace : public AmRecovery {};

TEST_P(AmRecoveryInPlace, TheDeviceWorksAgainWithWhatItHad) {
  std::optional<Survivors> before(std::in_place);
  const Status made = before->make(*bench_);
  ASSERT_TRUE(made) << made.error().message;
  for (int round = 0; round < 2; ++round) {
    plant();
    if (HasFatalFailure()) return;
    const Status recovered = bench_->device().recover();
    ASSERT_TRUE(recovered) << recovered.error().message;
    EXPECT_TRUE(has_stage(*bench_, fault().needs));
    EXPECT_FALSE(has_stage(*bench_, fault().needs_not));
    EXPECT_TRUE(bench_->hal().status());
    const Status works = bench_->works();
    EXPECT_TRUE(works) << works.error().message;
    const Status same = before->check();
    EXPECT_TRUE(same) << same.error().message;
    expect_other_is_well();
  }
  before.reset();
  EXPECT_EQ(bench_->rig().violations(), "");
}

TEST_P(AmRecoveryInPlace, ADeviceThatWasLostIsOpenedAgainInTheSameProcess) {
  plant();
  if (HasFatalFailure()) return;
  bench_->close();
  const Status again = bench_->open();
  ASSERT_TRUE(again) << again.error().message;
  const Status works = bench_->works();
  EXPECT_TRUE(works) << works.error().message;
  expect_other_is_well();
  EXPECT_EQ(bench_->rig().violations(), "");
}

INSTANTIATE_TEST_SUITE_P(Am, AmRecoveryInPlace,
                         testing::Combine(testing::ValuesIn(kFaults), testing::ValuesIn(kMachines)),
                         [](const auto& one) {
                           return fmt::format("{}_{}", std::get<0>(one.param).name,
                                              std::get<1>(one.param).chip);
                         });

class AmRecoveryByReset : public AmRecovery {};

TEST_P(AmRecoveryByReset, TheCardIsResetAndOpenedAgain) {
  plant();
  if (HasFatalFailure()) return;
  const Status recovered = bench_->device().recover();
  ASSERT_FALSE(recovered);
  EXPECT_EQ(recovered.error().code, Code::kDeviceLost) << recovered.error().message;
  EXPECT_NE(recovered.error().message.find("the card was reset"), std::string::npos)
      << recovered.error().message;
  EXPECT_TRUE(has_stage(*bench_, fault().needs));
  EXPECT_FALSE(bench_->device().recover()) << "there is nothing left to recover";
  expect_other_is_well();
  bench_->close();
  const Status again = bench_->open();
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_FALSE(bench_->gpu().was_warm());
  const Status works = bench_->works();
  EXPECT_TRUE(works) << works.error().message;
  expect_other_is_well();
  EXPECT_EQ(bench_->rig().violations(), "");
}

/// Engines that only seem to obey are not taken for well.
TEST_P(AmRecoveryByReset, ADeviceThatWasOnlyClosedIsResetByTheNextOpen) {
  plant();
  if (HasFatalFailure()) return;
  bench_->close();
  const Status again = bench_->open();
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_FALSE(bench_->gpu().was_warm());
  const Status works = bench_->works();
  EXPECT_TRUE(works) << works.error().message;
  expect_other_is_well();
}

INSTANTIATE_TEST_SUITE_P(Am, AmRecoveryByReset,
                         testing::Combine(testing::ValuesIn(kLosing), testing::ValuesIn(kMachines)),
                         [](const auto& one) {
                           return fmt::format("{}_{}", std::get<0>(one.param).name,
                                              std::get<1>(one.param).chip);
                         });

TEST(AmRecoveryOfNothing, AHealthyDeviceIsLeftAlone) {
  CardBench bench("gfx1100", PacketMode::kPm4);
  ASSERT_TRUE(bench.open());
  ASSERT_TRUE(bench.works());
  EXPECT_TRUE(bench.device().recover());
  EXPECT_FALSE(has_stage(bench, kQueues));
  EXPECT_TRUE(bench.works());
}

TEST(AmRecoveryOfNothing, ACardThatIsGoneIsNotRecovered) {
  CardBench bench("gfx1201", PacketMode::kPm4);
  ASSERT_TRUE(bench.open());
  ASSERT_TRUE(bench.works());
  bench.rig().card->unplug();
  EXPECT_FALSE(bench.works());
  const Status recovered = bench.device().recover();
  ASSERT_FALSE(recovered);
  EXPECT_EQ(recovered.error().code, Code::kDeviceLost) << recovered.error().message;
}

}  // namespace
}  // namespace bm::amd
