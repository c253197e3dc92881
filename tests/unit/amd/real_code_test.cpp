// Code of LLVM for RDNA3 and RDNA4 through loader, driver and packets, executed instruction by
// instruction.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "drivers/amd/device.h"
#include "drivers/amd/kfd/gpu.h"
#include "runtime/hal/device.h"
#include "tests/sim/amd/kfd/fake_kfd.h"
#include "tests/sim/amd/engine/interpreter.h"

namespace bm::amd {
namespace {

using namespace std::chrono_literals;
using hal::raw;

struct Mode {
  const char* chip;
  PacketMode packets;
};

class AmdRealCode : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    system_ = std::make_unique<sim::amd::FakeKfd>(sim::amd::Options{
        .chip = GetParam().chip, .execute = sim::amd::interpreter(GetParam().chip, 10'000'000)});
    auto kernel = kfd::open_gpu(*system_, {});
    ASSERT_TRUE(kernel) << kernel.error().message;
    auto made =
        make_device(std::move(*kernel), {.packets = GetParam().packets, .slab_bytes = 8 << 20});
    ASSERT_TRUE(made) << made.error().message;
    device_ = std::move(*made);
    memory_ = device_->allocate({.size = 65536, .host_visible = true, .zero = true}).value();
  }
  std::unique_ptr<hal::Program> load(const char* kernel) {
    hal::CodeObject code;
    code.entry = kernel;
    code.arch = GetParam().chip;
    code.num_buffers = code.num_vars = 1;
    code.block = {64, 1, 1};
    std::ifstream file(std::string("tests/unit/amd/data/") + GetParam().chip + ".o",
                       std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto bytes = std::as_bytes(std::span(text));
    code.image.assign(bytes.begin(), bytes.end());
    return device_->load(code).value();
  }
  uint64_t* words() { return reinterpret_cast<uint64_t*>(memory_->host()); }
  hal::GpuVa va(uint64_t word) { return hal::offset(memory_->va(), word * 8); }
  /// Runs a kernel over memory_ from word 1024 on; false: the device faulted.
  bool run(const hal::Program& program, uint64_t out, uint64_t n, uint32_t groups) {
    words()[8] = out;
    words()[9] = n;
    ++value_;
    const hal::Command list[] = {hal::Dispatch{&program, va(8), {groups, 1, 1}},
                                 hal::Signal{va(0), value_}};
    EXPECT_TRUE(device_->queue(hal::QueueKind::kCompute).submit(list));
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (std::atomic_ref<uint64_t>(words()[0]).load() < value_) {
      if (!device_->status() || std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(100us);
    }
    return true;
  }

  std::unique_ptr<sim::amd::FakeKfd> system_;
  std::unique_ptr<hal::Device> device_;
  std::unique_ptr<hal::Buffer> memory_;
  uint64_t value_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Modes, AmdRealCode,
                         testing::Values(Mode{"gfx1100", PacketMode::kPm4},
                                         Mode{"gfx1100", PacketMode::kAql},
                                         Mode{"gfx1201", PacketMode::kPm4},
                                         Mode{"gfx1201", PacketMode::kAql}));

TEST_P(AmdRealCode, ThreadsExchangeThroughLds) {
  const auto scale = load("scale");
  ASSERT_TRUE(run(*scale, raw(va(1024)), 7, 20)) << system_->last_death();
  for (uint64_t i = 0; i < 20 * 64; ++i) ASSERT_EQ(words()[1024 + i], 7 + 3 * i) << i;
  EXPECT_EQ(words()[1024 + 20 * 64], 0u);
}

TEST_P(AmdRealCode, ConstantsAreReachedThroughRelocations) {
  const auto lookup = load("lookup");
  ASSERT_TRUE(run(*lookup, raw(va(1024)), 0, 4)) << system_->last_death();
  const auto* values = reinterpret_cast<const uint32_t*>(&words()[1024]);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_GE(values[i], 1u);
    EXPECT_LE(values[i], 4u);
  }
}

TEST_P(AmdRealCode, SpilledArraysLieInScratch) {
  const auto stack = load("stack");
  ASSERT_TRUE(run(*stack, raw(va(1024)), 7, 3)) << system_->last_death();
  EXPECT_EQ(*reinterpret_cast<const uint32_t*>(&words()[1024]), 5u);
}

TEST_P(AmdRealCode, AStoreOutsideItsBufferIsTheFirstCause) {
  const auto scale = load("scale");
  ASSERT_FALSE(run(*scale, 0x7777'0000'0000, 7, 1));
  const Status status = device_->status();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kDeviceFault);
  for (const char* text : {"memory fault at 0x77770000", "scale", "dispatch 1"})
    EXPECT_NE(status.error().message.find(text), std::string::npos) << status.error().message;
}

}  // namespace
}  // namespace bm::amd
