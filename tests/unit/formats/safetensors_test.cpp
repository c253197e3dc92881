#include "models/safetensors.h"

#include <gtest/gtest.h>

#include "tests/unit/formats/gguf_builder.h"
#include "tests/unit/formats/test_support.h"

namespace bm::models {
namespace {

using test::Bytes;

/// File with this header text and `data_bytes` of data.
std::vector<std::byte> file_of(std::string_view header, size_t data_bytes) {
  return Bytes().text(header).append(test::zeros(data_bytes)).data();
}

Error error_of(const std::vector<std::byte>& bytes) {
  const auto file = SafetensorsFile::from_bytes(bytes);
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

constexpr std::string_view kGood =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]},)"
    R"("a":{"dtype":"I32","shape":[],"data_offsets":[0,4]}} )";

TEST(Safetensors, ReadsTensorsInOrderOfTheirData) {
  const auto bytes = file_of(kGood, 16);
  const SafetensorsFile file = SafetensorsFile::from_bytes(bytes).value();
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  const SafeTensor& b = *file.find("b");
  EXPECT_EQ(b.dtype, SafeDtype::kF16);
  EXPECT_EQ(b.shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(b.data.size(), 12u);
  EXPECT_EQ(b.data.data(), bytes.data() + 8 + kGood.size() + 4);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, ReadsEmptyTensorsAndEmptyFiles) {
  EXPECT_TRUE(SafetensorsFile::from_bytes(file_of("{}", 0)));
  const auto bytes = file_of(R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}})", 0);
  EXPECT_EQ(SafetensorsFile::from_bytes(bytes).value().find("e")->data.size(), 0u);
}

TEST(Safetensors, RefusesHeadersLongerThanTheFileOrTheCap) {
  for (const uint64_t length :
       {uint64_t{17}, uint64_t{100'000'001}, uint64_t{1} << 40, UINT64_MAX - 4, UINT64_MAX})
    expect_corrupt(Bytes().put(length).raw("{}              ").data(), "header of");
  expect_corrupt(Bytes().put<uint32_t>(2).data(), "offset 0");
  expect_corrupt(file_of("", 0), "begin with");
}

TEST(Safetensors, RefusesRepeatedKeys) {
  constexpr std::string_view kTensor = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_corrupt(file_of(fmt::format("{{{},{}}}", kTensor, kTensor), 1), "appears twice");
  expect_corrupt(
      file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
      "appears twice");
  expect_corrupt(file_of(R"({"__metadata__":{"k":"1","k":"2"}})", 0), "appears twice");
  expect_corrupt(file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "appears twice");
  // The same key spelled with an escape.
  expect_corrupt(file_of(fmt::format(R"({{{},"\u0061":{{}}}})", kTensor), 1), "appears twice");
}

TEST(Safetensors, RefusesOverlapsAndGaps) {
  const auto two = [](int begin, int end) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},)"
                       R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                       end - begin, begin, end);
  };
  EXPECT_TRUE(SafetensorsFile::from_bytes(file_of(two(4, 8), 8)));
  expect_corrupt(file_of(two(3, 8), 8), "overlap");
  expect_corrupt(file_of(two(0, 4), 4), "overlap");
  expect_corrupt(file_of(two(5, 8), 8), "gap");
  expect_corrupt(file_of(two(4, 8), 9), "belong to no tensor");
  expect_corrupt(file_of("{}", 1), "belong to no tensor");
}

TEST(Safetensors, RefusesOffsetsBeyondTheData) {
  const auto one = [](std::string_view shape, std::string_view offsets) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{}]}}}})", shape,
                       offsets);
  };
  expect_corrupt(file_of(one("9", "0,9"), 8), "data_offsets [0, 9] in 8 bytes");
  expect_corrupt(file_of(one("4", "8,4"), 8), "data_offsets");
  expect_corrupt(file_of(one("1", "18446744073709551615,0"), 8), "data_offsets");
  expect_corrupt(file_of(one("1", "0,18446744073709551616"), 8), "fraction");
}

TEST(Safetensors, RefusesShapesThatDoNotMatchTheData) {
  const auto one = [](std::string_view dtype, std::string_view shape) {
    return fmt::format(R"({{"a":{{"dtype":"{}","shape":[{}],"data_offsets":[0,8]}}}})", dtype,
                       shape);
  };
  EXPECT_TRUE(SafetensorsFile::from_bytes(file_of(one("F64", "1,1"), 8)));
  expect_corrupt(file_of(one("F64", "2"), 8), "is 16 bytes");
  expect_corrupt(file_of(one("U8", "4294967296,4294967296"), 8), "2^64");
  expect_corrupt(file_of(one("F64", "2305843009213693953"), 8), "2^64");  // 2^61 + 1: wraps to 8
}

TEST(Safetensors, RefusesNulPadding) {
  expect_corrupt(file_of(std::string("{}\0\0\0\0\0\0", 8), 0), "NUL");
  expect_corrupt(file_of(std::string("{}\0{\"a\":", 8), 0), "NUL");
}

TEST(Safetensors, RefusesNegativeAndFractionalNumbers) {
  const auto one = [](std::string_view shape, std::string_view offsets) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{}]}}}})", shape,
                       offsets);
  };
  expect_corrupt(file_of(one("-1", "0,8"), 8), "negative");
  expect_corrupt(file_of(one("8", "-8,0"), 8), "negative");
  expect_corrupt(file_of(one("8.0", "0,8"), 8), "fraction");
  expect_corrupt(file_of(one("8e0", "0,8"), 8), "fraction");
}

TEST(Safetensors, NamesNumberTypesItDoesNotKnow) {
  const Error error =
      error_of(file_of(R"({"w":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1));
  EXPECT_EQ(error.code, Code::kUnsupported);
  EXPECT_NE(error.message.find("tensor \"w\": number type \"F4\""), std::string::npos)
      << error.message;
}

TEST(Safetensors, RefusesTextThatIsNotUtf8) {
  expect_corrupt(file_of("{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0),
                 "not JSON");
}

TEST(Safetensors, RefusesDeepNesting) {
  expect_corrupt(file_of(R"({"a":)" + std::string(100'000, '['), 0), "not allowed");
  expect_corrupt(file_of(R"({"a":{"shape":[[)", 0), "array is not allowed");
  expect_corrupt(file_of(R"({"__metadata__":{"k":{}}})", 0), "object is not allowed");
}

TEST(Safetensors, RefusesWhatTheFormatDoesNotHave) {
  for (const char* header :
       {"[]", "{", "{}x", R"({"a":1})", R"({"a":null})", R"({"a":{"dtype":"U8"}})",
        R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0]}})",
        R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0,0]}})",
        R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"extra":"x"}})",
        R"({"a":{"dtype":1,"shape":[0],"data_offsets":[0,0]}})", R"({"__metadata__":{"k":1}})",
        R"({"__metadata__":"x"})", "{/*c*/}", " {}"})
    EXPECT_EQ(error_of(file_of(header, 0)).code, Code::kCorrupt) << header;
}

TEST(Safetensors, LimitsTheNumberOfDimensions) {
  std::string shape = "0";
  for (int i = 0; i < 64; ++i) shape += ",1";
  expect_corrupt(
      file_of(fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,0]}}}})", shape),
              0),
      "65th");
}

TEST(Safetensors, SurvivesTruncationAndRandomDamage) {
  const auto good = file_of(kGood, 16);
  for (size_t n = 0; n < good.size(); ++n)
    EXPECT_FALSE(SafetensorsFile::from_bytes(std::span(good).first(n))) << n;
  test::Random random(5);
  for (int i = 0; i < 20'000; ++i) {
    auto bad = good;
    for (size_t k = random.below(4) + 1; k > 0; --k)
      bad[random.below(bad.size())] = static_cast<std::byte>(random.next());
    const auto file = SafetensorsFile::from_bytes(bad);
    if (!file) continue;
    for (const SafeTensor& t : file->tensors())
      ASSERT_LE(t.data.data() + t.data.size(), bad.data() + bad.size());
  }
}

TEST(Safetensors, ReadsBackWhatItWrites) {
  const test::TempFolder folder;
  std::vector<std::byte> a = test::zeros(12), b = test::zeros(2);
  a[3] = std::byte{9};
  const SafeTensor tensors[] = {{"x.\"quoted\" ü", SafeDtype::kF32, {3}, 0, a},
                                {"y", SafeDtype::kBF16, {1, 1}, 0, b}};
  const std::string path = folder.file("m.safetensors");
  ASSERT_TRUE(write_safetensors(path, tensors, {{"format", "bm"}}));
  const SafetensorsFile file = SafetensorsFile::open(path).value();
  EXPECT_EQ(file.metadata().at("format"), "bm");
  const SafeTensor& x = *file.find("x.\"quoted\" ü");
  EXPECT_EQ(std::vector<std::byte>(x.data.begin(), x.data.end()), a);
  EXPECT_EQ(file.find("y")->dtype, SafeDtype::kBF16);
}

TEST(Safetensors, WriterRefusesWrongSizesAndRepeatedNames) {
  const auto four = test::zeros(4);
  const SafeTensor wrong[] = {{"a", SafeDtype::kF32, {2}, 0, four}};
  const SafeTensor twice[] = {{"a", SafeDtype::kF32, {1}, 0, four},
                              {"a", SafeDtype::kF32, {1}, 0, four}};
  EXPECT_EQ(encode_safetensors(wrong).error().code, Code::kInvalidArgument);
  EXPECT_EQ(encode_safetensors(twice).error().code, Code::kInvalidArgument);
}

TEST(SafetensorsIndex, OpensAllFilesOfAnIndex) {
  const test::TempFolder folder;
  const auto four = test::zeros(4);
  const SafeTensor a[] = {{"a", SafeDtype::kF32, {1}, 0, four}};
  const SafeTensor b[] = {{"b", SafeDtype::kU8, {4}, 0, four}};
  ASSERT_TRUE(write_safetensors(folder.file("m-1.safetensors"), a));
  ASSERT_TRUE(write_safetensors(folder.file("m-2.safetensors"), b));
  const auto open = [&](std::string_view json) {
    return SafetensorsFile::open(folder.write("m.index.json", std::as_bytes(std::span(json))));
  };
  const auto file = open(R"({"metadata":{"total_size":8,"x":[1,{"y":null}]},)"
                         R"("weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->find("b")->shard, 1u);
  EXPECT_EQ(open(R"({"weight_map":{"a":"m-1.safetensors","b":"m-1.safetensors"}})").error().code,
            Code::kCorrupt);
  EXPECT_EQ(open(R"({"weight_map":{"c":"m-2.safetensors"}})").error().code, Code::kCorrupt);
  EXPECT_EQ(open(R"({"weight_map":{"a":"none.safetensors"}})").error().code, Code::kNotFound);
}

TEST(SafetensorsIndex, NeverLeavesItsFolder) {
  for (const char* name : {"../m.safetensors", "/etc/passwd", "a/b", "..", ".hidden", "a\\\\b", "",
                           "a\\u0000b", "~x"}) {
    const auto map = parse_safetensors_index(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name));
    ASSERT_FALSE(map) << name;
    EXPECT_EQ(map.error().code, Code::kCorrupt);
  }
}

TEST(SafetensorsIndex, RefusesOtherShapes) {
  for (const char* json :
       {"", "[]", "{}", R"({"weight_map":1})", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":{"b":"c"}}})", R"({"weight_map":{"a":"x","a":"y"}})",
        R"({"weight_map":{},"weight_map":{}})", R"({"metadata":[[[[[[[[[[[[[[[[[[[[)"})
    EXPECT_FALSE(parse_safetensors_index(json)) << json;
}

}  // namespace
}  // namespace bm::models
