// tokenizer.json: worked examples, and the tokenizers of GGUF files with the same vocabularies.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "models/tokenizer.h"
#include "tests/unit/formats/test_support.h"
#include "tests/unit/formats/open_tokenizer.h"
#include "tests/unit/formats/vocab_builder.h"

namespace bm::models {
namespace {

using nlohmann::json;
using test::GgufBuilder;
using test::open;
using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> open(const json& root) {
  GgufBuilder b;
  b.text("tokenizer.huggingface.json", root.dump());
  return open(b);
}

Error refusal(const std::string& text) {
  GgufBuilder b;
  b.text("tokenizer.huggingface.json", text);
  const auto bytes = b.build();
  const auto tokenizer = Tokenizer::from_gguf(GgufFile::from_bytes(bytes).value());
  return tokenizer ? Error{} : tokenizer.error();
}

Ids encode(const Tokenizer& t, std::string_view text, bool parse_special = false) {
  return t.encode(text, {.add_bos = false, .add_eos = false, .parse_special = parse_special})
      .value();
}

json added(int id, const std::string& text, bool is_special) {
  return {{"id", id}, {"content", text}, {"special", is_special}};
}

std::string random_text(std::mt19937& random) {
  constexpr std::array kParts = {
      "the", " ", "  ", "hello", "lo",  "\n", "é", "中文", "12", "3456", "'s",  "!",     "he",
      "\t",  "▁", "ſ",  "Hello", "'LL", "🙂", "a", "b",    "ab", "\r\n", "...", "\u00A0"};
  std::string out;
  for (size_t i = random() % 20; i-- > 0;) out += kParts[random() % kParts.size()];
  return out;
}

TEST(TokenizerJson, CutsAsTheLibraryDoes) {
  // Answers of huggingface/tokenizers 0.23 (tests/oracle/judge_tokenizer_json.py): unassigned
  // characters stay and control characters go, marks and joiners are parts of words, classes within
  // classes are united, and a text that begins with white space has no first word.
  const auto words = [](json normalizer, const json& pre_tokenizer, const std::string& text) {
    json vocab = json::object();
    vocab["[UNK]"] = 0;
    const json root{{"model", {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"vocab", vocab}}},
                    {"normalizer", std::move(normalizer)},
                    {"pre_tokenizer", pre_tokenizer}};
    return encode(*open(root), text).size();  // a token for every word
  };
  const json bert{{"type", "BertNormalizer"},
                  {"clean_text", true},
                  {"handle_chinese_chars", true},
                  {"strip_accents", nullptr},
                  {"lowercase", true}};
  const json split{{"type", "WhitespaceSplit"}}, white{{"type", "Whitespace"}};
  EXPECT_EQ(words(bert, split, "5 \u0378"), 2u);
  EXPECT_EQ(words(bert, split, "a\vb\fc\u0085d\ue000e"), 1u);
  EXPECT_EQ(words(bert, split, "a\tb\u2028c"), 3u);
  EXPECT_EQ(words(nullptr, white, "e\u0301a \u2665\ufe0f a\u200db"), 4u);
  const json bloom{{"type", "Split"},
                   {"pattern", {{"Regex", " ?[^(\\s|[.,!?])]+"}}},
                   {"behavior", "Isolated"},
                   {"invert", false}};
  EXPECT_EQ(words(nullptr, bloom, "ab cd,ef"), 4u);
}

TEST(TokenizerJson, OnlyATextThatBeginsWithItHasAFirstWord) {
  const json vocab = json::array(
      {json::array({"<unk>", 0.0}), json::array({"a", -1.0}), json::array({"▁a", -1.5})});
  const json root{
      {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}}},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "WhitespaceSplit"}},
          {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}}}}}}};
  const auto t = open(root);
  EXPECT_EQ(encode(*t, "a a"), (Ids{2, 1}));
  EXPECT_EQ(encode(*t, " a a"), (Ids{1, 1}));
}

// --- BPE ---------------------------------------------------------------------------------------

const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"h", "e"},   {"l", "o"}, {"l", "lo"}, {"he", "llo"}, {" ", "t"},
    {" t", "he"}, {"a", "b"}, {"1", "2"},  {" ", " "},    {"\xc3", "\xa9"}};

json byte_level_json(const json& pre_tokenizer) {
  json vocab = json::object(), merges = json::array();
  for (int b = 0; b < 256; ++b) vocab[test::spell_bytes(std::string(1, static_cast<char>(b)))] = b;
  int id = 256;
  for (const auto& [left, right] : kMerges) {
    vocab[test::spell_bytes(left + right)] = id++;
    merges.push_back(test::spell_bytes(left) + " " + test::spell_bytes(right));
  }
  return {
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}},
      {"pre_tokenizer", pre_tokenizer},
      {"decoder", {{"type", "ByteLevel"}}},
      {"added_tokens", json::array({added(id, "<|end|>", true), added(id + 1, "<tool>", false)})}};
}

GgufBuilder byte_level_gguf(const char* pre) {
  std::vector<std::string> more;
  for (const auto& [left, right] : kMerges) more.push_back(left + right);
  return test::bpe_file(pre, more, kMerges, {{"<|end|>", 0, 3}, {"<tool>", 0, 4}});
}

const json kGpt2 = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
// As in the tokenizer.json of Qwen 2 and of Llama 3.
const json kQwen2 = {
    {"type", "Sequence"},
    {"pretokenizers",
     {{{"type", "Split"},
       {"pattern",
        {{"Regex",
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
       {"behavior", "Isolated"},
       {"invert", false}},
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};

TEST(TokenizerJson, ByteLevelModelsEqualThoseOfGgufFiles) {
  for (const auto& [steps, pre] : {std::pair{kGpt2, "gpt-2"}, {kQwen2, "qwen2"}}) {
    const auto ours = open(byte_level_json(steps)), other = open(byte_level_gguf(pre));
    ASSERT_TRUE(ours && other);
    std::mt19937 random(std::random_device{}());
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_text(random) + (i % 7 == 0 ? "<tool>x<|end|>" : "");
      for (const bool parses : {false, true})
        ASSERT_EQ(encode(*ours, text, parses), encode(*other, text, parses)) << pre << ": " << text;
      ASSERT_EQ(ours->decode(encode(*ours, text)), text);
    }
  }
}

TEST(TokenizerJson, ByteFallbackAndMarks) {
  // As in Llama 2: a mark is put first, spaces become marks, what is not known becomes bytes.
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"▁", 2}, {"h", 3}, {"i", 4}, {"hi", 5}, {"▁hi", 6}};
  for (int b = 0; b < 256; ++b) vocab[test::byte_token(b)] = 7 + b;
  const json root = {
      {"model",
       {{"type", "BPE"},
        {"vocab", vocab},
        {"merges", json::array({json::array({"h", "i"}), json::array({"▁", "hi"})})},
        {"unk_token", "<unk>"},
        {"byte_fallback", true},
        {"fuse_unk", true}}},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "▁"}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
      {"added_tokens", json::array({added(0, "<unk>", true), added(1, "<s>", true)})}};
  const auto t = open(root);
  ASSERT_TRUE(t);
  EXPECT_TRUE(t->adds_bos());
  EXPECT_EQ(t->encode("hi hi").value(), (Ids{1, 6, 6}));
  EXPECT_EQ(encode(*t, "hié"), (Ids{6, 7 + 0xC3, 7 + 0xA9}));
  EXPECT_EQ(encode(*t, " hi"), (Ids{2, 6}));
  EXPECT_EQ(encode(*t, "<s>").front(), 2) << "text, not the token";
  EXPECT_EQ(t->decode(encode(*t, "hi hié")), "hi hié");
  EXPECT_EQ(t->encode("hi", {.add_bos = false, .is_continuation = true}).value(), (Ids{5}));
}

TEST(TokenizerJson, UnigramTakesTheBestSum) {
  const auto entry = [](const char* text, double score) { return json::array({text, score}); };
  const json vocab = json::array({entry("<unk>", 0), entry("▁", -3), entry("a", -2), entry("b", -2),
                                  entry("ab", -3.5), entry("▁a", -4.5)});
  const json root = {{"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}}},
                     {"pre_tokenizer",
                      {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}}},
                     {"decoder", {{"type", "Metaspace"}, {"replacement", "▁"}}}};
  const auto t = open(root);
  ASSERT_TRUE(t);
  EXPECT_EQ(encode(*t, "ab"), (Ids{1, 4}));  // −6.5; "▁a" and "b" −6.5 come later
  EXPECT_EQ(encode(*t, "a b"), (Ids{5, 1, 3}));
  EXPECT_EQ(encode(*t, "axyb"), (Ids{5, 0, 3})) << "unknown characters are one token";
  EXPECT_EQ(t->decode(encode(*t, "a b")), "a b");
}

TEST(TokenizerJson, UnigramTellsSumsApartThatAreEqualInFloat32) {
  const auto entry = [](const char* text, double score) { return json::array({text, score}); };
  const json vocab = json::array({entry("<unk>", -9), entry("a", -1.00000000001), entry("b", -1),
                                  entry("aa", -2), entry("ab", -2)});
  const auto t = open({{"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}}}});
  ASSERT_TRUE(t);
  EXPECT_EQ(encode(*t, "aab"), (Ids{3, 2}));  // "a" and "ab" would come first
}

TEST(TokenizerJson, WordPieceOfBert) {
  const json root = {{"model",
                      {{"type", "WordPiece"},
                       {"unk_token", "[UNK]"},
                       {"continuing_subword_prefix", "##"},
                       {"max_input_chars_per_word", 100},
                       {"vocab",
                        {{"[UNK]", 0},
                         {"[CLS]", 1},
                         {"[SEP]", 2},
                         {"un", 3},
                         {"##aff", 4},
                         {"##able", 5},
                         {"!", 6}}}}},
                     {"normalizer", {{"type", "BertNormalizer"}, {"lowercase", true}}},
                     {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                     {"post_processor",
                      {{"type", "BertProcessing"}, {"sep", {"[SEP]", 2}}, {"cls", {"[CLS]", 1}}}},
                     {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}}}};
  const auto t = open(root);
  ASSERT_TRUE(t);
  EXPECT_EQ(t->encode("Unaffable! xyz").value(), (Ids{1, 3, 4, 5, 6, 0, 2}));
  EXPECT_EQ(encode(*t, "ÜNAFFable"), (Ids{3, 4, 5}));
  EXPECT_EQ(t->decode(Ids{3, 4, 5, 6}), "unaffable !");
  const auto pair = t->encode_pair("un", "!").value();
  EXPECT_EQ(pair.tokens, (Ids{1, 3, 2, 6, 2}));
  EXPECT_EQ(pair.second, 3u);
}

TEST(TokenizerJson, ATemplateSaysHowTwoTextsStandTogether) {
  const auto token = [](const char* id, int type) {
    return json{{"SpecialToken", {{"id", id}, {"type_id", type}}}};
  };
  const auto text = [](const char* id, int type) {
    return json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  json root = {{"model",
                {{"type", "WordLevel"},
                 {"unk_token", "?"},
                 {"vocab", {{"?", 0}, {"<s>", 1}, {"</s>", 2}, {"a", 3}, {"b", 4}}}}},
               {"pre_tokenizer", {{"type", "Whitespace"}}},
               {"post_processor",
                {{"type", "TemplateProcessing"},
                 {"single", {token("<s>", 0), text("A", 0), token("</s>", 0)}},
                 {"special_tokens", json::object()}}}};
  const auto pair_of = [&](const json& pair) {
    root["post_processor"]["pair"] = pair;
    const auto t = open(root);
    return t ? t->encode_pair("a a", "b").value() : TokenPair{};
  };
  const TokenPair kinds = pair_of({token("<s>", 0), text("A", 0), token("</s>", 0), text("B", 1)});
  EXPECT_EQ(kinds.tokens, (Ids{1, 3, 3, 2, 4}));
  EXPECT_EQ(kinds.second, 4u);
  const TokenPair plain =
      pair_of({token("<s>", 0), text("A", 0), token("</s>", 0), token("</s>", 0), text("B", 0)});
  EXPECT_EQ(plain.tokens, (Ids{1, 3, 3, 2, 2, 4}));
  EXPECT_GE(plain.second, plain.tokens.size());
  root["post_processor"] = {
      {"type", "RobertaProcessing"}, {"sep", {"</s>", 2}}, {"cls", {"<s>", 1}}};
  const auto roberta = open(root)->encode_pair("a", "b").value();
  EXPECT_EQ(roberta.tokens, (Ids{1, 3, 2, 2, 4, 2}));
  EXPECT_GE(roberta.second, roberta.tokens.size());
}

/// Words of a pre-tokenizer, by a vocabulary of them all.
std::vector<std::string> words_of(const json& steps, const json& normalizer, std::string_view text,
                                  const std::vector<std::string>& words) {
  json vocab = {{"?", 0}};
  for (const std::string& w : words) vocab.emplace(w, vocab.size());
  const auto t = open(json{{"model", {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", vocab}}},
                           {"normalizer", normalizer},
                           {"pre_tokenizer", steps}});
  std::vector<std::string> out;
  if (t)
    for (const int32_t id : encode(*t, text)) out.push_back(t->piece(id));
  return out;
}

TEST(TokenizerJson, StepsCutAndNormalise) {
  using Words = std::vector<std::string>;
  const auto split = [](const char* behavior, bool is_inverted = false) {
    return json{{"type", "Split"},
                {"pattern", {{"String", "-"}}},
                {"behavior", behavior},
                {"invert", is_inverted}};
  };
  const std::string text = "the-final--countdown";
  const auto check = [&](const json& steps, const Words& want, std::string_view of,
                         const json& normalizer = nullptr) {
    EXPECT_EQ(words_of(steps, normalizer, of, want), want) << steps.dump();
  };
  // The examples of the library's documentation of "behavior".
  check(split("Removed"), {"the", "final", "countdown"}, text);
  check(split("Isolated"), {"the", "-", "final", "-", "-", "countdown"}, text);
  check(split("MergedWithPrevious"), {"the-", "final-", "-", "countdown"}, text);
  check(split("MergedWithNext"), {"the", "-final", "-", "-countdown"}, text);
  check(split("Contiguous"), {"the", "-", "final", "--", "countdown"}, text);
  check(split("Removed", true), {"-", "-", "-"}, text);
  check({{"type", "Digits"}, {"individual_digits", true}}, {"a", "1", "2", "b"}, "a12b");
  check({{"type", "Digits"}, {"individual_digits", false}}, {"a", "12", "b"}, "a12b");
  check({{"type", "Whitespace"}}, {"Hey", "man", "!", "x"}, "Hey  man! x");
  check({{"type", "WhitespaceSplit"}}, {"Hey", "man!"}, "Hey  man!");
  check({{"type", "Punctuation"}}, {"a", "?", "b"}, "a?b");
  check({{"type", "CharDelimiterSplit"}, {"delimiter", "x"}}, {"a", "b"}, "axb");
  check({{"type", "WhitespaceSplit"}}, {"é"}, "e\u0301", {{"type", "NFC"}});
  check({{"type", "WhitespaceSplit"}}, {"fi"}, "\uFB01", {{"type", "NFKC"}});
  check({{"type", "WhitespaceSplit"}}, {"äb"}, "ÄB", {{"type", "Lowercase"}});
  check({{"type", "WhitespaceSplit"}}, {"e"}, "e\u0301", {{"type", "StripAccents"}});
  check({{"type", "CharDelimiterSplit"}, {"delimiter", "x"}}, {"a b"}, "  a b ",
        {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
  check({{"type", "WhitespaceSplit"}}, {"a_b"}, "a12b",
        {{"type", "Replace"}, {"pattern", {{"Regex", "[0-9]+"}}}, {"content", "_"}});
}

TEST(TokenizerJson, SaysWhatItDoesNotDo) {
  EXPECT_EQ(refusal("[]").code, Code::kCorrupt);
  EXPECT_EQ(refusal(std::string(1000, '[')).code, Code::kCorrupt);
  EXPECT_NE(refusal("{}").message.find("model"), std::string::npos);
  const auto with = [](const char* key, const json& value) {
    json root = {{"model", {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"?", 0}}}}}};
    root[key] = value;
    return refusal(root.dump());
  };
  EXPECT_NE(with("normalizer", {{"type", "Nmt"}}).message.find("Nmt"), std::string::npos);
  EXPECT_NE(with("pre_tokenizer", {{"type", "Odd"}}).message.find("Odd"), std::string::npos);
  EXPECT_NE(with("decoder", {{"type", "CTC"}}).message.find("CTC"), std::string::npos);
  EXPECT_NE(with("post_processor", {{"type", "New"}}).message.find("New"), std::string::npos);
  EXPECT_EQ(with("pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "("}}}}).code,
            Code::kUnsupported);
  EXPECT_EQ(with("model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", {"a b"}}}).code,
            Code::kCorrupt);
  EXPECT_EQ(with("model", {{"type", "WordLevel"}, {"vocab", {{"a", 1 << 30}}}}).code,
            Code::kCorrupt);
}

}  // namespace
}  // namespace bm::models
