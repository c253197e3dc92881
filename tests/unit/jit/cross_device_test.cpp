// One program over two devices: the CPU and an OpenCL device, copies and kernels ordered by timelines.
#include <gtest/gtest.h>

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

TEST_F(CrossDevice, CopiesBothWaysKeepEveryByte) {
  for (size_t n : {size_t{1}, size_t{1000}, size_t{3'000'001}}) {
    const std::vector<float> v = numbers(n, 1);
    EXPECT_EQ(of(v, "CPU").to("CL").to("CPU").data<float>(), v);
  }
}

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
