// Packed matrices: rows taken from them are exact, products stay within the error of int8 vectors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "models/llama_matrix.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"

namespace bm::models {
namespace {

constexpr std::array kFormats = {
    GgmlType::kQ8_0,    GgmlType::kQ4_0,  GgmlType::kQ4_1,    GgmlType::kQ5_0,   GgmlType::kQ5_1,
    GgmlType::kQ2_K,    GgmlType::kQ3_K,  GgmlType::kQ4_K,    GgmlType::kQ5_K,   GgmlType::kQ6_K,
    GgmlType::kIQ1_S,   GgmlType::kIQ1_M, GgmlType::kIQ2_XXS, GgmlType::kIQ2_XS, GgmlType::kIQ2_S,
    GgmlType::kIQ3_XXS, GgmlType::kIQ3_S, GgmlType::kIQ4_NL,  GgmlType::kIQ4_XS, GgmlType::kTQ1_0,
    GgmlType::kTQ2_0,   GgmlType::kMXFP4, GgmlType::kNVFP4,   GgmlType::kQ1_0,   GgmlType::kQ2_0};
constexpr std::array kElements = {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16};

/// Where the float16 numbers of a block lie.
std::vector<size_t> halves_of(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K: return {0, 2};
    case GgmlType::kQ2_K: return {80, 82};
    case GgmlType::kQ3_K: return {108};
    case GgmlType::kQ6_K: return {208};
    case GgmlType::kTQ1_0: return {52};
    case GgmlType::kTQ2_0: return {64};
    case GgmlType::kMXFP4:
    case GgmlType::kNVFP4:
    case GgmlType::kIQ1_M: return {};
    default: return {0};
  }
}

/// Random blocks: any bits are codes; scales are small numbers of either sign.
std::vector<std::byte> random_blocks(GgmlType type, size_t values, uint32_t seed) {
  std::mt19937 random(seed);
  const GgmlTypeInfo& info = ggml_type_info(type);
  std::vector<std::byte> out(values / info.block_values * info.block_bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  std::uniform_real_distribution<float> uniform(-0.02F, 0.02F);
  for (size_t i = 0; i < out.size(); i += info.block_bytes) {
    const float value = uniform(random);
    const uint16_t half = type == GgmlType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
    for (const size_t at : halves_of(type)) std::memcpy(&out[i + at], &half, 2);
    if (type == GgmlType::kF32) std::memcpy(&out[i], &value, 4);
    // Exponents of 2^-8 and around.
    if (type == GgmlType::kMXFP4) out[i] = static_cast<std::byte>(120 + random() % 4);
    if (type == GgmlType::kNVFP4)
      for (size_t s = 0; s < 4; ++s) out[i + s] = static_cast<std::byte>(random() % 32);
    if (type == GgmlType::kIQ1_M)  // its scale lies in the top nibbles of four words
      for (size_t s = 0; s < 4; ++s)
        out[i + 49 + 2 * s] = (out[i + 49 + 2 * s] & std::byte{15}) |
                              static_cast<std::byte>((half >> 4 * s & 15) << 4);
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
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{16, 256}, {112, 768}}) {
      const Case c = make_case(type, rows, columns, "CPU");
      for (const int64_t m : {1, 7}) check_linear(c, random_vectors(m * columns, 9), m, false);
    }
}

TEST(LlamaMatrix, ProductsOfEveryShapeStayWithinTheErrorOfTheCodes) {
  for (const GgmlType type :
       {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_K, GgmlType::kQ6_K, GgmlType::kQ2_K})
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{48, 512}, {320, 1024}, {64, 2048}}) {
      const Case c = make_case(type, rows, columns, "CPU");
      for (const int64_t m : {2, 64}) check_linear(c, random_vectors(m * columns, 9), m, false);
    }
}

TEST(LlamaMatrix, RowsThatFillNoSixteenAreFilledUp) {
  for (const GgmlType type : {GgmlType::kQ4_0, GgmlType::kQ5_K})
    for (const int64_t rows : {1, 33}) {
      const Case c = make_case(type, rows, 256, "CPU");
      for (const int64_t m : {1, 3}) check_linear(c, random_vectors(m * 256, 9), m, false);
      const std::vector<int32_t> index = {0, static_cast<int32_t>(rows - 1)};
      const std::vector<float> got = c.matrix.take(Tensor::from(index, {2}, "CPU")).data<float>();
      for (size_t k = 0; k < 256; ++k)
        ASSERT_EQ(got[256 + k], c.values[static_cast<size_t>(rows - 1) * 256 + k]);
    }
}

TEST(LlamaMatrix, ProductsOfVectorsThatCodesHoldAreExact) {
  std::mt19937 random(3);
  for (const GgmlType type : kFormats) {
    const Case c = make_case(type, 96, 512, "CPU");
    for (const int64_t m : {13}) {
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
  for (const GgmlType type : kElements)
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{32, 1}, {96, 77}, {320, 1024}}) {
      const Case c = make_case(type, rows, columns, "CPU");
      for (const int64_t m : {1, 2, 7, 64})
        check_linear(c, random_vectors(m * columns, 9), m, true);
    }
}

TEST(LlamaMatrix, StacksMultiplyEveryVectorWithTheMatrixOfItsIndex) {
  std::vector<GgmlType> all(kFormats.begin(), kFormats.end());
  all.insert(all.end(), kElements.begin(), kElements.end());
  constexpr int64_t kStack = 5, kRows = 32, kColumns = 512;
  const std::vector<uint32_t> index = {3, 0, 4, 3, 1, 0};
  const auto n = static_cast<int64_t>(index.size());
  const std::vector<float> x = random_vectors(n * kColumns, 9);
  const QuantisedActivations vectors(Tensor::from(x, {n, kColumns}, "CPU"));
  for (const GgmlType type : all) {
    SCOPED_TRACE(ggml_type_info(type).name);
    const Case c = make_case(type, kStack * kRows, kColumns, "CPU");
    std::vector<float> got;
    ASSERT_NO_THROW(
        got = c.matrix.linear(vectors, Tensor::from(index, {n}, "CPU"), kStack).data<float>());
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
  all.insert(all.end(), kElements.begin(), kElements.end());
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
  // One of every kind of plane, scale, minimum and book.
  for (const GgmlType type :
       {GgmlType::kQ8_0, GgmlType::kQ4_K, GgmlType::kQ6_K, GgmlType::kQ2_K, GgmlType::kQ5_1,
        GgmlType::kIQ4_XS, GgmlType::kIQ2_XS, GgmlType::kMXFP4, GgmlType::kTQ2_0, GgmlType::kQ1_0,
        GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16}) {
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

/// Bits of a value on the device and in the file.
TEST(LlamaMatrix, TakesTheBytesItSays) {
  const std::pair<GgmlType, double> expected[] = {
      {GgmlType::kQ8_0, 8.5},       {GgmlType::kQ4_0, 4.5},      {GgmlType::kQ4_1, 5},
      {GgmlType::kQ5_0, 5.5},       {GgmlType::kQ5_1, 6},        {GgmlType::kQ2_K, 2.625},
      {GgmlType::kQ3_K, 3.5625},    {GgmlType::kQ4_K, 4.625},    {GgmlType::kQ5_K, 5.625},
      {GgmlType::kQ6_K, 6.5625},    {GgmlType::kIQ1_S, 3.3125},  {GgmlType::kIQ1_M, 3.5625},
      {GgmlType::kIQ2_XXS, 3.3125}, {GgmlType::kIQ2_XS, 3.5625}, {GgmlType::kIQ2_S, 3.5625},
      {GgmlType::kIQ3_XXS, 4.3125}, {GgmlType::kIQ3_S, 4.3125},  {GgmlType::kIQ4_NL, 4.5},
      {GgmlType::kIQ4_XS, 4.3125},  {GgmlType::kTQ1_0, 2.0625},  {GgmlType::kTQ2_0, 2.0625},
      {GgmlType::kMXFP4, 4.25},     {GgmlType::kNVFP4, 5},       {GgmlType::kQ1_0, 1.5},
      {GgmlType::kQ2_0, 2.5}};
  static_assert(std::size(expected) == kFormats.size());
  for (const auto& [type, bits] : expected)
    EXPECT_EQ(static_cast<double>(Matrix::packed_bytes(type, 16, 256)) * 8 / (16 * 256), bits)
        << ggml_type_info(type).name;
  EXPECT_EQ(Matrix::packed_bytes(GgmlType::kQ8_0, 17, 32), 32u * 34);
}

TEST(LlamaMatrix, SeveralThreadsPackWhatOneDoes) {
  // Enough for four threads; the last sixteen rows are not full.
  constexpr int64_t kRows = 2122, kColumns = 1024;
  for (const GgmlType type :
       {GgmlType::kQ4_0, GgmlType::kQ5_K, GgmlType::kQ3_K, GgmlType::kF16, GgmlType::kF32}) {
    const int64_t rows = ggml_type_info(type).block_values == 1 ? 2112 : kRows;
    const auto blocks = random_blocks(type, static_cast<size_t>(rows * kColumns), 9);
    std::vector<Matrix> packed;
    for (const char* threads : {"1", "4"}) {
      const ScopedSetting setting("BM_THREADS", threads);
      packed.push_back(Matrix::pack(type, blocks, rows, kColumns, "CPU"));
    }
    std::vector<int64_t> numbers(static_cast<size_t>(rows));
    std::iota(numbers.begin(), numbers.end(), 0);
    const Tensor all = Tensor::from(numbers, {rows}, "CPU");
    std::vector<float> expected(static_cast<size_t>(rows * kColumns));
    ASSERT_TRUE(dequantize_row(type, blocks, expected));
    for (const Matrix& m : packed) EXPECT_EQ(m.take(all).data<float>(), expected);
  }
}

TEST(LlamaMatrix, WholeBlocksArePacked) {
  for (const GgmlType type : kFormats) EXPECT_TRUE(Matrix::can_pack(type, 33, 512));
  EXPECT_TRUE(Matrix::can_pack(GgmlType::kQ8_0, 33, 96));
  EXPECT_FALSE(Matrix::can_pack(GgmlType::kQ4_K, 32, 96));
  EXPECT_FALSE(Matrix::can_pack(GgmlType::kQ8_0, 0, 96));
  EXPECT_TRUE(Matrix::can_pack(GgmlType::kF16, 32, 3));
  EXPECT_FALSE(Matrix::can_pack(GgmlType::kBF16, 48, 64));
  EXPECT_TRUE(Matrix::can_pack(GgmlType::kF32, 32, 64));
  EXPECT_FALSE(Matrix::can_pack(GgmlType::kF32, 48, 64));
}

}  // namespace
}  // namespace bm::models
