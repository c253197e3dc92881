#pragma once
// Helpers of the tensor tests: any dtype to and from float64, comparison with a readable failure.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace bm::test {

/// Values as float64 (integers above 2^53 lose bits: compare bytes() instead).
std::vector<double> numbers(const Tensor& t);
/// Tensor of any dtype from float64 values, each rounded once.
Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType dtype,
                 const std::string& device);
/// 0, 1, 2, … in a shape.
Tensor counting(const Shape& shape, DType dtype, const std::string& device);

/// Largest error allowed: absolute + relative·|expected|; NaN equals NaN.
struct Tolerance {
  double absolute = 0, relative = 0;
};
/// Rounding of one operation, times a factor for operations made of several.
Tolerance tolerance_of(DType t, double factor = 4);

/// Compares shape, then values; the failure names the first element that differs.
::testing::AssertionResult has_values(const Tensor& t, const Shape& shape,
                                      const std::vector<double>& expected,
                                      Tolerance tolerance = {});
::testing::AssertionResult are_close(const std::vector<double>& expected,
                                     const std::vector<double>& actual, Tolerance tolerance);

/// Message of the Exception that f throws; "" when it throws none.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Exception& e) {
    return e.what();
  }
  return "";
}

/// 1, or 20 with BM_TEST_LONG=1.
int effort();
/// Opens the device or says why that is impossible (then the test skips).
std::string why_not(const std::string& device);

/// Tests of one behaviour on one device.
class OnDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(device()); !reason.empty()) GTEST_SKIP() << reason;
  }
  std::string device() const { return GetParam(); }
  Tensor f32(const std::vector<double>& v, const Shape& shape) const {
    return tensor_of(v, shape, DType::kF32, device());
  }
  Tensor f32(const std::vector<double>& v) const {
    return f32(v, {static_cast<int64_t>(v.size())});
  }
  Tensor i64(const std::vector<double>& v, const Shape& shape) const {
    return tensor_of(v, shape, DType::kI64, device());
  }
  Tensor i64(const std::vector<double>& v) const {
    return i64(v, {static_cast<int64_t>(v.size())});
  }
  Tensor i32(const std::vector<double>& v) const {
    return tensor_of(v, {static_cast<int64_t>(v.size())}, DType::kI32, device());
  }
  Tensor flags(const std::vector<double>& v) const {
    return tensor_of(v, {static_cast<int64_t>(v.size())}, DType::kBool, device());
  }
  Tensor count(const Shape& shape, DType t = DType::kF32) const {
    return counting(shape, t, device());
  }
};

inline std::string device_test_name(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == ':') c = '_';
  return name;
}

/// `names` and those in BM_TEST_DEVICES ("NV,CUDA"): devices a normal run does not have.
std::vector<const char*> devices_and(std::vector<const char*> names);

#define BM_ON_DEVICES(suite)                                                                   \
  INSTANTIATE_TEST_SUITE_P(Devices, suite,                                                     \
                           ::testing::ValuesIn(::bm::test::devices_and({"REF", "CPU", "CL"})), \
                           ::bm::test::device_test_name)

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace bm::test
