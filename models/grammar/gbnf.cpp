#include "models/grammar/gbnf.h"

#include <algorithm>
#include <map>

#include "models/unicode.h"

namespace bm::models {
namespace {

constexpr size_t kMaxTextBytes = 1 << 20;
constexpr int kMaxDepth = 100;
constexpr uint32_t kMaxRepeats = 1'000'000;
constexpr char32_t kLastCode = 0x10FFFF;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Gbnf> parse(std::string_view root) {
    skip_space(true);
    while (!at_end()) BM_TRY(parse_rule());
    for (size_t i = 0; i < out_.rules.size(); ++i)
      if (!is_defined_[i]) {
        pos_ = first_use_[i];
        return error(fmt::format("there is no rule \"{}\"", out_.rules[i].name));
      }
    const auto found = rule_ids_.find(root);
    if (found == rule_ids_.end())
      return fail(Code::kInvalidArgument, "grammar: there is no rule \"{}\"", root);
    out_.root = found->second;
    return std::move(out_);
  }

 private:
  bool at_end() const { return pos_ >= text_.size(); }
  char peek(size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0';
  }

  tl::unexpected<Error> error(std::string_view what, Code code = Code::kInvalidArgument) const {
    const std::string_view before = text_.substr(0, std::min(pos_, text_.size()));
    const auto row = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t line = before.rfind('\n') + 1;  // 0 when there is none
    return fail(code, "grammar, row {}, column {}: {}", row, before.size() - line + 1, what);
  }

  void skip_space(bool newline_too) {
    while (!at_end()) {
      const char c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n' && peek() != '\r') ++pos_;
      } else if (c == ' ' || c == '\t' || (newline_too && (c == '\n' || c == '\r'))) {
        ++pos_;
      } else {
        return;
      }
    }
  }

  std::string_view take_name() {
    const size_t begin = pos_;
    while (is_name_char(peek())) ++pos_;
    return text_.substr(begin, pos_ - begin);
  }

  uint32_t rule_id(std::string_view name, size_t at) {
    const auto [entry, is_new] =
        rule_ids_.try_emplace(std::string(name), static_cast<uint32_t>(out_.rules.size()));
    if (is_new) {
      out_.rules.push_back({std::string(name), 0});
      is_defined_.push_back(false);
      first_use_.push_back(at);
    }
    return entry->second;
  }

  uint32_t add(GbnfNode node) {
    out_.nodes.push_back(std::move(node));
    return static_cast<uint32_t>(out_.nodes.size() - 1);
  }

  Status parse_rule() {
    const size_t begin = pos_;
    const std::string_view name = take_name();
    if (name.empty()) return error("the name of a rule is expected");
    const uint32_t id = rule_id(name, begin);
    if (is_defined_[id]) {
      pos_ = begin;
      return error(fmt::format("rule \"{}\" is there twice", name));
    }
    skip_space(false);
    if (text_.substr(pos_, 3) != "::=") return error("\"::=\" is expected");
    pos_ += 3;
    skip_space(true);
    is_defined_[id] = true;
    const uint32_t body = BM_TRY(parse_alternatives(0));
    out_.rules[id].body = body;
    if (!at_end() && peek() != '\n' && peek() != '\r')
      return error(fmt::format("'{}' does not belong here", peek()));
    skip_space(true);
    return {};
  }

  Result<uint32_t> parse_alternatives(int depth) {
    if (depth > kMaxDepth)
      return error(fmt::format("more than {} levels of parentheses", kMaxDepth));
    GbnfNode node;
    node.kind = GbnfNode::Kind::kAlternatives;
    node.children.push_back(BM_TRY(parse_sequence(depth)));
    while (peek() == '|') {
      ++pos_;
      skip_space(true);
      node.children.push_back(BM_TRY(parse_sequence(depth)));
    }
    return node.children.size() == 1 ? node.children[0] : add(std::move(node));
  }

  Result<uint32_t> parse_sequence(int depth) {
    GbnfNode node;
    while (!at_end()) {
      const char c = peek();
      const size_t before = node.children.size();
      if (c == '"') {
        BM_TRY(parse_literal(node.children));
      } else if (c == '[') {
        node.children.push_back(BM_TRY(parse_class()));
      } else if (c == '.') {
        ++pos_;
        node.children.push_back(add_class({{0, kLastCode}}));
      } else if (c == '(') {
        ++pos_;
        skip_space(true);
        const uint32_t group = BM_TRY(parse_alternatives(depth + 1));
        if (peek() != ')') return error("\")\" is expected");
        ++pos_;
        node.children.push_back(group);
      } else if (is_name_char(c)) {
        const size_t at = pos_;
        GbnfNode call;
        call.kind = GbnfNode::Kind::kRule;
        call.rule = rule_id(take_name(), at);
        node.children.push_back(add(std::move(call)));
      } else if (c == '<' || c == '!') {
        return error("references to tokens are not supported", Code::kUnsupported);
      } else if (c == '*' || c == '+' || c == '?' || c == '{') {
        return error(fmt::format("nothing stands before '{}'", c));
      } else {
        break;
      }
      BM_TRY(parse_repeats(node.children, before));
      skip_space(depth > 0);
    }
    return node.children.size() == 1 ? node.children[0] : add(std::move(node));
  }

  /// Operators behind an element; of a literal they concern the last character, as in llama.cpp.
  Status parse_repeats(std::vector<uint32_t>& children, size_t before) {
    while (true) {
      GbnfNode node;
      node.kind = GbnfNode::Kind::kRepeat;
      node.most = GbnfNode::kUnbounded;
      const size_t begin = pos_;
      const char c = peek();
      if (c == '*' || c == '+' || c == '?') {
        ++pos_;
        if (c == '+') node.least = 1;
        if (c == '?') node.most = 1;
      } else if (c == '{') {
        ++pos_;
        BM_TRY(parse_counts(node));
      } else {
        return {};
      }
      if (children.size() == before) {
        pos_ = begin;
        return error(fmt::format("nothing stands before '{}'", c));
      }
      node.children = {children.back()};
      children.back() = add(std::move(node));
    }
  }

  Status parse_counts(GbnfNode& node) {
    skip_space(true);
    node.least = BM_TRY(parse_count());
    node.most = node.least;
    skip_space(true);
    if (peek() == ',') {
      ++pos_;
      skip_space(true);
      node.most = peek() == '}' ? GbnfNode::kUnbounded : BM_TRY(parse_count());
      skip_space(true);
    }
    if (peek() != '}') return error("\"}\" is expected");
    if (node.most < node.least) return error("the second count is less than the first");
    ++pos_;
    return {};
  }

  Result<uint32_t> parse_count() {
    if (peek() < '0' || peek() > '9') return error("a count is expected");
    uint32_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++pos_) {
      value = value * 10 + static_cast<uint32_t>(peek() - '0');
      if (value > kMaxRepeats) return error(fmt::format("more than {} repetitions", kMaxRepeats));
    }
    return value;
  }

  Result<char32_t> parse_char() {
    if (peek() != '\\') {
      const CodePoint c = decode_utf8(text_, pos_);
      if (!c.is_valid) return error("not UTF-8");
      pos_ += c.length;
      return c.value;
    }
    const char c = peek(1);
    int digits = 0;
    switch (c) {
      case 'n': pos_ += 2; return U'\n';
      case 'r': pos_ += 2; return U'\r';
      case 't': pos_ += 2; return U'\t';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^': pos_ += 2; return static_cast<char32_t>(c);
      case 'x': digits = 2; break;
      case 'u': digits = 4; break;
      case 'U': digits = 8; break;
      default: return error("an escape that is not known");
    }
    uint64_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char d = peek(2 + static_cast<size_t>(i));
      int digit = 0;
      if (d >= '0' && d <= '9')
        digit = d - '0';
      else if (d >= 'a' && d <= 'f')
        digit = d - 'a' + 10;
      else if (d >= 'A' && d <= 'F')
        digit = d - 'A' + 10;
      else
        return error(fmt::format("\\{} wants {} hexadecimal digits", c, digits));
      value = value * 16 + static_cast<uint64_t>(digit);
    }
    if (value > kLastCode || (value >= 0xD800 && value <= 0xDFFF))
      return error(fmt::format("U+{:04X} is no character", value));
    pos_ += 2 + static_cast<size_t>(digits);
    return static_cast<char32_t>(value);
  }

  uint32_t add_class(std::vector<CodeRange> ranges) {
    GbnfNode node;
    node.kind = GbnfNode::Kind::kClass;
    node.ranges = normalized(std::move(ranges));
    return add(std::move(node));
  }

  Status parse_literal(std::vector<uint32_t>& children) {
    const size_t begin = pos_++;
    while (peek() != '"') {
      if (at_end()) {
        pos_ = begin;
        return error("the literal does not end");
      }
      const char32_t c = BM_TRY(parse_char());
      children.push_back(add_class({{c, c}}));
    }
    ++pos_;
    return {};
  }

  Result<uint32_t> parse_class() {
    const size_t begin = pos_++;
    const bool is_negated = peek() == '^';
    if (is_negated) ++pos_;
    std::vector<CodeRange> ranges;
    while (peek() != ']') {
      if (at_end()) {
        pos_ = begin;
        return error("the class does not end");
      }
      const char32_t first = BM_TRY(parse_char());
      char32_t last = first;
      if (peek() == '-' && peek(1) != ']' && peek(1) != '\0') {
        ++pos_;
        last = BM_TRY(parse_char());
      }
      if (last < first) return error("a range that ends before it begins");
      ranges.push_back({first, last});
    }
    ++pos_;
    ranges = normalized(std::move(ranges));
    if (is_negated) ranges = complement(ranges);
    if (ranges.empty()) {
      pos_ = begin;
      return error("a class without characters");
    }
    return add_class(std::move(ranges));
  }

  std::string_view text_;
  size_t pos_ = 0;
  Gbnf out_;
  std::map<std::string, uint32_t, std::less<>> rule_ids_;
  std::vector<bool> is_defined_;
  std::vector<size_t> first_use_;
};

}  // namespace

std::vector<CodeRange> normalized(std::vector<CodeRange> ranges) {
  std::vector<CodeRange> parts;
  for (const CodeRange& r : ranges) {
    if (r.first < 0xD800) parts.push_back({r.first, std::min<char32_t>(r.last, 0xD7FF)});
    if (r.last > 0xDFFF) parts.push_back({std::max<char32_t>(r.first, 0xE000), r.last});
  }
  std::sort(parts.begin(), parts.end(),
            [](const CodeRange& a, const CodeRange& b) { return a.first < b.first; });
  std::vector<CodeRange> out;
  for (const CodeRange& r : parts) {
    if (!out.empty() && r.first <= out.back().last + 1)
      out.back().last = std::max(out.back().last, r.last);
    else
      out.push_back(r);
  }
  return out;
}

std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges) {
  std::vector<CodeRange> out;
  char32_t next = 0;
  for (const CodeRange& r : ranges) {
    if (r.first > next) out.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= kLastCode) out.push_back({next, kLastCode});
  return normalized(std::move(out));
}

Result<Gbnf> parse_gbnf(std::string_view text, std::string_view root) {
  if (text.size() > kMaxTextBytes)
    return fail(Code::kInvalidArgument, "grammar: {} bytes (at most {} allowed)", text.size(),
                kMaxTextBytes);
  return Parser(text).parse(root);
}

}  // namespace bm::models
