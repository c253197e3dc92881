#include <gtest/gtest.h>

#include "models/tokenizer_split.h"
#include "tests/unit/formats/test_support.h"

namespace bm::models {
namespace {

using Words = std::vector<std::string>;

Words split(std::string_view pre, std::string_view text, SplitEngine engine = SplitEngine::kRegex) {
  const Splitter splitter = Splitter::create(pre).value();
  Words words;
  for (const std::string_view word : splitter.split(text, engine)) words.emplace_back(word);
  return words;
}

TEST(Split, RefusesUnknownNames) {
  for (const char* name : {"", "llama-bpe ", "LLAMA-BPE", "kimi-k3", "no-such-thing"}) {
    const auto splitter = Splitter::create(name);
    ASSERT_FALSE(splitter) << name;
    EXPECT_EQ(splitter.error().code, Code::kUnsupported);
  }
  EXPECT_NE(Splitter::create("abc").error().message.find("\"abc\""), std::string::npos);
}

TEST(Split, CutsLikeGpt2) {
  EXPECT_EQ(split("gpt-2", "Hello world's 123 can't  \n x!?"),
            (Words{"Hello", " world", "'s", " 123", " can", "'t", "  \n", " x", "!?"}));
  EXPECT_EQ(split("gpt-2", "a   b"), (Words{"a", "  ", " b"}));
  EXPECT_EQ(split("gpt-2", "a\n\nb\n"), (Words{"a", "\n", "\n", "b", "\n"}));
  EXPECT_EQ(split("gpt-2", "I'LL"), (Words{"I", "'", "LL"}));
}

TEST(Split, CutsLikeLlama3) {
  EXPECT_EQ(split("llama-bpe", "Hello World'S 12345 x\n\n  y  "),
            (Words{"Hello", " World", "'S", " ", "123", "45", " x", "\n\n", " ", " y", "  "}));
  EXPECT_EQ(split("llama-bpe", "!!\n\nfoo.bar(1)"),
            (Words{"!!\n\n", "foo", ".bar", "(", "1", ")"}));
  EXPECT_EQ(split("llama-bpe", "  \n \t\n  x"), (Words{"  \n \t\n", " ", " x"}));
  EXPECT_EQ(split("llama-bpe", "日本語です。"), (Words{"日本語です", "。"}));
}

TEST(Split, CutsNumbersAsThePresetSays) {
  EXPECT_EQ(split("qwen2", "a 1234"), (Words{"a", " ", "1", "2", "3", "4"}));
  EXPECT_EQ(split("llama-bpe", "1234567"), (Words{"123", "456", "7"}));
  EXPECT_EQ(split("smollm", "a 12"), (Words{"a", " ", "1", "2"}));
  EXPECT_EQ(split("gpt-2", "1234567"), (Words{"1234567"}));
  EXPECT_EQ(split("default", "x=1234567"), (Words{"x", "=", "123", "456", "7"}));
  EXPECT_EQ(split("deepseek-v3", "1234五六"), (Words{"123", "4", "五六"}));
}

TEST(Split, CutsWordsAtCapitalsLikeTekkenAndGpt4o) {
  EXPECT_EQ(split("tekken", "HelloWorld ABCdef"), (Words{"Hello", "World", " ABCdef"}));
  EXPECT_EQ(split("tekken", "it's"), (Words{"it", "'s"}));
  EXPECT_EQ(split("gpt-4o", "it's We'LL"), (Words{"it's", " We'LL"}));
  EXPECT_EQ(split("gpt-4o", "a//b\n"), (Words{"a", "//", "b", "\n"}));
}

TEST(Split, MarksBelongToWordsInQwen35) {
  EXPECT_EQ(split("qwen35", "e\u0301a"), (Words{"e\u0301a"}));
  EXPECT_EQ(split("qwen2", "e\u0301a"), (Words{"e", "\u0301a"}));
}

TEST(Split, CutsDigitsInThreesFromTheRight) {
  EXPECT_EQ(split("tiny_aya", "a 1234567, 123 12b"),
            (Words{"a", " ", "1", "234", "567", ",", " ", "123", " ", "12", "b"}));
  EXPECT_EQ(split("tiny_aya", "12345b"), (Words{"123", "45", "b"})) << "no end of a word";
  EXPECT_EQ(split("afmoe", "x12345"), (Words{"x", "12", "345"}));
  EXPECT_EQ(split("superbpe", "a b 1234 123456"), (Words{"a b ", "1", "234", " ", "123", "456"}));
  const std::string digits(1 << 20, '7');
  for (const char* pre : {"tiny_aya", "afmoe", "superbpe"})
    EXPECT_EQ(split(pre, digits).size(), (digits.size() + 2) / 3) << pre;
}

TEST(Split, CutsLikeDeepseekLlmAndCoder) {
  EXPECT_EQ(split("deepseek-llm", "Hi, 12 日本"), (Words{"Hi", ",", " ", "12", " ", "日本"}));
  EXPECT_EQ(split("deepseek-llm", "a\n\nb  "), (Words{"a", "\n", "\n", "b", "  "}));
  EXPECT_EQ(split("deepseek-coder", "Hi, 12 日本"), (Words{"Hi", ",", " ", "1", "2", " ", "日本"}));
}

TEST(Split, CutsOffHanInKimiK2) {
  EXPECT_EQ(split("kimi-k2", "abc中文DEFghi's 1234"),
            (Words{"abc", "中文", "DEFghi's", " ", "123", "4"}));
  EXPECT_EQ(split("gpt-4o", "abc中文"), (Words{"abc中文"}));
}

TEST(Split, CutsLikeTheOtherFamilies) {
  EXPECT_EQ(split("bloom", "Hi, you (x) 12"), (Words{"Hi", ",", " you", " (", "x", ")", " 12"}));
  EXPECT_EQ(split("viking", "a 12"), (Words{"a", " ", "1", "2"}));
  EXPECT_EQ(split("chameleon", "IMGIMGABZx1..   y"),
            (Words{"IMGIMGABZ", "x", "1", ".", ".", "  ", " y"}));
  EXPECT_EQ(split("chameleon", "<sentinel:1>"), (Words{"<", "sentinel", ":", "1", ">"}))
      << "later steps cut what earlier ones found";
  EXPECT_EQ(split("youtu", "가나abc、。12"), (Words{"가나", "abc", "、。", "1", "2"}));
  EXPECT_EQ(split("spark2_5", "a.\n\n12"), (Words{"a", ".", "\n", "\n", "1", "2"}));
  EXPECT_EQ(split("seed-coder", "a;\n b"), (Words{"a", ";", "\n", " b"}));
  EXPECT_EQ(split("qwen2", "a;\n b"), (Words{"a", ";\n", " b"}));
  EXPECT_EQ(split("ufakzeka", "it'd"), (Words{"it", "'d"}));
  EXPECT_EQ(split("ufakzeka", "Ali'den"), (Words{"Ali", "'den"}));
  EXPECT_EQ(split("qwen2", "Ali'den"), (Words{"Ali", "'d", "en"}));
  EXPECT_EQ(split("laguna", "a;\n b"), (Words{"a", ";", "\n", " b"}));
  EXPECT_EQ(split("exaone-moe", "one two 3;\n\n"), (Words{"one two", " ", "3", ";\n", "\n"}));
  EXPECT_EQ(split("k2-horizon", "\u06A9\u200C\u0647 e\u0301a 1234"),
            (Words{"\u06A9\u200C\u0647", " e\u0301a", " ", "123", "4"}));
  EXPECT_EQ(split("minicpm5", "a 1234"), (Words{"a", " ", "123", "4"}));
  EXPECT_EQ(split("jais-2", "a" + std::string(8, ' ') + "b"),
            (Words{"a", std::string(4, ' '), std::string(2, ' '), " ", " b"}));
}

TEST(Split, GivesTheWholeTextBackInEveryPreset) {
  test::Random random(1);
  for (const std::string& pre : Splitter::known_names()) {
    const std::string text = test::random_text(random, 300);
    std::string joined;
    for (const std::string& word : split(pre, text)) joined += word;
    EXPECT_EQ(joined, text) << pre;
  }
}

TEST(Split, ScannersAgreeWithTheirPatterns) {
  test::Random random(2);
  for (const std::string& pre : Splitter::known_names()) {
    const Splitter splitter = Splitter::create(pre).value();
    for (int i = 0; i < 400; ++i) {
      const std::string text = test::random_text(random, 1 + random.below(40));
      ASSERT_EQ(splitter.split(text, SplitEngine::kRegex),
                splitter.split(text, SplitEngine::kScanner))
          << pre << ": " << text;
    }
  }
}

TEST(Split, TakesLongRunsOfAnyOneCharacter) {
  for (const char* pre : {"default", "gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o",
                          "deepseek-v3", "falcon", "smollm"}) {
    const Splitter splitter = Splitter::create(pre).value();
    for (const char c : {'a', 'A', ' ', '\n', '1', '!', '\'', '\t'}) {
      const std::string text(1 << 18, c);
      for (const SplitEngine engine : {SplitEngine::kRegex, SplitEngine::kScanner}) {
        size_t total = 0;
        for (const std::string_view word : splitter.split(text, engine)) total += word.size();
        EXPECT_EQ(total, text.size()) << pre << " " << c;
      }
    }
  }
}

TEST(Split, TakesAMebibyteThatMakesPatternsBacktrack) {
  const std::string spaces(1 << 20, ' '), capitals(1 << 20, 'A');
  for (const char* pre :
       {"llama-bpe", "gpt-4o", "tekken", "gpt-2", "kimi-k2", "jais-2", "exaone-moe"}) {
    const Splitter splitter = Splitter::create(pre).value();
    for (const std::string& text : {spaces + "x", capitals + "1", spaces + capitals + "\n"})
      EXPECT_EQ(splitter.split(text, SplitEngine::kRegex),
                splitter.split(text, SplitEngine::kScanner));
  }
}

}  // namespace
}  // namespace bm::models
