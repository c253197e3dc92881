#include "drivers/cpu/host_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "drivers/cpu/device.h"
#include "drivers/null/device.h"
#include "drivers/ref/device.h"
#include "runtime/base/env.h"
#include "tests/unit/drivers/kernels.h"

namespace bm::cpu {
namespace {

using hal::Command;
using hal::GpuVa;

GpuVa va(const void* pointer) { return GpuVa{reinterpret_cast<uint64_t>(pointer)}; }

TEST(HostQueue, WaitTimesOutWithWantedAndActualValue) {
  HostQueue queue({.wait_timeout_ms = 1});
  uint64_t signal = 6, untouched = 0;
  const Command commands[] = {hal::Wait{va(&signal), 7}, hal::Write{va(&untouched), 1}};
  const Status status = queue.submit(commands);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kTimeout);
  EXPECT_NE(status.error().message.find("value 7, it is 6"), std::string::npos)
      << status.error().message;
  EXPECT_EQ(untouched, 0u) << "later commands do not run";
}

TEST(HostQueue, WaitReturnsWhenAnotherThreadSignals) {
  HostQueue queue({});
  uint64_t there = 0, back = 0;
  std::thread peer([&] {
    HostQueue other({});
    const Command commands[] = {hal::Wait{va(&there), 1}, hal::Signal{va(&back), 2}};
    EXPECT_TRUE(other.submit(commands));
  });
  const Command commands[] = {hal::Signal{va(&there), 1}, hal::Wait{va(&back), 2}};
  EXPECT_TRUE(queue.submit(commands));
  peer.join();
}

TEST(HostQueue, ProgramOfAnotherDeviceIsRefused) {
  const auto null = null::open_device("", 0, "");
  ASSERT_TRUE(null);
  const auto program = (*null)->load(test::kernel("iota", 1, 2));
  ASSERT_TRUE(program);
  HostQueue queue({});
  uint64_t args[3] = {};
  const Command command = hal::Dispatch{program->get(), va(args), {}};
  const Status status = queue.submit(std::span(&command, 1));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
}

TEST(CpuDevice, TakesItsSettingsFromTheEnvironment) {
  const ScopedSetting threads("BM_THREADS", "3");
  const auto device = open_device("", 0, "");
  ASSERT_TRUE(device);
  EXPECT_EQ((*device)->arch().units, 3u);
  EXPECT_EQ((*device)->arch().clock_hz, 1'000'000'000u);
  EXPECT_FALSE((*device)->description().empty());
  EXPECT_EQ((*device)->disassemble(test::kernel("iota", 1, 2)).error().code, Code::kUnsupported);
  EXPECT_FALSE(open_device("KFD", 0, ""));
  EXPECT_FALSE(open_device("", 0, "gfx1100"));
}

TEST(NullDevice, CountsWorkAndAdvancesTimelines) {
  const auto opened = null::open_device("", 0, "gfx1100");
  ASSERT_TRUE(opened);
  hal::Device& device = **opened;
  EXPECT_EQ(device.arch().name, "gfx1100");
  EXPECT_GT(device.arch().max_block, 1u);
  auto data = device.allocate({.size = 1 << 30});
  auto signal = device.allocate({.size = 64, .host_visible = true, .zero = true});
  ASSERT_TRUE(data && signal);
  EXPECT_EQ((*data)->host(), nullptr);
  EXPECT_EQ(device.memory().used, 1u << 30);
  hal::CodeObject code;
  code.arch = "anything";
  code.num_buffers = 1;
  const auto program = device.load(code);
  ASSERT_TRUE(program);
  const Command commands[] = {hal::Copy{(*data)->va(), hal::offset((*data)->va(), 4096), 4096},
                              hal::Dispatch{program->get(), (*data)->va(), {1000, 1, 1}},
                              hal::Write{(*data)->va(), 1}, hal::Signal{(*signal)->va(), 5}};
  hal::Queue& queue = device.queue(hal::QueueKind::kCompute);
  ASSERT_TRUE(queue.submit(commands));
  EXPECT_EQ(*reinterpret_cast<uint64_t*>((*signal)->host()), 5u);
  const hal::Patch patches[] = {{.command = 3, .field = hal::PatchField::kSignalValue},
                                {.command = 1, .word = 0, .slot = 1}};
  auto recording = queue.record(commands, patches);
  ASSERT_TRUE(recording) << recording.error().message;
  const uint64_t values[] = {9, 1};
  ASSERT_TRUE(queue.replay(**recording, values));
  EXPECT_EQ(*reinterpret_cast<uint64_t*>((*signal)->host()), 9u);
  EXPECT_EQ(null::counts_of(device).submits, 1u);
  EXPECT_EQ(null::counts_of(device).replays, 1u);
  EXPECT_EQ(null::counts_of(device).kernels_and_copies, 4u);
}

TEST(RefDevice, LoadsNoPrograms) {
  const auto device = ref::open_device("", 0, "");
  ASSERT_TRUE(device);
  EXPECT_EQ((*device)->arch().vendor, hal::Vendor::kRef);
  const auto program = (*device)->load(test::kernel("iota", 1, 2));
  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().code, Code::kUnsupported);
  EXPECT_NE(program.error().message.find("host functions"), std::string::npos);
}

TEST(Builtin, TheCpuComesBeforeDevicesThatAreNoUse) {
  const auto drivers = hal::builtin_drivers();
  const auto position = [&](std::string_view name) {
    for (size_t i = 0; i < drivers.size(); ++i)
      if (drivers[i].name == name) return i;
    return drivers.size();
  };
  EXPECT_LT(position("CPU"), position("NULL"));
  EXPECT_LT(position("NULL"), drivers.size());
  EXPECT_LT(position("CPU"), position("REF"));
  EXPECT_LT(position("REF"), drivers.size());
  EXPECT_EQ(drivers[position("CPU")].count("").value(), 1u);
}

}  // namespace
}  // namespace bm::cpu
