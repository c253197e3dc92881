// Memory of the host as the card addresses it: physical pages wherever they lie where no IOMMU is
// there, IOVAs around what the machine keeps for itself where one is.

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "drivers/amd/device.h"
#include "tests/unit/amd_am/rig.h"

namespace bm::amd::am {
namespace {

using test::CardRig;

/// A device over a card that is opened as the rig does it.
Result<std::unique_ptr<hal::Device>> open_device(CardRig& rig) {
  return make_device(BM_TRY(rig.open()));
}

/// Copies a pattern from memory of the host through video memory into other memory of the host.
Status copy_there_and_back(hal::Device& device, uint64_t bytes) {
  auto from = BM_TRY(device.allocate({.size = bytes, .host_visible = true}));
  auto video = BM_TRY(device.allocate({.size = bytes}));
  auto to = BM_TRY(device.allocate({.size = bytes, .host_visible = true, .zero = true}));
  auto signal =
      BM_TRY(device.allocate({.size = 4096, .host_visible = true, .uncached = true, .zero = true}));
  for (uint64_t i = 0; i < bytes; ++i)
    from->host()[i] = static_cast<std::byte>(i * 7 + (i >> 12) * 31);
  const hal::GpuVa word = signal->va();
  const std::vector<hal::Command> commands = {
      hal::Copy{.dst = video->va(), .src = from->va(), .bytes = bytes}, hal::Barrier{},
      hal::Copy{.dst = to->va(), .src = video->va(), .bytes = bytes},
      hal::Signal{.signal = word, .value = 1}};
  BM_TRY(device.queue(hal::QueueKind::kCopy).submit(commands));
  // TIMEOUT: megabytes through a model; a minute covers the busiest machine.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::atomic_ref<uint64_t> done(*reinterpret_cast<uint64_t*>(signal->host()));
  while (done.load() != 1) {
    BM_TRY(device.status());
    if (std::chrono::steady_clock::now() > limit) return fail(Code::kTimeout, "no signal");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (std::memcmp(from->host(), to->host(), bytes) != 0)
    return fail(Code::kCorrupt, "other bytes came back");
  return {};
}

class BusAddresses : public ::testing::TestWithParam<const char*> {};

// Pages lie anywhere, no two of them side by side.
TEST_P(BusAddresses, WithoutAnIommuPagesAreWhereTheyAre) {
  CardRig rig({.chip = GetParam(), .has_iommu = false});
  for (const bool is_first : {true, false}) {
    {
      const auto gpu = rig.open();
      ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
      EXPECT_NE((*gpu)->was_warm(), is_first);
    }
    const auto device = open_device(rig);
    ASSERT_TRUE(device) << device.error().message << "\n" << rig.violations();
    const Status copied = copy_there_and_back(**device, (3 << 20) + 4096);
    EXPECT_TRUE(copied) << copied.error().message;
  }
  EXPECT_EQ(rig.violations(), "");
  EXPECT_TRUE(rig.card->deaths().empty());
}

// Windows in the middle of what is used first, down to single pages between them.
TEST_P(BusAddresses, ReservedWindowsAreLeftOut) {
  std::vector<std::pair<uint64_t, uint64_t>> windows;
  for (uint64_t at = 0; at < 64; ++at) windows.emplace_back(at * 0x40000 + 0x11000, 0x1d000);
  windows.emplace_back(0x100'0000, 0xe000'0000);
  windows.emplace_back(0xfee0'0000, 0x10'0000);
  windows.emplace_back(0xfd'0000'0000, 0x3'0000'0000);  // HyperTransport's, on AMD machines
  CardRig rig({.chip = GetParam(), .reserved = windows});
  {
    const auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
    std::vector<std::unique_ptr<Memory>> memory;
    for (uint64_t pages = 1; pages < 600; pages = pages * 3 / 2 + 1) {
      auto one = (*gpu)->allocate({.size = pages * 4096, .domain = MemoryDomain::kSystem});
      ASSERT_TRUE(one) << pages << ": " << one.error().message;
      memory.push_back(std::move(*one));
    }
  }
  const auto device = open_device(rig);
  ASSERT_TRUE(device) << device.error().message << "\n" << rig.violations();
  const Status copied = copy_there_and_back(**device, (2 << 20) + 4096);
  EXPECT_TRUE(copied) << copied.error().message;
  EXPECT_EQ(rig.violations(), "");
}

INSTANTIATE_TEST_SUITE_P(Chips, BusAddresses,
                         ::testing::Values("gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"),
                         [](const auto& chip) { return std::string(chip.param); });

TEST(BusAddressLimits, MemoryBeyondTheCardsBitsIsRefusedWithTheRemedy) {
  CardRig rig({.has_iommu = false, .physical_base = uint64_t{1} << 44});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  const auto memory = (*gpu)->allocate({.size = 8192, .domain = MemoryDomain::kSystem});
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Code::kUnsupported);
  EXPECT_NE(memory.error().message.find("beyond the card's 44 bits: use the IOMMU"),
            std::string::npos)
      << memory.error().message;
  EXPECT_EQ(rig.violations(), "");
}

TEST(BusAddressLimits, ContiguousMemoryWithoutAnIommuIsAPageOrAnError) {
  CardRig rig({.has_iommu = false});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  EXPECT_TRUE((*gpu)->allocate(
      {.size = 4096, .domain = MemoryDomain::kSystemUncached, .is_contiguous = true}));
  const auto more = (*gpu)->allocate(
      {.size = 1 << 20, .domain = MemoryDomain::kSystemUncached, .is_contiguous = true});
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Code::kUnsupported) << more.error().message;
}

TEST(BusAddressLimits, WindowsThatLeaveNothingAreAnErrorOfTheBoot) {
  CardRig rig({.reserved = {{0, uint64_t{1} << 44}}});
  const auto gpu = rig.open();
  ASSERT_FALSE(gpu);
  EXPECT_NE(gpu.error().message.find("boot stage 'layout'"), std::string::npos)
      << gpu.error().message;
}

}  // namespace
}  // namespace bm::amd::am
