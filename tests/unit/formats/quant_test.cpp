#include "models/quant.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>

#include "runtime/base/half.h"
#include "tests/unit/formats/gguf_builder.h"
#include "tests/unit/formats/test_support.h"

namespace bm::models {
namespace {

using test::Bytes;

std::vector<float> values_of(GgmlType type, const std::vector<std::byte>& bytes, size_t n) {
  std::vector<float> out(n, -12345.0f);
  const Status status = dequantize_row(type, bytes, out);
  EXPECT_TRUE(status) << status.error().message;
  return out;
}

Bytes half(float value) { return Bytes().put(f32_to_f16(value)); }

template <class T>
std::vector<std::byte> block(std::initializer_list<float> halves, const std::vector<T>& rest) {
  Bytes out;
  for (const float h : halves) out.append(half(h).data());
  for (const T v : rest) out.put(v);
  return out.data();
}

TEST(Quant, KnowsSizesOfBlocks) {
  EXPECT_EQ(ggml_row_bytes(GgmlType::kQ4_K, 512).value(), 288u);
  EXPECT_EQ(ggml_row_bytes(GgmlType::kQ6_K, 256).value(), 210u);
  EXPECT_EQ(ggml_row_bytes(GgmlType::kQ8_0, 64).value(), 68u);
  EXPECT_EQ(ggml_row_bytes(GgmlType::kF16, 3).value(), 6u);
  EXPECT_EQ(ggml_row_bytes(GgmlType::kQ8_0, 33).error().code, Code::kInvalidArgument);
  EXPECT_EQ(ggml_row_bytes(GgmlType::kF64, UINT64_MAX / 4).error().code, Code::kInvalidArgument);
  EXPECT_EQ(find_ggml_type(4), nullptr);
  EXPECT_EQ(ggml_type_name(14), "Q6_K");
  EXPECT_EQ(ggml_type_name(10), "Q2_K");
  EXPECT_EQ(ggml_type_name(9), "Q8_1");
  EXPECT_EQ(ggml_type_name(999), "type 999");
}

/// What ggml 0.27 makes of random blocks: printed by tests/oracle/ggml_dequantise.py, which asked
/// its library.
struct Judged {
  uint32_t number;
  std::string_view name;
  uint32_t block_values, block_bytes;
  uint64_t hash;
};
constexpr Judged kJudged[] = {
    {2, "q4_0", 32, 18, 0x4dd137ae0a083325},      {3, "q4_1", 32, 20, 0xe191d343b972f9dc},
    {6, "q5_0", 32, 22, 0xb6511e754c2fb525},      {7, "q5_1", 32, 24, 0x07f013209b3838c3},
    {8, "q8_0", 32, 34, 0x34541f464011f725},      {10, "q2_K", 256, 84, 0x818d59dfe8d1bec7},
    {11, "q3_K", 256, 110, 0x6f8d0da2ad412d65},   {12, "q4_K", 256, 144, 0xa56f3af83078246d},
    {13, "q5_K", 256, 176, 0xb46c0e2ac5630b53},   {14, "q6_K", 256, 210, 0xbd993297a2119e9d},
    {16, "iq2_xxs", 256, 66, 0x4df0dd8846fb3199}, {17, "iq2_xs", 256, 74, 0x7258d4abe0cd45e9},
    {18, "iq3_xxs", 256, 98, 0x46e0036a8fcb268d}, {19, "iq1_s", 256, 50, 0x1415f7c5538be2c5},
    {20, "iq4_nl", 32, 18, 0x7e4c7ac96da03265},   {21, "iq3_s", 256, 110, 0xcfcc1d60f4704255},
    {22, "iq2_s", 256, 82, 0x31ffec5e62670979},   {23, "iq4_xs", 256, 136, 0x9f0e3c32d10a658d},
    {29, "iq1_m", 256, 56, 0xda46ec8f0cb621e5},   {34, "tq1_0", 256, 54, 0x44a8d8af1c628325},
    {35, "tq2_0", 256, 66, 0x0547537f99818325},   {39, "mxfp4", 32, 17, 0x72a3984a5c8c2325},
    {40, "nvfp4", 64, 36, 0xcc6b5d7c92922325},    {41, "q1_0", 128, 18, 0x8f0db8bf28c0a325},
    {42, "q2_0", 64, 18, 0x63bf672851a32325},
};

TEST(Quant, EveryFormatHasTheBitsOfGgml) {
  for (const Judged& judged : kJudged) {
    const GgmlTypeInfo* info = find_ggml_type(judged.number);
    ASSERT_NE(info, nullptr) << judged.name;
    std::string name = info->name;
    for (char& c : name)
      if (c != 'K') c = static_cast<char>(std::tolower(c));
    EXPECT_EQ(name, judged.name);
    ASSERT_EQ(info->block_values, judged.block_values) << judged.name;
    ASSERT_EQ(info->block_bytes, judged.block_bytes) << judged.name;
    constexpr size_t kBlocks = 1024;
    std::vector<std::byte> bytes(kBlocks * info->block_bytes);
    uint64_t state = judged.number;
    for (std::byte& b : bytes) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      b = static_cast<std::byte>(state >> 56);
    }
    uint64_t hash = 0xcbf29ce484222325;
    for (const float v : values_of(info->type, bytes, kBlocks * info->block_values)) {
      const uint32_t bits = std::isnan(v) ? 0x7fc00000 : std::bit_cast<uint32_t>(v);
      hash = (hash ^ bits) * 0x100000001b3;
    }
    EXPECT_EQ(hash, judged.hash) << judged.name;
  }
}

TEST(Quant, RefusesSourcesOfAnotherSize) {
  std::vector<float> out(32);
  EXPECT_FALSE(dequantize_row(GgmlType::kQ8_0, test::zeros(33), out));
  EXPECT_FALSE(dequantize_row(GgmlType::kF32, test::zeros(127), out));
  EXPECT_TRUE(dequantize_row(GgmlType::kF32, {}, {}));
}

TEST(Quant, ConvertsPlainNumbers) {
  EXPECT_EQ(values_of(GgmlType::kF32, Bytes().put(1.5f).put(-2.0f).data(), 2),
            (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(
      values_of(GgmlType::kF16, Bytes().put<uint16_t>(0x3C00).put<uint16_t>(0xC000).data(), 2),
      (std::vector<float>{1.0f, -2.0f}));
  EXPECT_EQ(values_of(GgmlType::kBF16, Bytes().put<uint16_t>(0x3FC0).data(), 1),
            (std::vector<float>{1.5f}));
  EXPECT_EQ(values_of(GgmlType::kF64, Bytes().put(0.1).data(), 1), (std::vector<float>{0.1f}));
  EXPECT_EQ(values_of(GgmlType::kI8, Bytes().put<int8_t>(-3).data(), 1),
            (std::vector<float>{-3.0f}));
  EXPECT_EQ(values_of(GgmlType::kI16, Bytes().put<int16_t>(-300).data(), 1),
            (std::vector<float>{-300.0f}));
  EXPECT_EQ(values_of(GgmlType::kI32, Bytes().put<int32_t>(16777217).data(), 1),
            (std::vector<float>{16777216.0f}));
  EXPECT_EQ(values_of(GgmlType::kI64, Bytes().put<int64_t>(-5).data(), 1),
            (std::vector<float>{-5.0f}));
}

TEST(Quant, DequantizesQ8_0) {
  std::vector<int8_t> q(32, 0);
  q[0] = 127, q[1] = -128, q[31] = 3;
  const auto y = values_of(GgmlType::kQ8_0, block({0.5f}, q), 32);
  EXPECT_EQ(y[0], 63.5f);
  EXPECT_EQ(y[1], -64.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_EQ(y[31], 1.5f);
}

// In the four 32-value formats byte j holds value j in its low and value j + 16 in its high nibble.
TEST(Quant, DequantizesQ4_0) {
  std::vector<uint8_t> q(16, 0x88);
  q[0] = 0xF0, q[15] = 0x1F;
  const auto y = values_of(GgmlType::kQ4_0, block({2.0f}, q), 32);
  EXPECT_EQ(y[0], -16.0f);
  EXPECT_EQ(y[16], 14.0f);
  EXPECT_EQ(y[15], 14.0f);
  EXPECT_EQ(y[31], -14.0f);
  EXPECT_EQ(y[5], 0.0f);
}

TEST(Quant, DequantizesQ4_1WithTwoRoundings) {
  std::vector<uint8_t> q(16, 0);
  q[0] = 0xF3;
  const auto y = values_of(GgmlType::kQ4_1, block({0.5f, -1.0f}, q), 32);
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_EQ(y[16], 6.5f);
  EXPECT_EQ(y[1], -1.0f);
}

TEST(Quant, DequantizesQ5_0WithTheFifthBitOfEachHalf) {
  Bytes b = half(1.0f);
  b.put<uint32_t>((1u << 0) | (1u << 17));  // values 0 and 17
  b.put<uint8_t>(0x21).put<uint8_t>(0x43).append(test::zeros(14));
  const auto y = values_of(GgmlType::kQ5_0, b.data(), 32);
  EXPECT_EQ(y[0], 1.0f);     // 1 + 16 − 16
  EXPECT_EQ(y[16], -14.0f);  // 2 − 16
  EXPECT_EQ(y[1], -13.0f);
  EXPECT_EQ(y[17], 4.0f);
  EXPECT_EQ(y[2], -16.0f);
}

TEST(Quant, DequantizesQ5_1) {
  Bytes b = half(2.0f);
  b.append(half(0.5f).data()).put<uint32_t>(1u << 31).put<uint8_t>(0x01).append(test::zeros(14));
  b.put<uint8_t>(0xF0);
  const auto y = values_of(GgmlType::kQ5_1, b.data(), 32);
  EXPECT_EQ(y[0], 2.5f);
  EXPECT_EQ(y[15], 0.5f);
  EXPECT_EQ(y[31], 62.5f);  // 31 · 2 + 0.5
}

// Scales of sub-blocks 0–3 lie in the low six bits of bytes 0–3; scale 4 + i has its low nibble in
// byte 8 + i and its top two bits in byte i; minima likewise in bytes 4–7 and the high nibbles.
TEST(Quant, DequantizesQ4_KWithSixBitScales) {
  std::vector<uint8_t> rest(12 + 128, 0);
  rest[0] = 63 | 0x80;   // scale 0 = 63; top bits of scale 4 = 2
  rest[4] = 5 | 0x40;    // min 0 = 5; top bits of min 4 = 1
  rest[8] = 0x3A;        // scale 4 = 0xA | 2 << 4 = 42; min 4 = 3 | 1 << 4 = 19
  rest[12] = 0xE7;       // values 0 (q = 7) and 32 (q = 14, sub-block 1 with scale 0)
  rest[12 + 64] = 0x0B;  // value 128 (sub-block 4, q = 11)
  const auto y = values_of(GgmlType::kQ4_K, block({0.5f, 0.25f}, rest), 256);
  EXPECT_EQ(y[0], 0.5f * 63 * 7 - 0.25f * 5);
  EXPECT_EQ(y[1], -1.25f);
  EXPECT_EQ(y[32], 0.0f);
  EXPECT_EQ(y[128], 0.5f * 42 * 11 - 0.25f * 19);
  EXPECT_EQ(y[129], -4.75f);
}

TEST(Quant, DequantizesQ5_KWithOneHighBitPerSubBlock) {
  std::vector<uint8_t> rest(12 + 32 + 128, 0);
  rest[0] = 1, rest[1] = 2;  // scales of sub-blocks 0 and 1
  rest[12] = 0b11;           // value 0 of sub-blocks 0 and 1
  rest[12 + 32] = 0x5F;
  const auto y = values_of(GgmlType::kQ5_K, block({1.0f, 1.0f}, rest), 256);
  EXPECT_EQ(y[0], 31.0f);
  EXPECT_EQ(y[32], 2.0f * 21);
  EXPECT_EQ(y[1], 0.0f);
}

TEST(Quant, DequantizesQ6_K) {
  std::vector<uint8_t> b(208, 0);
  b[0] = 0x21;          // value 0: low 1; value 64: low 2
  b[32] = 0x43;         // value 32: low 3; value 96: low 4
  b[128] = 0b11100100;  // top bits: value 0 → 0, 32 → 1, 64 → 2, 96 → 3
  b[192] = 2, b[194] = 0xFF, b[196] = 3, b[198] = 1;  // scales of values 0, 32, 64, 96
  b[200] = 7;                                         // scale of value 128
  Bytes bytes;
  for (const uint8_t v : b) bytes.put(v);
  bytes.append(half(0.5f).data());
  const auto y = values_of(GgmlType::kQ6_K, bytes.data(), 256);
  EXPECT_EQ(y[0], 1.0f * (1 - 32));
  EXPECT_EQ(y[32], -0.5f * (3 + 16 - 32));
  EXPECT_EQ(y[64], 1.5f * (2 + 32 - 32));
  EXPECT_EQ(y[96], 0.5f * (4 + 48 - 32));
  EXPECT_EQ(y[128], 3.5f * -32);
}

TEST(Quant, QuantizersComeBackWithinHalfAStep) {
  test::Random random(3);
  std::vector<float> x(256);
  for (float& v : x) v = static_cast<float>(random.below(2001)) / 1000.0f - 1.0f;
  for (const auto& [type, error] : {std::pair{GgmlType::kF32, 0.0f},
                                    {GgmlType::kF16, 5e-4f},
                                    {GgmlType::kBF16, 4e-3f},
                                    {GgmlType::kQ8_0, 5e-3f},
                                    {GgmlType::kQ4_0, 0.13f}}) {
    std::vector<std::byte> bytes(ggml_row_bytes(type, x.size()).value());
    ASSERT_TRUE(quantize_row(type, x, bytes));
    const auto y = values_of(type, bytes, x.size());
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(x[i], y[i], error) << ggml_type_info(type).name << " " << i;
  }
}

TEST(Quant, QuantizersAcceptZerosAndTinyValuesButNotNan) {
  std::vector<std::byte> bytes(34);
  EXPECT_TRUE(quantize_row(GgmlType::kQ8_0, std::vector<float>(32, 0.0f), bytes));
  EXPECT_TRUE(quantize_row(GgmlType::kQ8_0, std::vector<float>(32, 1e-42f), bytes));
  EXPECT_FALSE(quantize_row(GgmlType::kQ8_0, std::vector<float>(32, std::nanf("")), bytes));
  std::vector<std::byte> k(144);
  EXPECT_EQ(quantize_row(GgmlType::kQ4_K, std::vector<float>(256), k).error().code,
            Code::kUnsupported);
}

/// `blocks` random blocks whose 16-bit floats are ordinary numbers.
std::vector<std::byte> random_blocks(const GgmlTypeInfo& info, size_t blocks,
                                     test::Random& random) {
  std::vector<size_t> halves;
  if (info.type == GgmlType::kQ8_0 || info.type == GgmlType::kQ4_0) halves = {0};
  if (info.type == GgmlType::kQ4_K) halves = {0, 2};
  if (info.type == GgmlType::kQ6_K) halves = {208};
  std::vector<std::byte> out(blocks * info.block_bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random.next() >> 24);
  const auto clear_exponent_top = [&](size_t at) { out[at + 1] &= std::byte{0xBF}; };
  for (size_t i = 0; i < blocks; ++i) {
    for (const size_t h : halves) clear_exponent_top(i * info.block_bytes + h);
    if (info.block_values == 1) clear_exponent_top(i * info.block_bytes + info.block_bytes - 2);
  }
  return out;
}

TEST(Quant, AgreesBitForBitWithTheNumpyOracle) {
  const char* python = "/usr/bin/python3";
  const std::string probe = fmt::format("{} -c 'import numpy' >/dev/null 2>&1", python);
  if (std::system(probe.c_str()) != 0) GTEST_SKIP() << python << " with numpy is not installed";
  const test::TempFolder folder;
  test::Random random(11);
  test::GgufBuilder b;
  const GgmlType types[] = {GgmlType::kF32,  GgmlType::kF16,  GgmlType::kBF16, GgmlType::kQ8_0,
                            GgmlType::kQ4_0, GgmlType::kQ4_K, GgmlType::kQ6_K};
  std::vector<std::vector<std::byte>> raw;
  for (const GgmlType type : types) {
    const GgmlTypeInfo& info = ggml_type_info(type);
    raw.push_back(random_blocks(info, 64, random));
    b.tensor(info.name, {info.block_values, 64}, static_cast<uint32_t>(type), raw.back());
  }
  const std::string model = folder.write("m.gguf", b.build());
  for (size_t i = 0; i < std::size(types); ++i) {
    const GgmlTypeInfo& info = ggml_type_info(types[i]);
    const std::string out = folder.file("out.f32");
    const std::string command = fmt::format("{} tests/oracle/gguf_numpy.py {} --tensor {} --raw {}",
                                            python, model, info.name, out);
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    const auto ours = values_of(types[i], raw[i], 64 * info.block_values);
    std::ifstream in(out, std::ios::binary);
    std::vector<float> theirs(ours.size());
    in.read(reinterpret_cast<char*>(theirs.data()),
            static_cast<std::streamsize>(4 * theirs.size()));
    ASSERT_TRUE(in) << info.name;
    for (size_t k = 0; k < ours.size(); ++k)
      ASSERT_EQ(std::bit_cast<uint32_t>(ours[k]), std::bit_cast<uint32_t>(theirs[k]))
          << info.name << " value " << k << ": " << ours[k] << " against " << theirs[k];
  }
}

}  // namespace
}  // namespace bm::models
