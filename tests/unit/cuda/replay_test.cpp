// Recordings as graphs: what is set again, what falls back, what it costs.

#include "tests/unit/cuda/rig.h"
#ifdef BM_COUNTS_ALLOCATIONS
#include "tests/unit/drivers/allocation_counter.h"
#endif

namespace bm::cuda {
namespace {

using namespace test;
using hal::Patch;
using hal::PatchField;

/// Ten kernels, a copy and a signal; each kernel adds its own number to its own word.
class CudaReplay : public testing::Test {
 protected:
  static constexpr uint64_t kKernels = 10;

  std::unique_ptr<hal::Recording> record(const std::vector<Patch>& patches) {
    for (uint64_t i = 0; i < kKernels; ++i) {
      args.push_back(words(*device, {address(*x) + 8 * i, 1, i + 1}));
      commands.push_back(hal::Barrier{});
      commands.push_back(hal::Dispatch{add.get(), args.back()->va(), {}});
    }
    commands.push_back(hal::Copy{y->va(), x->va(), kKernels * 8});
    commands.push_back(hal::Signal{end->va(), 0});
    auto recording = device->queue(hal::QueueKind::kCompute).record(commands, patches);
    EXPECT_TRUE(recording) << recording.error().message;
    return recording ? std::move(*recording) : nullptr;
  }
  Status replay(hal::Recording& recording, std::vector<uint64_t> values) {
    BM_TRY(device->queue(hal::QueueKind::kCompute).replay(recording, values));
    return wait_for(*device, word(*end), values.back());
  }
  /// Command index of a kernel, of the copy, of the signal.
  static uint32_t kernel(uint64_t i) { return static_cast<uint32_t>(2 * i + 1); }
  static constexpr uint32_t kCopy = 2 * kKernels, kSignal = kCopy + 1;
  static int sets() {
    return fake().count("cuGraphExecKernelNodeSetParams") +
           fake().count("cuGraphExecMemcpyNodeSetParams");
  }

  std::shared_ptr<Api> api = usual_api();
  std::unique_ptr<hal::Device> device = open_on(api);
  std::unique_ptr<hal::Program> add = load(*device, code("add", 1, 2));
  std::unique_ptr<hal::Buffer> x = words(*device), y = words(*device), end = words(*device);
  std::vector<std::unique_ptr<hal::Buffer>> args;
  Commands commands;
  const Patch signal{.command = kSignal, .field = PatchField::kSignalValue, .slot = 0};
};

TEST_F(CudaReplay, IsOneGraphInOneChainMadeOnce) {
  const auto recording = record({signal});
  ASSERT_EQ(fake().graphs.size(), 1u);
  EXPECT_EQ(fake().graphs[0]->nodes.size(), kKernels + 1);
  EXPECT_TRUE(fake().graphs[0]->is_chain);
  for (uint64_t step = 1; step <= 5; ++step) EXPECT_OK(replay(*recording, {step}));
  EXPECT_EQ(fake().count("cuGraphInstantiate"), 1);
  EXPECT_EQ(fake().count("cuGraphUpload"), 1);
  EXPECT_EQ(fake().count("cuGraphLaunch"), 5);
  EXPECT_EQ(fake().count("cuLaunchKernel"), 0);
  EXPECT_EQ(sets(), 0) << "nothing changed";
  for (uint64_t i = 0; i < kKernels; ++i) EXPECT_EQ(word(*y, i), 5 * (i + 1));
}

TEST_F(CudaReplay, OnlyNodesThatChangedAreSetAgain) {
  const auto other = words(*device);
  auto by = signal;
  by.slot = 3;
  const auto recording =
      record({{.command = kernel(2), .field = PatchField::kKernarg, .word = 0, .slot = 0},
              {.command = kernel(5), .field = PatchField::kKernarg, .word = 2, .slot = 1},
              {.command = kernel(7), .field = PatchField::kGridX, .slot = 2},
              by});
  const uint64_t a = address(*x) + 16, b = address(*other);
  EXPECT_OK(replay(*recording, {a, 6, 1, 1}));
  EXPECT_EQ(sets(), 0) << "the recorded values";
  EXPECT_OK(replay(*recording, {b, 6, 1, 2}));
  EXPECT_EQ(sets(), 1) << "a pointer";
  EXPECT_OK(replay(*recording, {b, 60, 9, 3}));
  EXPECT_EQ(sets(), 3) << "a variable of one kernel, the grid of another";
  EXPECT_OK(replay(*recording, {b, 60, 9, 4}));
  EXPECT_EQ(sets(), 3);
  EXPECT_EQ(word(*x, 2), 3u) << "in the first replay";
  EXPECT_EQ(word(*other, 0), 9u);
  EXPECT_EQ(word(*x, 5), 6u + 6u + 60u + 60u);
  EXPECT_EQ(fake().count("cuGraphInstantiate"), 1);
}

TEST_F(CudaReplay, AGridOfNothingRunsTheRestWithoutTheGraph) {
  auto end_value = signal;
  end_value.slot = 1;
  const auto recording =
      record({{.command = kernel(4), .field = PatchField::kGridY, .slot = 0}, end_value});
  EXPECT_OK(replay(*recording, {1, 1}));
  EXPECT_OK(replay(*recording, {0, 2}));
  EXPECT_EQ(fake().count("cuGraphLaunch"), 1);
  EXPECT_EQ(fake().count("cuLaunchKernel"), int{kKernels - 1});
  EXPECT_OK(replay(*recording, {2, 3}));
  EXPECT_EQ(fake().count("cuGraphLaunch"), 2);
  EXPECT_EQ(word(*x, 4), 10u);
  EXPECT_EQ(word(*x, 5), 18u);
}

TEST_F(CudaReplay, ACopyToMemoryOfAnotherKindRunsWithoutTheGraph) {
  const auto video = allocate(*device, {.size = 64 * 8, .zero = true});
  std::vector<uint64_t> foreign(64);
  auto end_value = signal;
  end_value.slot = 1;
  const auto recording =
      record({{.command = kCopy, .field = PatchField::kCopyDst, .slot = 0}, end_value});
  EXPECT_OK(replay(*recording, {address(*y), 1}));
  EXPECT_OK(replay(*recording, {address(*video), 2}));
  EXPECT_OK(replay(*recording, {hal::raw(va_of(foreign.data())), 3}));
  EXPECT_EQ(fake().count("cuGraphLaunch"), 1);
  EXPECT_EQ(foreign[9], 30u);
  EXPECT_OK(replay(*recording, {address(*y) + 8, 4}));
  EXPECT_EQ(fake().count("cuGraphLaunch"), 2);
  EXPECT_EQ(word(*y, 10), 40u);
  EXPECT_OK(run(*device, {hal::Copy{y->va(), video->va(), kKernels * 8}}));
  EXPECT_EQ(word(*y, 9), 20u);
}

TEST_F(CudaReplay, WhatTheDriverDoesNotTakeAsAGraphRunsAsCommands) {
  for (const char* member :
       {"cuGraphCreate", "cuGraphAddKernelNode", "cuGraphAddMemcpyNode", "cuGraphInstantiate"}) {
    args.clear();
    commands.clear();
    std::fill_n(x->host(), 512, std::byte{0});
    word(*end) = 0;
    fake().failures = {{member, 801}};
    const auto recording = record({signal});
    ASSERT_TRUE(recording);
    fake().failures.clear();
    const int launches = fake().count("cuLaunchKernel");
    EXPECT_OK(replay(*recording, {1}));
    EXPECT_EQ(fake().count("cuLaunchKernel") - launches, int{kKernels}) << member;
    EXPECT_EQ(word(*y, 3), 4u);
  }
  EXPECT_EQ(fake().count("cuGraphLaunch"), 0);
  EXPECT_TRUE(fake().graphs.empty()) << "nothing is left behind";
}

TEST_F(CudaReplay, ARefusedUpdateFallsBackForGood) {
  auto end_value = signal;
  end_value.slot = 1;
  const auto recording = record(
      {{.command = kernel(0), .field = PatchField::kKernarg, .word = 2, .slot = 0}, end_value});
  EXPECT_OK(replay(*recording, {1, 1}));
  fake().failures = {{"cuGraphExecKernelNodeSetParams", 910}};
  EXPECT_OK(replay(*recording, {7, 2}));
  fake().failures.clear();
  EXPECT_OK(replay(*recording, {8, 3}));
  EXPECT_EQ(word(*x, 0), 1u + 7u + 8u);
  EXPECT_EQ(fake().count("cuGraphLaunch"), 1);
  EXPECT_EQ(fake().count("cuGraphExecKernelNodeSetParams"), 1);
}

TEST_F(CudaReplay, DriversWithoutGraphsReplayCommands) {
  const auto without = std::make_shared<Api>(*api);
  without->cuGraphCreate = nullptr;
  x = nullptr, y = nullptr, end = nullptr, add = nullptr;
  device = nullptr;
  device = open_on(without);
  add = load(*device, code("add", 1, 2));
  x = words(*device), y = words(*device), end = words(*device);
  const auto recording = record({signal});
  EXPECT_OK(replay(*recording, {1}));
  EXPECT_EQ(fake().count("cuLaunchKernel"), int{kKernels});
  EXPECT_EQ(word(*y, 9), 10u);
}

TEST_F(CudaReplay, WaitsCutTheListAndHoldTheRest) {
  for (uint64_t i = 0; i < 4; ++i) {
    args.push_back(words(*device, {address(*x), 1, 1}));
    commands.push_back(hal::Dispatch{add.get(), args.back()->va(), {}});
    if (i == 1) commands.push_back(hal::Wait{at(*end, 1), 1});
  }
  commands.push_back(hal::Signal{end->va(), 1});
  const auto recording = device->queue(hal::QueueKind::kCompute).record(commands, {});
  ASSERT_TRUE(recording);
  EXPECT_EQ(fake().graphs.size(), 2u);
  EXPECT_OK(device->queue(hal::QueueKind::kCompute).replay(**recording, {}));
  for (int i = 0; i < 50; ++i) EXPECT_OK(device->status());
  EXPECT_EQ(word(*x), 2u);
  word(*end, 1) = 1;
  EXPECT_OK(wait_for(*device, word(*end), 1));
  EXPECT_EQ(word(*x), 4u);
}

TEST_F(CudaReplay, ArgumentsAreThoseOfRecordTime) {
  const auto recording = record({signal});
  word(*args[0], 2) = 1000;  // the caller's block is the caller's again
  EXPECT_OK(replay(*recording, {1}));
  EXPECT_EQ(word(*x, 0), 1u);
}

TEST_F(CudaReplay, TwoSlotsOfOnePlaceAndTooFewValuesAreRefused) {
  const Patch twice[] = {{.command = kernel(0), .field = PatchField::kGridX, .slot = 0},
                         {.command = kernel(0), .field = PatchField::kGridX, .slot = 1}};
  const auto recording = record({signal});
  EXPECT_REFUSED(Code::kInvalidArgument,
                 device->queue(hal::QueueKind::kCompute).record(commands, twice));
  EXPECT_REFUSED(Code::kInvalidArgument,
                 device->queue(hal::QueueKind::kCompute).replay(*recording, {}));
}

#ifdef BM_COUNTS_ALLOCATIONS
TEST_F(CudaReplay, NoCallOfOursAllocates) {
  // The fake driver allocates: only our part of the call is counted, with its functions replaced.
  auto end_value = signal;
  end_value.slot = 2;
  const auto recording =
      record({{.command = kernel(3), .field = PatchField::kKernarg, .word = 0, .slot = 0},
              {.command = kCopy, .field = PatchField::kCopySrc, .slot = 1},
              end_value});
  EXPECT_OK(replay(*recording, {address(*x), address(*x), 1}));
  const auto nothing = []<class... Args>(CuResult (*&function)(Args...)) {
    function = [](Args...) -> CuResult { return kSuccess; };
  };
  nothing(api->cuGraphLaunch);
  nothing(api->cuGraphExecKernelNodeSetParams);
  nothing(api->cuGraphExecMemcpyNodeSetParams);
  nothing(api->cuStreamWriteValue64);
  nothing(api->cuStreamQuery);
  bool is_good = true;
  const uint64_t before = bm::test::allocations_of_this_thread();
  for (uint64_t step = 2; step < 20; ++step) {
    const uint64_t values[] = {address(*x) + 8 * (step % 2), address(*x) + 8 * (step % 3), step};
    is_good &= device->queue(hal::QueueKind::kCompute).replay(*recording, values).has_value();
  }
  EXPECT_EQ(bm::test::allocations_of_this_thread(), before);
  EXPECT_TRUE(is_good);
}
#endif

}  // namespace
}  // namespace bm::cuda
