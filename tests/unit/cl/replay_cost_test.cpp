// What our part of a replay may not do: allocate. (OpenCL does inside its calls; in C.)

#include "tests/unit/cl/rig.h"
#include "tests/unit/drivers/allocation_counter.h"

namespace bm::cl {
namespace {

using namespace test;

TEST(OpenClReplayCost, NoAllocationOfOurs) {
  BM_NEEDS_OPENCL();
  const auto device = open();
  const auto program = device->load(add_code(*device));
  ASSERT_TRUE(program);
  const auto x = visible(*device, 512), y = visible(*device, 512), arguments = words(*device),
             end = words(*device);
  word(*arguments, 0) = address(*x);
  word(*arguments, 1) = 64;
  std::vector<hal::Command> commands(50, hal::Dispatch{program->get(), arguments->va(), {}});
  commands.emplace_back(hal::Copy{x->va(), y->va(), 64});
  commands.emplace_back(hal::Signal{end->va(), 0});
  const hal::Patch patches[] = {
      {.command = 7, .field = hal::PatchField::kKernarg, .word = 0, .slot = 0},
      {.command = 50, .field = hal::PatchField::kCopySrc, .slot = 0},
      {.command = 51, .field = hal::PatchField::kSignalValue, .slot = 1}};
  const auto recording = device->queue(hal::QueueKind::kCompute).record(commands, patches);
  ASSERT_TRUE(recording);
  bool is_good = true;
  const auto replay = [&](uint64_t step) {
    const uint64_t values[] = {address(step % 2 == 0 ? *x : *y) + (step % 2 == 0 ? 128 : 0), step};
    is_good &= device->queue(hal::QueueKind::kCompute).replay(**recording, values).has_value();
    is_good &= wait_for(*device, word(*end), step).has_value();
  };
  replay(1);
  replay(2);
  const uint64_t before = bm::test::allocations_of_this_thread();
  for (uint64_t step = 3; step < 40; ++step) replay(step);
  EXPECT_EQ(bm::test::allocations_of_this_thread(), before);
  EXPECT_TRUE(is_good);
}

}  // namespace
}  // namespace bm::cl
