// GBNF grammars: any text is parsed or refused; what is parsed gives masks that accept() agrees
// with, and ends within its bounds. An input that begins with a byte below 9 is a list of pieces
// of grammars, so that mutations are grammars, too.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "models/grammar/grammar_matcher.h"

namespace {

std::string grammar_of_pieces(const uint8_t* data, size_t size) {
  static constexpr std::string_view kPieces[] = {"\"a\" ",
                                                 "\"ab\" ",
                                                 "[a-c] ",
                                                 "[^a\"] ",
                                                 ". ",
                                                 "x ",
                                                 "y ",
                                                 "( ",
                                                 ") ",
                                                 "| ",
                                                 "* ",
                                                 "+ ",
                                                 "? ",
                                                 "{2} ",
                                                 "{1,} ",
                                                 "{0,3} ",
                                                 "{9,40} ",
                                                 "\"\" ",
                                                 "[あ-ん水] ",
                                                 "\"水b\" ",
                                                 "\nx ::= ",
                                                 "\ny ::= ",
                                                 "\nx ::= \"a\" ",
                                                 "[\\x80-\\U0010ffff] "};
  std::string out = "root ::= ";
  int depth = 0;
  bool has_x = false, has_y = false;
  for (size_t i = 0; i < size && i < 200; ++i) {
    std::string_view piece = kPieces[data[i] % std::size(kPieces)];
    if (piece == ") " && depth == 0) piece = "x ";
    depth += piece == "( " ? 1 : piece == ") " ? -1 : 0;
    const bool is_rule = piece[0] == '\n';
    bool& has = piece.size() > 1 && piece[1] == 'y' ? has_y : has_x;
    if (is_rule && (has || depth > 0)) continue;
    if (is_rule) has = true;
    // What a quantifier needs before it.
    const bool is_quantifier =
        piece[0] == '*' || piece[0] == '+' || piece[0] == '?' || piece[0] == '{';
    if (is_quantifier && (out.ends_with("( ") || out.ends_with("= ") || out.ends_with("| ")))
      out += "x";
    if (is_quantifier && out.ends_with("\"\" ")) continue;
    if (is_quantifier) out.pop_back();
    out += piece;
  }
  while (depth-- > 0) out += ")";
  if (!has_x) out += "\nx ::= \"b\" y";
  return out + (has_y ? "" : "\ny ::= \"c\"?");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bm::models;
  if (size > 4096) return 0;  // repetitions of a small text make a large grammar as it is
  const std::string text = size > 0 && data[0] < 9
                               ? grammar_of_pieces(data + 1, size - 1)
                               : std::string(reinterpret_cast<const char*>(data), size);
  auto parsed = Grammar::parse(text);
  if (!parsed) {
    if (parsed.error().message.empty()) std::abort();
    return 0;
  }
  if (parsed->size() > 20'000) return 0;  // slow rather than wrong
  static const auto kWords = [] {
    std::vector<std::string> pieces;
    for (int b = 0; b < 256; b += b < 127 ? 1 : 9) pieces.emplace_back(1, static_cast<char>(b));
    for (const char* more : {"ab", "abc", "\"a", "{\"", "水", "\xe6\xb0", "  "})
      pieces.emplace_back(more);
    pieces.emplace_back();
    const auto end = static_cast<int32_t>(pieces.size() - 1);
    return std::make_shared<const GrammarVocabulary>(pieces, std::vector<int32_t>{end});
  }();
  GrammarMatcher matcher(std::make_shared<const Grammar>(std::move(*parsed)), kWords);
  uint64_t random = size + 1;
  for (int step = 0; step < 8; ++step) {
    const auto mask = matcher.allowed();
    if (!mask) {
      if (mask.error().message.empty()) std::abort();
      return 0;
    }
    std::vector<int32_t> yes, no;
    for (size_t t = 0; t < kWords->size(); ++t)
      (((*mask)[t / 64] >> (t % 64) & 1) != 0 ? yes : no).push_back(static_cast<int32_t>(t));
    if (yes.empty()) std::abort();  // allowed() would have said so
    random = random * 6364136223846793005u + 1442695040888963407u;
    if (!no.empty() && matcher.accept(no[(random >> 33) % no.size()])) std::abort();
    const int32_t token = yes[(random >> 40) % yes.size()];
    if (!matcher.accept(token)) std::abort();
    if (token == kWords->ends()[0]) return 0;
  }
  return 0;
}
