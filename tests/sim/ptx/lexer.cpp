#include "tests/sim/ptx/lexer.h"

#include <bit>
#include <charconv>
#include <cstdlib>
#include <string>

#include "tests/sim/ptx/types.h"

namespace bm::sim::ptx {
namespace {

constexpr size_t kMaxTokens = size_t{1} << 24;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(char c) { return is_alpha(c) || is_digit(c) || c == '_' || c == '$' || c == '%'; }

int digit_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Result<std::vector<Token>> run() {
    for (;;) {
      BM_TRY(skip_space());
      if (at_ >= text_.size() || text_[at_] == '\0') break;
      BM_TRY(next());
      if (out_.size() > kMaxTokens) return fail(Code::kCompile, "line {}: text too long", line_);
    }
    out_.push_back({.kind = Token::Kind::kEnd, .text = {}, .bits = 0, .line = line_});
    return std::move(out_);
  }

 private:
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  Status skip_space() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f' || c == '\v') continue;
      if (c != '/') break;
      if (peek(1) == '/') {
        while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      } else if (peek(1) == '*') {
        const size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos)
          return fail(Code::kCompile, "line {}: comment has no end", line_);
        for (size_t i = at_; i < end; ++i) line_ += text_[i] == '\n';
        at_ = end + 1;
      } else {
        break;
      }
    }
    return {};
  }

  void push(Token::Kind kind, size_t begin, uint64_t bits = 0) {
    out_.push_back({kind, text_.substr(begin, at_ - begin), bits, line_});
  }

  Status next() {
    const size_t begin = at_;
    const char c = peek();
    if (is_digit(c)) return number();
    if (c == '"') return string();
    if (is_word(c) || (c == '.' && is_word(peek(1)))) {
      word();
      push(Token::Kind::kWord, begin);
      return {};
    }
    if (std::string_view("{}[](),;:=+-*@!|<>&~/?^").find(c) == std::string_view::npos)
      return fail(Code::kCompile, "line {}: character 0x{:02x} has no place in PTX", line_,
                  static_cast<unsigned char>(c));
    ++at_;
    push(Token::Kind::kPunctuation, begin);
    return {};
  }

  void word() {
    // Directives do not need a space after them: .reg.b16 is two.
    const bool is_directive = peek() == '.';
    if (is_directive) ++at_;
    for (;; ++at_) {
      const char c = peek();
      if (is_word(c)) continue;
      if (c == '.' && is_word(peek(1)) && !is_directive) continue;
      if (c == ':' && peek(1) == ':' && is_word(peek(2))) {
        ++at_;
        continue;
      }
      return;
    }
  }

  Status string() {
    const size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n') ++at_;
    if (peek() != '"') return fail(Code::kCompile, "line {}: string has no end", line_);
    ++at_;
    push(Token::Kind::kString, begin);
    return {};
  }

  Status digits(int base, int most, size_t begin, Token::Kind kind) {
    uint64_t value = 0;
    int count = 0;
    for (; digit_value(peek()) < base; ++at_, ++count) {
      const auto digit = static_cast<uint64_t>(digit_value(peek()));
      const auto wide = static_cast<Uint128>(value) * static_cast<unsigned>(base) + digit;
      if (wide >> 64) return fail(Code::kCompile, "line {}: number above 64 bits", line_);
      value = static_cast<uint64_t>(wide);
    }
    if (count == 0 || (most && count != most))
      return fail(Code::kCompile, "line {}: malformed number", line_);
    if (!most && peek() == 'U') ++at_;
    if (is_word(peek())) return fail(Code::kCompile, "line {}: malformed number", line_);
    push(kind, begin, value);
    return {};
  }

  Status number() {
    const size_t begin = at_;
    if (peek() == '0') {
      const char x = peek(1);
      const auto prefixed = [&](int base, int most, Token::Kind kind) {
        at_ += 2;
        return digits(base, most, begin, kind);
      };
      if (x == 'x' || x == 'X') return prefixed(16, 0, Token::Kind::kInteger);
      if (x == 'b' || x == 'B') return prefixed(2, 0, Token::Kind::kInteger);
      if (x == 'f' || x == 'F') return prefixed(16, 8, Token::Kind::kFloat32);
      if (x == 'd' || x == 'D') return prefixed(16, 16, Token::Kind::kFloat64);
    }
    size_t end = at_;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    const char after = end < text_.size() ? text_[end] : '\0';
    if (after != '.' && after != 'e' && after != 'E')
      return digits(text_[begin] == '0' && end > begin + 1 ? 8 : 10, 0, begin,
                    Token::Kind::kInteger);
    return decimal();
  }

  Status decimal() {
    const size_t begin = at_;
    double value = 0;
    const char* first = text_.data() + at_;
    const auto parsed = std::from_chars(first, text_.data() + text_.size(), value);
    if (parsed.ec != std::errc()) return fail(Code::kCompile, "line {}: malformed number", line_);
    at_ += static_cast<size_t>(parsed.ptr - first);
    if (is_word(peek())) return fail(Code::kCompile, "line {}: malformed number", line_);
    push(Token::Kind::kFloat64, begin, std::bit_cast<uint64_t>(value));
    return {};
  }

  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  std::vector<Token> out_;
};

}  // namespace

Result<std::vector<Token>> tokens_of(std::string_view text) { return Lexer(text).run(); }

}  // namespace bm::sim::ptx
