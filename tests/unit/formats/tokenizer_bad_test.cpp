// Vocabularies that must be refused.

#include <gtest/gtest.h>

#include <cmath>

#include "models/tokenizer.h"
#include "models/tokenizer_normalize.h"
#include "tests/unit/formats/test_support.h"
#include "tests/unit/formats/vocab_builder.h"

namespace bm::models {
namespace {

using test::bpe_file;
using test::GgufBuilder;
using test::spm_tokens;
using test::TestToken;
using test::tokenizer_file;

void expect_refused(const GgufBuilder& builder, Code code, std::string_view part) {
  const auto bytes = builder.build();
  const GgufFile file = GgufFile::from_bytes(bytes).value();
  const auto tokenizer = Tokenizer::from_gguf(file);
  ASSERT_FALSE(tokenizer) << part;
  EXPECT_EQ(tokenizer.error().code, code) << tokenizer.error().message;
  EXPECT_NE(tokenizer.error().message.find(part), std::string::npos) << tokenizer.error().message;
}

TEST(BadVocab, NamesTokenizersItDoesNotKnow) {
  expect_refused(tokenizer_file("plamo4", spm_tokens({})), Code::kUnsupported, "\"plamo4\"");
  expect_refused(tokenizer_file("whitespace", spm_tokens({})).text("tokenizer.ggml.pre", "gpt-2"),
                 Code::kUnsupported, "\"gpt-2\"");
  expect_refused(tokenizer_file("bart", spm_tokens({})), Code::kUnsupported, "\"bart\"");
  expect_refused(bpe_file("brand-new", {}, {}), Code::kUnsupported, "\"brand-new\"");
  expect_refused(bpe_file("", {}, {}), Code::kUnsupported, "tokenizer.ggml.pre is missing");
  expect_refused(GgufBuilder(), Code::kNotFound, "tokenizer.ggml.model");
}

TEST(BadVocab, RefusesTokensOfAnotherType) {
  GgufBuilder numbers, missing, empty;
  numbers.text("tokenizer.ggml.model", "llama").i32s("tokenizer.ggml.tokens", {1, 2});
  expect_refused(numbers, Code::kCorrupt, "an array of strings expected");
  expect_refused(missing.text("tokenizer.ggml.model", "llama"), Code::kNotFound, "tokens");
  empty.text("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", {});
  expect_refused(empty, Code::kCorrupt, "vocabulary of 0");
}

GgufBuilder three_tokens() {
  GgufBuilder b;
  b.text("tokenizer.ggml.model", "llama")
      .strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>"});
  return b;
}

TEST(BadVocab, RefusesScoresOfAnotherTypeLengthOrValue) {
  expect_refused(three_tokens(), Code::kNotFound, "scores");
  expect_refused(three_tokens().i32s("tokenizer.ggml.scores", {1, 2, 3}), Code::kCorrupt,
                 "floats expected");
  expect_refused(three_tokens().f32s("tokenizer.ggml.scores", {1, 2}), Code::kCorrupt,
                 "2 elements for 3");
  expect_refused(three_tokens().f32s("tokenizer.ggml.scores", {1, 2, 3, 4}), Code::kCorrupt,
                 "4 elements");
  expect_refused(three_tokens().f32s("tokenizer.ggml.scores", {1, std::nanf(""), 3}),
                 Code::kCorrupt, "token 1 is nan");
}

TEST(BadVocab, RefusesTypesOfAnotherTypeLengthOrValue) {
  const auto scored = [] { return three_tokens().f32s("tokenizer.ggml.scores", {0, 0, 0}); };
  constexpr const char* kKey = "tokenizer.ggml.token_type";
  expect_refused(scored().f32s(kKey, {1, 2, 3}), Code::kCorrupt, "integers expected");
  expect_refused(scored().i32s(kKey, {1}), Code::kCorrupt, "1 elements for 3");
  expect_refused(scored().i32s(kKey, {1, -1, 1}), Code::kCorrupt, "type -1");
  expect_refused(scored().i32s(kKey, {1, 7, 1}), Code::kCorrupt, "type 7");
  expect_refused(scored().i32s(kKey, {1, 6, 1}), Code::kCorrupt, "type \"byte\" but text \"<s>\"");
}

TEST(BadVocab, RefusesByteTokensWithOddTexts) {
  for (const char* text :
       {"<0x-1>", "<0x>", "<0x1>", "<0x100>", "<0xGG>", "<0x 1>", "0x41", "<0x4 >"})
    expect_refused(tokenizer_file("llama", {{"<unk>", 0, 2}, {"a"}, {"b"}, {text, 0, 6}}),
                   Code::kCorrupt, "type \"byte\"");
}

TEST(BadVocab, RefusesIdsOutOfRange) {
  for (const char* key :
       {"bos_token_id", "eos_token_id", "unknown_token_id", "eot_token_id", "eom_token_id"}) {
    const std::string full = fmt::format("tokenizer.ggml.{}", key);
    const auto base = [] { return tokenizer_file("llama", spm_tokens({})); };
    expect_refused(base().i32(full, -1), Code::kCorrupt, "token id -1");
    expect_refused(base().u32(full, 259), Code::kCorrupt, "token id 259");
    expect_refused(base().u32(full, UINT32_MAX), Code::kCorrupt, "out of range");
    expect_refused(base().text(full, "1"), Code::kCorrupt, "an integer expected");
  }
}

TEST(BadVocab, RefusesFlagsWithoutTheirToken) {
  GgufBuilder b = bpe_file("gpt-2", {}, {});
  b.boolean("tokenizer.ggml.add_bos_token", true);
  expect_refused(b, Code::kCorrupt, "BOS");
}

TEST(BadVocab, RefusesVocabulariesThatCannotSpellEveryText) {
  expect_refused(tokenizer_file("gpt2", {{"a"}, {"b"}})
                     .text("tokenizer.ggml.pre", "gpt-2")
                     .strings("tokenizer.ggml.merges", {}),
                 Code::kUnsupported, "256 bytes");
  // The default unknown token 0 only counts when the vocabulary has a token 0: it always has, so
  // SentencePiece files need the key to be out of the way; "t5" defaults to 2.
  expect_refused(tokenizer_file("t5", {{"a"}, {"</s>", 0, 3}}), Code::kUnsupported, "byte tokens");
}

TEST(BadVocab, RefusesMergesThatAreNotPairs) {
  const auto with = [](const std::vector<std::string>& merges) {
    std::vector<TestToken> tokens;
    for (int b = 0; b < 256; ++b)
      tokens.push_back({test::spell_bytes(std::string(1, static_cast<char>(b)))});
    return tokenizer_file("gpt2", tokens)
        .text("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.merges", merges);
  };
  for (const char* merge : {"", "a", "a ", " b", "  ", "a b c", "a \xff", "水 a"})
    expect_refused(with({"a b", merge}), Code::kCorrupt, "merges: element 1");
  GgufBuilder missing = bpe_file("gpt-2", {}, {});
  std::vector<TestToken> tokens;
  for (int b = 0; b < 256; ++b)
    tokens.push_back({test::spell_bytes(std::string(1, static_cast<char>(b)))});
  expect_refused(tokenizer_file("gpt2", tokens).text("tokenizer.ggml.pre", "gpt-2"),
                 Code::kNotFound, "merges");
}

TEST(BadVocab, RefusesEndlessTokens) {
  expect_refused(tokenizer_file("llama", spm_tokens({{std::string(2000, 'x')}})), Code::kCorrupt,
                 "2000 bytes");
  expect_refused(tokenizer_file("llama", spm_tokens({{std::string(300, 'x'), 0, 4}})),
                 Code::kUnsupported, "300 bytes");
}

TEST(BadCharsmap, RefusesSizesThatDoNotFit) {
  const auto parse = [](const test::Bytes& b) { return CharsMap::parse(b.data()); };
  EXPECT_FALSE(parse(test::Bytes()));
  EXPECT_FALSE(parse(test::Bytes().put<uint16_t>(0)));
  EXPECT_FALSE(parse(test::Bytes().put<uint32_t>(8).put<uint32_t>(0)));
  EXPECT_FALSE(parse(test::Bytes().put<uint32_t>(UINT32_MAX)));
  EXPECT_FALSE(parse(test::Bytes().put<uint32_t>(3).put<uint32_t>(0)));
  EXPECT_FALSE(parse(test::Bytes().put<uint32_t>(0).raw("no end")));
  EXPECT_FALSE(parse(test::Bytes().put<uint32_t>(0).raw(std::string(300, 'x')).put<uint8_t>(0)));
  EXPECT_TRUE(parse(test::Bytes().put<uint32_t>(0)));
}

TEST(BadCharsmap, StaysInsideRandomTries) {
  test::Random random(8);
  for (int i = 0; i < 3000; ++i) {
    test::Bytes blob;
    const auto units = static_cast<uint32_t>(random.below(300));
    blob.put(units * 4);
    for (uint32_t k = 0; k < units; ++k)
      blob.put(static_cast<uint32_t>(random.next() >> 32) & (random.below(2) ? 0x8003FFFFu : ~0u));
    blob.raw(std::string_view("ab\0c\0", 5));
    const CharsMap map = CharsMap::parse(blob.data()).value();
    const std::string text = test::random_text(random, 30);
    EXPECT_LE(map.apply(text).size(), text.size() * 3);
  }
}

TEST(BadVocab, SurvivesRandomDamage) {
  test::Random random(6);
  GgufBuilder bpe = bpe_file("gpt-2", {"he"}, {{"h", "e"}}, {{"<x>", 0, 3}});
  bpe.u32("tokenizer.ggml.eos_token_id", 3);
  for (const auto& good :
       {tokenizer_file("llama", spm_tokens({{"ab", -1}})).build(), bpe.build()}) {
    for (int i = 0; i < 1500; ++i) {
      auto bad = good;
      for (size_t k = random.below(6) + 1; k > 0; --k)
        bad[random.below(bad.size())] = static_cast<std::byte>(random.next());
      const auto file = GgufFile::from_bytes(bad);
      if (!file) continue;
      const auto t = Tokenizer::from_gguf(*file);
      if (!t) continue;
      const auto ids = (*t)->encode("he said <x> é\xff", {.parse_special = true});
      ASSERT_TRUE(ids);
      for (const int32_t id : *ids) ASSERT_TRUE(id >= 0 && static_cast<size_t>(id) < (*t)->size());
    }
  }
}

}  // namespace
}  // namespace bm::models
