// WordPiece and RWKV.

#include <gtest/gtest.h>

#include "models/tokenizer.h"
#include "tests/unit/formats/test_support.h"
#include "tests/unit/formats/open_tokenizer.h"
#include "tests/unit/formats/vocab_builder.h"

namespace bm::models {
namespace {

using test::GgufBuilder;
using test::open;
using test::TestToken;
using test::tokenizer_file;
using Ids = std::vector<int32_t>;

/// [PAD] [UNK] [CLS] [SEP], then words ("▁…") and what continues them, as GGUF files spell them.
GgufBuilder bert_file() {
  GgufBuilder b = tokenizer_file("bert", {{"[PAD]", 0, 3},
                                          {"[UNK]", 0, 2},
                                          {"[CLS]", 0, 3},
                                          {"[SEP]", 0, 3},
                                          {"▁un"},
                                          {"aff"},
                                          {"able"},
                                          {"▁hello"},
                                          {"▁!"},
                                          {"▁中"},
                                          {"▁cafe"},
                                          {"▁a"},
                                          {"b"},
                                          {"▁Caf\u00E9"},
                                          {"▁[\u200B"}});
  b.u32("tokenizer.ggml.bos_token_id", 2).u32("tokenizer.ggml.seperator_token_id", 3);
  b.u32("tokenizer.ggml.unknown_token_id", 1);
  return b;
}

Ids words(const Tokenizer& t, std::string_view text, bool parse_special = false) {
  return t.encode(text, {.add_bos = false, .add_eos = false, .parse_special = parse_special})
      .value();
}

TEST(WordPiece, TakesTheLongestPieces) {
  const auto t = open(bert_file());
  EXPECT_EQ(words(*t, "unaffable"), (Ids{4, 5, 6}));
  EXPECT_EQ(words(*t, "hello!"), (Ids{7, 8}));
  EXPECT_EQ(words(*t, "unaffablex hello"), (Ids{1, 7})) << "the whole word is unknown";
  EXPECT_EQ(words(*t, "aff"), (Ids{1})) << "a piece that continues does not begin";
  EXPECT_EQ(words(*t, "ab a b"), (Ids{11, 12, 11, 1}));
  EXPECT_EQ(t->encode("hello").value(), (Ids{2, 7, 3}));
  EXPECT_EQ(t->encode("").value(), (Ids{2, 3}));
}

TEST(WordPiece, NormalizesAsBertDoes) {
  const auto t = open(bert_file());
  EXPECT_EQ(words(*t, "HeLLo"), (Ids{7}));
  EXPECT_EQ(words(*t, "CAF\u00C9 cafe\u0301"), (Ids{10, 10}));
  EXPECT_EQ(words(*t, "a中hello\u3000a\t\n"), (Ids{11, 9, 7, 11}));
  EXPECT_EQ(words(*t, std::string_view("he\u200Bl\u00ADl\0o\u0007", 12)), (Ids{7}))
      << "control and format characters vanish";
  EXPECT_EQ(words(*t, std::string(100, 'a')), (Ids{1}));
  EXPECT_EQ(words(*t, "a" + std::string(99, 'b')).size(), 100u);
  EXPECT_EQ(words(*t, "a" + std::string(100, 'b')), (Ids{1})) << "longer words are unknown";
  EXPECT_EQ(words(*t, "a" + std::string(1 << 20, 'b') + " hello"), (Ids{1, 7}));
}

TEST(WordPiece, KeepsCaseAndAccentsWhenTheFileSaysSo) {
  GgufBuilder b = bert_file();
  b.boolean("tokenizer.ggml.normalizer.lowercase", false);
  const auto t = open(b);
  EXPECT_EQ(words(*t, "Caf\u00E9"), (Ids{13}));
  EXPECT_EQ(words(*t, "HELLO"), (Ids{1}));
  EXPECT_EQ(words(*t, "hello"), (Ids{7}));
}

TEST(WordPiece, FindsSpecialTokensOnlyWhenAsked) {
  const auto t = open(bert_file());
  EXPECT_EQ(words(*t, "hello[SEP]a", true), (Ids{7, 3, 11}));
  for (const int32_t id : words(*t, "hello[SEP]a")) EXPECT_NE(id, 3);
  EXPECT_EQ(t->decode(Ids{2, 4, 5, 7, 8, 3}), "unaff hello !");
}

TEST(WordPiece, NeedsAnUnknownToken) {
  const auto bytes = tokenizer_file("bert", {{"▁a"}}).build();
  const auto refused = Tokenizer::from_gguf(GgufFile::from_bytes(bytes).value());
  ASSERT_FALSE(refused);
}

GgufBuilder rwkv_file(const std::vector<std::string>& more) {
  std::vector<TestToken> tokens = {{"<|rwkv_tokenizer_end_of_text|>", 0, 3}};
  const char* hex = "0123456789abcdef";
  for (int b = 0; b < 256; ++b) tokens.push_back({std::string("\\x") + hex[b / 16] + hex[b % 16]});
  for (const std::string& text : more) tokens.push_back({text});
  return tokenizer_file("rwkv", tokens);
}

TEST(Rwkv, TakesTheLongestToken) {
  const auto t = open(rwkv_file({"ab", "abcd", "\\n\\n", "\\'s", "\\xe4\\xb8", "\\\\t"}));
  EXPECT_EQ(words(*t, "abcab"), (Ids{257, 1 + 'c', 257}));
  EXPECT_EQ(words(*t, "abcd\n\n\n"), (Ids{258, 259, 1 + '\n'}));
  EXPECT_EQ(words(*t, "it's\\t"), (Ids{1 + 'i', 1 + 't', 260, 262}));
  EXPECT_EQ(words(*t, "中"), (Ids{261, 1 + 0xAD}));
  EXPECT_EQ(t->decode(words(*t, "中\t☃")), "中\t☃");
  EXPECT_FALSE(t->adds_bos());
}

TEST(Rwkv, RefusesBrokenEscapes) {
  for (const char* text : {"a\\", "\\x", "\\x1", "\\xg0"}) {
    const auto bytes = rwkv_file({text}).build();
    const auto refused = Tokenizer::from_gguf(GgufFile::from_bytes(bytes).value());
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code, Code::kCorrupt) << text;
  }
}

}  // namespace
}  // namespace bm::models
