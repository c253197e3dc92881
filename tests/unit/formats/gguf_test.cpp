#include "models/gguf.h"

#include <gtest/gtest.h>

#include "tests/unit/formats/gguf_builder.h"
#include "tests/unit/formats/test_support.h"

namespace bm::models {
namespace {

using test::Bytes;
using test::GgufBuilder;
using test::zeros;

constexpr uint32_t kF32 = 0, kQ4_0 = 2, kQ8_1 = 9;

/// Error of reading `bytes`; fails the test when they are accepted.
Error error_of(const std::vector<std::byte>& bytes) {
  const Result<GgufFile> file = GgufFile::from_bytes(bytes);
  if (file) {
    ADD_FAILURE() << "the file was accepted";
    return {};
  }
  return file.error();
}

void expect_corrupt(const std::vector<std::byte>& bytes, std::string_view part) {
  const Error error = error_of(bytes);
  EXPECT_EQ(error.code, Code::kCorrupt) << error.message;
  EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
}

TEST(Gguf, ReadsMetadataOfEveryType) {
  GgufBuilder b;
  b.scalar<uint8_t>("a.u8", 0, 200).scalar<int8_t>("a.i8", 1, -5).u16("a.u16", 60000);
  b.scalar<int16_t>("a.i16", 3, -300).u32("a.u32", 4'000'000'000).i32("a.i32", -7);
  b.f32("a.f32", 0.5f).boolean("a.bool", true).text("a.text", "hi");
  b.scalar<uint64_t>("a.u64", 10, uint64_t{1} << 63).scalar<int64_t>("a.i64", 11, -9);
  b.scalar<double>("a.f64", 12, 0.25).strings("a.strings", {"x", "", "yz"});
  b.array<int16_t>("a.i16s", 3, {-1, 2}).array<double>("a.f64s", 12, {1.5, -2.0});
  const auto bytes = b.build();
  const GgufFile file = GgufFile::from_bytes(bytes).value();
  EXPECT_EQ(file.get_u32("a.u8").value(), 200u);
  EXPECT_EQ(file.get_i32("a.i8").value(), -5);
  EXPECT_EQ(file.get_u32("a.u16").value(), 60000u);
  EXPECT_EQ(file.get_i32("a.i16").value(), -300);
  EXPECT_EQ(file.get_u32("a.u32").value(), 4'000'000'000u);
  EXPECT_EQ(file.get_i32("a.i32").value(), -7);
  EXPECT_EQ(file.get_f32("a.f32").value(), 0.5f);
  EXPECT_TRUE(file.get_bool("a.bool").value());
  EXPECT_EQ(file.get_string("a.text").value(), "hi");
  EXPECT_EQ(file.get_u64("a.u64").value(), uint64_t{1} << 63);
  EXPECT_EQ(file.get_i32("a.i64").value(), -9);
  EXPECT_EQ(file.get_f32("a.f64").value(), 0.25f);
  ASSERT_EQ(file.get_strings("a.strings").value().size(), 3u);
  EXPECT_EQ(file.get_strings("a.strings").value()[2], "yz");
  EXPECT_EQ(file.get_i32s("a.i16s").value(), (std::vector<int32_t>{-1, 2}));
  EXPECT_EQ(file.get_f32s("a.f64s").value(), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(file.metadata().size(), 15u);
}

TEST(Gguf, ReadsTensorsWithTheFastestDimensionFirst) {
  std::vector<std::byte> data = zeros(24);
  data[4] = std::byte{42};
  GgufBuilder b;
  b.tensor("w", {2, 3}, kF32, data).tensor("scalar", {}, kF32, zeros(4));
  const auto bytes = b.build();
  const GgufFile file = GgufFile::from_bytes(bytes).value();
  const GgufTensor& w = *file.tensor("w").value();
  EXPECT_EQ(w.dims, (std::array<uint64_t, 4>{2, 3, 1, 1}));
  EXPECT_EQ(w.shape(), (std::vector<uint64_t>{3, 2}));
  EXPECT_EQ(w.value_count, 6u);
  ASSERT_EQ(w.data.size(), 24u);
  EXPECT_EQ(w.data[4], std::byte{42});
  EXPECT_TRUE(file.tensor("scalar").value()->shape().empty());
  EXPECT_EQ(file.tensor("scalar").value()->data.size(), 4u);
  EXPECT_EQ(file.tensor("none").error().code, Code::kNotFound);
}

TEST(Gguf, ReadsVersionTwo) {
  GgufBuilder b;
  b.version = 2;
  const auto bytes = b.text("k", "v").build();
  EXPECT_EQ(GgufFile::from_bytes(bytes).value().version(), 2u);
}

TEST(Gguf, RefusesOtherVersionsAndByteOrders) {
  for (const uint32_t version : {0u, 1u, 4u, 0x03000000u}) {
    GgufBuilder b;
    b.version = version;
    EXPECT_EQ(error_of(b.build()).code, Code::kUnsupported) << version;
  }
}

TEST(Gguf, RefusesAnotherMagic) {
  expect_corrupt(Bytes().raw("GGML").put<uint32_t>(3).put<uint64_t>(0).put<uint64_t>(0).data(),
                 "GGUF");
}

TEST(Gguf, RefusesCountsThatTheFileCannotHold) {
  for (const uint64_t count : {uint64_t{2}, uint64_t{1} << 60, UINT64_MAX / 24 + 2, UINT64_MAX}) {
    expect_corrupt(Bytes().raw("GGUF").put<uint32_t>(3).put(count).put<uint64_t>(0).data(),
                   "tensor count");
    expect_corrupt(Bytes().raw("GGUF").put<uint32_t>(3).put<uint64_t>(0).put(count).data(),
                   "metadata count");
  }
}

TEST(Gguf, RefusesLengthsThatTheFileCannotHold) {
  for (const uint64_t length :
       {uint64_t{1} << 31, uint64_t{1} << 61, UINT64_MAX / 8 + 1, UINT64_MAX - 7, UINT64_MAX}) {
    GgufBuilder text, strings, floats, arrays;
    text.entry("k", 8).put(length);
    expect_corrupt(text.build(), "string of");
    strings.entry("k", 9).put<uint32_t>(8).put(length);
    expect_corrupt(strings.build(), "string count");
    floats.entry("k", 9).put<uint32_t>(6).put(length);
    expect_corrupt(floats.build(), "element count");
    arrays.entry("k", 9).put<uint32_t>(9).put(length);
    expect_corrupt(arrays.build(), "array count");
  }
}

TEST(Gguf, RefusesAFileOf43BytesThatAnnouncesEndlessStrings) {
  const auto bytes = Bytes()
                         .raw("GGUF")
                         .put<uint32_t>(3)
                         .put<uint64_t>(0)
                         .put<uint64_t>(1)
                         .text("ab")
                         .put<uint32_t>(9)
                         .data();
  Bytes file;
  file.append(bytes).put<uint8_t>(8);
  EXPECT_EQ(file.size(), 39u);
  file.put<uint32_t>(0x7fffffff);
  ASSERT_EQ(file.size(), 43u);
  EXPECT_EQ(error_of(file.data()).code, Code::kCorrupt);
}

TEST(Gguf, RefusesDimensionsThatMultiplyPastTheRange) {
  const std::vector<std::vector<uint64_t>> cases = {{uint64_t{1} << 32, uint64_t{1} << 32},
                                                    {UINT64_MAX, 2},
                                                    {uint64_t{1} << 62, 2, 1, 1},
                                                    {uint64_t{1} << 63},
                                                    {32, uint64_t{1} << 59, 16, uint64_t{1} << 40}};
  for (const auto& dims : cases) {
    GgufBuilder b;
    expect_corrupt(b.tensor_at("w", dims, kF32, 0).build(), "\"w\"");
  }
  GgufBuilder zero_first;  // a zero must not hide the overflow of what follows it from later users
  const auto bytes = zero_first.tensor_at("w", {0, 1, 1, 1}, kF32, 0).build();
  EXPECT_EQ(GgufFile::from_bytes(bytes).value().tensor("w").value()->data.size(), 0u);
}

TEST(Gguf, RefusesSizesThatDoNotFitInBytes) {
  GgufBuilder b;
  expect_corrupt(b.tensor_at("w", {(uint64_t{1} << 62) + 8}, kF32, 0).build(), "2^64 bytes");
}

TEST(Gguf, RefusesDataBeyondTheEndOfTheFile) {
  GgufBuilder far_away, too_long, wraps, wraps_to_start;
  expect_corrupt(far_away.tensor_at("w", {8}, kF32, uint64_t{1} << 40).build(), "beyond the end");
  expect_corrupt(too_long.tensor_at("w", {1 << 20}, kF32, 0).build(), "beyond the end");
  expect_corrupt(wraps.tensor_at("w", {8}, kF32, ~uint64_t{31}).build(), "beyond the end");
  expect_corrupt(wraps_to_start.tensor_at("w", {24}, kF32, ~uint64_t{95}).build(),
                 "beyond the end");
}

TEST(Gguf, RefusesMisalignedAndOverlappingData) {
  GgufBuilder misaligned, overlap;
  misaligned.tensor("a", {8}, kF32, zeros(64)).tensor_at("w", {1}, kF32, 4);
  expect_corrupt(misaligned.build(), "multiple of 32");
  overlap.tensor("a", {16}, kF32, zeros(64)).tensor_at("b", {1}, kF32, 32);
  expect_corrupt(overlap.build(), "overlap");
}

TEST(Gguf, RefusesBadAlignment) {
  for (const uint32_t alignment : {0u, 1u, 4u, 24u, 33u, 0x80000000u, UINT32_MAX}) {
    GgufBuilder b;
    expect_corrupt(b.u32("general.alignment", alignment).tensor("w", {1}, kF32, zeros(4)).build(),
                   "alignment");
  }
  GgufBuilder text;
  expect_corrupt(text.text("general.alignment", "32").build(), "an integer expected");
}

TEST(Gguf, PlacesDataByTheAlignmentOfTheFile) {
  GgufBuilder b;
  b.alignment = 256;
  b.u32("general.alignment", 256).tensor("a", {1}, kF32, zeros(4)).tensor("b", {1}, kF32, zeros(4));
  const auto bytes = b.build();
  const GgufFile file = GgufFile::from_bytes(bytes).value();
  EXPECT_EQ(file.tensor("b").value()->data.data() - file.tensor("a").value()->data.data(), 256);
}

TEST(Gguf, RefusesRepeatedNamesAndKeys) {
  GgufBuilder tensors, keys;
  tensors.tensor("w", {1}, kF32, zeros(4)).tensor("w", {1}, kF32, zeros(4));
  expect_corrupt(tensors.build(), "twice");
  expect_corrupt(keys.u32("k", 1).u32("k", 1).build(), "twice");
}

TEST(Gguf, RefusesEmptyAndEndlessNames) {
  GgufBuilder no_key, no_name, long_name;
  expect_corrupt(no_key.u32("", 1).build(), "key of 0 bytes");
  expect_corrupt(no_name.tensor("", {1}, kF32, zeros(4)).build(), "name of 0 bytes");
  expect_corrupt(long_name.tensor(std::string(2000, 'x'), {1}, kF32, zeros(4)).build(),
                 "2000 bytes");
}

TEST(Gguf, RefusesMoreThanFourDimensions) {
  GgufBuilder five;
  expect_corrupt(five.tensor_at("w", {1, 1, 1, 1, 1}, kF32, 0).build(), "5 dimensions");
}

TEST(Gguf, RefusesRowsThatAreNotWholeBlocks) {
  GgufBuilder b;
  expect_corrupt(b.tensor("w", {48, 2}, kQ4_0, zeros(54)).build(), "whole Q4_0 blocks");
}

TEST(Gguf, NamesTheTensorAndTypeItCannotRead) {
  GgufBuilder known, unknown;
  const Error named = error_of(known.tensor("blk.0.w", {256}, kQ8_1, zeros(288)).build());
  EXPECT_EQ(named.code, Code::kUnsupported);
  EXPECT_NE(named.message.find("\"blk.0.w\" is stored as Q8_1"), std::string::npos)
      << named.message;
  const Error number = error_of(unknown.tensor("w", {256}, 4711, zeros(82)).build());
  EXPECT_EQ(number.code, Code::kUnsupported);
  EXPECT_NE(number.message.find("type 4711"), std::string::npos) << number.message;
}

TEST(Gguf, RefusesMetadataTypesAndBoolsThatDoNotExist) {
  GgufBuilder type, boolean;
  type.entry("k", 13).put<uint64_t>(0);
  expect_corrupt(type.build(), "type 13");
  boolean.entry("k", 7).put<uint8_t>(2);
  expect_corrupt(boolean.build(), "bool with value 2");
}

TEST(Gguf, ReadsNestedArraysToALimitedDepth) {
  const auto nested = [](int depth) {
    GgufBuilder b;
    Bytes& out = b.entry("k", 9);
    for (int i = 1; i < depth; ++i) out.put<uint32_t>(9).put<uint64_t>(1);
    out.put<uint32_t>(4).put<uint64_t>(1).put<uint32_t>(7);
    return b.build();
  };
  const auto two = nested(2);
  const GgufFile file = GgufFile::from_bytes(two).value();
  EXPECT_EQ(file.find("k")->array.arrays[0].count, 1u);
  expect_corrupt(nested(5), "nested");
  expect_corrupt(nested(100'000), "nested");
}

TEST(Gguf, NamesTheOffsetOfATruncation) {
  GgufBuilder b;
  auto bytes = b.text("some.key", "some value").build();
  bytes.resize(40);
  expect_corrupt(bytes, "offset ");
}

TEST(Gguf, SurvivesTruncationAtEveryByte) {
  GgufBuilder b;
  b.strings("tokens", {"a", "b"}).f32s("scores", {1, 2}).tensor("w", {32, 2}, kQ4_0, zeros(36));
  const auto bytes = b.build();
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::vector<std::byte> part(bytes.begin(),
                                      bytes.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_FALSE(GgufFile::from_bytes(part)) << n;
  }
  EXPECT_TRUE(GgufFile::from_bytes(bytes));
}

TEST(Gguf, SurvivesRandomDamage) {
  GgufBuilder b;
  b.strings("tokens", {"a", "b", "ccc"}).i32s("types", {1, 2, 3}).u32("general.alignment", 32);
  b.tensor("w", {32, 2}, kQ4_0, zeros(36)).tensor("v", {4, 2, 2}, kF32, zeros(64));
  const auto good = b.build();
  test::Random random(7);
  for (int i = 0; i < 20'000; ++i) {
    auto bad = good;
    for (size_t k = random.below(4) + 1; k > 0; --k)
      bad[random.below(bad.size())] = static_cast<std::byte>(random.next());
    const Result<GgufFile> file = GgufFile::from_bytes(bad);
    if (!file) continue;
    for (const GgufTensor& t : file->tensors())
      ASSERT_LE(t.data.data() + t.data.size(), bad.data() + bad.size());
  }
}

TEST(Gguf, TypedAccessRefusesOtherTypesAndValuesOutOfRange) {
  GgufBuilder b;
  b.text("text", "7").i32("negative", -1).f32("float", 1).strings("strings", {"1"});
  b.scalar<uint64_t>("large", 10, uint64_t{1} << 32).array<int64_t>("large.array", 11, {-1, 5});
  const auto bytes = b.build();
  const GgufFile file = GgufFile::from_bytes(bytes).value();
  EXPECT_EQ(file.get_u32("text").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_u32("negative").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_u64("negative").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_u32("float").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_u32("large").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_i32("large").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_f32("text").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_bool("negative").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_string("float").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_strings("text").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_f32s("strings").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_i32s("strings").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_u32s("large.array").error().code, Code::kCorrupt);
  EXPECT_EQ(file.get_i32s("large.array").value(), (std::vector<int32_t>{-1, 5}));
  EXPECT_EQ(file.get_bytes("strings").error().code, Code::kCorrupt);
}

TEST(Gguf, TypedAccessUsesTheDefaultOnlyForAbsentKeys) {
  GgufBuilder b;
  const auto bytes = b.text("text", "7").build();
  const GgufFile file = GgufFile::from_bytes(bytes).value();
  EXPECT_EQ(file.get_u32("absent", 5).value(), 5u);
  EXPECT_EQ(file.get_f32("absent", 2.5f).value(), 2.5f);
  EXPECT_EQ(file.get_string("absent", "x").value(), "x");
  EXPECT_TRUE(file.get_bool("absent", true).value());
  EXPECT_FALSE(file.get_u32("text", 5));
  EXPECT_EQ(file.get_u32("absent").error().code, Code::kNotFound);
}

TEST(Gguf, EscapesHostileNamesInMessages) {
  GgufBuilder b;
  const Error error = error_of(b.tensor("\x1b[2J\xff", {1}, 4711, zeros(4)).build());
  EXPECT_NE(error.message.find("\"\\x1b[2J\\xff\""), std::string::npos) << error.message;
}

}  // namespace
}  // namespace bm::models
