#include <gtest/gtest.h>

#include "models/tokenizer.h"
#include "models/unicode.h"
#include "tests/unit/formats/test_support.h"
#include "tests/unit/formats/vocab_builder.h"

namespace bm::models {
namespace {

std::unique_ptr<Tokenizer> byte_tokenizer() {
  const auto bytes =
      test::bpe_file("gpt-2", {}, {}, {{"<|eot_id|>", 0, 3}}).build();  // id = byte; 256 is control
  return Tokenizer::from_gguf(GgufFile::from_bytes(bytes).value()).value();
}

TEST(StreamDecoder, WaitsForTheLastByteOfACharacter) {
  const auto t = byte_tokenizer();
  StreamDecoder stream(*t);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xE6), "");
  EXPECT_EQ(stream.push(0xB0), "");
  EXPECT_EQ(stream.push(0xB4), "水");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, ReplacesBrokenBytesAtOnceAndACutCharacterAtTheEnd) {
  const auto t = byte_tokenizer();
  StreamDecoder stream(*t);
  EXPECT_EQ(stream.push(0xFF), "\uFFFD");
  EXPECT_EQ(stream.push(0xE6), "");
  EXPECT_EQ(stream.push('b'), "\uFFFDb");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push('c'), "c");
}

TEST(StreamDecoder, ShowsControlTokensOnlyWhenAsked) {
  const auto t = byte_tokenizer();
  EXPECT_EQ(StreamDecoder(*t).push(256), "");
  EXPECT_EQ(StreamDecoder(*t, true).push(256), "<|eot_id|>");
  EXPECT_EQ(StreamDecoder(*t).push(9999), "\uFFFD");
}

TEST(StreamDecoder, GivesTheTextOfDecodeInValidPieces) {
  const auto t = byte_tokenizer();
  test::Random random(12);
  for (int i = 0; i < 500; ++i) {
    std::vector<int32_t> ids;
    for (const char c : test::random_text(random, 10)) ids.push_back(static_cast<uint8_t>(c));
    for (size_t k = random.below(4); k > 0; --k)
      ids[random.below(ids.size())] = static_cast<int32_t>(random.below(257));
    StreamDecoder stream(*t);
    std::string text;
    for (const int32_t id : ids) {
      const std::string piece = stream.push(id);
      ASSERT_TRUE(is_valid_utf8(piece));
      text += piece;
    }
    text += stream.finish();
    ASSERT_EQ(text, t->decode(ids));
  }
}

}  // namespace
}  // namespace bm::models
