// Several simulated AMD GPUs in one graph: kernels of real code on each, copies between them on
// their copy engines, ordered by the timelines alone.
#include "tests/unit/amd/peers_rig.h"

namespace bm::amd {
namespace {

INSTANTIATE_TEST_SUITE_P(Modes, AmdPeers,
                         testing::Values(Mode{"gfx1100", PacketMode::kPm4, 2},
                                         Mode{"gfx1100", PacketMode::kAql, 2},
                                         Mode{"gfx1201", PacketMode::kPm4, 4},
                                         Mode{"gfx1201", PacketMode::kAql, 3}));

TEST_P(AmdPeers, AGraphGoesRoundAllGpus) {
  open();
  const uint32_t gpus = GetParam().gpus;
  std::vector<runtime::Call> calls;
  for (uint32_t gpu = 0; gpu < gpus; ++gpu) {
    calls.push_back(step(gpu));
    calls.push_back(copy((gpu + 1) % gpus, gpu));
  }
  auto graph = runtime::make_graph(std::move(calls), 0, 0);
  ASSERT_TRUE(graph) << graph.error().message;
  uint64_t want = 5;
  set(0, want);
  EXPECT_EQ(number(0), want);  // done, so that only the graph's copies are counted
  const uint64_t copied = system_->machine().copied_bytes;
  constexpr int kRounds = 8;
  for (int round = 0; round < kRounds; ++round) {
    // Late signals show an order that only happened to be right.
    system_->knobs().signal_delay_us = round % 2 == 0 ? 300 : 0;
    const Status replayed = (*graph)->replay({}, {});
    ASSERT_TRUE(replayed) << replayed.error().message;
    for (uint32_t gpu = 0; gpu < gpus; ++gpu) want = want * 3 + 1;
  }
  ASSERT_TRUE((*graph)->wait());
  system_->knobs().signal_delay_us = 0;
  EXPECT_EQ(system_->machine().copied_bytes - copied, uint64_t{kRounds} * gpus * 8)
      << "not the copy engines alone";
  EXPECT_EQ(number(0), want);
  graph->reset();
}

TEST_P(AmdPeers, LinksOfTheirOwnNeedNoFlush) {
  open({.has_direct_links = true});
  std::vector<runtime::Call> calls;
  calls.push_back(step(0));
  calls.push_back(copy(1, 0));
  calls.push_back(step(1));
  auto graph = runtime::make_graph(std::move(calls), 0, 0);
  ASSERT_TRUE(graph) << graph.error().message;
  set(0, 5);
  ASSERT_TRUE((*graph)->replay({}, {}));
  EXPECT_EQ(number(1), (5 * 3 + 1) * 3 + 1u);
  graph->reset();
}

TEST_P(AmdPeers, NoBufferLiesBehindTheBar) {
  open();
  using hal::BufferDesc;
  for (runtime::Device* device : {devices_.front().get(), devices_.back().get()})
    for (int bits = 0; bits < 16; ++bits) {
      const BufferDesc desc{.size = 70'000,
                            .host_visible = (bits & 1) != 0,
                            .host_memory = (bits & 2) != 0,
                            .uncached = (bits & 4) != 0,
                            .zero = (bits & 8) != 0};
      EXPECT_TRUE(device->hal().allocate(desc)) << bits;
    }
  std::vector<runtime::Call> calls;
  calls.push_back(step(0));
  calls.push_back(copy(1, 0));
  auto graph = runtime::make_graph(std::move(calls), 0, 0);
  ASSERT_TRUE(graph) << graph.error().message;
  ASSERT_TRUE((*graph)->replay({}, {}));
  ASSERT_TRUE((*graph)->wait());
  graph->reset();
  EXPECT_EQ(system_->machine().bar_objects, 0u)
      << "the CPU could write there, and no submission would flush it";
}

TEST_P(AmdPeers, EagerCopiesAreOrderedBothWays) {
  open();
  uint64_t want = 9;
  set(0, want);
  for (int round = 0; round < 10; ++round) {
    system_->knobs().signal_delay_us = round % 3 == 0 ? 200 : 0;
    for (const auto& [gpu, other] : {std::pair{0u, 1u}, {1u, 0u}}) {
      ASSERT_TRUE(runtime::execute(step(gpu), {}));
      ASSERT_TRUE(runtime::copy(buffers_[other], buffers_[gpu]));
      want = want * 3 + 1;
    }
  }
  EXPECT_EQ(number(0), want);
  EXPECT_EQ(number(1), want);
}

TEST_P(AmdPeers, GpusWithoutAccessToEachOtherCopyThroughTheHost) {
  for (const bool has_peers : {false, true}) {
    open({.has_peers = has_peers, .has_flush_page = false});  // either is enough
    set(0, 7);
    ASSERT_TRUE(runtime::execute(step(0), {}));
    const Status copied = runtime::copy(buffers_[1], buffers_[0]);
    ASSERT_TRUE(copied) << copied.error().message;
    ASSERT_TRUE(runtime::execute(step(1), {}));
    EXPECT_EQ(number(1), (7 * 3 + 1) * 3 + 1u);
    std::vector<runtime::Call> calls;
    calls.push_back(step(0));
    calls.push_back(copy(1, 0));
    const auto graph = runtime::make_graph(std::move(calls), 0, 0);
    ASSERT_FALSE(graph) << "a graph of memory that cannot be reached";
    EXPECT_EQ(graph.error().code, Code::kUnsupported) << graph.error().message;
    close();
    expect_nothing_left();
  }
}

}  // namespace
}  // namespace bm::amd
