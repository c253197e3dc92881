// Packed matrices: rows taken from them are exact, products stay within the error of int8 vectors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "models/llama_matrix.h"
#include "runtime/base/half.h"

namespace bm::models {
namespace {

constexpr std::array kFormats = {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_K,
                                 GgmlType::kQ6_K};
constexpr std::array kHalves = {GgmlType::kF16, GgmlType::kBF16};

/// Random blocks: any bits are codes; scales are small numbers of either sign.
std::vector<std::byte> random_blocks(GgmlType type, size_t values, uint32_t seed) {
  std::mt19937 random(seed);
  const GgmlTypeInfo& info = ggml_type_info(type);
  std::vector<std::byte> out(values / info.block_values * info.block_bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  std::uniform_real_distribution<float> uniform(-0.02F, 0.02F);
  const auto put = [&](size_t at) {
    const float value = uniform(random);
    const uint16_t half = type == GgmlType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
    std::memcpy(&out[at], &half, 2);
  };
  for (size_t i = 0; i < out.size(); i += info.block_bytes) {
    put(type == GgmlType::kQ6_K ? i + 208 : i);
    if (type == GgmlType::kQ4_K) put(i + 2);
  }
  return out;
}

struct Case {
  GgmlType type;
  int64_t rows, columns;
  std::vector<std::byte> blocks;
  std::vector<float> values;
  Matrix matrix;
};

Case make_case(GgmlType type, int64_t rows, int64_t columns, const char* device) {
  const auto count = static_cast<size_t>(rows * columns);
  Case c{type, rows, columns, random_blocks(type, count, 5), std::vector<float>(count), {}};
  EXPECT_TRUE(dequantize_row(type, c.blocks, c.values));
  c.matrix = Matrix::pack(type, c.blocks, rows, columns, device);
  return c;
}

std::vector<float> random_vectors(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = normal(random);
  // A block of zeros and one dominated by a single number.
  for (size_t i = 0; i < std::min<size_t>(x.size(), 32); ++i) x[i] = 0;
  if (x.size() >= 64) x[40] = 1000;
  return x;
}

/// `is_exact`: codes hold the vectors without error.
void check_linear(const Case& c, std::span<const float> x, int64_t m, bool is_exact) {
  const QuantisedActivations vectors(Tensor::from(x, {m, c.columns}, "CPU"));
  const std::vector<float> got = c.matrix.linear(vectors).data<float>();
  const auto columns = static_cast<size_t>(c.columns), rows = static_cast<size_t>(c.rows);
  for (size_t v = 0; v < static_cast<size_t>(m); ++v)
    for (size_t row = 0; row < rows; ++row) {
      // A code is off by half of its block's scale, largest/127; float32 sums and the scale itself
      // add their rounding.
      double want = 0, bound = 0, magnitude = 0;
      for (size_t begin = 0; begin < columns; begin += 32) {
        double largest = 0, weights = 0;
        for (size_t k = begin; k < std::min(begin + 32, columns); ++k) {
          const auto w = static_cast<double>(c.values[row * columns + k]),
                     a = static_cast<double>(x[v * columns + k]);
          want += w * a;
          weights += std::abs(w);
          largest = std::max(largest, std::abs(a));
        }
        if (!is_exact) bound += weights * largest / 254;
        magnitude += weights * largest;
      }
      bound += magnitude * 1e-6;
      ASSERT_NEAR(static_cast<double>(got[v * rows + row]), want, bound)
          << ggml_type_info(c.type).name << " " << c.rows << "x" << c.columns << " vector " << v
          << " row " << row;
    }
}

TEST(LlamaMatrix, ProductsStayWithinTheErrorOfTheCodes) {
  for (const GgmlType type : kFormats)
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{16, 256}, {48, 512}, {112, 768}, {320, 1024}, {64, 2048}}) {
      const Case c = make_case(type, rows, columns, "CPU");
      for (const int64_t m : {1, 2, 7, 64})
        check_linear(c, random_vectors(m * columns, 9), m, false);
    }
}

TEST(LlamaMatrix, ProductsOfVectorsThatCodesHoldAreExact) {
  std::mt19937 random(3);
  for (const GgmlType type : kFormats) {
    const Case c = make_case(type, 96, 512, "CPU");
    for (const int64_t m : {1, 13}) {
      std::vector<float> x(static_cast<size_t>(m * 512));
      for (size_t i = 0; i < x.size(); ++i) {
        const int code = i % 32 == 7 ? 127 : static_cast<int>(random() % 255) - 127;
        x[i] = std::ldexp(static_cast<float>(code), static_cast<int>(i / 32 % 9) - 4);
      }
      check_linear(c, x, m, true);
    }
  }
}

TEST(LlamaMatrix, HalvesAreMultipliedWithoutRoundingTheVectors) {
  for (const GgmlType type : kHalves)
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{32, 1}, {96, 77}, {320, 1024}}) {
      const Case c = make_case(type, rows, columns, "CPU");
      for (const int64_t m : {1, 2, 7, 64})
        check_linear(c, random_vectors(m * columns, 9), m, true);
    }
}

TEST(LlamaMatrix, StacksMultiplyEveryVectorWithTheMatrixOfItsIndex) {
  std::vector<GgmlType> all(kFormats.begin(), kFormats.end());
  all.insert(all.end(), kHalves.begin(), kHalves.end());
  constexpr int64_t kStack = 5, kRows = 32, kColumns = 512;
  const std::vector<uint32_t> index = {3, 0, 4, 3, 1, 0};
  const auto n = static_cast<int64_t>(index.size());
  const std::vector<float> x = random_vectors(n * kColumns, 9);
  const QuantisedActivations vectors(Tensor::from(x, {n, kColumns}, "CPU"));
  for (const GgmlType type : all) {
    const Case c = make_case(type, kStack * kRows, kColumns, "CPU");
    const std::vector<float> got =
        c.matrix.linear(vectors, Tensor::from(index, {n}, "CPU"), kStack).data<float>();
    const std::vector<float> whole = c.matrix.linear(vectors).data<float>();
    for (size_t v = 0; v < index.size(); ++v)
      for (size_t row = 0; row < kRows; ++row) {
        const float want = whole[v * kStack * kRows + index[v] * kRows + row];
        ASSERT_NEAR(got[v * kRows + row], want, 1e-4F + 1e-5F * std::abs(want))
            << ggml_type_info(type).name << " vector " << v << " row " << row;
      }
  }
}

TEST(LlamaMatrix, StacksOfPlainNumbersToo) {
  const std::vector<float> weights = random_vectors(4 * 3 * 5, 2), x = random_vectors(2 * 5, 3);
  const Matrix matrix(Tensor::from(weights, {4, 3, 5}, "CPU"));
  const std::vector<uint32_t> index = {2, 1};
  const std::vector<float> got = matrix
                                     .linear(QuantisedActivations(Tensor::from(x, {2, 5}, "CPU")),
                                             Tensor::from(index, {2}, "CPU"), 4)
                                     .data<float>();
  for (size_t v = 0; v < 2; ++v)
    for (size_t row = 0; row < 3; ++row) {
      double want = 0;
      for (size_t k = 0; k < 5; ++k)
        want += static_cast<double>(weights[(index[v] * 3 + row) * 5 + k]) *
                static_cast<double>(x[v * 5 + k]);
      EXPECT_NEAR(static_cast<double>(got[v * 3 + row]), want, 1e-5);
    }
}

TEST(LlamaMatrix, RowsAreExact) {
  std::vector<GgmlType> all(kFormats.begin(), kFormats.end());
  all.insert(all.end(), kHalves.begin(), kHalves.end());
  for (const GgmlType type : all) {
    const Case c = make_case(type, 96, 512, "CPU");
    const std::vector<int32_t> index = {0, 95, 15, 16, 33};
    const std::vector<float> got = c.matrix.take(Tensor::from(index, {5}, "CPU")).data<float>();
    for (size_t i = 0; i < index.size(); ++i)
      for (size_t k = 0; k < 512; ++k)
        ASSERT_EQ(got[i * 512 + k], c.values[static_cast<size_t>(index[i]) * 512 + k])
            << ggml_type_info(type).name << " row " << index[i] << " column " << k;
  }
}

TEST(LlamaMatrix, DevicesAndRenderersAgree) {
  std::vector<GgmlType> all(kFormats.begin(), kFormats.end());
  all.insert(all.end(), kHalves.begin(), kHalves.end());
  for (const GgmlType type : all) {
    const std::vector<float> x = random_vectors(3 * 256, 4);
    std::vector<float> first;
    for (const char* device :
         {"REF", "CPU", "CPU:CLANG", "CPU:LLVM:x86_64,-avx512f,-avxvnni", "CPU:LLVM:x86_64,-avx"}) {
      const Case c = make_case(type, 32, 256, device);
      const std::vector<float> got =
          c.matrix.linear(QuantisedActivations(Tensor::from(x, {3, 256}, device))).data<float>();
      if (first.empty()) first = got;
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], first[i], 1e-4 * (1 + std::abs(first[i])))
            << ggml_type_info(type).name << " on " << device;
    }
  }
}

TEST(LlamaMatrix, TakesTheBytesItSays) {
  EXPECT_EQ(Matrix::packed_bytes(GgmlType::kQ8_0, 16, 256), 16u * 8 * 34);
  EXPECT_EQ(Matrix::packed_bytes(GgmlType::kQ4_0, 16, 256), 16u * 8 * 18);
  EXPECT_EQ(Matrix::packed_bytes(GgmlType::kQ4_K, 16, 256), 16u * (144 + 4));
  EXPECT_EQ(Matrix::packed_bytes(GgmlType::kQ6_K, 16, 256), 16u * 210);
}

TEST(LlamaMatrix, OddShapesAreNotPacked) {
  EXPECT_TRUE(Matrix::can_pack(GgmlType::kQ8_0, 32, 96));
  EXPECT_FALSE(Matrix::can_pack(GgmlType::kQ8_0, 33, 96));
  EXPECT_FALSE(Matrix::can_pack(GgmlType::kQ4_K, 32, 96));
  EXPECT_FALSE(Matrix::can_pack(GgmlType::kQ5_0, 32, 256));
  EXPECT_TRUE(Matrix::can_pack(GgmlType::kF16, 32, 3));
  EXPECT_FALSE(Matrix::can_pack(GgmlType::kBF16, 48, 64));
  EXPECT_FALSE(Matrix::can_pack(GgmlType::kF32, 32, 64));
}

}  // namespace
}  // namespace bm::models
