#include "models/tokenizer_scan.h"

#include <algorithm>

#include "models/unicode.h"

namespace bm::models {
namespace {

struct Char {
  char32_t value = 0;
  uint32_t length = 0;  // 0 at the end of the text
  uint16_t classes = 0;
  bool is(uint16_t mask) const { return (classes & mask) != 0; }
};

Char char_at(std::string_view text, size_t pos) {
  if (pos >= text.size()) return {};
  const CodePoint c = decode_utf8(text, pos);
  return {c.value, c.length, char_classes(c.value)};
}

/// End of the run of characters from `pos` for which `accept` holds; at most `limit` of them.
template <class Accept>
size_t run_end(std::string_view text, size_t pos, Accept accept, size_t limit = SIZE_MAX) {
  for (size_t count = 0; count < limit; ++count) {
    const Char c = char_at(text, pos);
    if (c.length == 0 || !accept(c)) break;
    pos += c.length;
  }
  return pos;
}

size_t run_of(std::string_view text, size_t pos, uint16_t mask, size_t limit = SIZE_MAX) {
  return run_end(text, pos, [mask](const Char& c) { return c.is(mask); }, limit);
}

size_t run_outside(std::string_view text, size_t pos, uint16_t mask) {
  return run_end(text, pos, [mask](const Char& c) { return !c.is(mask); });
}

/// \s+(?!\S)|\s+ , and before it \s*[\r\n]+ when `newlines_first`.
size_t scan_space(std::string_view text, size_t pos, bool newlines_first) {
  size_t end = pos, last_begin = pos, newline_end = pos;
  for (Char c = char_at(text, pos); c.is(kSpace); c = char_at(text, end)) {
    last_begin = end;
    end += c.length;
    if (c.is(kNewline)) newline_end = end;
  }
  if (newlines_first && newline_end > pos) return newline_end - pos;
  if (end == text.size() || last_begin == pos) return end - pos;
  return last_begin - pos;  // the last space belongs to the word that follows
}

/// '(?i:s|t|re|ve|m|ll|d); case folding also takes U+017F for s.
size_t scan_contraction(std::string_view text, size_t pos, bool any_case) {
  if (pos + 1 >= text.size() || text[pos] != '\'') return 0;
  if (any_case && text.compare(pos + 1, 2, "\xc5\xbf") == 0) return 3;
  const auto letter = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char a = letter(pos + 1), b = letter(pos + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/// prefix? run+ , where the prefix is given up again if no run follows it.
template <class Prefix>
size_t scan_prefixed_run(std::string_view text, size_t pos, Prefix is_prefix, uint16_t run) {
  const Char first = char_at(text, pos);
  if (first.length == 0) return 0;
  if (is_prefix(first)) {
    const size_t begin = pos + first.length, end = run_of(text, begin, run);
    if (end > begin) return end - pos;
  }
  return run_of(text, pos, run) - pos;
}

bool is_space_char(const Char& c) { return c.value == ' '; }
bool is_word_prefix(const Char& c) { return !c.is(kNewline | kLetter | kNumber); }

/// ` ?[^\s…]+` with `excluded` as the set, followed by any of `tail`.
size_t scan_other(std::string_view text, size_t pos, uint16_t excluded, std::string_view tail) {
  const size_t begin = pos < text.size() && text[pos] == ' ' ? pos + 1 : pos;
  size_t end = run_outside(text, begin, static_cast<uint16_t>(excluded | kSpace));
  if (end == begin) return 0;
  while (end < text.size() && tail.find(text[end]) != std::string_view::npos) ++end;
  return end - pos;
}

struct Gpt4Style {
  uint16_t letters;     // what a word consists of
  size_t number_limit;  // digits in one piece
};

size_t scan_gpt4(std::string_view text, size_t pos, const Gpt4Style& style) {
  if (const size_t n = scan_contraction(text, pos, true)) return n;
  if (const size_t n = scan_prefixed_run(text, pos, is_word_prefix, style.letters)) return n;
  if (const size_t n = run_of(text, pos, kNumber, style.number_limit) - pos) return n;
  const auto excluded = static_cast<uint16_t>(style.letters | kLetter | kNumber);
  if (const size_t n = scan_other(text, pos, excluded, "\r\n")) return n;
  return scan_space(text, pos, true);
}

/// U*L+ from `pos` (U: kUpperLike, L: kLowerLike, overlapping sets), greedy with backtracking in
/// U*.
size_t scan_upper_then_lower(std::string_view text, size_t pos) {
  size_t end = pos, last_both_end = pos;
  for (Char c = char_at(text, pos); c.is(kUpperLike); c = char_at(text, end)) {
    end += c.length;
    if (c.is(kLowerLike)) last_both_end = end;
  }
  const size_t lower_end = run_of(text, end, kLowerLike);
  return lower_end > end ? lower_end - pos : last_both_end - pos;
}

/// U+L* from `pos`.
size_t scan_uppers(std::string_view text, size_t pos) {
  const size_t end = run_of(text, pos, kUpperLike);
  return end == pos ? 0 : run_of(text, end, kLowerLike) - pos;
}

/// A word that begins with capitals: prefix?U*L+ or else prefix?U+L*.
size_t scan_cased_word(std::string_view text, size_t pos) {
  const Char first = char_at(text, pos);
  if (first.length == 0) return 0;
  for (const auto scan : {scan_upper_then_lower, scan_uppers}) {
    if (is_word_prefix(first))
      if (const size_t n = scan(text, pos + first.length)) return first.length + n;
    if (const size_t n = scan(text, pos)) return n;
  }
  return 0;
}

size_t scan_cased(std::string_view text, size_t pos, bool contractions, size_t number_limit) {
  if (const size_t n = scan_cased_word(text, pos))
    return contractions ? n + scan_contraction(text, pos + n, true) : n;
  if (const size_t n = run_of(text, pos, kNumber, number_limit) - pos) return n;
  if (const size_t n = scan_other(text, pos, kLetter | kNumber, "\r\n/")) return n;
  return scan_space(text, pos, true);
}

bool is_ascii_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

bool is_ascii_punctuation(char c) {
  return c > ' ' && c < 0x7F && !is_ascii_letter(c) && !(c >= '0' && c <= '9');
}

size_t scan_marks_of(std::string_view text, size_t pos, std::string_view extra) {
  return run_end(text, pos,
                 [extra](const Char& c) {
                   return c.is(kPunctuation) ||
                          (c.value < 0x80 && extra.find(static_cast<char>(c.value)) != extra.npos);
                 }) -
         pos;
}

}  // namespace

size_t scan_gpt2(std::string_view text, size_t pos) {
  if (const size_t n = scan_contraction(text, pos, false)) return n;
  if (const size_t n = scan_prefixed_run(text, pos, is_space_char, kLetter)) return n;
  if (const size_t n = scan_prefixed_run(text, pos, is_space_char, kNumber)) return n;
  if (const size_t n = scan_other(text, pos, kLetter | kNumber, "")) return n;
  return scan_space(text, pos, false);
}

size_t scan_llama3(std::string_view text, size_t pos) { return scan_gpt4(text, pos, {kLetter, 3}); }
size_t scan_qwen2(std::string_view text, size_t pos) { return scan_gpt4(text, pos, {kLetter, 1}); }
size_t scan_qwen35(std::string_view text, size_t pos) {
  return scan_gpt4(text, pos, {kLetter | kMark, 1});
}
size_t scan_tekken(std::string_view text, size_t pos) { return scan_cased(text, pos, false, 1); }
size_t scan_gpt4o(std::string_view text, size_t pos) { return scan_cased(text, pos, true, 3); }

size_t scan_deepseek3(std::string_view text, size_t pos) {
  if (pos + 1 < text.size() && is_ascii_punctuation(text[pos]) && is_ascii_letter(text[pos + 1])) {
    size_t end = pos + 1;
    while (end < text.size() && is_ascii_letter(text[end])) ++end;
    return end - pos;
  }
  const auto is_prefix = [](const Char& c) {
    return !c.is(kNewline | kLetter | kPunctuation | kSymbol);
  };
  if (const size_t n = scan_prefixed_run(text, pos, is_prefix, kLetter | kMark)) return n;
  const size_t n = scan_prefixed_run(text, pos, is_space_char, kPunctuation | kSymbol);
  if (n == 0) return scan_space(text, pos, true);
  return run_of(text, pos + n, kNewline) - pos;
}

size_t scan_number(std::string_view text, size_t pos) {
  return run_of(text, pos, kNumber, 1) - pos;
}
size_t scan_numbers(std::string_view text, size_t pos) { return run_of(text, pos, kNumber) - pos; }
size_t scan_three_numbers(std::string_view text, size_t pos) {
  return run_of(text, pos, kNumber, 3) - pos;
}

size_t scan_three_digits(std::string_view text, size_t pos) {
  const std::string_view three = text.substr(pos, 3);
  return three.size() == 3 && std::all_of(three.begin(), three.end(),
                                          [](char c) { return c >= '0' && c <= '9'; })
             ? 3
             : 0;
}

size_t scan_punctuation(std::string_view text, size_t pos) {
  return scan_marks_of(text, pos, "$+<=>^~|");
}
size_t scan_falcon_punctuation(std::string_view text, size_t pos) {
  return scan_marks_of(text, pos, "$+<=>^~|`");
}

size_t scan_deepseek3_cjk(std::string_view text, size_t pos) {
  return run_end(text, pos,
                 [](const Char& c) {
                   return (c.value >= 0x4E00 && c.value <= 0x9FA5) ||
                          (c.value >= 0x3040 && c.value <= 0x30FF);
                 }) -
         pos;
}

}  // namespace bm::models
