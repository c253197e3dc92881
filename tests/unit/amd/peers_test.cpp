// Several simulated AMD GPUs in one graph: kernels of real code on each, copies between them on
// their copy engines, ordered by the timelines alone.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "drivers/amd/device.h"
#include "drivers/amd/kfd/gpu.h"
#include "runtime/buffer.h"
#include "runtime/device.h"
#include "runtime/graph.h"
#include "tests/sim/amd/kfd/fake_kfd.h"
#include "tests/sim/amd/kfd/interpreter.h"

namespace bm::amd {
namespace {

struct Mode {
  const char* chip;
  PacketMode packets;
  uint32_t gpus;
};

class AmdPeers : public testing::TestWithParam<Mode> {
 protected:
  void open(sim::amd::Options machine = {}) {
    machine.chip = GetParam().chip;
    machine.gpus = GetParam().gpus;
    machine.execute = sim::amd::interpreter(machine.chip);
    system_ = std::make_unique<sim::amd::FakeKfd>(machine);
    for (uint32_t gpu = 0; gpu < machine.gpus; ++gpu) {
      auto kernel = kfd::open_gpu(*system_, {.index = gpu});
      ASSERT_TRUE(kernel) << kernel.error().message;
      auto made = make_device(std::move(*kernel), {.packets = GetParam().packets});
      ASSERT_TRUE(made) << made.error().message;
      auto device = runtime::make_device(std::move(*made), fmt::format("AMD:{}", gpu), "LLVM");
      ASSERT_TRUE(device) << device.error().message;
      devices_.push_back(std::move(*device));
      steps_.push_back(load(*devices_.back()));
      buffers_.push_back(runtime::allocate(*devices_.back(), {.size = 4096}).value());
      buffers_.back().size = 8;
    }
  }
  void TearDown() override {
    steps_.clear();
    buffers_.clear();
    while (!devices_.empty()) devices_.pop_back();
    if (system_ != nullptr) {
      EXPECT_EQ(system_->memory().objects(), 0u);
    }
  }
  /// at[0] = at[0] * 3 + 1.
  std::shared_ptr<const hal::Program> load(runtime::Device& device) {
    std::ifstream file(std::string("tests/unit/amd_faults/data/") + GetParam().chip + ".o",
                       std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto bytes = std::as_bytes(std::span(text));
    hal::CodeObject code;
    code.entry = "step";
    code.arch = GetParam().chip;
    code.image.assign(bytes.begin(), bytes.end());
    code.num_buffers = 1;
    code.block = {.x = 32};
    return device.hal().load(code).value();
  }
  runtime::Call step(uint32_t gpu) {
    runtime::KernelCall kernel;
    kernel.program = steps_[gpu];
    kernel.device = devices_[gpu].get();
    return {.name = "step",
            .what = std::move(kernel),
            .args = {{.buffer = buffers_[gpu], .is_written = true}}};
  }
  runtime::Call copy(uint32_t to, uint32_t from) {
    return {.name = "copy",
            .what = runtime::CopyCall{},
            .args = {{.buffer = buffers_[to], .is_written = true, .is_read = false},
                     {.buffer = buffers_[from]}}};
  }
  uint64_t number(uint32_t gpu) {
    uint64_t value = 0;
    const Status read =
        runtime::copy_out(std::as_writable_bytes(std::span(&value, 1)), buffers_[gpu]);
    EXPECT_TRUE(read) << read.error().message << system_->last_death();
    return value;
  }
  void set(uint32_t gpu, uint64_t value) {
    ASSERT_TRUE(runtime::copy_in(buffers_[gpu], std::as_bytes(std::span(&value, 1))));
  }

  std::unique_ptr<sim::amd::FakeKfd> system_;
  std::vector<std::unique_ptr<runtime::Device>> devices_;
  std::vector<std::shared_ptr<const hal::Program>> steps_;
  std::vector<runtime::Buffer> buffers_;
};

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
  open({.has_peers = false});
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
}

}  // namespace
}  // namespace bm::amd
