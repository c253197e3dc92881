#include "models/tokenizer.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <filesystem>

#include "tests/unit/formats/test_support.h"
#include "tests/unit/formats/open_tokenizer.h"
#include "tests/unit/formats/vocab_builder.h"

namespace bm::models {
namespace {

using test::bpe_file;
using test::GgufBuilder;
using test::open;
using test::spm_tokens;
using test::TestToken;
using test::tokenizer_file;
using Ids = std::vector<int32_t>;

Ids encode(const Tokenizer& t, std::string_view text, bool parse_special = false) {
  return t.encode(text, {.add_bos = false, .add_eos = false, .parse_special = parse_special})
      .value();
}

std::vector<std::string> pieces(const Tokenizer& t, std::string_view text) {
  std::vector<std::string> out;
  for (const int32_t id : encode(t, text)) out.push_back(t.piece(id));
  return out;
}

/// Tokens 259 and up of the SentencePiece vocabulary of these tests.
std::vector<TestToken> spm_words() {
  std::vector<TestToken> words;
  for (const char* c : {"▁", "h", "e", "l", "o", "w"}) words.push_back({c, -20});
  words.insert(words.end(), {{"he", -1},
                             {"ll", -2},
                             {"lo", -1.5f},
                             {"hell", -3},
                             {"▁he", -4},
                             {"▁w", -5},
                             {"<|im_end|>", 0, 3},
                             {"<user>", 0, 4}});
  return words;
}

using Strings = std::vector<std::string>;

TEST(SpmTokenizer, MergesTheBestScoreFirst) {
  const auto t = open(tokenizer_file("llama", spm_tokens(spm_words())));
  // he (−1) before lo (−1.5), which takes the second l away from ll; then ▁he.
  EXPECT_EQ(pieces(*t, "hello"), (Strings{" he", "l", "lo"}));
  EXPECT_EQ(pieces(*t, "hell"), (Strings{" ", "hell"}));
  EXPECT_EQ(pieces(*t, "lll"), (Strings{" ", "ll", "l"}));  // of equal scores the left one
  EXPECT_EQ(pieces(*t, "w w"), (Strings{" w", " w"}));
}

TEST(SpmTokenizer, SpellsUnknownCharactersInBytes) {
  const auto t = open(tokenizer_file("llama", spm_tokens(spm_words())));
  EXPECT_EQ(encode(*t, "é"), (Ids{259, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(t->decode(encode(*t, "é")), "é");
  EXPECT_EQ(t->piece(3 + 0xC3), "\xC3");
}

TEST(SpmTokenizer, UsesTheUnknownTokenWithoutByteTokens) {
  const auto t = open(tokenizer_file(
      "llama", {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"▁", -1}, {"a", -1}}));
  EXPECT_EQ(encode(*t, "aéa"), (Ids{3, 4, 0, 4}));
}

TEST(SpmTokenizer, FollowsTheFlagsOfTheFile) {
  const auto plain = open(tokenizer_file("llama", spm_tokens(spm_words())));
  EXPECT_EQ(plain->encode("w").value(),
            (Ids{1, 270}));  // add_bos and the space prefix are defaults
  EXPECT_EQ(plain->encode("w", {.add_bos = false, .add_eos = true}).value(), (Ids{270, 2}));
  EXPECT_EQ(plain->encode("").value(), (Ids{1}));
  GgufBuilder b = tokenizer_file("llama", spm_tokens(spm_words()));
  b.boolean("tokenizer.ggml.add_bos_token", false).boolean("tokenizer.ggml.add_eos_token", true);
  b.boolean("tokenizer.ggml.add_space_prefix", false).u32("tokenizer.ggml.eos_token_id", 271);
  const auto flags = open(b);
  EXPECT_EQ(flags->encode("w").value(), (Ids{264, 271}));
  EXPECT_FALSE(flags->adds_bos());
  EXPECT_EQ(flags->decode(encode(*flags, " w")), " w");
}

/// Qwen: a letter and an accent of its own are one character, in texts and not in special tokens.
TEST(BpeTokenizer, PutsTextsIntoNormalFormCWhereTheFileSaysSo) {
  const std::string apart = "e\u0301", joined = "\u00e9";
  GgufBuilder b = bpe_file("qwen2", {joined}, {{"\xc3", "\xa9"}}, {{"<" + apart + ">", 0, 3}});
  EXPECT_EQ(encode(*open(b), apart), (Ids{'e', 0xCC, 0x81}));
  b.boolean("tokenizer.ggml.normalizer.nfc", true);
  const auto t = open(b);
  EXPECT_EQ(encode(*t, apart), (Ids{256}));
  EXPECT_EQ(encode(*t, "a" + joined + "b"), (Ids{'a', 256, 'b'}));
  EXPECT_EQ(*t->encode("<" + apart + ">" + apart, {.parse_special = true}), (Ids{257, 256}));
}

/// Gemma 4: merges of characters, within lines; llama.cpp judges more of it
/// (tests/oracle/judge_tokenizers.py).
TEST(CharacterBpeTokenizer, JoinsCharactersInTheOrderOfTheMerges) {
  std::vector<TestToken> words;
  for (const char* c : {"▁", "h", "e", "l", "o", "he", "ll", "▁he", "\n", "\n\n"})
    words.push_back({c, 0});
  GgufBuilder b = tokenizer_file("gemma4", spm_tokens(words));
  b.strings("tokenizer.ggml.merges", {"h e", "▁ he", "l l", "\n \n"});
  b.u32("tokenizer.ggml.bos_token_id", 1);
  const auto t = open(b);
  EXPECT_TRUE(t->adds_bos());
  EXPECT_EQ(pieces(*t, "hello"), (Strings{"he", "ll", "o"}));
  EXPECT_EQ(pieces(*t, " hello he"), (Strings{" he", "ll", "o", " he"}));
  EXPECT_EQ(pieces(*t, "he\n\nhe\n"), (Strings{"he", "\n\n", "he", "\n"}));
  EXPECT_EQ(encode(*t, "é"), (Ids{3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(t->decode(encode(*t, " hé  llo\n")), " hé  llo\n");
}

/// Files that say "gpt2" and join characters.
TEST(CharacterBpeTokenizer, ByteLevelFilesMayJoinCharactersByName) {
  std::vector<TestToken> words;
  for (const char* c : {"▁", "h", "e", "l", "o", "he", "ll", "▁he", "\n", "\n\n"})
    words.push_back({c, 0});
  const auto with = [&](const char* pre) {
    GgufBuilder b = tokenizer_file("gpt2", spm_tokens(words));
    b.text("tokenizer.ggml.pre", pre);
    b.strings("tokenizer.ggml.merges", {"h e", "▁ he", "l l", "\n \n"});
    b.u32("tokenizer.ggml.bos_token_id", 1);
    return open(b);
  };
  for (const char* pre : {"gemma4", "granite-embed-multi-311m", "sarvam-moe"}) {
    const auto t = with(pre);
    EXPECT_EQ(t->adds_bos(), std::string_view(pre) != "sarvam-moe") << pre;
    EXPECT_EQ(pieces(*t, "hello  he\n\nhe"), (Strings{"he", "ll", "o", " ", " he", "\n\n", "he"}))
        << pre;
    EXPECT_EQ(encode(*t, "é"), (Ids{3 + 0xC3, 3 + 0xA9})) << pre;
  }
  // Words and lines begin with a mark.
  EXPECT_EQ(pieces(*with("mmbert"), "hello  he\n\nhe"),
            (Strings{" he", "ll", "o", " ", " he", "\n\n", " he"}));
}

/// The Chinese Jina v2: characters of words, small letters, no white space; llama.cpp judges more
/// of it and of the next two (tests/oracle/judge_tokenizers.py).
TEST(CharacterBpeTokenizer, JoinsCharactersBetweenWhiteSpace) {
  const std::vector<TestToken> tokens = {{"<s>", 0, 3}, {"</s>", 0, 3},  {"<unk>", 0, 2}, {"h"},
                                         {"e"},         {"he"},          {"你"},          {"你好"},
                                         {"好"},        {"<0x7A>", 0, 6}};
  GgufBuilder b = tokenizer_file("whitespace", tokens);
  b.text("tokenizer.ggml.pre", "whitespace");
  b.strings("tokenizer.ggml.merges", {"h e", "你 好"});
  b.u32("tokenizer.ggml.bos_token_id", 0).u32("tokenizer.ggml.eos_token_id", 1);
  b.u32("tokenizer.ggml.unknown_token_id", 2);
  b.boolean("tokenizer.ggml.add_bos_token", true).boolean("tokenizer.ggml.add_eos_token", true);
  EXPECT_EQ(*open(b)->encode("he\u3000h e\n 你好 HE"), (Ids{0, 5, 3, 4, 7, 1}));
  EXPECT_EQ(encode(*open(b), "hxez"), (Ids{3, 4, 9})) << "what has no token is left out";
  b.boolean("tokenizer.ggml.normalizer.lowercase", true);
  EXPECT_EQ(encode(*open(b), "HE 你好"), (Ids{5, 7}));
}

/// Tokens 4–259 the bytes, then `more`.
GgufBuilder plamo_file(std::string_view model, const std::vector<TestToken>& more) {
  std::vector<TestToken> tokens = {{"<|plamo:unk|>", 0, 2},
                                   {"<|plamo:bos|>", 0, 3},
                                   {"<|plamo:eos|>", 0, 3},
                                   {"<|plamo:pad|>", 0, 3}};
  for (int b = 0; b < 256; ++b) tokens.push_back({test::byte_token(b), 0, 6});
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokenizer_file(model, tokens);
}

TEST(PlamoTokenizer, TakesTheBestSumOfScores) {
  const auto t = open(plamo_file(
      "plamo2", {{"a", -3}, {"b", -3}, {"ab", -5}, {"abb", -9}, {"bb", -4}, {"あ", -2}}));
  EXPECT_EQ(t->bos(), 1);
  EXPECT_EQ(t->eos(), 2);
  EXPECT_EQ(encode(*t, "abb"), (Ids{260, 264})) << "−7, where ab b is −8 and abb −9";
  EXPECT_EQ(encode(*t, "ab"), (Ids{262}));
  EXPECT_EQ(encode(*t, "あé\n"), (Ids{265, 4 + 0xC3, 4 + 0xA9, 4 + '\n'}));
  EXPECT_EQ(encode(*t, "\uFEFFab"), (Ids{262})) << "a byte order mark is none of the text";
  EXPECT_EQ(t->decode(encode(*t, "▁ abあé")), "▁ abあé");
  for (const int32_t id : encode(*t, "<|plamo:eos|>")) EXPECT_FALSE(t->is_special(id));
  EXPECT_EQ(encode(*t, "a<|plamo:eos|>", true), (Ids{260, 2}));
  // Of equal sums the longer piece.
  EXPECT_EQ(encode(*open(plamo_file("plamo2", {{"a", -1}, {"aa", -2}})), "aaa"), (Ids{261, 260}));
}

TEST(PlamoTokenizer, TheThirdCutsAtMarkersAndLongRunsFirst) {
  const std::vector<TestToken> words = {{"a", -3},       {"aab", -1},     {"aaaa", -9}, {"  ", -1},
                                        {" ", -1},       {" x", -0.5f},   {"x", -1},    {">x", -1},
                                        {"\uFEFFa", -1}, {"aaaab", -0.5f}};
  const auto second = open(plamo_file("plamo2", words)), third = open(plamo_file("plamo3", words));
  EXPECT_EQ(pieces(*second, "aaaab"), (Strings{"aaaab"}));
  EXPECT_EQ(pieces(*third, "aaaab")[0], "aaaa");
  EXPECT_EQ(pieces(*third, "aaab"), (Strings{"a", "aab"})) << "three are no long run";
  EXPECT_EQ(pieces(*second, "  x"), (Strings{" ", " x"}));
  EXPECT_EQ(pieces(*third, "  x"), (Strings{"  ", "x"}));
  EXPECT_EQ(pieces(*second, "<|plamo:m|>x").back(), ">x");
  EXPECT_EQ(pieces(*third, "<|plamo:m|>x").back(), "x");
  EXPECT_EQ(pieces(*third, "<|plamo:m m|>x").back(), ">x") << "no marker has a space";
  EXPECT_EQ(pieces(*third, "\uFEFFa"), (Strings{"\uFEFFa"}));
  EXPECT_EQ(pieces(*third, "\uEE00a\uEE00\uEE00ab\uEE00").size(), 3u) << "boundaries: no tokens";
}

TEST(DnaTokenizer, CutsBasesInSixes) {
  const std::string mark = "\uE000";
  std::vector<TestToken> tokens;
  for (int b = 0; b < 256; ++b)
    tokens.push_back({test::spell_bytes(std::string(1, static_cast<char>(b)))});
  for (const std::string& text : {std::string("<dna>"), std::string("</dna>"), std::string("<oov>"),
                                  "ACGTAC" + mark, "GTAAAA" + mark})
    tokens.push_back({text});
  GgufBuilder b = tokenizer_file("hybriddna", tokens);
  b.text("tokenizer.ggml.pre", "gpt-2").strings("tokenizer.ggml.merges", {"q u"});
  const auto t = open(b);
  EXPECT_EQ(encode(*t, "x<dna>acgtacGT</dna>y"), (Ids{'x', 256, 259, 260, 257, 'y'}));
  EXPECT_EQ(encode(*t, "<dna>ACGTAN"), (Ids{256, 258}));
  EXPECT_EQ(encode(*t, "AC"), (Ids{'A', 'C'}));
  EXPECT_EQ(t->decode(Ids{256, 259, 257}), "<dna>ACGTAC</dna>");
}

TEST(SpmTokenizer, FindsControlTokensOnlyWhenAsked) {
  const auto t = open(tokenizer_file("llama", spm_tokens(spm_words())));
  EXPECT_EQ(encode(*t, "<|im_end|>", true), (Ids{271}));
  for (const int32_t id : encode(*t, "<|im_end|></s><0x41><unk>"))
    EXPECT_FALSE(t->is_special(id) || id == 3 + 0x41) << id;
  // User-defined tokens are always found, and what follows is a text of its own, as in llama.cpp.
  EXPECT_EQ(encode(*t, "w<user>w"), (Ids{270, 272, 270}));
  EXPECT_EQ(t->decode(Ids{270, 272, 264}), "w<user>w");
  EXPECT_EQ(encode(*t, "<s>w</s>w", true), (Ids{1, 270, 2, 270}));
}

/// As Phi-3's files have them: "</s>" user-defined, and markers that take the white space after
/// them.
GgufBuilder phi3_file() {
  auto tokens = spm_tokens(spm_words());
  tokens[2].type = 4;
  tokens.insert(tokens.end(), {{"<|endoftext|>", 0, 3}, {"<|user|>", 0, 3}, {"<|tool|>", 0, 4}});
  GgufBuilder b = tokenizer_file("llama", tokens);
  b.text("general.architecture", "phi3").u32("tokenizer.ggml.eos_token_id", 273);
  return b;
}

TEST(SpmTokenizer, EndsOfTextAreNeverFoundInOrdinaryText) {
  const auto phi3 = open(phi3_file());
  for (const char* text : {"</s>", "w</s>w", "</s></s>", "<s>", "<|endoftext|>"})
    for (const int32_t id : encode(*phi3, text))
      EXPECT_FALSE(id == 1 || id == 2 || id == 273) << text << ": " << id;
  EXPECT_EQ(phi3->decode(encode(*phi3, "w</s>w")), "w</s>w") << "the characters are kept";
  EXPECT_EQ(encode(*phi3, "w</s>w", true), (Ids{270, 2, 270}));
  // A role makes a token control in every family, and the words of a language stay words.
  auto words = spm_words();
  words.insert(words.end(), {{"<end>", 0, 4}, {"<fin>", 0, 1}});
  for (const uint32_t eos : {273U, 274U}) {
    GgufBuilder b = tokenizer_file("llama", spm_tokens(words));
    b.u32("tokenizer.ggml.eos_token_id", eos);
    const auto t = open(b);
    for (const int32_t id : encode(*t, "<end><fin>")) EXPECT_NE(id, static_cast<int32_t>(eos));
    EXPECT_TRUE(t->is_special(static_cast<int32_t>(eos)));
  }
  // What ends a turn by its well-known name does so in ordinary text as little.
  const auto bpe = open(bpe_file("gpt-2", {}, {}, {{"<|im_end|>", 0, 4}}));
  EXPECT_TRUE(bpe->is_end_of_generation(256));
  for (const int32_t id : encode(*bpe, "a<|im_end|>")) EXPECT_NE(id, 256);
  GgufBuilder b = tokenizer_file("llama", spm_tokens(spm_words()));
  b.u32("tokenizer.ggml.eos_token_id", 270);  // "▁w"
  EXPECT_EQ(encode(*open(b), "w"), (Ids{270}));
}

TEST(SpmTokenizer, MarkersOfPhi3TakeTheWhiteSpaceAfterThem) {
  const auto t = open(phi3_file());
  EXPECT_EQ(encode(*t, "<|user|> \n\t w", true), encode(*t, "<|user|>w", true));
  EXPECT_EQ(encode(*t, "<|user|>\n<|user|>  ", true), (Ids{274, 274}));
  EXPECT_EQ(encode(*t, "<|tool|>\u00a0 w"), encode(*t, "<|tool|>w")) << "user-defined ones too";
  EXPECT_NE(encode(*t, "<|endoftext|> w", true), encode(*t, "<|endoftext|>w", true));
  EXPECT_NE(encode(*t, "<s> w", true), encode(*t, "<s>w", true));
  for (const char* name : {"Phi-3-mini", "Phi3", "Phi 3 Mini 4k Instruct"}) {
    GgufBuilder named = tokenizer_file("llama", spm_tokens(spm_words()));
    named.text("general.name", name);
    const auto by_name = open(named);
    EXPECT_EQ(encode(*by_name, "<user>  w"), encode(*by_name, "<user>w")) << name;
  }
  const auto other = open(tokenizer_file("llama", spm_tokens(spm_words())));
  EXPECT_NE(encode(*other, "<user>  w"), encode(*other, "<user>w"));
}

TEST(SpmTokenizer, PrefersTheLongestSpecialToken) {
  auto words = spm_words();
  words.insert(words.end(), {{"<a>", 0, 4}, {"<a><b>", 0, 4}, {"<a><b><c>!", 0, 4}});
  const auto t = open(tokenizer_file("llama", spm_tokens(words)));
  EXPECT_EQ(encode(*t, "<a><b><c><a>"), (Ids{274, 259, 3 + '<', 3 + 'c', 3 + '>', 273}));
}

TEST(SpmTokenizer, HidesControlTokensInText) {
  const auto t = open(tokenizer_file("llama", spm_tokens(spm_words())));
  const Ids ids = {1, 270, 271, 2};
  EXPECT_EQ(t->decode(ids), "w");
  EXPECT_EQ(t->decode(ids, {.render_special = true}), "<s>w<|im_end|></s>");
  EXPECT_EQ(t->decode(Ids{270}, {.strip_space_prefix = false}), " w");
  EXPECT_EQ(t->piece(271), "<|im_end|>");
}

TEST(SpmTokenizer, KnowsTokensWithARole) {
  const auto t = open(tokenizer_file("llama", spm_tokens(spm_words())));
  EXPECT_EQ(t->bos(), 1);
  EXPECT_EQ(t->eos(), 2);
  EXPECT_EQ(t->unknown(), 0);
  EXPECT_EQ(t->eot(), 271);
  EXPECT_TRUE(t->is_end_of_generation(2));
  EXPECT_TRUE(t->is_end_of_generation(271));
  EXPECT_FALSE(t->is_end_of_generation(1));
  EXPECT_FALSE(t->is_end_of_generation(-1));
  EXPECT_EQ(t->find("▁he"), 269);
  EXPECT_EQ(t->find("nothing"), std::nullopt);
  EXPECT_EQ(t->size(), 273u);
}

TEST(Tokenizer, PutsTextsAroundAGap) {
  const std::vector<TestToken> names = {{"<fim_prefix>", 0, 3},
                                        {"<fim_suffix>", 0, 4},
                                        {"<fim_middle>", 0, 1},
                                        {"<|file_sep|>", 0, 3}};
  const std::vector<int32_t> before = {10, 11}, behind = {12};
  // By their texts, whatever their type; another file ends the text.
  const auto by_text = open(bpe_file("gpt-2", {}, {}, names));
  ASSERT_TRUE(by_text);
  EXPECT_EQ(*by_text->around_gap(before, behind),
            (std::vector<int32_t>{256, 10, 11, 257, 12, 258}));
  EXPECT_TRUE(by_text->is_end_of_generation(259));
  // As the file says, in the newer words, then in those of older files.
  GgufBuilder newer = tokenizer_file("llama", spm_tokens(names));
  newer.i32("tokenizer.ggml.fim_pre_token_id", 20).i32("tokenizer.ggml.prefix_token_id", 21);
  newer.i32("tokenizer.ggml.suffix_token_id", 22).i32("tokenizer.ggml.fim_pad_token_id", 23);
  const auto by_key = open(newer);
  ASSERT_TRUE(by_key);
  EXPECT_EQ(*by_key->around_gap({}, behind), (std::vector<int32_t>{1, 20, 22, 12, 261}));
  EXPECT_TRUE(by_key->is_end_of_generation(23));
  EXPECT_EQ(open(tokenizer_file("llama", spm_tokens({})))->around_gap({}, {}).error().code,
            Code::kUnsupported);
}

TEST(Tokenizer, ShowsIdsOutOfRangeAsReplacementCharacters) {
  const auto t = open(tokenizer_file("llama", spm_tokens(spm_words())));
  for (const int32_t id : {-1, 273, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(t->piece(id), "\uFFFD");
    EXPECT_EQ(t->decode(Ids{id}), "\uFFFD");
    EXPECT_FALSE(t->is_special(id));
  }
}

TEST(Tokenizer, ReplacesBytesThatAreNotUtf8) {
  const auto t = open(tokenizer_file("llama", spm_tokens(spm_words())));
  EXPECT_EQ(t->decode(encode(*t, "a\xFF\xE6\xB0z")), "a\uFFFD\uFFFDz");
  EXPECT_EQ(t->decode(Ids{3 + 0xE6}), "\uFFFD");
}

TEST(Tokenizer, RefusesTextsOverItsLimit) {
  const auto t = open(tokenizer_file("llama", spm_tokens(spm_words())));
  const auto ids = t->encode(std::string((64u << 20) + 1, 'a'));
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, Code::kInvalidArgument);
}

GgufBuilder hello_bpe(std::string_view pre) {
  return bpe_file(pre, {"he", "ll", "hell", "hello", " w", "12"},
                  {{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {" ", "w"}, {"1", "2"}},
                  {{"<|eot_id|>", 0, 3}, {"[U]", 0, 4}});
}

TEST(BpeTokenizer, MergesTheLowestRankFirst) {
  const auto t = open(hello_bpe("gpt-2"));
  EXPECT_EQ(encode(*t, "hello wl"), (Ids{259, 260, 'l'}));
  EXPECT_EQ(encode(*t, "helll"), (Ids{258, 'l'}));
  EXPECT_EQ(encode(*t, "12 é"), (Ids{261, ' ', 0xC3, 0xA9}));
  // Rank 0 is taken first although it is not leftmost: "b c" before "a b".
  const auto ranks = open(bpe_file("gpt-2", {"bc", "ab"}, {{"b", "c"}, {"a", "b"}}));
  EXPECT_EQ(encode(*ranks, "abc"), (Ids{'a', 256}));
  EXPECT_EQ(encode(*ranks, "aab"), (Ids{'a', 257}));
}

TEST(BpeTokenizer, MergesOnlyInsideWords) {
  const auto joined = open(bpe_file("gpt-2", {"12"}, {{"1", "2"}}));
  const auto single = open(bpe_file("qwen2", {"12"}, {{"1", "2"}}));
  EXPECT_EQ(encode(*joined, "12"), (Ids{256}));
  EXPECT_EQ(encode(*single, "12"), (Ids{'1', '2'}));
}

TEST(BpeTokenizer, TakesWholeWordsWhereTheModelIgnoresMerges) {
  EXPECT_EQ(encode(*open(bpe_file("llama-bpe", {"word"}, {})), "word"), (Ids{256}));
  EXPECT_EQ(encode(*open(bpe_file("gpt-2", {"word"}, {})), "word"), (Ids{'w', 'o', 'r', 'd'}));
}

TEST(BpeTokenizer, SpellsMergesWithoutATokenInBytes) {
  const auto t = open(bpe_file("gpt-2", {}, {{"a", "b"}}));
  EXPECT_EQ(encode(*t, "abab"), (Ids{'a', 'b', 'a', 'b'}));
}

TEST(BpeTokenizer, FindsSpecialTokens) {
  const auto t = open(hello_bpe("gpt-2"));
  EXPECT_EQ(encode(*t, "w<|eot_id|>[U]w", true), (Ids{'w', 262, 263, 'w'}));
  EXPECT_EQ(encode(*t, "[U]"), (Ids{263}));
  for (const int32_t id : encode(*t, "<|eot_id|>")) EXPECT_LT(id, 256);
  EXPECT_EQ(t->eot(), 262);
  EXPECT_EQ(t->decode(Ids{'w', 262, 263}), "w[U]");
  EXPECT_EQ(t->decode(Ids{260}), " w");  // no space prefix to strip
}

TEST(BpeTokenizer, RefusesABosTokenThatDoesNotExist) {
  const auto t = open(hello_bpe("gpt-2"));
  EXPECT_EQ(t->bos(), -1);
  EXPECT_EQ(t->encode("a", {.add_bos = true}).error().code, Code::kInvalidArgument);
}

TEST(BpeTokenizer, AddsBosByTheHabitOfThePreset) {
  EXPECT_FALSE(open(hello_bpe("llama-bpe"))->adds_bos());  // no such token in this file
  GgufBuilder b = hello_bpe("llama-bpe");
  b.u32("tokenizer.ggml.bos_token_id", 262);
  EXPECT_EQ(open(b)->encode("1").value(), (Ids{262, '1'}));
}

std::vector<TestToken> unigram_tokens() {
  return {{"<pad>", 0, 3}, {"</s>", 0, 3}, {"<unk>", 0, 2}, {"▁", -3},   {"a", -3},    {"b", -3},
          {"ab", -4},      {"▁a", -4},     {"ba", -7},      {"▁ab", -9}, {"<x>", 0, 4}};
}

TEST(UnigramTokenizer, FindsTheBestSegmentation) {
  const auto t = open(tokenizer_file("t5", unigram_tokens()));
  // ▁ab: ▁|ab −7, ▁a|b −7 (first found wins: ends are reached left to right), ▁ab −9, ▁|a|b −9.
  const Ids ab = encode(*t, "ab");
  EXPECT_EQ(ab.size(), 2u);
  EXPECT_EQ(t->decode(ab), "ab");
  // ▁aab: ▁a|ab −8 beats ▁|a|ab −10.
  EXPECT_EQ(encode(*t, "aab"), (Ids{7, 6}));
  EXPECT_EQ(t->encode("a").value(), (Ids{7, 1}));  // EOS is the default
}

TEST(UnigramTokenizer, JoinsUnknownCharactersIntoOneToken) {
  const auto t = open(tokenizer_file("t5", unigram_tokens()));
  EXPECT_EQ(encode(*t, "aзэa"), (Ids{7, 2, 4}));
  EXPECT_EQ(encode(*t, "a<x>b"), (Ids{7, 10, 3, 5}));
}

TEST(UnigramTokenizer, MergesSpacesWhenTheFileSaysSo) {
  GgufBuilder b = tokenizer_file("t5", unigram_tokens());
  b.boolean("tokenizer.ggml.remove_extra_whitespaces", true);
  EXPECT_EQ(encode(*open(b), "  a   a "), (Ids{7, 7}));
  EXPECT_EQ(encode(*open(tokenizer_file("t5", unigram_tokens())), "a  a"), (Ids{7, 3, 7}));
}

/// A trie with the one rule "A" → "a": root offset 1, node 1 ^ 'A', its value 3 further.
std::vector<uint8_t> capital_a_rule() {
  std::vector<uint32_t> units(0x44, 0);
  units[0] = 1u << 10;
  units[0x40] = 'A' | 1u << 8 | 3u << 10;
  units[0x43] = 0x80000000u;
  test::Bytes blob;
  blob.put(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t u : units) blob.put(u);
  blob.raw(std::string_view("a\0", 2));
  std::vector<uint8_t> out;
  for (const std::byte b : blob.data()) out.push_back(static_cast<uint8_t>(b));
  return out;
}

TEST(UnigramTokenizer, AppliesTheCharsmap) {
  GgufBuilder b = tokenizer_file("t5", unigram_tokens());
  b.array("tokenizer.ggml.precompiled_charsmap", 0, capital_a_rule());
  EXPECT_EQ(encode(*open(b), "AaB"), (Ids{7, 4, 2}));
}

TEST(Tokenizer, GivesRandomTextsBack) {
  test::Random random(4);
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(open(tokenizer_file("llama", spm_tokens(spm_words()))));
  GgufBuilder no_prefix = tokenizer_file("llama", spm_tokens(spm_words()));
  no_prefix.boolean("tokenizer.ggml.add_space_prefix", false);
  all.push_back(open(no_prefix));
  for (const char* pre : {"default", "gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o",
                          "deepseek-v3", "falcon", "smollm"}) {
    GgufBuilder b = hello_bpe(pre);
    b.boolean("tokenizer.ggml.add_bos_token", false);
    all.push_back(open(b));
  }
  for (int i = 0; i < 300; ++i) {
    const std::string text = test::random_text(random, random.below(60));
    for (const auto& t : all) {
      const Ids ids = encode(*t, text);
      ASSERT_EQ(t->decode(ids), text) << t->model() << " " << t->pre();
      for (const int32_t id : ids) ASSERT_TRUE(id >= 0 && static_cast<size_t>(id) < t->size());
    }
  }
}

/// Runs `work` on a thread with a stack of 256 KiB; whatever recursed over the text would overflow
/// it.
void on_small_stack(void* (*work)(void*), void* argument) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, work, argument), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

void* encode_mebibytes(void* argument) {
  const Tokenizer& t = *static_cast<const Tokenizer*>(argument);
  for (const char c : {'l', ' ', '\n', '\xC3', '1'}) {
    std::string text(1 << 20, c);
    if (c == '\xC3') text = std::string(1 << 19, 'h') + std::string(1 << 19, 'e');
    const Ids ids = encode(t, text);
    EXPECT_EQ(t.decode(ids), text);
  }
  return nullptr;
}

TEST(Tokenizer, TakesAMebibyteOfOneCharacterOnASmallStack) {
  GgufBuilder llama3 = hello_bpe("llama-bpe");
  llama3.boolean("tokenizer.ggml.add_bos_token", false);
  on_small_stack(encode_mebibytes, open(tokenizer_file("llama", spm_tokens(spm_words()))).get());
  on_small_stack(encode_mebibytes, open(hello_bpe("gpt-2")).get());
  on_small_stack(encode_mebibytes, open(llama3).get());
  on_small_stack(encode_mebibytes, open(hello_bpe("gpt-4o")).get());
}

TEST(Tokenizer, ReadsTheBundledModel) {
  const std::string path = "models/bundled/licence.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const GgufFile file = GgufFile::open(path).value();
  const auto t = Tokenizer::from_gguf(file).value();
  const std::string text = "Permission is hereby granted, free of charge — §1 «naïve»\n";
  EXPECT_EQ(t->decode(t->encode(text).value()), text);
  EXPECT_EQ(t->encode("a").value().front(), t->bos());
}

}  // namespace
}  // namespace bm::models
