#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/nv_queue/rig.h"

namespace bm::nv {
namespace {

using hal::Patch;
using hal::PatchField;
using test::Rig;

hal::GpuVa word(const hal::Buffer& buffer, uint64_t index) {
  return hal::offset(buffer.va(), index * 8);
}

TEST(NvQueue, SignalsWritesAndWaits) {
  Rig rig;
  const auto memory = rig.allocate(256);
  ASSERT_TRUE(rig.run({hal::Signal{word(*memory, 0), 5}, hal::Wait{word(*memory, 0), 5},
                       hal::Write{word(*memory, 1), 0x0123456789abcdef}}));
  EXPECT_EQ(Rig::words(*memory)[0], 5u);
  EXPECT_EQ(Rig::words(*memory)[1], 0x0123456789abcdefu);
  EXPECT_EQ(Rig::words(*memory)[2], 0u) << "a release writes one word";
}

TEST(NvQueue, NeighbouringWritesGoTogetherAndKeepTheirPlaceAmongKernels) {
  Rig rig;
  const auto add = rig.load("add");
  const auto memory = rig.allocate(1 << 17), args = rig.allocate(64);
  Rig::words(*args)[0] = hal::raw(memory->va());
  Rig::words(*args)[1] = 5;
  const hal::Dispatch dispatch{add.get(), args->va(), {}};
  ASSERT_TRUE(rig.run({hal::Write{word(*memory, 0), 2}, dispatch, dispatch,
                       hal::Write{word(*memory, 1), 7}, hal::Write{word(*memory, 2), 8},
                       hal::Copy{word(*memory, 3), word(*memory, 0), 24}}));
  const uint64_t after = (2 * 3 + 5) * 3 + 5;
  for (const uint64_t at : {0u, 3u}) {
    EXPECT_EQ(Rig::words(*memory)[at], after);
    EXPECT_EQ(Rig::words(*memory)[at + 1], 7u);
    EXPECT_EQ(Rig::words(*memory)[at + 2], 8u);
  }
  // More than one inline write may hold, then one with a gap before it.
  std::vector<hal::Command> commands;
  for (uint64_t i = 0; i < 5000; ++i) commands.emplace_back(hal::Write{word(*memory, i), i * i});
  commands.emplace_back(hal::Write{word(*memory, 6000), 1});
  for (const auto kind : {hal::QueueKind::kCompute, hal::QueueKind::kCopy}) {
    std::fill_n(Rig::words(*memory), 6001, ~uint64_t{0});
    ASSERT_TRUE(rig.run(commands, kind));
    for (uint64_t i = 0; i < 5000; ++i) ASSERT_EQ(Rig::words(*memory)[i], i * i);
    EXPECT_EQ(Rig::words(*memory)[5000], ~uint64_t{0});
    EXPECT_EQ(Rig::words(*memory)[6000], 1u);
  }
}

TEST(NvQueue, AddressesBeyondTheEnginesAreRefused) {
  Rig rig;
  const auto refused = [&](const hal::Command& command) {
    const Status done = rig.queue().submit(std::span(&command, 1));
    return !done && done.error().code == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused(hal::Write{hal::GpuVa{uint64_t{1} << 49}, 1}));
  EXPECT_TRUE(refused(hal::Signal{hal::GpuVa{uint64_t{1} << 40}, 1}));
  EXPECT_TRUE(refused(hal::Wait{hal::GpuVa{uint64_t{1} << 40}, 1}));
}

TEST(NvQueue, CopiesOnEitherQueueAreExact) {
  Rig rig;
  const auto memory = rig.allocate(1 << 20);
  auto* bytes = reinterpret_cast<uint8_t*>(memory->host());
  std::iota(bytes, bytes + 5000, uint8_t{0});
  for (const auto kind : {hal::QueueKind::kCompute, hal::QueueKind::kCopy}) {
    std::fill_n(bytes + 10'000, 6000, uint8_t{0xee});
    ASSERT_TRUE(rig.run(
        {hal::Copy{hal::offset(memory->va(), 10'003), hal::offset(memory->va(), 1), 4097}}, kind));
    EXPECT_EQ(std::memcmp(bytes + 10'003, bytes + 1, 4097), 0);
    EXPECT_EQ(bytes[10'002], 0xee);
    EXPECT_EQ(bytes[10'003 + 4097], 0xee);
  }
}

TEST(NvQueue, DispatchesSeeTheirArgumentsAndRunInOrder) {
  Rig rig;
  const auto add = rig.load("add");
  const auto out = rig.allocate(4096), args = rig.allocate(4096);
  std::vector<hal::Command> commands;
  uint64_t expected = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    Rig::words(*args)[2 * i] = hal::raw(out->va());
    Rig::words(*args)[2 * i + 1] = i;
    commands.emplace_back(hal::Dispatch{add.get(), word(*args, 2 * i), {}});
    if (i % 7 == 0) commands.emplace_back(hal::Barrier{});
    expected = expected * 3 + i;
  }
  ASSERT_TRUE(rig.run({hal::Copy{word(*out, 1), word(*out, 2), 8}}));  // all channels are set up
  ASSERT_TRUE(rig.run({}, hal::QueueKind::kCopy));
  const uint64_t entries = rig.gpu->entries();
  ASSERT_TRUE(rig.run(commands));
  EXPECT_EQ(Rig::words(*out)[0], expected);
  EXPECT_EQ(rig.gpu->entries() - entries, 1u) << "one submission is one ring entry";
}

TEST(NvQueue, KernelsAndCopiesInterleave) {
  Rig rig;
  const auto add = rig.load("add");
  const auto out = rig.allocate(4096), args = rig.allocate(4096);
  Rig::words(*args)[0] = hal::raw(out->va());
  Rig::words(*args)[1] = 1;
  std::vector<hal::Command> commands;
  for (uint64_t i = 1; i <= 20; ++i) {
    commands.emplace_back(hal::Dispatch{add.get(), args->va(), {}});
    commands.emplace_back(hal::Copy{word(*out, i), out->va(), 8});
  }
  for (int round = 0; round < 3; ++round) {
    Rig::words(*out)[0] = 0;
    ASSERT_TRUE(rig.run(commands));
    uint64_t expected = 0;
    for (uint64_t i = 1; i <= 20; ++i) {
      expected = expected * 3 + 1;
      EXPECT_EQ(Rig::words(*out)[i], expected);
    }
  }
}

TEST(NvQueue, TimestampsGrowAndTouchNothingElse) {
  Rig rig;
  const auto store = rig.load("store");
  const auto out = rig.allocate(4096), args = rig.allocate(4096), stamps = rig.allocate(256);
  Rig::words(*args)[0] = hal::raw(out->va());
  Rig::words(*args)[1] = 7;
  for (const auto kind : {hal::QueueKind::kCompute, hal::QueueKind::kCopy}) {
    std::fill_n(Rig::words(*stamps), 32, uint64_t{0xaa});
    std::vector<hal::Command> commands = {hal::Timestamp{word(*stamps, 1)},
                                          hal::Copy{word(*out, 8), out->va(), 16},
                                          hal::Timestamp{word(*stamps, 3)}};
    if (kind == hal::QueueKind::kCompute)
      commands.emplace_back(hal::Dispatch{store.get(), args->va(), {}});
    commands.emplace_back(hal::Timestamp{word(*stamps, 5)});
    ASSERT_TRUE(rig.run(commands, kind));
    const uint64_t* words = Rig::words(*stamps);
    EXPECT_LT(words[1], words[3]);
    EXPECT_LT(words[3], words[5]);
    for (const size_t untouched : {0u, 2u, 4u, 6u}) EXPECT_EQ(words[untouched], 0xaau);
    EXPECT_EQ(Rig::words(*stamps)[0], 0xaau);
  }
  EXPECT_EQ(Rig::words(*out)[0], 7u);
}

TEST(NvQueue, KernelsOnTheCopyQueueAreRefused) {
  Rig rig;
  const auto store = rig.load("store");
  const auto args = rig.allocate(64);
  const hal::Command command = hal::Dispatch{store.get(), args->va(), {}};
  const Status status = rig.queue(hal::QueueKind::kCopy).submit({&command, 1});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kUnsupported);
}

TEST(NvQueue, BadCommandsAreRefusedWhole) {
  Rig rig;
  const auto store = rig.load("store");
  const auto args = rig.allocate(64), other = rig.allocate(64);
  const auto refused = [&](const hal::Command& command) {
    const hal::Command commands[] = {hal::Write{other->va(), 9}, command};
    const Status status = rig.queue().submit(commands);
    EXPECT_FALSE(status);
    return status ? std::string() : status.error().message;
  };
  EXPECT_NE(refused(hal::Dispatch{store.get(), args->va(), {1, 70'000, 1}}).find("grid"),
            std::string::npos);
  EXPECT_NE(refused(hal::Dispatch{store.get(), hal::GpuVa{0x10}, {}}).find("argument block"),
            std::string::npos);
  EXPECT_NE(refused(hal::Signal{hal::offset(args->va(), 4), 1}).find("aligned"), std::string::npos);
  Rig second;
  const auto foreign = second.load("store");
  EXPECT_NE(refused(hal::Dispatch{foreign.get(), args->va(), {}}).find("did not load"),
            std::string::npos);
  ASSERT_TRUE(rig.run({}));
  EXPECT_EQ(Rig::words(*other)[0], 0u) << "a refused submission leaves nothing behind";
}

/// 100 launches a list, on a GPU that stalls at random.
void launch_lists(uint32_t ring_entries, uint64_t lists) {
  Rig rig({.stall_one_in = 3}, {.ring_entries = ring_entries, .command_bytes = 1 << 20});
  const auto add = rig.load("add");
  const auto out = rig.allocate(64);
  const auto args = rig.allocate(1 << 16);
  constexpr uint64_t kPerList = 100;
  for (uint64_t i = 0; i < kPerList; ++i) {
    Rig::words(*args)[2 * i] = hal::raw(out->va());
    Rig::words(*args)[2 * i + 1] = i + 1;
  }
  uint64_t expected = 0;
  std::vector<hal::Command> commands;
  for (uint64_t list = 0; list < lists; ++list) {
    commands.clear();
    for (uint64_t i = 0; i < kPerList; ++i) {
      commands.emplace_back(hal::Dispatch{add.get(), word(*args, 2 * i), {}});
      expected = expected * 3 + i + 1;
    }
    commands.emplace_back(rig.next());
    ASSERT_TRUE(rig.queue().submit(commands));
  }
  ASSERT_TRUE(rig.wait(rig.value));
  EXPECT_EQ(Rig::words(*out)[0], expected);
  EXPECT_EQ(rig.gpu->launches(), kPerList * lists);
}

TEST(NvQueue, NothingIsOverwrittenWhenTheRingWraps) { launch_lists(4, 10'000); }
/// A list takes 77 KB: the space of 1 MiB is used up long before the ring.
TEST(NvQueue, NothingIsOverwrittenWhenTheCommandSpaceWraps) { launch_lists(256, 1'000); }

TEST(NvQueue, AFullRingWaitsInsteadOfOverwriting) {
  Rig rig({}, {.ring_entries = 4});
  rig.gpu->set_paused(true);
  const auto memory = rig.allocate(64);
  std::atomic<bool> is_done{false};
  std::thread submitter([&] {
    for (uint64_t i = 1; i <= 50; ++i) {
      const hal::Command commands[] = {hal::Write{memory->va(), i}};
      EXPECT_TRUE(rig.queue().submit(commands));
    }
    is_done = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(is_done);
  rig.gpu->set_paused(false);
  submitter.join();
  ASSERT_TRUE(rig.run({}));
  EXPECT_EQ(Rig::words(*memory)[0], 50u);
}

TEST(NvQueue, AStuckGpuEndsTheWaitWithTheRingsState) {
  const ScopedSetting timeout("BM_WAIT_TIMEOUT_MS", "50");
  Rig rig({}, {.ring_entries = 4});
  rig.gpu->set_paused(true);
  const auto memory = rig.allocate(64);
  Status status;
  for (uint64_t i = 1; i <= 50 && status; ++i) {
    const hal::Command commands[] = {hal::Write{memory->va(), i}};
    status = rig.queue().submit(commands);
  }
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kTimeout);
  EXPECT_NE(status.error().message.find("or more taken"), std::string::npos)
      << status.error().message;
  rig.gpu->set_paused(false);
  EXPECT_TRUE(rig.run({}));
}

}  // namespace
}  // namespace bm::nv
