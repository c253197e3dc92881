#include "models/grammar/gbnf.h"

#include <gtest/gtest.h>

#include "models/grammar/grammar.h"
#include "models/grammar/utf8_ranges.h"
#include "models/unicode.h"

namespace bm::models {
namespace {

std::string error_of(std::string_view text) {
  const auto grammar = Grammar::parse(text);
  return grammar ? "no error" : grammar.error().message;
}

TEST(Gbnf, TakesWhatTheNotationHas) {
  EXPECT_EQ(error_of("root ::= \"a\""), "no error");
  EXPECT_EQ(error_of("# comment\nroot::=a|  # more\n  b\na ::= [^\\]a-z\\n] .\nb ::= (\"x\"\n | "
                     "\"\\u00e9\\x41\\U0001F600\")* a? a+ a{2} a{2,} a{2,3} a{0}\n\n"),
            "no error");
  EXPECT_EQ(error_of("root ::= | \"a\""), "no error");  // may be empty
  EXPECT_EQ(error_of("root ::= [a-] [-a]"), "no error");
}

TEST(Gbnf, MistakesAreToldWithRowAndColumn) {
  EXPECT_EQ(error_of("root ::= \"a\nx"), "grammar, row 1, column 10: the literal does not end");
  EXPECT_EQ(error_of("root ::= a\n b ::= \"c\""),
            "grammar, row 1, column 10: there is no rule \"a\"");
  EXPECT_EQ(error_of("a ::= \"b\""), "grammar: there is no rule \"root\"");
  EXPECT_EQ(error_of("root ::= \"a\"\nroot ::= \"b\""),
            "grammar, row 2, column 1: rule \"root\" is there twice");
  EXPECT_EQ(error_of("root ::= * \"a\""), "grammar, row 1, column 10: nothing stands before '*'");
  EXPECT_EQ(error_of("root ::= \"\"+"), "grammar, row 1, column 12: nothing stands before '+'");
  EXPECT_EQ(error_of("root ::= []"), "grammar, row 1, column 10: a class without characters");
  EXPECT_EQ(error_of("root ::= [z-a]"),
            "grammar, row 1, column 14: a range that ends before it begins");
  EXPECT_EQ(error_of("root ::= \"\\q\""), "grammar, row 1, column 11: an escape that is not known");
  EXPECT_EQ(error_of("root ::= \"\\ud800\""), "grammar, row 1, column 11: U+D800 is no character");
  EXPECT_EQ(error_of("root ::= (\"a\""), "grammar, row 1, column 14: \")\" is expected");
  EXPECT_EQ(error_of("root ::= \"a\"{3,2}"),
            "grammar, row 1, column 17: the second count is less than the first");
  EXPECT_EQ(error_of("root := \"a\""), "grammar, row 1, column 6: \"::=\" is expected");
  EXPECT_EQ(error_of("root ::= \"a\" )"), "grammar, row 1, column 14: ')' does not belong here");
  EXPECT_EQ(error_of("root ::= \"\xff\""), "grammar, row 1, column 11: not UTF-8");
  EXPECT_EQ(error_of("root ::= <think>"),
            "grammar, row 1, column 10: references to tokens are not supported");
}

TEST(Gbnf, LeftRecursionIsRefusedByName) {
  EXPECT_EQ(error_of("root ::= root \"a\" | \"b\""), "grammar: left recursion: root → root");
  EXPECT_EQ(error_of("root ::= a\na ::= \"x\"? b \"y\"\nb ::= c a\nc ::= \"z\"*"),
            "grammar: left recursion: a → b → a");
  EXPECT_EQ(error_of("root ::= \"x\" root | \"y\""), "no error");
  EXPECT_EQ(error_of("root ::= (\"a\"? \"b\"?)* \"c\""), "no error");  // an empty body is no call
  EXPECT_EQ(error_of("root ::= (root)*"), "grammar: left recursion: root → root");
}

TEST(Gbnf, WhatIsTooLargeIsRefused) {
  EXPECT_NE(error_of("root ::= \"a\"{2000000}").find("more than 1000000 repetitions"),
            std::string::npos);
  EXPECT_NE(error_of("root ::= ((\"a\"{1000}){1000}){1000}").find("more than 1000000 states"),
            std::string::npos);
  EXPECT_NE(error_of("root ::= " + std::string(200, '(') + "\"a\"" + std::string(200, ')'))
                .find("levels of parentheses"),
            std::string::npos);
  EXPECT_NE(error_of("root ::= \"" + std::string(2 << 20, 'a') + "\"").find("bytes"),
            std::string::npos);
}

TEST(Utf8Ranges, HoldExactlyTheCharacters) {
  const std::vector<std::vector<CodeRange>> sets = {{{0x41, 0x5A}},
                                                    {{0, 0x10FFFF}},
                                                    {{0x7E, 0x801}},
                                                    {{0xFFF0, 0x10010}},
                                                    {{0xD000, 0xE100}},
                                                    {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}},
                                                    {{0x1F600, 0x1F64F}, {0x3042, 0x3042}}};
  for (const auto& set : sets) {
    const auto ranges = normalized(set);
    const auto sequences = utf8_ranges(ranges);
    for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x11000 ? 1 : 97) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      std::string bytes;
      append_utf8(bytes, c);
      int hits = 0;
      for (const Utf8Range& s : sequences) {
        bool fits = s.length == bytes.size();
        for (size_t i = 0; fits && i < bytes.size(); ++i) {
          const auto b = static_cast<uint8_t>(bytes[i]);
          fits = s.bytes[i].first <= b && b <= s.bytes[i].last;
        }
        hits += fits;
      }
      const bool is_in = std::any_of(ranges.begin(), ranges.end(), [&](const CodeRange& r) {
        return r.first <= c && c <= r.last;
      });
      ASSERT_EQ(hits, is_in ? 1 : 0) << std::hex << static_cast<uint32_t>(c);
    }
  }
  const auto all = normalized({{0, 0x10FFFF}});
  EXPECT_TRUE(complement(all).empty());
}

}  // namespace
}  // namespace bm::models
