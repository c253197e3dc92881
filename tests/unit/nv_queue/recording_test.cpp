#include <gtest/gtest.h>

#include <random>

#include "tests/unit/nv_queue/rig.h"

namespace bm::nv {
namespace {

using hal::Patch;
using hal::PatchField;
using test::Rig;

hal::GpuVa word(const hal::Buffer& buffer, uint64_t index) {
  return hal::offset(buffer.va(), index * 8);
}

TEST(NvRecording, ArgumentsGridsAndSignalsArePatched) {
  Rig rig;
  const auto store = rig.load("store");
  const auto out = rig.allocate(4096), args = rig.allocate(64);
  Rig::words(*args)[0] = 0;
  Rig::words(*args)[1] = 3;
  const hal::Command commands[] = {hal::Barrier{}, hal::Dispatch{store.get(), args->va(), {}},
                                   hal::Signal{rig.timeline->va(), 0}};
  const Patch patches[] = {
      {.command = 1, .field = PatchField::kKernarg, .word = 0, .slot = 0, .addend = 8},
      {.command = 1, .field = PatchField::kKernarg, .word = 1, .slot = 1},
      {.command = 1, .field = PatchField::kGridX, .slot = 2},
      {.command = 2, .field = PatchField::kSignalValue, .slot = 3}};
  auto recording = rig.queue().record(commands, patches);
  ASSERT_TRUE(recording) << recording.error().message;
  for (uint64_t round = 0; round < 12; ++round) {
    std::fill_n(Rig::words(*out), 100, uint64_t{0});
    const uint64_t blocks = round / 3, first = hal::raw(out->va()) + 8 * (round % 2);
    const uint64_t values[] = {first, 100 + round, blocks, ++rig.value};
    const Status replayed = rig.queue().replay(**recording, values);
    ASSERT_TRUE(replayed) << replayed.error().message;
    ASSERT_TRUE(rig.wait(rig.value)) << round;
    for (uint64_t i = 0; i < 100; ++i) {
      const uint64_t begin = 1 + round % 2;
      EXPECT_EQ(Rig::words(*out)[i], i >= begin && i < begin + blocks ? 100 + round : 0) << round;
    }
  }
}

TEST(NvRecording, CopiesArePatchedAndMayBeEmpty) {
  Rig rig;
  for (const auto kind : {hal::QueueKind::kCompute, hal::QueueKind::kCopy}) {
    const auto memory = rig.allocate(4096);
    const hal::Command commands[] = {hal::Copy{memory->va(), memory->va(), 0},
                                     hal::Timestamp{memory->va()},
                                     hal::Signal{rig.timeline->va(), 0}};
    const Patch patches[] = {{.command = 0, .field = PatchField::kCopyDst, .slot = 0},
                             {.command = 0, .field = PatchField::kCopySrc, .slot = 1},
                             {.command = 0, .field = PatchField::kCopyBytes, .slot = 2},
                             {.command = 1, .field = PatchField::kSignalAddress, .slot = 3},
                             {.command = 2, .field = PatchField::kSignalValue, .slot = 4}};
    auto recording = rig.queue(kind).record(commands, patches);
    ASSERT_TRUE(recording) << recording.error().message;
    uint64_t* words = Rig::words(*memory);
    for (uint64_t round = 0; round < 6; ++round) {
      std::fill_n(words, 512, uint64_t{0});
      words[400] = round + 1;
      const uint64_t bytes = 8 * (round % 2);
      const uint64_t values[] = {hal::raw(word(*memory, round)), hal::raw(word(*memory, 400)),
                                 bytes, hal::raw(word(*memory, 200 + round)), ++rig.value};
      ASSERT_TRUE(rig.queue(kind).replay(**recording, values));
      ASSERT_TRUE(rig.wait(rig.value));
      EXPECT_EQ(words[round], bytes == 0 ? 0 : round + 1);
      EXPECT_NE(words[200 + round], 0u);
      EXPECT_EQ(words[199 + round], 0u);
    }
  }
}

TEST(NvRecording, BadPatchesAreRefused) {
  Rig rig;
  const auto store = rig.load("store");
  const auto args = rig.allocate(64);
  const hal::Command commands[] = {hal::Copy{args->va(), args->va(), 8}, hal::Barrier{},
                                   hal::Dispatch{store.get(), args->va(), {}}};
  const auto refused = [&](std::vector<Patch> patches) {
    const auto recording = rig.queue().record(commands, patches);
    return !recording && recording.error().code == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused({{.command = 3, .field = PatchField::kCopyDst}}));
  EXPECT_TRUE(refused({{.command = 1, .field = PatchField::kCopyDst}}));
  EXPECT_TRUE(refused({{.command = 0, .field = PatchField::kKernarg}}));
  EXPECT_TRUE(refused({{.command = 2, .field = PatchField::kKernarg, .word = 2}}));
  EXPECT_TRUE(refused({{.command = 2, .field = PatchField::kKernarg, .slot = 0},
                       {.command = 2, .field = PatchField::kKernarg, .slot = 1}}));
  const Patch good[] = {{.command = 0, .field = PatchField::kCopyBytes, .slot = 3}};
  auto recording = rig.queue().record(commands, good);
  ASSERT_TRUE(recording);
  const uint64_t too_few[] = {0, 0, 0};
  EXPECT_FALSE(rig.queue().replay(**recording, too_few));
  const uint64_t too_much[] = {0, 0, 0, uint64_t{1} << 40};
  EXPECT_FALSE(rig.queue().replay(**recording, too_much));
}

/// Random lists, submitted with the values in place and replayed with the values patched in.
class RandomLists {
 public:
  explicit RandomLists(uint32_t seed) : random_(seed) {}

  void run() {
    rig_.reset(new Rig({.stall_one_in = 5}, {.ring_entries = 8}));
    add_ = rig_->load("add");
    for (auto& memory : memory_) memory = rig_->allocate(kWords * 8);
    args_ = rig_->allocate(1 << 16);
    build();
    auto recording = rig_->queue().record(commands_, patches_);
    ASSERT_TRUE(recording) << recording.error().message;
    for (int round = 0; round < 6; ++round) {
      draw_values();
      for (const bool is_replay : {false, true}) {
        for (uint64_t i = 0; i < kWords; ++i) Rig::words(*memory_[is_replay])[i] = i * i + 1;
        place_values(is_replay);
        const Status done = is_replay ? rig_->queue().replay(**recording, values_)
                                      : rig_->queue().submit(commands_);
        ASSERT_TRUE(done) << done.error().message;
        ASSERT_TRUE(rig_->wait(rig_->value)) << rig_->gpu->problem();
      }
      for (uint64_t i = 0; i < kWords; ++i)
        ASSERT_EQ(Rig::words(*memory_[0])[i], Rig::words(*memory_[1])[i])
            << "word " << i << " in round " << round;
    }
  }

 private:
  static constexpr uint64_t kWords = 256;
  uint64_t below(uint64_t limit) { return random_() % limit; }

  // Slot 0: the memory; 1: the timeline; then two words per command.
  void build() {
    for (uint32_t i = 0; i < 30; ++i) {
      const auto command = static_cast<uint32_t>(commands_.size());
      const uint32_t slot = 2 + 2 * i;
      const uint64_t a = below(kWords), b = below(kWords);
      switch (below(4)) {
        case 0:
          commands_.emplace_back(hal::Copy{{}, {}, 8});
          patches_.push_back({command, PatchField::kCopyDst, 0, 0, a * 8});
          patches_.push_back({command, PatchField::kCopySrc, 0, 0, b * 8});
          break;
        case 1:
          commands_.emplace_back(hal::Write{{}, 0});
          patches_.push_back({command, PatchField::kSignalAddress, 0, 0, a * 8});
          patches_.push_back({command, PatchField::kSignalValue, 0, slot, b});
          break;
        case 2: commands_.emplace_back(hal::Barrier{}); break;
        default:
          commands_.emplace_back(hal::Dispatch{add_.get(), word(*args_, 2 * i), {}});
          patches_.push_back({command, PatchField::kKernarg, 0, 0, a * 8});
          patches_.push_back({command, PatchField::kKernarg, 1, slot, b});
          if (below(3) == 0) patches_.push_back({command, PatchField::kGridY, 0, slot + 1, 0});
      }
    }
    const auto end = static_cast<uint32_t>(commands_.size());
    commands_.emplace_back(hal::Signal{rig_->timeline->va(), 0});
    patches_.push_back({end, PatchField::kSignalValue, 0, 1, 0});
    values_.resize(2 + 2 * 30);
  }
  void draw_values() {
    for (size_t i = 2; i < values_.size(); ++i) values_[i] = i % 2 == 0 ? random_() : below(2);
  }
  /// What replay does by patching, done to the commands themselves.
  void place_values(bool is_replay) {
    values_[0] = hal::raw(memory_[is_replay]->va());
    values_[1] = ++rig_->value;
    for (const Patch& patch : patches_) {
      const uint64_t value = values_[patch.slot] + patch.addend;
      hal::Command& command = commands_[patch.command];
      if (auto* copy = std::get_if<hal::Copy>(&command))
        (patch.field == PatchField::kCopyDst ? copy->dst : copy->src) = hal::GpuVa{value};
      if (auto* write = std::get_if<hal::Write>(&command)) {
        if (patch.field == PatchField::kSignalAddress) write->dst = hal::GpuVa{value};
        if (patch.field == PatchField::kSignalValue) write->value = value;
      }
      if (auto* signal = std::get_if<hal::Signal>(&command)) signal->value = value;
      if (auto* dispatch = std::get_if<hal::Dispatch>(&command)) {
        if (patch.field == PatchField::kGridY) dispatch->grid.y = static_cast<uint32_t>(value);
        if (patch.field == PatchField::kKernarg && !is_replay)
          reinterpret_cast<uint64_t*>(hal::raw(dispatch->kernarg))[patch.word] = value;
      }
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<Rig> rig_;
  std::unique_ptr<hal::Program> add_;
  std::unique_ptr<hal::Buffer> memory_[2], args_;
  std::vector<hal::Command> commands_;
  std::vector<Patch> patches_;
  std::vector<uint64_t> values_;
};

TEST(NvRecording, ReplayEqualsSubmit) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    RandomLists(seed).run();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(NvRecording, AHundredKernelsAreOneRingEntryAndOneChain) {
  Rig rig;
  const auto add = rig.load("add");
  const auto out = rig.allocate(64), args = rig.allocate(64);
  Rig::words(*args)[0] = hal::raw(out->va());
  Rig::words(*args)[1] = 1;
  std::vector<hal::Command> commands(100, hal::Dispatch{add.get(), args->va(), {}});
  commands.insert(commands.begin() + 50, hal::Barrier{});
  commands.emplace_back(hal::Signal{rig.timeline->va(), 0});
  const Patch patches[] = {{.command = 101, .field = PatchField::kSignalValue, .slot = 0}};
  auto recording = rig.queue().record(commands, patches);
  ASSERT_TRUE(recording);
  ASSERT_TRUE(rig.run({hal::Copy{word(*out, 1), word(*out, 2), 8}}));
  ASSERT_TRUE(rig.run({}, hal::QueueKind::kCopy));
  const uint64_t entries = rig.gpu->entries(), launches = rig.gpu->launches();
  const uint64_t values[] = {++rig.value};
  ASSERT_TRUE(rig.queue().replay(**recording, values));
  ASSERT_TRUE(rig.wait(rig.value));
  EXPECT_EQ(rig.gpu->entries() - entries, 1u);
  EXPECT_EQ(rig.gpu->launches() - launches, 100u);
}

}  // namespace
}  // namespace bm::nv
