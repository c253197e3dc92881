// The comparisons of these tests must be able to fail.
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

TEST(Support, ComparisonSeesDifferences) {
  EXPECT_TRUE(are_close({1, kNan, kInf}, {1, kNan, kInf}, {}));
  EXPECT_FALSE(are_close({1}, {1.001}, {}));
  EXPECT_TRUE(are_close({1}, {1.001}, {0.01, 0}));
  EXPECT_FALSE(are_close({1}, {kNan}, {1, 1}));
  EXPECT_FALSE(are_close({kNan}, {1}, {1, 1}));
  EXPECT_FALSE(are_close({kInf}, {-kInf}, {1, 1}));
  EXPECT_FALSE(are_close({kInf}, {1e30}, {1, 0}));
  EXPECT_FALSE(are_close({1, 2}, {1}, {}));
  EXPECT_FALSE(has_values(counting({2}, DType::kF32, "REF"), {2, 1}, {0, 1}));
}

TEST(Support, ValuesOfEveryDtypeSurviveTheRoundTrip) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto t = static_cast<DType>(i);
    EXPECT_EQ(numbers(tensor_of({0, 1}, {2}, t, "REF")), (std::vector<double>{0, 1}))
        << dtype_name(t);
  }
  EXPECT_EQ(numbers(tensor_of({0x1p63}, {1}, DType::kU64, "REF")), (std::vector<double>{0x1p63}));
}

}  // namespace
}  // namespace bm::test
