// Stages P12 to P15 and the first memory of a device, with accesses that go wrong.

#include <gtest/gtest.h>

#include <string>

#include "drivers/nv/device.h"
#include "runtime/base/env.h"
#include "tests/unit/nv_gsp/card_rig.h"
#include "tests/unit/nv_gsp/faulty_function.h"

namespace bm::nv::gsp::test {
namespace {

/// The start of a device, stage P12 on. `booted`: accesses when the GSP was up.
Result<std::unique_ptr<hal::Device>> start(CardRig& rig, Planted& planted,
                                           uint64_t* booted = nullptr) {
  auto card = BM_TRY(rig.open(std::make_unique<FaultyFunction>(rig.card, planted)));
  if (booted != nullptr) *booted = planted.count;
  return open_booted(std::move(card), {}, {.slab_bytes = 2 << 20});
}

/// What a program does next: memory, which has to be cleared.
Status use(const Result<std::unique_ptr<hal::Device>>& device) {
  if (!device) return tl::unexpected(device.error());
  BM_TRY((*device)->allocate({.size = 1 << 20}));
  return (*device)->status();
}

/// Whatever a single access does, the start ends and says in which stage, or works; so does what
/// follows; and the next one works.
void sweep_device(const char* chip, Fault fault, bool is_in_memory, uint64_t cases) {
  Planted none{.is_in_memory = is_in_memory};
  uint64_t booted = 0;
  {
    CardRig rig(chip);
    const Status used = use(start(rig, none, &booted));
    ASSERT_TRUE(used) << used.error().message << "\n" << rig.violations();
  }
  ASSERT_GT(none.count, booted);
  const uint64_t step = cases == 0 ? 1 : (none.count - booted) / cases + 1;
  for (uint64_t n = booted + 1; n <= none.count; n += step) {
    CardRig rig(chip);
    Planted planted{.fault = fault, .nth = n, .is_in_memory = is_in_memory};
    {
      const ScopedSetting limit("BM_WAIT_TIMEOUT_MS", "300");
      const auto device = start(rig, planted);
      if (!device) {
        EXPECT_NE(device.error().message.find("stage P1"), std::string::npos)
            << chip << ", access " << n << ": " << device.error().message;
      }
      const Status used = use(device);
      if (!used) {
        EXPECT_GT(used.error().message.size(), 20u) << used.error().message;
      }
    }
    // The card may still write where a channel that could not be freed has its USERD and notifier.
    EXPECT_EQ(rig.violations().find("is unmapped while"), std::string::npos)
        << chip << ", access " << n << ": " << rig.violations();
    Planted nothing;
    const Status next = use(start(rig, nothing));
    EXPECT_TRUE(next) << chip << ", after access " << n << ": " << next.error().message;
  }
}

constexpr uint64_t kCases = 12, kManyCases = 20;
TEST(GspDeviceFaults, OnesOnce) { sweep_device("ga102", Fault::kOnes, false, kCases); }
TEST(GspDeviceFaults, AWriteThatIsLost) { sweep_device("gb202", Fault::kDropped, false, kCases); }
TEST(GspDeviceFaults, ATransportThatFails) {
  sweep_device("gh100", Fault::kTransport, false, kCases);
}
TEST(GspDeviceFaults, AWrongWordInVideoMemory) {
  sweep_device("tu102", Fault::kWrong, true, kCases);
}
TEST(GspDeviceFaults, DISABLED_ManyAccessesOfAnyChip) {
  for (const char* const chip : kChips)
    for (const Fault fault : kFaults)
      for (const bool is_in_memory : {false, true})
        sweep_device(chip, fault, is_in_memory, kManyCases);
}

}  // namespace
}  // namespace bm::nv::gsp::test
