// Masks beside a recognizer that walks the syntax tree with sets of positions, token by token.
#include "models/grammar/grammar_matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "models/grammar/gbnf.h"

namespace bm::models {
namespace {

/// Whether a text is a sentence, or may become one.
class Recognizer {
 public:
  explicit Recognizer(const Gbnf& gbnf) : gbnf_(gbnf) {}
  struct Verdict {
    bool is_sentence = false, may_go_on = false;
  };
  Verdict judge(const std::string& text) {
    text_ = text;
    wants_more_ = false;
    const std::set<size_t> ends = match(gbnf_.rules[gbnf_.root].body, {0});
    return {ends.contains(text.size()), wants_more_};
  }

 private:
  /// Where `node` may end, begun at any of `starts`. ASCII alone.
  std::set<size_t> match(uint32_t index, const std::set<size_t>& starts) {
    const GbnfNode& node = gbnf_.nodes[index];
    std::set<size_t> out;
    if (starts.empty()) return out;
    switch (node.kind) {
      case GbnfNode::Kind::kClass:
        for (const size_t at : starts) {
          if (at == text_.size())
            wants_more_ = true;
          else
            for (const CodeRange& r : node.ranges) {
              const auto c = static_cast<char32_t>(static_cast<unsigned char>(text_[at]));
              if (r.first <= c && c <= r.last) out.insert(at + 1);
            }
        }
        return out;
      case GbnfNode::Kind::kRule: return match(gbnf_.rules[node.rule].body, starts);
      case GbnfNode::Kind::kSequence:
        out = starts;
        for (const uint32_t child : node.children) out = match(child, out);
        return out;
      case GbnfNode::Kind::kAlternatives:
        for (const uint32_t child : node.children) out.merge(match(child, starts));
        return out;
      case GbnfNode::Kind::kRepeat: {
        std::set<size_t> at = starts;
        for (uint32_t i = 0; i <= node.most; ++i) {
          if (i >= node.least) {
            const size_t before = out.size();
            out.insert(at.begin(), at.end());
            if (i > node.least && out.size() == before) break;
          }
          if (i < node.most) at = match(node.children[0], at);
          if (at.empty()) break;
        }
        return out;
      }
    }
    __builtin_unreachable();
  }

  const Gbnf& gbnf_;
  std::string text_;
  bool wants_more_ = false;
};

std::shared_ptr<const Grammar> grammar_of(std::string_view text) {
  return std::make_shared<const Grammar>(Grammar::parse(text).value());
}

bool is_set(std::span<const uint64_t> mask, size_t id) {
  return (mask[id / 64] >> (id % 64) & 1) != 0;
}

constexpr std::string_view kGrammars[] = {
    "root ::= \"ab\" | \"abc\" | \"b\"+",
    "root ::= [a-c]{2,4} (\"x\" | \"yx\"){1,2}",
    "root ::= \"(\" root \")\" root | \"a\"?",
    "root ::= expr\nexpr ::= term (\"x\" term)*\nterm ::= [a-b] | \"(\" expr \")\"",
    "root ::= (\"a\"* \"b\"?)* \"c\"",
    "root ::= a a a\na ::= b?\nb ::= \"a\" | \"b\" a \"c\"",
    "root ::= \"a\" root \"b\" | \"\"",
    "root ::= [^a] .{0,3} \"y\"",
    "root ::= (\"a\"?){6} \"b\"",
    "root ::= item (\"y\" item)*\nitem ::= \"x\" item | \"a\"",
};

TEST(GrammarMatcher, MasksEqualASlowRecognizer) {
  const std::string letters = "abcxy()";
  std::vector<std::string> pieces;
  for (const char a : letters) {
    pieces.emplace_back(1, a);
    for (const char b : letters) {
      pieces.push_back({a, b});
      for (const char c : letters) pieces.push_back({a, b, c});
    }
  }
  pieces.push_back("ab");  // a second token of the same bytes
  pieces.emplace_back();   // no grammar allows it
  const auto end = static_cast<int32_t>(pieces.size());
  pieces.emplace_back();
  const auto vocabulary =
      std::make_shared<const GrammarVocabulary>(pieces, std::vector<int32_t>{end});
  std::mt19937 random(2);
  for (const std::string_view text : kGrammars) {
    const Gbnf gbnf = parse_gbnf(text).value();
    Recognizer recognizer(gbnf);
    GrammarMatcher matcher(grammar_of(text), vocabulary);
    for (int round = 0; round < 4; ++round) {
      matcher.reset();
      std::string written;
      for (int step = 0; step < 6; ++step) {
        const auto mask = matcher.allowed();
        ASSERT_TRUE(mask) << mask.error().message;
        std::vector<int32_t> choices;
        for (int32_t t = 0; t < end; ++t) {
          const std::string& piece = pieces[static_cast<size_t>(t)];
          const auto verdict = recognizer.judge(written + piece);
          const bool want = !piece.empty() && (verdict.is_sentence || verdict.may_go_on);
          ASSERT_EQ(is_set(*mask, static_cast<size_t>(t)), want)
              << text << ": " << written << piece;
          if (want) choices.push_back(t);
        }
        const auto now = recognizer.judge(written);
        ASSERT_EQ(is_set(*mask, static_cast<size_t>(end)), now.is_sentence) << text << written;
        ASSERT_EQ(matcher.can_end(), now.is_sentence);
        ASSERT_EQ(matcher.is_finished(), now.is_sentence && choices.empty());
        if (choices.empty()) break;
        const int32_t token = choices[random() % choices.size()];
        ASSERT_TRUE(matcher.accept(token));
        written += pieces[static_cast<size_t>(token)];
      }
    }
  }
}

std::shared_ptr<const GrammarVocabulary> bytes() {
  std::vector<std::string> pieces;
  for (int b = 0; b < 256; ++b) pieces.emplace_back(1, static_cast<char>(b));
  pieces.emplace_back();
  return std::make_shared<const GrammarVocabulary>(pieces, std::vector<int32_t>{256});
}

TEST(GrammarMatcher, TokensMayBePartsOfCharacters) {
  GrammarMatcher matcher(grammar_of("root ::= [ぁ-ん] \"é\""), bytes());
  EXPECT_TRUE(matcher.accept(0xE3));
  EXPECT_TRUE(matcher.accept(0x81));
  EXPECT_FALSE(matcher.accept(0x80));  // U+3040 is before ぁ
  EXPECT_TRUE(matcher.accept(0x82));
  const auto mask = matcher.allowed().value();
  for (size_t b = 0; b < 257; ++b) EXPECT_EQ(is_set(mask, b), b == 0xC3) << b;
  EXPECT_TRUE(matcher.accept_bytes("é"));
  EXPECT_TRUE(matcher.is_finished());
  EXPECT_TRUE(matcher.accept(256));
  EXPECT_FALSE(matcher.accept('a'));
  EXPECT_FALSE(matcher.accept(-1));
  EXPECT_FALSE(matcher.accept(9999));
}

TEST(GrammarMatcher, ListsThatCallThemselvesAtTheirEndStayFlat) {
  GrammarMatcher matcher(grammar_of("root ::= \"a\" root | \"b\""), bytes());
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(matcher.accept('a')) << i;
  EXPECT_TRUE(matcher.accept('b'));
  EXPECT_TRUE(matcher.is_finished());
}

TEST(GrammarMatcher, NestingIsBounded) {
  GrammarMatcher matcher(grammar_of("root ::= \"[\" root \"]\" | \"a\""), bytes());
  size_t depth = 0;
  while (depth < 3'000 && matcher.accept('[')) ++depth;
  EXPECT_GT(depth, 900u);
  EXPECT_LT(depth, 1'100u);
  const auto mask = matcher.allowed().value();
  for (size_t b = 0; b < 257; ++b) EXPECT_EQ(is_set(mask, b), b == 'a') << b;
  EXPECT_TRUE(matcher.accept('a'));
  while (depth-- > 0) ASSERT_TRUE(matcher.accept(']'));
  EXPECT_TRUE(matcher.is_finished());
}

TEST(GrammarMatcher, AmbiguityIsBounded) {
  // Every letter may be any of many: the readings double with each.
  std::string text = "root ::= a0\n";
  for (int i = 0; i < 40; ++i)
    text += fmt::format("a{} ::= a{} \"x\"? a{} | a{} \"y\"?\n", i, i + 1, i + 1, i + 1);
  text += "a40 ::= \"a\"\n";
  GrammarMatcher matcher(grammar_of(text), bytes());
  const auto mask = matcher.allowed();
  ASSERT_FALSE(mask);
  EXPECT_NE(mask.error().message.find("too ambiguous"), std::string::npos) << mask.error().message;
}

TEST(GrammarMatcher, ForgetsAndGoesOn) {
  // More configurations than are kept: a count to 100,000.
  GrammarMatcher matcher(grammar_of("root ::= \"a\"{100000} \"b\""), bytes());
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(matcher.accept('a')) << i;
  EXPECT_FALSE(matcher.accept('a'));
  EXPECT_TRUE(matcher.accept('b'));
  EXPECT_TRUE(matcher.is_finished());
  matcher.reset();
  EXPECT_TRUE(matcher.accept('a'));
  EXPECT_FALSE(matcher.accept('b'));
}

TEST(GrammarMatcher, AVocabularyThatCannotSayItIsAnError) {
  const auto vocabulary = std::make_shared<const GrammarVocabulary>(
      std::vector<std::string>{"a", "b"}, std::vector<int32_t>{});
  GrammarMatcher matcher(grammar_of("root ::= \"a\" \"c\"?"), vocabulary);
  EXPECT_TRUE(matcher.allowed());
  EXPECT_TRUE(matcher.accept(0));
  EXPECT_FALSE(matcher.allowed());
  EXPECT_TRUE(matcher.can_end());
  EXPECT_FALSE(matcher.is_finished());
}

}  // namespace
}  // namespace bm::models
