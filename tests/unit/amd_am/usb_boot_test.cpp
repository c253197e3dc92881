// Cards behind a USB bridge: booted and used by a host whose memory they do not reach.

#include <gtest/gtest.h>

#include "drivers/amd/am/gpu.h"
#include "tests/unit/amd_am/usb_rig.h"

namespace bm::amd::am {
namespace {

using sim::amd::ChipOptions;
using test::UsbCardRig;

class AmUsbBoot : public ::testing::TestWithParam<const char*> {};

TEST_P(AmUsbBoot, FromPowerOnThenWarm) {
  UsbCardRig rig({.chip = GetParam()});
  {
    const auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.complaints();
    EXPECT_FALSE((*gpu)->was_warm());
    EXPECT_EQ((*gpu)->facts().chip->name, GetParam());
    EXPECT_NE((*gpu)->host_path(), nullptr);
  }
  {
    const auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.complaints();
    EXPECT_TRUE((*gpu)->was_warm());
  }
  EXPECT_EQ(rig.complaints(), "");
}

TEST_P(AmUsbBoot, AfterTheKernelDriverWasHere) {
  UsbCardRig rig({.chip = GetParam(), .start = ChipOptions::Start::kDriverWasHere});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.complaints();
  EXPECT_FALSE((*gpu)->was_warm());
  EXPECT_EQ(rig.complaints(), "");
}

INSTANTIATE_TEST_SUITE_P(Chips, AmUsbBoot,
                         ::testing::Values("gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"),
                         [](const auto& chip) { return std::string(chip.param); });

TEST(AmUsbMemory, LiesInTheCardAndIsSeenThroughTheBridge) {
  UsbCardRig rig;
  auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  const auto memory = (*gpu)->allocate({.size = 8192, .domain = MemoryDomain::kSystemUncached});
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ((*memory)->host(), nullptr);
  EXPECT_EQ((*memory)->domain, MemoryDomain::kSystemUncached);
  const HostView& view = (*memory)->view;
  ASSERT_EQ(view.size(), 8192u);
  view.fill(0, 8192, std::byte{0});
  for (uint64_t i = 0; i < 16; ++i) view.store<uint32_t>(i * 4, static_cast<uint32_t>(i * i));
  view.store<uint8_t>(5000, 7);
  view.publish();
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(view.load<uint32_t>(uint64_t{i} * 4), i * i);
  EXPECT_EQ(view.load<uint64_t>(5000), 7u);
  EXPECT_EQ(rig.card->vram().held_bytes(), 0u) << "the host data path was not flushed";
  alignas(4096) static std::byte page[4096];
  const auto pinned =
      (*gpu)->allocate({.size = 4096, .domain = MemoryDomain::kSystem, .host = page});
  ASSERT_FALSE(pinned);
  EXPECT_EQ(pinned.error().code, Code::kUnsupported);
  EXPECT_NE(pinned.error().message.find("no DMA to the host"), std::string::npos)
      << pinned.error().message;
}

TEST(AmUsbMemory, NeighbouringWritesAreOneTransfer) {
  UsbCardRig rig;
  auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  const auto memory = (*gpu)->allocate({.size = 4096, .domain = MemoryDomain::kSystemUncached});
  ASSERT_TRUE(memory) << memory.error().message;
  auto cost = [&, before = rig.bridge.counts().all()]() mutable {
    return rig.bridge.counts().all() - std::exchange(before, rig.bridge.counts().all());
  };
  cost();
  for (uint64_t i = 0; i < 64; ++i) (*memory)->view.store<uint32_t>(i * 4, 1);
  EXPECT_EQ(cost(), 0u);
  (*memory)->view.publish();
  EXPECT_EQ(cost(), 3u) << "a stream is two, the flush of the host data path one";
  (*memory)->view.store<uint32_t>(0, 2);
  (*memory)->view.publish();
  EXPECT_EQ(cost(), 2u);
  (*memory)->view.publish();
  EXPECT_EQ(cost(), 0u);
}

}  // namespace
}  // namespace bm::amd::am
