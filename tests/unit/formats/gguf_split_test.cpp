#include <gtest/gtest.h>

#include "models/gguf.h"
#include "tests/unit/formats/gguf_builder.h"
#include "tests/unit/formats/test_support.h"

namespace bm::models {
namespace {

using test::GgufBuilder;
using test::TempFolder;
using test::zeros;

std::string tensor_name(uint16_t shard) { return fmt::format("w{}", shard); }

GgufBuilder shard(uint16_t number, uint16_t count, int32_t tensors) {
  GgufBuilder b;
  if (number == 0) b.text("general.architecture", "llama");
  b.u16("split.no", number).u16("split.count", count).i32("split.tensors.count", tensors);
  b.tensor(tensor_name(number), {static_cast<uint64_t>(number) + 1}, 0, zeros(4u * (number + 1u)));
  return b;
}

std::string shard_file(int number, int count) {
  return fmt::format("m-{:05}-of-{:05}.gguf", number, count);
}

TEST(GgufSplit, OpensAllShardsFromAnyOfThem) {
  const TempFolder folder;
  for (uint16_t i = 0; i < 3; ++i) folder.write(shard_file(i + 1, 3), shard(i, 3, 3).build());
  for (int given = 1; given <= 3; ++given) {
    const Result<GgufFile> file = GgufFile::open(folder.file(shard_file(given, 3)));
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->shard_count(), 3u);
    EXPECT_EQ(file->get_string("general.architecture").value(), "llama");
    ASSERT_EQ(file->tensors().size(), 3u);
    EXPECT_EQ(file->tensor("w2").value()->shard, 2u);
    EXPECT_EQ(file->tensor("w2").value()->data.size(), 12u);
  }
}

TEST(GgufSplit, StaysUsableAfterAMove) {
  const TempFolder folder;
  const std::string path = folder.write("a.gguf", shard(0, 1, 1).build());
  GgufFile first = GgufFile::open(path).value();
  const GgufFile second = std::move(first);
  EXPECT_EQ(second.tensor("w0").value()->data[0], std::byte{0});
  EXPECT_EQ(second.get_string("general.architecture").value(), "llama");
}

TEST(GgufSplit, NamesTheMissingShard) {
  const TempFolder folder;
  folder.write(shard_file(1, 2), shard(0, 2, 2).build());
  const auto file = GgufFile::open(folder.file(shard_file(1, 2)));
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, Code::kNotFound);
  EXPECT_NE(file.error().message.find(shard_file(2, 2)), std::string::npos) << file.error().message;
}

TEST(GgufSplit, RefusesShardsThatDoNotBelongTogether) {
  const auto from = [](std::vector<std::vector<std::byte>> parts) {
    std::vector<std::span<const std::byte>> spans(parts.begin(), parts.end());
    const auto file = GgufFile::from_shards(spans);
    return file ? std::string("accepted") : file.error().message;
  };
  const auto a = shard(0, 2, 2).build(), b = shard(1, 2, 2).build();
  EXPECT_EQ(from({a, b}), "accepted");
  EXPECT_NE(from({b, a}).find("shard 2 of 2"), std::string::npos);
  EXPECT_NE(from({a}).find("shard 1 of 2"), std::string::npos);
  EXPECT_NE(from({a, shard(1, 3, 2).build()}).find("shard 2 of 3"), std::string::npos);
  EXPECT_NE(from({shard(0, 2, 5).build(), b}).find("says 5 tensors"), std::string::npos);
  GgufBuilder same_tensor;
  same_tensor.u16("split.no", 1).u16("split.count", 2).tensor("w0", {1}, 0, zeros(4));
  EXPECT_NE(from({a, same_tensor.build()}).find("twice"), std::string::npos);
}

TEST(GgufSplit, RefusesAShardWhoseNameDoesNotSayWhereTheOthersAre) {
  const TempFolder folder;
  const auto bytes = shard(0, 2, 2).build();
  for (const char* name : {"model.gguf", "m-00001-of-00003.gguf", "m-0001-of-0002.gguf",
                           "m-00003-of-00002.gguf", "m-00000-of-00002.gguf"}) {
    const auto file = GgufFile::open(folder.write(name, bytes));
    ASSERT_FALSE(file) << name;
    EXPECT_EQ(file.error().code, Code::kInvalidArgument) << file.error().message;
  }
}

TEST(GgufSplit, RefusesThousandsOfShards) {
  const TempFolder folder;
  const auto file = GgufFile::open(folder.write(shard_file(1, 65535), shard(0, 65535, 1).build()));
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, Code::kCorrupt);
}

TEST(GgufSplit, ReportsFilesThatCannotBeOpened) {
  const TempFolder folder;
  EXPECT_EQ(GgufFile::open(folder.file("none.gguf")).error().code, Code::kNotFound);
  EXPECT_EQ(GgufFile::open(folder.write("empty.gguf", {})).error().code, Code::kCorrupt);
}

}  // namespace
}  // namespace bm::models
