#include "models/chat/lexer.h"

#include <charconv>
#include <cmath>

#include "models/chat/text.h"
#include "models/model_error.h"
#include "models/unicode.h"

namespace bm::models::jinja {
namespace {

/// With CR LF and CR as LF, without the last newline.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (pos_ < source_.size()) BM_TRY(text_and_tag());
    push(TokenType::kEnd, "", locate(source_.size()));
    return std::move(tokens_);
  }

 private:
  /// Row and column of byte `pos`, which never goes back by much: positions are asked for in order.
  Position locate(size_t pos) {
    if (pos < located_) {
      located_ = 0;
      at_ = {};
    }
    for (; located_ < pos; ++located_) {
      if (source_[located_] == '\n') {
        ++at_.row;
        at_.column = 1;
      } else if ((static_cast<unsigned char>(source_[located_]) & 0xc0) != 0x80) {
        ++at_.column;
      }
    }
    return at_;
  }
  template <class... Args>
  tl::unexpected<Error> error(size_t pos, fmt::format_string<Args...> format, Args&&... args) {
    return fail(Code::kInvalidArgument, "{}: {}", place(locate(pos)),
                fmt::format(format, std::forward<Args>(args)...));
  }
  void push(TokenType type, std::string text, Position at) {
    tokens_.push_back({.type = type, .text = std::move(text), .at = at});
  }
  bool looking_at(std::string_view text) const {
    return std::string_view(source_).substr(pos_).starts_with(text);
  }
  void skip_space() { pos_ += leading_space(std::string_view(source_).substr(pos_)); }

  /// Text up to the next tag, and the tag.
  Status text_and_tag() {
    const size_t begin = pos_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        emit_text(begin, source_.size());
        pos_ = source_.size();
        return {};
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    const char kind = source_[tag + 1];
    pos_ = tag + 2;
    const char sign = pos_ < source_.size() ? source_[pos_] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    emit_text(begin, text_end(begin, tag, has_sign ? sign : '\0', kind == '{'));
    if (has_sign) ++pos_;
    if (kind == '#') return comment(tag);
    if (kind == '%' && is_raw_tag()) return raw(tag);
    return tag_tokens(tag, kind == '{');
  }

  void emit_text(size_t begin, size_t end) {
    if (end > begin) push(TokenType::kText, source_.substr(begin, end - begin), locate(begin));
  }
  /// Where the text before a tag ends once whitespace control has taken its part.
  size_t text_end(size_t begin, size_t tag, char sign, bool is_variable) const {
    const std::string_view text = std::string_view(source_).substr(begin, tag - begin);
    if (sign == '-') return begin + text.size() - trailing_space(text);
    if (sign == '+' || is_variable) return tag;
    const size_t newline = text.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line == 0 && !starts_line_) return tag;
    return leading_space(text.substr(line)) == text.size() - line ? begin + line : tag;
  }
  /// Whether what follows the bytes read so far stands at the start of a line.
  void note_line_start() { starts_line_ = pos_ > 0 && source_[pos_ - 1] == '\n'; }

  /// Takes `end` with its signs and what whitespace control drops after it; false when it is not
  /// here.
  bool take_end(std::string_view end, bool trims_newline, bool has_plus) {
    if (looking_at("-") && std::string_view(source_).substr(pos_ + 1).starts_with(end)) {
      pos_ += 1 + end.size();
      skip_space();
    } else if (has_plus && looking_at("+") &&
               std::string_view(source_).substr(pos_ + 1).starts_with(end)) {
      pos_ += 1 + end.size();
    } else if (looking_at(end)) {
      pos_ += end.size();
      if (trims_newline && looking_at("\n")) ++pos_;
    } else {
      return false;
    }
    note_line_start();
    return true;
  }

  Status comment(size_t tag) {
    // The sign of "{#-#}" is that of the start; the end has its own.
    for (; pos_ < source_.size(); ++pos_)
      if (take_end("#}", true, true)) return {};
    return error(tag, "this comment has no end: #}} is missing");
  }

  bool is_raw_tag() const {
    const std::string_view rest = std::string_view(source_).substr(pos_);
    size_t at = leading_space(rest);
    if (!rest.substr(at).starts_with("raw")) return false;
    at += 3;
    at += leading_space(rest.substr(at));
    return rest.substr(at).starts_with("%}") || rest.substr(at).starts_with("-%}");
  }
  Status raw(size_t tag) {
    skip_space();
    pos_ += 3;
    skip_space();
    take_end("%}", false, false);
    const size_t begin = pos_;
    for (size_t end = source_.find("{%", begin); end != std::string::npos;
         end = source_.find("{%", end + 1)) {
      pos_ = end + 2;
      const char sign = pos_ < source_.size() ? source_[pos_] : '\0';
      const bool has_sign = sign == '-' || sign == '+';
      if (has_sign) ++pos_;
      skip_space();
      if (!looking_at("endraw")) continue;
      pos_ += 6;
      skip_space();
      const size_t kept = text_end(begin, end, has_sign ? sign : '\0', false);
      if (!take_end("%}", true, true)) continue;
      emit_text(begin, kept);
      return {};
    }
    return error(tag, "this raw block has no {{% endraw %}}");
  }

  Status tag_tokens(size_t tag, bool is_variable) {
    push(is_variable ? TokenType::kVariableBegin : TokenType::kBlockBegin, "", locate(tag));
    std::string open;  // brackets: the end of a tag does not count inside them
    for (;;) {
      skip_space();
      if (pos_ >= source_.size())
        return error(tag, "this tag has no end: {} is missing", is_variable ? "}}" : "%}");
      const size_t begin = pos_;
      if (open.empty() && take_end(is_variable ? "}}" : "%}", !is_variable, !is_variable)) {
        push(is_variable ? TokenType::kVariableEnd : TokenType::kBlockEnd, "", locate(begin));
        return {};
      }
      BM_TRY(token(open));
    }
  }

  Status token(std::string& open) {
    const char c = source_[pos_];
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string();
    if (is_name_start(c)) {
      const size_t begin = pos_;
      // Typographic quotes and the like are no letters.
      if (static_cast<unsigned char>(c) >= 0x80 &&
          (char_classes(decode_utf8(source_, pos_).value) & (kLetter | kNumber)) == 0)
        return error(
            pos_, "unexpected character {}",
            quote_name(std::string_view(source_).substr(pos_, decode_utf8(source_, pos_).length)));
      while (pos_ < source_.size() && (is_name_start(source_[pos_]) || is_digit(source_[pos_])))
        ++pos_;
      push(TokenType::kName, source_.substr(begin, pos_ - begin), locate(begin));
      return {};
    }
    return punctuation(open);
  }

  Status punctuation(std::string& open) {
    static constexpr std::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};
    for (const std::string_view text : kOperators) {
      if (!looking_at(text)) continue;
      const char c = text[0];
      if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty() || open.back() != c) return error(pos_, "unexpected {}", text);
        open.pop_back();
      }
      push(TokenType::kOperator, std::string(text), locate(pos_));
      pos_ += text.size();
      return {};
    }
    return error(
        pos_, "unexpected character {}",
        quote_name(std::string_view(source_).substr(pos_, decode_utf8(source_, pos_).length)));
  }

  /// Digits of `base` with single underscores between them; appended to `out` without these.
  void digits(std::string& out, int base) {
    while (pos_ < source_.size()) {
      const bool is_gap = source_[pos_] == '_' && pos_ + 1 < source_.size();
      const int digit = hex_digit(source_[pos_ + (is_gap ? 1 : 0)]);
      if (digit < 0 || digit >= base) return;
      pos_ += is_gap ? 1 : 0;
      out += source_[pos_++];
    }
  }
  Status number() {
    const size_t begin = pos_;
    const auto peek = [&](size_t ahead) {
      return pos_ + ahead < source_.size() ? source_[pos_ + ahead] : '\0';
    };
    int base = 10;
    const char letter = static_cast<char>(peek(1) | 0x20);
    if (source_[pos_] == '0' && (letter == 'x' || letter == 'o' || letter == 'b')) {
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
      pos_ += 2;
    }
    std::string text;
    digits(text, base);
    bool is_float = false;
    if (base == 10 && peek(0) == '.' && is_digit(peek(1)) && !follows_dot(begin)) {
      is_float = true;
      ++pos_;
      text += '.';
      digits(text, 10);
    }
    if (base == 10 && (peek(0) | 0x20) == 'e' && !follows_dot(begin)) {
      const size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
      if (is_digit(peek(1 + sign))) {
        is_float = true;
        text += source_.substr(pos_, 1 + sign);
        pos_ += 1 + sign;
        digits(text, 10);
      }
    }
    Token token{.type = is_float ? TokenType::kFloat : TokenType::kInteger,
                .text = text,
                .at = locate(begin)};
    const char* const first = text.data();
    const char* const last = first + text.size();
    if (is_float) {
      // from_chars leaves the number alone when it is out of range; Python has 0 and inf there.
      if (std::from_chars(first, last, token.number).ec != std::errc{})
        return error(begin, "{} is too large or too small for a number", text);
    } else {
      if (text.empty()) return error(begin, "this number has no digits");
      if (base == 10 && text.size() > 1 && text[0] == '0' &&
          text.find_first_not_of('0') != std::string::npos)
        return error(begin, "a number does not begin with 0");
      if (std::from_chars(first, last, token.integer, base).ec != std::errc{})
        return error(begin, "{} is beyond 64 bits, which is not supported", text);
    }
    if (pos_ < source_.size() && (is_name_start(source_[pos_]) || is_digit(source_[pos_])))
      return error(pos_, "a name does not begin with a digit");
    tokens_.push_back(std::move(token));
    return {};
  }
  /// "a.0.1" is two items, not the number 0.1.
  bool follows_dot(size_t pos) const { return pos > 0 && source_[pos - 1] == '.'; }

  Status string() {
    const size_t begin = pos_;
    const char quote = source_[pos_++];
    std::string out;
    while (pos_ < source_.size() && source_[pos_] != quote) {
      if (source_[pos_] != '\\') {
        out += source_[pos_++];
        continue;
      }
      BM_TRY(escape(out));
    }
    if (pos_ >= source_.size()) return error(begin, "this string has no end");
    ++pos_;
    push(TokenType::kString, std::move(out), locate(begin));
    return {};
  }

  /// One escape of Python's string literals; unknown ones stay as they are.
  Status escape(std::string& out) {
    const size_t begin = pos_++;
    if (pos_ >= source_.size()) return error(begin, "this string has no end");
    const char c = source_[pos_++];
    static constexpr std::string_view kNames = "\\'\"abfnrtv";
    static constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t known = kNames.find(c); known != std::string_view::npos) {
      out += kValues[known];
      return {};
    }
    if (c == '\n') return {};
    if (c == 'x' || c == 'u' || c == 'U')
      return code_point(out, begin, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    if (c == 'N') return error(begin, "escapes by name (\\N{{…}}) are not supported");
    if (c >= '0' && c <= '7') {
      unsigned value = static_cast<unsigned>(c - '0');
      for (int i = 0;
           i < 2 && pos_ < source_.size() && source_[pos_] >= '0' && source_[pos_] <= '7'; ++i)
        value = value * 8 + static_cast<unsigned>(source_[pos_++] - '0');
      append_utf8(out, value);
      return {};
    }
    out += '\\';
    --pos_;  // the character itself follows, whatever its length
    const size_t length = decode_utf8(source_, pos_).length;
    out.append(source_, pos_, length);
    pos_ += length;
    return {};
  }
  Status code_point(std::string& out, size_t begin, int count) {
    char32_t value = 0;
    for (int i = 0; i < count; ++i, ++pos_) {
      const int digit = pos_ < source_.size() ? hex_digit(source_[pos_]) : -1;
      if (digit < 0) return error(begin, "this escape takes {} hexadecimal digits", count);
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
      return error(begin, "U+{:04X} is not a character", static_cast<uint32_t>(value));
    append_utf8(out, value);
    return {};
  }

  std::string source_;
  size_t pos_ = 0;
  bool starts_line_ = true;
  size_t located_ = 0;
  Position at_;
  std::vector<Token> tokens_;
};

}  // namespace

std::string place(Position at) { return fmt::format("row {}, column {}", at.row, at.column); }

Result<std::vector<Token>> tokenize_template(std::string_view source) {
  if (!is_valid_utf8(source)) return fail(Code::kInvalidArgument, "the template is not UTF-8");
  return Lexer(normalize_newlines(source)).run();
}

}  // namespace bm::models::jinja
