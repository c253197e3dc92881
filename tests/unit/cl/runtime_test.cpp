// The runtime on an OpenCL device. Copies, kernels and graphs: tests/cts.

#include "runtime/device.h"
#include "runtime/executor.h"
#include "tests/unit/cl/rig.h"

namespace bm::cl {
namespace {

using namespace test;

TEST(OpenClRuntime, ClockIsTheHosts) {
  BM_NEEDS_OPENCL();
  const auto cl = runtime::make_device(open(), "CL", "OPENCL");
  ASSERT_TRUE(cl) << cl.error().message;
  const auto map = runtime::calibrate_clock(**cl);
  ASSERT_TRUE(map) << map.error().message;
  EXPECT_EQ(map->ticks_per_second, 1'000'000'000u);
}

}  // namespace
}  // namespace bm::cl
