// What a replay may not do: allocate, call the system, take long.

#include <gtest/gtest.h>

#include <memory>

#include "tests/unit/drivers/allocation_counter.h"
#include "tests/unit/drivers/replay_cost.h"
#include "tests/unit/nv_queue/rig.h"

namespace bm::nv {
namespace {

using test::Rig;

/// A hundred kernels of three arguments, one of them and the signal patched. Nothing executes by
/// itself: the host's part alone is measured.
struct CostRig : Rig {
  CostRig() : Rig({.is_threaded = false}) {
    store = load("store", 2, 1);
    args = allocate(1 << 16);
    std::vector<hal::Command> commands = {hal::Wait{timeline->va(), 0}, hal::Barrier{}};
    std::vector<hal::Patch> patches = {
        {.command = 0, .field = hal::PatchField::kSignalValue, .slot = 0}};
    for (uint32_t i = 0; i < 100; ++i) {
      const auto command = static_cast<uint32_t>(commands.size());
      commands.emplace_back(hal::Dispatch{store.get(), hal::offset(args->va(), i * 24), {}});
      patches.push_back({.command = command,
                         .field = hal::PatchField::kKernarg,
                         .word = 0,
                         .slot = 2,
                         .addend = i * 8});
    }
    const auto end = static_cast<uint32_t>(commands.size());
    commands.emplace_back(hal::Signal{timeline->va(), 0});
    patches.push_back({.command = end, .field = hal::PatchField::kSignalValue, .slot = 1});
    auto made = queue().record(commands, patches);
    EXPECT_TRUE(made);
    recording = std::move(*made);
    out = allocate(8192);
    other = allocate(8192);
  }
  ~CostRig() { gpu->run_until_idle_in_background(); }
  bool replay() {
    const uint64_t address = hal::raw((value % 2 == 0 ? out : other)->va());
    const uint64_t values[] = {value, value + 1, address};
    ++value;
    return queue().replay(*recording, values).has_value();
  }
  bool submit() {
    const hal::Command commands[] = {hal::Dispatch{store.get(), args->va(), {}}};
    return queue().submit(commands).has_value();
  }
  std::unique_ptr<hal::Program> store;
  std::unique_ptr<hal::Buffer> args, out, other;
  std::unique_ptr<hal::Recording> recording;
};

TEST(NvReplayCost, NoAllocation) {
  CostRig rig;
  ASSERT_TRUE(rig.replay());
  rig.gpu->run_until_idle();
  const uint64_t before = bm::test::allocations_of_this_thread();
  const bool good = rig.replay();
  EXPECT_EQ(bm::test::allocations_of_this_thread() - before, 0u);
  EXPECT_TRUE(good);
  rig.gpu->run_until_idle();
  EXPECT_EQ(rig.gpu->launches(), 200u);
}

TEST(NvReplayCost, NoSystemCallOnReplayAndSubmit) {
  bm::test::expect_no_system_call([] {
    auto rig = std::make_unique<CostRig>();
    rig->submit();  // the first submission grows the encoder's lists
    return rig;
  });
}

TEST(NvReplayCost, HundredKernelsTakeFewInstructions) {
  // 6,619 by g++ 12; compilers differ.
  bm::test::expect_few_instructions([] { return std::make_unique<CostRig>(); }, 9'000u);
}

}  // namespace
}  // namespace bm::nv
