#include "models/grammar/regex_grammar.h"

#include <algorithm>

#include "models/unicode.h"

namespace bm::models {
namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;
constexpr int kMaxDepth = 40;
constexpr char32_t kLastCode = 0x10FFFF;

std::vector<CodeRange> digits() { return {{'0', '9'}}; }
std::vector<CodeRange> word_chars() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
/// ECMA-262: WhiteSpace and LineTerminator.
std::vector<CodeRange> spaces() {
  return {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}
std::vector<CodeRange> any_but_newline() {
  return complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
}

class Regex {
 public:
  explicit Regex(std::string_view text) : text_(text) {}

  Result<std::string> translate() {
    std::string out = BM_TRY(parse_alternatives(0));
    if (pos_ < text_.size()) return error("\")\" without \"(\"");
    return out;
  }

 private:
  char peek(size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0';
  }
  bool at_end() const { return pos_ >= text_.size(); }
  tl::unexpected<Error> error(std::string_view what, Code code = Code::kInvalidArgument) const {
    return fail(code, "pattern {}, column {}: {}", fmt::format("\"{}\"", text_.substr(0, 100)),
                pos_ + 1, what);
  }

  /// At level 0 what is not anchored may have anything beside it.
  Result<std::string> parse_alternatives(int depth) {
    if (depth > kMaxDepth)
      return error(fmt::format("more than {} groups in one another", kMaxDepth));
    std::string out = "(";
    while (true) {
      bool is_begun = depth > 0, is_ended = depth > 0;
      if (depth == 0 && peek() == '^' && !at_end()) {
        ++pos_;
        is_begun = true;
      }
      const std::string sequence = BM_TRY(parse_sequence(depth, is_ended));
      out += (is_begun ? " " : " char* ") + sequence + (is_ended ? " " : " char* ");
      if (peek() != '|' || at_end()) break;
      ++pos_;
      out += "|";
    }
    return out + ")";
  }

  Result<std::string> parse_sequence(int depth, bool& is_ended) {
    std::string out;
    while (!at_end() && peek() != '|' && peek() != ')') {
      if (peek() == '$') {
        const char next = peek(1);
        if (depth > 0 || (pos_ + 1 < text_.size() && next != '|'))
          return error("\"$\" is supported at the end alone", Code::kUnsupported);
        ++pos_;
        is_ended = true;
        break;
      }
      std::string atom = BM_TRY(parse_atom(depth));
      out += atom + BM_TRY(parse_quantifier()) + " ";
    }
    return out.empty() ? std::string("\"\"") : out;
  }

  Result<std::string> parse_atom(int depth) {
    const char c = peek();
    switch (c) {
      case '(': {
        ++pos_;
        if (peek() == '?') {
          if (peek(1) != ':')
            return error("assertions and named groups are not supported", Code::kUnsupported);
          pos_ += 2;
        }
        std::string group = BM_TRY(parse_alternatives(depth + 1));
        if (peek() != ')') return error("\")\" is missing");
        ++pos_;
        return group;
      }
      case '[': return parse_class();
      case '.': ++pos_; return gbnf_json_char(any_but_newline());
      case '^': return error("\"^\" is supported at the beginning alone", Code::kUnsupported);
      case '*':
      case '+':
      case '?':
      case '{':
      case '}':
      case ']': return error(fmt::format("'{}' does not belong here", c));
      default: {
        const std::vector<CodeRange> ranges = BM_TRY(parse_char(false));
        return gbnf_json_char(ranges);
      }
    }
  }

  Result<std::string> parse_quantifier() {
    const size_t begin = pos_;
    const char c = peek();
    if (c == '*' || c == '+' || c == '?') {
      ++pos_;
    } else if (c == '{') {
      const size_t end = text_.find('}', pos_);
      if (end == std::string_view::npos) return error("\"}\" is missing");
      for (size_t i = pos_ + 1; i < end; ++i)
        if ((text_[i] < '0' || text_[i] > '9') && text_[i] != ',')
          return error("a count is expected");
      pos_ = end + 1;
    } else {
      return std::string();
    }
    const std::string out(text_.substr(begin, pos_ - begin));
    if (peek() == '?') ++pos_;  // lazy: the same texts
    if (peek() == '+' || peek() == '*') return error("two quantifiers in a row");
    return out;
  }

  Result<uint32_t> parse_hex(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++pos_) {
      const char d = peek();
      if (d >= '0' && d <= '9')
        value = value * 16 + static_cast<uint32_t>(d - '0');
      else if (d >= 'a' && d <= 'f')
        value = value * 16 + static_cast<uint32_t>(d - 'a' + 10);
      else if (d >= 'A' && d <= 'F')
        value = value * 16 + static_cast<uint32_t>(d - 'A' + 10);
      else
        return error("a hexadecimal digit is expected");
    }
    return value;
  }

  /// One character, or the class that an escape stands for.
  Result<std::vector<CodeRange>> parse_char(bool in_class) {
    const auto one = [](char32_t c) { return std::vector<CodeRange>{{c, c}}; };
    if (peek() != '\\') {
      const CodePoint c = decode_utf8(text_, pos_);
      if (!c.is_valid) return error("not UTF-8");
      pos_ += c.length;
      return one(c.value);
    }
    ++pos_;
    if (at_end()) return error("the escape does not end");
    const char c = text_[pos_++];
    switch (c) {
      case 'd': return digits();
      case 'w': return word_chars();
      case 's': return spaces();
      case 'D': return complement(digits());
      case 'W': return complement(word_chars());
      case 'S': return complement(spaces());
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 't': return one('\t');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case 'x': return one(BM_TRY(parse_hex(2)));
      case 'u': {
        const uint32_t code = BM_TRY(parse_hex(4));
        if (code >= 0xD800 && code <= 0xDFFF)
          return error("surrogates are not supported", Code::kUnsupported);
        return one(code);
      }
      case '0':
        if (peek() < '0' || peek() > '9') return one(0);
        break;
      default: break;
    }
    constexpr std::string_view kPunctuation = "^$\\.*+?()[]{}|/-";
    if (kPunctuation.find(c) != std::string_view::npos && (c != '-' || in_class))
      return one(static_cast<char32_t>(c));
    --pos_;
    return error(fmt::format("\\{} is not supported", c), Code::kUnsupported);
  }

  Result<std::string> parse_class() {
    ++pos_;
    const bool is_negated = peek() == '^';
    if (is_negated) ++pos_;
    std::vector<CodeRange> ranges;
    while (peek() != ']') {
      if (at_end()) return error("\"]\" is missing");
      std::vector<CodeRange> part = BM_TRY(parse_char(true));
      if (peek() == '-' && peek(1) != ']' && !at_end()) {
        ++pos_;
        const std::vector<CodeRange> last = BM_TRY(parse_char(true));
        const bool is_range = part.size() == 1 && part[0].first == part[0].last &&
                              last.size() == 1 && last[0].first == last[0].last &&
                              part[0].first <= last[0].first;
        if (!is_range) return error("a range that is none");
        part[0].last = last[0].first;
      }
      ranges.insert(ranges.end(), part.begin(), part.end());
    }
    ++pos_;
    ranges = normalized(std::move(ranges));
    if (is_negated) ranges = complement(ranges);
    if (ranges.empty()) return error("a class without characters");
    return gbnf_json_char(ranges);
  }

  std::string_view text_;
  size_t pos_ = 0;
};

void append_code(std::string& out, char32_t c) {
  fmt::format_to(std::back_inserter(out), "\\U{:08x}", static_cast<uint32_t>(c));
}

}  // namespace

std::string gbnf_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (byte < 0x20 || byte == 0x7F)
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    else
      out += c;
  }
  return out + "\"";
}

std::string gbnf_json_char(const std::vector<CodeRange>& ranges) {
  std::vector<std::string> choices;
  const auto has = [&](char32_t c) {
    return std::ranges::any_of(ranges,
                               [&](const CodeRange& r) { return r.first <= c && c <= r.last; });
  };
  // What JSON strings do not hold as it is.
  for (char32_t c = 0; c < 0x20; ++c) {
    if (!has(c)) continue;
    constexpr std::string_view kShort = "\b\f\n\r\t", kNames = "bfnrt";
    const size_t at = kShort.find(static_cast<char>(c));
    choices.push_back(gbnf_literal(at != std::string_view::npos && c != 0
                                       ? fmt::format("\\{}", kNames[at])
                                       : fmt::format("\\u{:04x}", static_cast<uint32_t>(c))));
  }
  if (has('"')) choices.push_back(gbnf_literal("\\\""));
  if (has('\\')) choices.push_back(gbnf_literal("\\\\"));
  std::vector<CodeRange> plain;
  constexpr CodeRange kPlain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kLastCode}};
  for (const CodeRange& r : ranges)
    for (const CodeRange& p : kPlain)
      if (r.first <= p.last && p.first <= r.last)
        plain.push_back({std::max(r.first, p.first), std::min(r.last, p.last)});
  if (!plain.empty()) {
    std::string set = "[";
    for (const CodeRange& r : plain) {
      append_code(set, r.first);
      if (r.last > r.first) append_code(set += '-', r.last);
    }
    choices.push_back(set + "]");
  }
  std::string out;
  for (const std::string& choice : choices) out += (out.empty() ? "" : " | ") + choice;
  // A quantifier behind a literal would concern its last character alone.
  return choices.size() == 1 && out[0] == '[' ? out : "(" + out + ")";
}

Result<std::string> grammar_of_regex(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes)
    return fail(Code::kInvalidArgument, "a pattern of {} bytes (at most {} allowed)",
                pattern.size(), kMaxPatternBytes);
  return Regex(pattern).translate();
}

}  // namespace bm::models
