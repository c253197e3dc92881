#include <gtest/gtest.h>

#include "drivers/nv/fault.h"
#include "drivers/nv/loaded_program.h"
#include "tests/unit/nv_queue/rig.h"

namespace bm::nv {
namespace {

using test::Rig;

TEST(NvFault, FirstCauseIsStickyAndNamesEverything) {
  Rig rig;
  const auto store = rig.load("store");
  const auto out = rig.allocate(4096), args = rig.allocate(64);
  Rig::words(*args)[0] = hal::raw(out->va());
  ASSERT_TRUE(rig.run({hal::Dispatch{store.get(), args->va(), {}}}));
  EXPECT_TRUE(rig.device->status());
  const auto large = rig.allocate(9 << 20);
  rig.gpu->details.mmu.push_back(
      {.address = hal::raw(large->va()) + (9 << 20) + 12, .access = "write", .kind = "unmapped"});
  rig.gpu->fail_channels(Engine::kCompute, 31);
  const Status status = rig.device->status();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kDeviceFault);
  for (const char* part : {"31", "MMU fault", "write", "unmapped",
                           "12 bytes past the end of a live allocation of 9437184 bytes", "store"})
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
  // Later faults and calls change nothing.
  rig.gpu->details = {};
  rig.gpu->fail_channels(Engine::kCopy, 45);
  EXPECT_EQ(rig.device->status().error().message, status.error().message);
  EXPECT_EQ(rig.queue().submit({}).error().message, status.error().message);
  EXPECT_EQ(rig.device->allocate({.size = 8}).error().message, status.error().message);
  EXPECT_EQ(rig.device->load(rig.code("store", 1, 1)).error().message, status.error().message);
}

TEST(NvFault, FreedMemoryIsRecognised) {
  Rig rig;
  auto freed = rig.allocate(8192);
  const uint64_t va = hal::raw(freed->va());
  freed.reset();
  rig.gpu->details.mmu.push_back({.address = va + 100, .access = "read", .kind = "unmapped"});
  rig.gpu->fail_channels(Engine::kCompute, 31);
  const std::string message = rig.device->status().error().message;
  EXPECT_NE(message.find("inside a freed allocation of 8192 bytes"), std::string::npos) << message;
}

TEST(NvFault, AnSmsProgramCounterNamesTheKernel) {
  Rig rig;
  const auto store = rig.load("store");
  const auto& program = dynamic_cast<const NvProgram&>(*store);
  rig.gpu->details.sms.push_back(
      {.sm = 3, .pc = program.plan().shape.program + 0x10, .text = "illegal instruction"});
  rig.gpu->fail_channels(Engine::kCompute, 13);
  const std::string message = rig.device->status().error().message;
  EXPECT_NE(message.find("SM 3: illegal instruction"), std::string::npos) << message;
  EXPECT_NE(message.find("in kernel 'store' + 0x10"), std::string::npos) << message;
}

TEST(NvFault, ADeadChannelEndsAWaitForTheRing) {
  Rig rig({}, {.ring_entries = 4});
  rig.gpu->set_paused(true);
  const auto memory = rig.allocate(64);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    rig.gpu->fail_channels(Engine::kCompute, 109);
  });
  Status status;
  const hal::Command commands[] = {hal::Write{memory->va(), 1}};
  while (status) status = rig.queue().submit(commands);
  killer.join();
  EXPECT_NE(status.error().code, Code::kTimeout) << status.error().message;
  EXPECT_NE(rig.device->status().error().message.find("context switch timeout"), std::string::npos);
}

TEST(NvFault, TheNextDeviceWorks) {
  {
    Rig rig;
    rig.gpu->fail_channels(Engine::kCompute, 31);
    EXPECT_FALSE(rig.device->status());
  }
  Rig rig;
  EXPECT_TRUE(rig.run({}));
}

// nverror.h, ROBUST_CHANNEL_CE_ERROR: the codes of the copy engines are in four pieces.
TEST(NvFault, CodesOfTheCopyEngines) {
  constexpr uint32_t kCodes[] = {39, 40, 41, 70, 71, 72, 75, 76, 77, 85, 126, 127, 135};
  constexpr uint32_t kEngines[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19};
  for (size_t i = 0; i < std::size(kCodes); ++i)
    EXPECT_EQ(channel_error(kCodes[i]).name, fmt::format("copy engine {} exception", kEngines[i]));
  for (const uint32_t code : {42u, 69u, 73u, 78u, 86u, 125u, 136u})
    EXPECT_EQ(channel_error(code).name.find("copy engine"), std::string_view::npos) << code;
}

TEST(NvFault, CodesThatLoseTheGpu) {
  EXPECT_EQ(channel_error(31).name, "MMU fault");
  EXPECT_FALSE(channel_error(31).loses_device);
  EXPECT_TRUE(channel_error(79).loses_device);
  EXPECT_TRUE(channel_error(9999).name.empty());
  Rig rig;
  rig.gpu->fail_channels(Engine::kCompute, 79);
  EXPECT_EQ(rig.device->status().error().code, Code::kDeviceLost);
}

}  // namespace
}  // namespace bm::nv
