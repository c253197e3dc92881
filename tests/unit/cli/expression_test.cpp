#include <gtest/gtest.h>

#include "tools/bellmetal/expression.h"

namespace bm::cli {
namespace {

TEST(Expression, OperatorsBindAsInArithmetic) {
  const auto t = parse_expression("(f32[2, 3] + 1) * 4 - f32[3] / 2 + 2 * 3", "CPU");
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(t->data<float>(), std::vector<float>(6, 10.0F));
}

TEST(Expression, ProductsOfMatricesAndFunctionsHaveTheirShapes) {
  const auto shape = [](const char* text) {
    const auto t = parse_expression(text, "CPU");
    return t ? to_string(t->shape()) : t.error().message;
  };
  EXPECT_EQ(shape("f32[2,3] @ f32[3,5]"), "[2, 5]");
  EXPECT_EQ(shape("softmax(f32[4, 8])"), "[4, 8]");
  EXPECT_EQ(shape("sum(f32[4, 8], 1)"), "[4]");
  EXPECT_EQ(shape("transpose(f32[4, 8])"), "[8, 4]");
  EXPECT_EQ(shape("conv(f32[1, 3, 8, 8], f32[5, 3, 3, 3], 2, 1)"), "[1, 5, 4, 4]");
  EXPECT_EQ(shape("conv(f32[1, 4, 8, 8], f32[4, 1, 3, 3], 1, 1, 4)"), "[1, 4, 8, 8]");
  EXPECT_EQ(shape("attention(f32[2, 4, 8], f32[2, 6, 8], f32[2, 6, 8])"), "[2, 4, 8]");
  EXPECT_EQ(shape("take(f32[10, 4], i64[3])"), "[3, 4]");
}

TEST(Expression, DtypesAreRead) {
  EXPECT_EQ(parse_expression("bf16[4]", "CPU")->dtype(), DType::kBF16);
  EXPECT_EQ(parse_expression("u8[4]", "CPU")->dtype(), DType::kU8);
  EXPECT_EQ(parse_expression("i32(u8[4])", "CPU")->dtype(), DType::kI32);
  EXPECT_EQ(parse_expression("f32[]", "CPU")->rank(), 0);
}

TEST(Expression, MistakesAreErrorsWithTheirPlace) {
  const auto message = [](const char* text) {
    const auto t = parse_expression(text, "CPU");
    return t ? std::string() : t.error().message;
  };
  for (const char* text : {"", "f32", "f32[", "f32[2", "f32[2,]", "f32[-1]", "relu()",
                           "relu(f32[2]", "f32[2] +", "f32[2] f32[2]", "nothing(f32[2])", "f99[2]",
                           "sum(1, 2", "f32[2]]", "&", "f32[99999999999999999999]"})
    EXPECT_NE(message(text), "") << text;
  EXPECT_NE(message("f32[2] + ?").find("character 10"), std::string::npos) << message("f32[2] + ?");
  EXPECT_NE(message("f32[2,3] @ f32[2,3]").find("3"), std::string::npos);
  EXPECT_NE(message("shout(f32[2])").find("softmax"), std::string::npos) << "names what there is";
  EXPECT_NE(message(std::string(100'000, '(').c_str()), "") << "and does not run out of stack";
}

}  // namespace
}  // namespace bm::cli
