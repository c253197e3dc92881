// Rings that are filled many times over, on simulated GPUs that tell late or never how far they
// are.

#include <atomic>
#include <cstring>

#include <gtest/gtest.h>

#include "runtime/base/env.h"
#include "tests/unit/nv_faults/bench.h"

namespace bm::nv::faults {
namespace {

using hal::Patch;
using hal::PatchField;
using hal::QueueKind;

class NvRing : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    bench_.emplace(sim::nv::Options{.chip = GetParam(), .release = "595"});
    const Status opened = bench_->open();
    ASSERT_TRUE(opened) << opened.error().message;
    signal_ = *bench_->allocate(64, true);
    std::memset(signal_->host(), 0, 64);
  }
  bool reached(uint64_t value) const {
    const std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(signal_->host()));
    while (word.load() < value)
      if (!bench_->hal().status()) return false;
    return true;
  }

  const ScopedSetting text_{"BM_NV_CODE", "ptx"};
  /// What hangs is to fail soon.
  const ScopedSetting timeout_{"BM_WAIT_TIMEOUT_MS", "5000"};
  mutable std::optional<Bench> bench_;
  hal::Buffer* signal_ = nullptr;
};

/// A ring has 1,024 entries, and these are too small for the command space to need fences.
TEST_P(NvRing, TakesThousandsOfSubmissions) {
  constexpr uint64_t kSubmissions = 3000;
  for (const QueueKind kind : {QueueKind::kCompute, QueueKind::kCopy}) {
    const uint64_t base = kind == QueueKind::kCompute ? 0 : kSubmissions;
    for (uint64_t i = 1; i <= kSubmissions; ++i) {
      const hal::Command commands[] = {hal::Signal{signal_->va(), base + i}};
      const Status submitted = bench_->hal().queue(kind).submit(commands);
      ASSERT_TRUE(submitted) << "submission " << i << ": " << submitted.error().message;
    }
    ASSERT_TRUE(reached(base + kSubmissions));
  }
}

/// Recordings bring words of their own, which hold no fence.
TEST_P(NvRing, TakesThousandsOfReplays) {
  constexpr uint64_t kReplays = 3000;
  const std::vector<hal::Command> commands = {hal::Signal{signal_->va(), 0}};
  const Patch patches[] = {{.command = 0, .field = PatchField::kSignalValue, .slot = 0}};
  // A recording may be replayed again once its signal is seen; several take turns.
  std::vector<std::unique_ptr<hal::Recording>> recordings;
  for (int i = 0; i < 8; ++i) {
    auto recording = bench_->hal().queue(QueueKind::kCompute).record(commands, patches);
    ASSERT_TRUE(recording) << recording.error().message;
    recordings.push_back(std::move(*recording));
  }
  for (uint64_t i = 1; i <= kReplays; ++i) {
    const uint64_t values[] = {i};
    if (i > recordings.size()) {
      ASSERT_TRUE(reached(i - recordings.size()));
    }
    const Status replayed =
        bench_->hal().queue(QueueKind::kCompute).replay(*recordings[i % recordings.size()], values);
    ASSERT_TRUE(replayed) << "replay " << i << ": " << replayed.error().message;
  }
  EXPECT_TRUE(reached(kReplays));
}

INSTANTIATE_TEST_SUITE_P(Chips, NvRing, testing::Values("tu102", "gh100", "gb100", "gb202"),
                         [](const auto& chip) { return std::string(chip.param); });

}  // namespace
}  // namespace bm::nv::faults
