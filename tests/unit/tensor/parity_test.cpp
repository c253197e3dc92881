// Every operation on every dtype it exists on: the compiled devices against the reference device.
// A normal run takes all dtypes on CPU (LLVM) and one each of every other row on CPU:CLANG and CL
// (another half); BM_TEST_LONG=1 takes all of them everywhere, several inputs each.
#include "tests/unit/tensor/parity_cases.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

class Parity : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (const std::string& name : {std::string("REF"), std::string(GetParam())})
      if (const std::string reason = why_not(name); !reason.empty()) GTEST_SKIP() << reason;
  }
  void check(const ParityCase& row, DType t, uint64_t seed) const {
    std::vector<Tensor> reference, compiled;
    for (size_t i = 0; i < row.inputs.size(); ++i) {
      reference.push_back(draw_input(row.inputs[i], t, row, seed + i, "REF"));
      compiled.push_back(draw_input(row.inputs[i], t, row, seed + i, GetParam()));
    }
    SCOPED_TRACE(
        fmt::format("{} of {}, seed {}, on {}", row.name, dtype_name(t), seed, GetParam()));
    const Tensor expected = row.run(reference), actual = row.run(compiled);
    ASSERT_EQ(expected.shape(), actual.shape());
    ASSERT_EQ(expected.dtype(), actual.dtype());
    if (row.factor == 0 || !is_float(expected.dtype())) {
      EXPECT_TRUE(are_close(numbers(expected), numbers(actual), {}));
      return;
    }
    const std::vector<double> values = numbers(expected);
    double scale = 1;
    for (double v : values) scale = std::isfinite(v) ? std::max(scale, std::fabs(v)) : scale;
    Tolerance tolerance = tolerance_of(expected.dtype(), row.factor);
    if (is_half_like(expected.dtype()))
      tolerance = tolerance_of(expected.dtype(), 2);  // computed in float32, rounded at the end
    tolerance.absolute *= scale;
    EXPECT_TRUE(are_close(values, numbers(actual), tolerance));
  }
  void run(size_t first, size_t step) const {
    // Compilers that take long for each kernel see a part of the table.
    const std::string_view device = GetParam();
    const bool is_slow = device != "CPU";
    const size_t half = device == "CL" ? 1 : 0;
    const std::vector<ParityCase> rows = parity_cases();
    for (size_t i = first; i < rows.size(); i += step) {
      const std::vector<DType> dtypes = dtypes_of(rows[i].types);
      for (size_t k = 0; k < dtypes.size(); ++k) {
        if (is_slow && effort() == 1 &&
            (i / step % 2 != half || k != (i / step / 2) % dtypes.size()))
          continue;
        for (int round = 0; round < (effort() > 1 ? 3 : 1); ++round) {
          check(rows[i], dtypes[k], 1000 * i + static_cast<uint64_t>(round));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, Parity,
                         ::testing::ValuesIn(devices_and({"CPU", "CPU:CLANG", "CL"})),
                         device_test_name);

// In quarters, so that a failure leaves the rest running.
TEST_P(Parity, FirstQuarterOfTheOperations) { run(0, 4); }
TEST_P(Parity, SecondQuarterOfTheOperations) { run(1, 4); }
TEST_P(Parity, ThirdQuarterOfTheOperations) { run(2, 4); }
TEST_P(Parity, FourthQuarterOfTheOperations) { run(3, 4); }

}  // namespace
}  // namespace bm::test
