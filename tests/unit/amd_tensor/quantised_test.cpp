// Quantised matrices as models have them, on simulated GPUs: every sum of their products is a
// number that float32 holds, so that devices agree to the last bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "models/llama_matrix.h"
#include "runtime/base/half.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

using models::GgmlType;

class Quantised : public OnDevice {};
BM_ON_DEVICES(Quantised);

/// Any bits as codes; scales are 1/2 and 1.
std::vector<std::byte> blocks_of(GgmlType type, int64_t values, std::mt19937& random) {
  const models::GgmlTypeInfo& info = models::ggml_type_info(type);
  std::vector<std::byte> out(static_cast<size_t>(values) / info.block_values * info.block_bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  for (size_t at = 0; at < out.size(); at += info.block_bytes) {
    const auto scale = [&](size_t offset) {
      const uint16_t half = f32_to_f16(random() % 2 ? 1.0F : 0.5F);
      std::memcpy(&out[at + offset], &half, 2);
    };
    scale(type == GgmlType::kQ6_K ? 208 : 0);
    if (type == GgmlType::kQ4_K) scale(2);
  }
  return out;
}

/// Codes and powers of two: vectors that codes hold without error.
std::vector<float> vectors_of(int64_t count, std::mt19937& random) {
  std::vector<float> x(static_cast<size_t>(count));
  float scale = 1;
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 32 == 0) scale = random() % 2 ? 1.0F : 2.0F;
    const int code = i % 32 == 7 ? 127 : static_cast<int>(random() % 255) - 127;
    x[i] = static_cast<float>(code) * scale;
  }
  return x;
}

TEST_P(Quantised, ProductsAreThoseOfTheCpu) {
  std::mt19937 random(23);
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_K, GgmlType::kQ6_K})
    for (const auto& [rows, columns, m] :
         {std::tuple<int64_t, int64_t, int64_t>{32, 256, 1}, {16, 768, 1}, {48, 256, 5}}) {
      const std::vector<std::byte> blocks = blocks_of(type, rows * columns, random);
      const std::vector<float> x = vectors_of(m * columns, random);
      const auto product = [&](const std::string& where) {
        const auto matrix = models::Matrix::pack(type, blocks, rows, columns, where);
        return matrix.linear(models::QuantisedActivations(Tensor::from(x, {m, columns}, where)))
            .data<float>();
      };
      EXPECT_EQ(product(device()), product("CPU"))
          << models::ggml_type_info(type).name << ' ' << rows << 'x' << columns << " by " << m;
    }
}

/// From eight vectors on products are done by matrix instructions. Q6_K has sums that float32
/// rounds, each once for a block.
TEST_P(Quantised, ProductsWithManyVectorsAreThoseOfTheCpu) {
  std::mt19937 random(31);
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_K, GgmlType::kQ6_K})
    for (const auto& [rows, columns, m] :
         {std::tuple<int64_t, int64_t, int64_t>{40, 512, 11}, {64, 256, 24}}) {
      const std::vector<std::byte> blocks = blocks_of(type, rows * columns, random);
      const std::vector<float> x = vectors_of(m * columns, random);
      const auto product = [&](const std::string& where) {
        const auto matrix = models::Matrix::pack(type, blocks, rows, columns, where);
        return matrix.linear(models::QuantisedActivations(Tensor::from(x, {m, columns}, where)))
            .data<float>();
      };
      const std::vector<float> got = product(device()), want = product("CPU");
      ASSERT_EQ(got.size(), want.size());
      float most = 0, apart = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        most = std::max(most, std::abs(want[i]));
        apart = std::max(apart, std::abs(got[i] - want[i]));
      }
      EXPECT_LE(apart, 1e-6F * most)
          << models::ggml_type_info(type).name << ' ' << rows << 'x' << columns << " by " << m;
    }
}

}  // namespace
}  // namespace bm::test
