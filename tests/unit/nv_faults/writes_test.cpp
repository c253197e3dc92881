// Small writes that travel with the commands, on simulated GPUs of every generation: into memory
// that no CPU sees and no host semaphore reaches, in order with kernels and copies, replayed.

#include <cstring>

#include <gtest/gtest.h>

#include "runtime/base/env.h"
#include "tests/unit/nv_faults/bench.h"

namespace bm::nv::faults {
namespace {

using hal::Patch;
using hal::PatchField;
using hal::QueueKind;

/// at[0] = at[0] * 3 + at[1].
constexpr KernelText kStep = {"step",
                              "  ld.global.u64 %d2, [%d1];\n"
                              "  ld.global.u64 %d3, [%d1+8];\n"
                              "  mad.lo.u64 %d2, %d2, 3, %d3;\n"
                              "  st.global.u64 [%d1], %d2;",
                              {.x = 1}};

class NvWrites : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    bench_.emplace(sim::nv::Options{.chip = GetParam()});
    const Status opened = bench_->open();
    ASSERT_TRUE(opened) << opened.error().message;
    video_ = *bench_->allocate(4096);
    seen_ = *bench_->allocate(4096, true);
    argument_ = *bench_->allocate(8, true);
    const uint64_t va = hal::raw(video_->va());
    std::memcpy(argument_->host(), &va, sizeof va);
  }
  hal::GpuVa word(uint64_t i) const { return hal::offset(video_->va(), 8 * i); }
  uint64_t seen(uint64_t i) const {
    uint64_t value = 0;
    std::memcpy(&value, seen_->host() + 8 * i, sizeof value);
    return value;
  }
  uint64_t inline_writes() const { return bench_->system().kernel().gpu(0).counts().inline_writes; }

  const ScopedSetting text_{"BM_NV_CODE", "ptx"};
  mutable std::optional<Bench> bench_;
  hal::Buffer *video_ = nullptr, *seen_ = nullptr, *argument_ = nullptr;
};

TEST_P(NvWrites, ReachVideoMemoryInOrderWithKernelsAndCopies) {
  const hal::Program* const step = *bench_->load(kStep);
  const hal::Dispatch run{step, argument_->va(), {}};
  const hal::Copy back{seen_->va(), video_->va(), 64};
  const Status done = bench_->run(
      QueueKind::kCompute,
      {hal::Write{word(0), 2}, hal::Write{word(1), 7}, run, hal::Write{word(1), 9}, run, back});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(seen(0), (2 * 3 + 7) * 3 + 9u);
  EXPECT_EQ(seen(1), 9u);
  EXPECT_EQ(inline_writes(), 2u) << "neighbours go together";
  const Status copied = bench_->run(
      QueueKind::kCopy, {hal::Write{word(2), 0x0123456789abcdef}, back, hal::Write{word(2), 1}});
  ASSERT_TRUE(copied) << copied.error().message;
  EXPECT_EQ(seen(2), 0x0123456789abcdefu) << "the later write came too early";
  EXPECT_EQ(inline_writes(), 2u) << "the copy engine has constants instead";
}

TEST_P(NvWrites, AreReplayedWithOtherValuesAndAddresses) {
  const hal::Program* const step = *bench_->load(kStep);
  hal::Buffer* const signal = *bench_->allocate(8, true);
  std::memset(signal->host(), 0, 8);
  for (const QueueKind kind : {QueueKind::kCompute, QueueKind::kCopy}) {
    // Slots: two values, an address, the signal's value.
    std::vector<hal::Command> commands = {hal::Write{word(0), 0}, hal::Write{word(1), 0},
                                          hal::Write{{}, 77}};
    if (kind == QueueKind::kCompute)
      commands.emplace_back(hal::Dispatch{step, argument_->va(), {}});
    commands.emplace_back(hal::Copy{seen_->va(), video_->va(), 256});
    commands.emplace_back(hal::Signal{signal->va(), 0});
    const auto last = static_cast<uint32_t>(commands.size() - 1);
    const Patch patches[] = {
        {.command = 0, .field = PatchField::kSignalValue, .slot = 0},
        {.command = 1, .field = PatchField::kSignalValue, .slot = 1},
        {.command = 2, .field = PatchField::kSignalAddress, .slot = 2, .addend = 8},
        {.command = last, .field = PatchField::kSignalValue, .slot = 3}};
    auto recording = bench_->hal().queue(kind).record(commands, patches);
    ASSERT_TRUE(recording) << recording.error().message;
    for (uint64_t round = 1; round < 5; ++round) {
      const uint64_t at = (kind == QueueKind::kCompute ? 2 : 20) + round;
      const uint64_t end = round + (kind == QueueKind::kCompute ? 0 : 10);
      const uint64_t values[] = {round << 33, round + 5, hal::raw(word(at)), end};
      const Status replayed = bench_->hal().queue(kind).replay(**recording, values);
      ASSERT_TRUE(replayed) << replayed.error().message;
      const std::atomic_ref<uint64_t> word_of(*reinterpret_cast<uint64_t*>(signal->host()));
      while (word_of.load() < end) ASSERT_TRUE(bench_->hal().status());
      const bool has_run = kind == QueueKind::kCompute;
      EXPECT_EQ(seen(0), has_run ? (round << 33) * 3 + round + 5 : round << 33);
      EXPECT_EQ(seen(1), round + 5);
      EXPECT_EQ(seen(at + 1), 77u);
      EXPECT_NE(seen(at + 2), 77u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, NvWrites,
                         testing::Values("tu102", "ga100", "ad102", "gh100", "gb202"),
                         [](const auto& chip) { return std::string(chip.param); });

}  // namespace
}  // namespace bm::nv::faults
