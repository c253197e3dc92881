// One program over two devices: the CPU and an OpenCL device, copies and kernels ordered by
// timelines.
#include <gtest/gtest.h>

#include "drivers/cl/api.h"
#include "drivers/cl/device.h"
#include "runtime/allocator.h"
#include "tensor/jit.h"

namespace bm {
namespace {

class CrossDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (auto device = runtime::open_device("CL"); !device) GTEST_SKIP() << device.error().message;
  }
  static Tensor of(const std::vector<float>& v, std::string_view device) {
    return Tensor::from(v, {static_cast<int64_t>(v.size())}, device);
  }
  static std::vector<float> numbers(size_t n, float seed) {
    std::vector<float> v(n);
    for (size_t i = 0; i < n; ++i) v[i] = seed + static_cast<float>(i % 97);
    return v;
  }
};

TEST_F(CrossDevice, OperandsOnDifferentDevicesAreAnErrorNamingBoth) {
  try {
    (of({1}, "CPU") + of({1}, "CL")).realize();
    FAIL() << "no exception";
  } catch (const Exception& e) {
    EXPECT_NE(std::string(e.what()).find("CPU"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("CL"), std::string::npos);
  }
}

TEST_F(CrossDevice, AComputationMayMoveBackAndForth) {
  const std::vector<float> v = numbers(5000, 2);
  Tensor t = of(v, "CPU");
  for (int i = 0; i < 6; ++i) t = (t.to(i % 2 ? "CPU" : "CL") * 2 - 1).realize();
  const auto got = t.to("CPU").data<float>();
  for (size_t i = 0; i < v.size(); ++i) EXPECT_EQ(got[i], (v[i] - 1) * 64 + 1);
}

TEST_F(CrossDevice, ACapturedProgramSpansBoth) {
  const auto body = [](const Tensor& x) {
    const Tensor a = (x + 1).contiguous();                    // CPU
    const Tensor b = (a.to("CL") * a.to("CL")).contiguous();  // CL
    const Tensor c = (b.to("CPU") - x).contiguous();          // CPU again
    return c + b.to("CPU");
  };
  Jit step(body);
  for (int i = 0; i < 12; ++i) {
    const std::vector<float> v = numbers(20'000, static_cast<float>(i));
    const auto got = step(of(v, "CPU")).data<float>();
    for (size_t k = 0; k < v.size(); k += 331) {
      const float square = (v[k] + 1) * (v[k] + 1);
      ASSERT_EQ(got[k], square - v[k] + square) << "call " << i << " element " << k;
    }
  }
}

TEST_F(CrossDevice, AClMemOfAnotherProgramIsUsedInPlace) {
  const auto api = unwrap(cl::load_api());
  runtime::Device& device = *unwrap(runtime::open_device("CL"));
  const auto context = static_cast<cl_context>(cl::native_handles(device.hal()).context);
  std::vector<float> values = numbers(64, 3);
  cl_int error = CL_SUCCESS;
  cl_mem theirs = api->clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, 256,
                                      values.data(), &error);
  ASSERT_EQ(error, CL_SUCCESS);
  bool is_released = false;
  {
    Tensor t = Tensor::from_blob(
        theirs, {8, 8}, DType::kF32, "CL", [&] { is_released = true; }, hal::ExternalKind::kClMem);
    EXPECT_EQ((t + 1).data<float>()[63], values[63] + 1);
    t.assign(t * 2);
    EXPECT_EQ(t.data<float>()[5], values[5] * 2);
  }
  unwrap(device.synchronize());
  device.allocator().collect();
  EXPECT_TRUE(is_released);
  api->clReleaseMemObject(theirs);
}

TEST_F(CrossDevice, SvmMemoryOfAnotherProgramIsUsedInPlace) {
  const auto api = unwrap(cl::load_api());
  if (api->clSVMAlloc == nullptr) GTEST_SKIP() << "this OpenCL has no shared virtual memory";
  runtime::Device& device = *unwrap(runtime::open_device("CL"));
  const auto context = static_cast<cl_context>(cl::native_handles(device.hal()).context);
  void* theirs = api->clSVMAlloc(context, CL_MEM_READ_WRITE, 4096, 64);
  if (theirs == nullptr) GTEST_SKIP() << "clSVMAlloc gave nothing";
  {
    Tensor t =
        Tensor::from_blob(theirs, {100}, DType::kI32, "CL", {}, hal::ExternalKind::kSvmPointer);
    t.assign(Tensor::arange(100, DType::kI32, "CL") * 3);
    EXPECT_EQ(t.data<int32_t>()[99], 297);
  }
  unwrap(device.synchronize());
  device.allocator().collect();
  api->clSVMFree(context, theirs);
}

TEST_F(CrossDevice, StateOnTheOtherDeviceAdvancesOnReplay) {
  Tensor total = Tensor::zeros({256}, DType::kF32, "CL").contiguous().realize();
  Jit step([&](const Tensor& x) {
    total.assign(total + x.to("CL"));
    return total.to("CPU");
  });
  for (int i = 1; i <= 10; ++i)
    EXPECT_EQ(step(of(std::vector<float>(256, 1.5F), "CPU")).data<float>()[255],
              1.5F * static_cast<float>(i));
}

}  // namespace
}  // namespace bm
