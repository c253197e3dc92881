#include "models/unicode.h"

#include <gtest/gtest.h>

#include "models/model_error.h"

namespace bm::models {
namespace {

TEST(Unicode, DecodesCharactersOfEveryLength) {
  for (const char32_t c : {U'a', U'\u007F', U'\u0080', U'\u07FF', U'\u0800', U'\uFFFF',
                           U'\U00010000', U'\U0010FFFF'}) {
    std::string text;
    append_utf8(text, c);
    const CodePoint got = decode_utf8(text, 0);
    EXPECT_TRUE(got.is_valid);
    EXPECT_EQ(got.value, c);
    EXPECT_EQ(got.length, text.size());
  }
}

TEST(Unicode, RefusesOverlongFormsSurrogatesAndMore) {
  for (const char* bad :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xFF", "\xE2\x82", "a\xC3"})
    EXPECT_FALSE(is_valid_utf8(bad)) << bad;
  EXPECT_TRUE(is_valid_utf8("zß水🍌"));
}

// Example of the Unicode standard, section 3.9, table 3-8.
TEST(Unicode, ReplacesMaximalSubparts) {
  EXPECT_EQ(sanitize_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
}

TEST(Unicode, FindsIncompleteTails) {
  EXPECT_EQ(incomplete_tail(""), 0u);
  EXPECT_EQ(incomplete_tail("abc"), 0u);
  EXPECT_EQ(incomplete_tail("水"), 0u);
  EXPECT_EQ(incomplete_tail("a\xE6"), 1u);
  EXPECT_EQ(incomplete_tail("a\xE6\xB0"), 2u);
  EXPECT_EQ(incomplete_tail("\xF0\x9F\x8D"), 3u);
  EXPECT_EQ(incomplete_tail("a\xFF"), 0u);
  EXPECT_EQ(incomplete_tail("\xE0\x80"), 0u);  // can no longer become valid
  EXPECT_EQ(incomplete_tail("\x80\x80\x80\x80"), 0u);
}

TEST(Unicode, KnowsTheClassesOfCharacters) {
  EXPECT_EQ(char_classes('a'), kLetter | kLowerLike | kWordPart);
  EXPECT_EQ(char_classes('A'), kLetter | kUpperLike | kWordPart);
  EXPECT_EQ(char_classes(U'中'), kLetter | kUpperLike | kLowerLike | kWordPart);
  EXPECT_EQ(char_classes(U'\u0301'), kMark | kUpperLike | kLowerLike | kWordPart);
  EXPECT_EQ(char_classes(U'½'), kNumber);
  EXPECT_EQ(char_classes(U'٣'), kNumber | kDigit | kWordPart);
  EXPECT_EQ(char_classes(U'Ⅷ'), kNumber | kWordPart);
  EXPECT_EQ(char_classes('_'), kPunctuation | kWordPart);
  EXPECT_EQ(char_classes('\n'), kSpace | kNewline);
  EXPECT_EQ(char_classes(U'\u3000'), kSpace);
  EXPECT_EQ(char_classes(U'\u180E'), 0);
  EXPECT_EQ(char_classes('!'), kPunctuation);
  EXPECT_EQ(char_classes('+'), kSymbol);
}

TEST(QuoteName, EscapesAndShortens) {
  EXPECT_EQ(quote_name("a\"b\\\n\x1b水"), "\"a\\\"b\\\\\\x0a\\x1b水\"");
  EXPECT_EQ(quote_name("\xff\xfe"), "\"\\xff\\xfe\"");
  EXPECT_EQ(quote_name(std::string(100, 'x')), "\"" + std::string(80, 'x') + "…\"");
}

}  // namespace
}  // namespace bm::models
