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

/// Whether `c` is in `set`, whose ranges are in order.
bool is_in(std::span<const CharRange> set, const Char& c) {
  const auto after = std::upper_bound(set.begin(), set.end(), c.value,
                                      [](char32_t v, const CharRange& r) { return v < r.first; });
  return c.length != 0 && after != set.begin() && c.value <= (after - 1)->last;
}

size_t run_in(std::string_view text, size_t pos, std::span<const CharRange> set) {
  return run_end(text, pos, [set](const Char& c) { return is_in(set, c); });
}

/// \s?[…]+ for any set; the space is given up again if no run follows it.
template <class Accept>
size_t scan_spaced_run(std::string_view text, size_t pos, Accept accept) {
  const Char first = char_at(text, pos);
  if (first.is(kSpace)) {
    const size_t begin = pos + first.length, end = run_end(text, begin, accept);
    if (end > begin) return end - pos;
  }
  return run_end(text, pos, accept) - pos;
}

/// The character before `pos`; the start of the text has none.
Char char_before(std::string_view text, size_t pos) {
  if (pos == 0) return {};
  size_t begin = pos - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return char_at(text, begin);
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
  bool has_contractions = true;
  std::string_view tail = "\r\n";  // what punctuation takes with it
};

/// All but the spaces.
size_t scan_gpt4_words(std::string_view text, size_t pos, const Gpt4Style& style) {
  if (style.has_contractions)
    if (const size_t n = scan_contraction(text, pos, true)) return n;
  if (const size_t n = scan_prefixed_run(text, pos, is_word_prefix, style.letters)) return n;
  if (const size_t n = run_of(text, pos, kNumber, style.number_limit) - pos) return n;
  const auto excluded = static_cast<uint16_t>(style.letters | kLetter | kNumber);
  return scan_other(text, pos, excluded, style.tail);
}

size_t scan_gpt4(std::string_view text, size_t pos, const Gpt4Style& style) {
  if (const size_t n = scan_gpt4_words(text, pos, style)) return n;
  return scan_space(text, pos, true);
}

enum class Han { kInWords, kApart };

/// Whether `c` is of class `mask` and may be a part of a word.
template <Han kHan>
bool is_word_part(const Char& c, uint16_t mask) {
  return c.is(mask) && (kHan == Han::kInWords || !is_in(char_set("han"), c));
}

template <Han kHan>
size_t word_run(std::string_view text, size_t pos, uint16_t mask) {
  return run_end(text, pos, [mask](const Char& c) { return is_word_part<kHan>(c, mask); });
}

/// U*L+ from `pos` (U: kUpperLike, L: kLowerLike, overlapping sets), greedy with backtracking in
/// U*.
template <Han kHan>
size_t scan_upper_then_lower(std::string_view text, size_t pos) {
  size_t end = pos, last_both_end = pos;
  for (Char c = char_at(text, pos); is_word_part<kHan>(c, kUpperLike); c = char_at(text, end)) {
    end += c.length;
    if (c.is(kLowerLike)) last_both_end = end;
  }
  const size_t lower_end = word_run<kHan>(text, end, kLowerLike);
  return lower_end > end ? lower_end - pos : last_both_end - pos;
}

/// U+L* from `pos`.
template <Han kHan>
size_t scan_uppers(std::string_view text, size_t pos) {
  const size_t end = word_run<kHan>(text, pos, kUpperLike);
  return end == pos ? 0 : word_run<kHan>(text, end, kLowerLike) - pos;
}

/// A word that begins with capitals: prefix?U*L+ or else prefix?U+L*.
template <Han kHan = Han::kInWords>
size_t scan_cased_word(std::string_view text, size_t pos) {
  const Char first = char_at(text, pos);
  if (first.length == 0) return 0;
  for (const auto scan : {scan_upper_then_lower<kHan>, scan_uppers<kHan>}) {
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

/// The words of DeepSeek V3 without punctuation's tail and without spaces.
size_t scan_deepseek_words(std::string_view text, size_t pos) {
  if (pos + 1 < text.size() && is_ascii_punctuation(text[pos]) && is_ascii_letter(text[pos + 1])) {
    size_t end = pos + 1;
    while (end < text.size() && is_ascii_letter(text[end])) ++end;
    return end - pos;
  }
  const auto is_prefix = [](const Char& c) {
    return !c.is(kNewline | kLetter | kPunctuation | kSymbol);
  };
  return scan_prefixed_run(text, pos, is_prefix, kLetter | kMark);
}

/// prefix?(\p{L}\p{M}*(?: \p{L}\p{M}*)*)+ : words with single spaces between them.
size_t scan_phrase(std::string_view text, size_t pos) {
  const auto words_end = [&](size_t end) {
    while (true) {
      const bool has_space = end < text.size() && text[end] == ' ';
      const Char c = char_at(text, end + (has_space ? 1 : 0));
      if (!c.is(kLetter)) return end;
      end = run_of(text, end + (has_space ? 1 : 0) + c.length, kMark);
    }
  };
  const Char first = char_at(text, pos);
  if (first.length == 0) return 0;
  const size_t begin = is_word_prefix(first) ? pos + first.length : pos;
  if (!char_at(text, begin).is(kLetter)) return 0;
  return words_end(begin) - pos;
}

struct ThreesRule {
  uint16_t digit;       // what runs consist of
  uint16_t not_before;  // a run before one of these stays as it is
  bool are_runs_apart;  // cut at both ends of a run, too
};

void cut_in_threes(std::string_view text, const ThreesRule& rule,
                   std::vector<std::string_view>& out) {
  size_t begin = 0;  // of the word
  const auto cut = [&](size_t at) {
    if (begin < at) out.push_back(text.substr(begin, at - begin));
    begin = at;
  };
  for (size_t pos = 0; pos < text.size();) {
    const Char c = char_at(text, pos);
    if (!c.is(rule.digit)) {
      pos += c.length;
      continue;
    }
    size_t left = 0, end = pos;
    for (Char d = c; d.is(rule.digit); d = char_at(text, end)) {
      end += d.length;
      ++left;
    }
    const bool is_cut = !char_at(text, end).is(rule.not_before);
    if (is_cut && rule.are_runs_apart) cut(pos);
    for (; pos < end; pos += char_at(text, pos).length, --left)
      if (is_cut && left % 3 == 0) cut(pos);
    if (is_cut && rule.are_runs_apart) cut(end);
  }
  cut(text.size());
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
  if (const size_t n = scan_deepseek_words(text, pos)) return n;
  const size_t n = scan_prefixed_run(text, pos, is_space_char, kPunctuation | kSymbol);
  if (n == 0) return scan_space(text, pos, true);
  return run_of(text, pos + n, kNewline) - pos;
}

size_t scan_spark(std::string_view text, size_t pos) {
  if (const size_t n = scan_deepseek_words(text, pos)) return n;
  if (const size_t n = scan_prefixed_run(text, pos, is_space_char, kPunctuation | kSymbol))
    return n;
  if (const size_t n = scan_newline(text, pos)) return n;
  return scan_space(text, pos, false);
}

size_t scan_kimi_k2(std::string_view text, size_t pos) {
  if (const size_t n = run_in(text, pos, char_set("han")) - pos) return n;
  if (const size_t n = scan_cased_word<Han::kApart>(text, pos))
    return n + scan_contraction(text, pos + n, true);
  if (const size_t n = run_of(text, pos, kNumber, 3) - pos) return n;
  if (const size_t n = scan_other(text, pos, kLetter | kNumber, "\r\n")) return n;
  return scan_space(text, pos, true);
}

size_t scan_youtu(std::string_view text, size_t pos) { return scan_cased(text, pos, true, 1); }

size_t scan_jais2(std::string_view text, size_t pos) {
  if (const size_t n = scan_gpt4_words(text, pos, {kLetter, 3})) return n;
  // Inside a run of spaces no newline follows: the match before would have taken it. So the rest of
  // the run is not searched again for each of its pieces.
  const Char before = char_before(text, pos);
  if (!before.is(kSpace) || before.is(kNewline)) {
    const size_t end = run_of(text, pos, kSpace);
    size_t newline_end = pos;
    for (size_t i = pos; i < end;) {
      const Char c = char_at(text, i);
      i += c.length;
      if (c.is(kNewline)) newline_end = i;
    }
    if (newline_end > pos) return newline_end - pos;
  }
  for (const size_t count : {512u, 256u, 128u, 64u, 32u, 16u, 8u, 4u, 2u, 1u}) {
    size_t end = pos, found = 0;
    for (Char c = char_at(text, pos); found < count && c.is(kSpace); c = char_at(text, end)) {
      end += c.length;
      ++found;
    }
    if (found == 0) return 0;
    if (found < count) continue;
    if (end == text.size() || char_at(text, end).is(kSpace)) return end - pos;
  }
  return char_at(text, pos).length;
}

size_t scan_seed_coder(std::string_view text, size_t pos) {
  return scan_gpt4(text, pos, {.letters = kLetter, .number_limit = 1, .tail = ""});
}
size_t scan_minicpm5(std::string_view text, size_t pos) {
  return scan_gpt4(text, pos, {kLetter, SIZE_MAX});
}
size_t scan_no_contractions(std::string_view text, size_t pos) {
  return scan_gpt4(text, pos, {kLetter, 1, false});
}

size_t scan_exaone_moe(std::string_view text, size_t pos) {
  if (const size_t n = scan_contraction(text, pos, true)) return n;
  if (const size_t n = scan_phrase(text, pos)) return n;
  if (const size_t n = scan_number(text, pos)) return n;
  if (const size_t n = scan_other(text, pos, kLetter | kNumber, "")) {
    const char next = pos + n < text.size() ? text[pos + n] : '\0';
    return n + (next == '\r' || next == '\n' ? 1 : 0);  // the run holds every "/"
  }
  return scan_space(text, pos, true);
}

size_t scan_k2_horizon(std::string_view text, size_t pos) {
  if (const size_t n = scan_contraction(text, pos, true)) return n;
  const auto is_letter = [](const Char& c) {
    return c.is(kLetter | kMark) || c.value == 0x200C || c.value == 0x200D;
  };
  const Char first = char_at(text, pos);
  if (first.length == 0) return 0;
  if (is_word_prefix(first)) {
    const size_t begin = pos + first.length, end = run_end(text, begin, is_letter);
    if (end > begin) return end - pos;
  }
  if (const size_t n = run_end(text, pos, is_letter) - pos) return n;
  if (const size_t n = run_of(text, pos, kNumber, 3) - pos) return n;
  if (const size_t n = scan_other(text, pos, kLetter | kNumber, "\r\n")) return n;
  return scan_space(text, pos, true);
}

size_t scan_newline(std::string_view text, size_t pos) {
  return run_of(text, pos, kNewline, 1) - pos;
}

size_t scan_line(std::string_view text, size_t pos) {
  const bool is_break = pos < text.size() && text[pos] == '\n';
  size_t end = pos;
  while (end < text.size() && (text[end] == '\n') == is_break) ++end;
  return end - pos;
}

size_t scan_last_spaces(std::string_view text, size_t pos) {
  if (char_before(text, pos).is(kSpace)) return 0;
  const size_t end = run_of(text, pos, kSpace);
  return end == text.size() ? end - pos : 0;
}

size_t scan_spaced_letters(std::string_view text, size_t pos) {
  return scan_spaced_run(text, pos, [](const Char& c) { return c.is(kLetter); });
}
size_t scan_spaced_marks(std::string_view text, size_t pos) {
  return scan_spaced_run(text, pos, [](const Char& c) { return c.is(kPunctuation); });
}
size_t scan_deepseek_cased(std::string_view text, size_t pos) {
  return scan_spaced_run(text, pos, [](const Char& c) { return is_in(char_set("cased"), c); });
}
size_t scan_deepseek_marks(std::string_view text, size_t pos) {
  return scan_spaced_run(text, pos, [](const Char& c) { return is_in(char_set("marks"), c); });
}
size_t scan_deepseek_asian(std::string_view text, size_t pos) {
  return run_in(text, pos, char_set("asian")) - pos;
}
size_t scan_afmoe_asian(std::string_view text, size_t pos) {
  return run_in(text, pos, char_set("unspaced")) - pos;
}

size_t scan_bloom(std::string_view text, size_t pos) {
  const size_t begin = pos < text.size() && text[pos] == ' ' ? pos + 1 : pos;
  const size_t end = run_end(text, begin, [](const Char& c) {
    return !c.is(kSpace) && c.value != '(' && c.value != '|' && c.value != ')' &&
           !is_in(char_set("stops"), c);
  });
  return end > begin ? end - pos : 0;
}

size_t scan_youtu_asian(std::string_view text, size_t pos) {
  for (const char* name : {"hangul", "asian_marks", "bopomofo", "cjk"})
    if (const size_t n = run_in(text, pos, char_set(name)) - pos) return n;
  return 0;
}

size_t scan_sentinel(std::string_view text, size_t pos) {
  constexpr std::string_view kBegin = "<sentinel:";
  if (text.substr(pos, kBegin.size()) != kBegin) return 0;
  const size_t begin = pos + kBegin.size();
  size_t end = begin;
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
  return end > begin && end < text.size() && text[end] == '>' ? end + 1 - pos : 0;
}

size_t scan_image_token(std::string_view text, size_t pos) {
  constexpr std::string_view kBegin = "IMGIMG";
  if (text.substr(pos, kBegin.size()) != kBegin) return 0;
  const size_t begin = pos + kBegin.size();
  size_t end = begin;
  while (end < text.size() && end < begin + 4 && text[end] >= 'A' && text[end] <= 'I') ++end;
  return end > begin && end < text.size() && text[end] == 'Z' ? end + 1 - pos : 0;
}

size_t scan_indent(std::string_view text, size_t pos) {
  if (text[pos] == '\t' || text[pos] == '\n') return 1;
  if (text.substr(pos, 4) == "    ") return 4;
  return text.substr(pos, 2) == "  " ? 2 : 0;
}

size_t scan_one_punctuation(std::string_view text, size_t pos) {
  const Char c = char_at(text, pos);
  const bool is_ascii = c.value < 0x80 && is_ascii_punctuation(static_cast<char>(c.value));
  return is_ascii || c.is(kPunctuation) ? c.length : 0;
}

void cut_numbers_in_threes(std::string_view text, std::vector<std::string_view>& out) {
  cut_in_threes(text, {kNumber, 0, true}, out);
}
void cut_digits_in_threes(std::string_view text, std::vector<std::string_view>& out) {
  cut_in_threes(text, {kDigit, kWordPart, true}, out);
}
void cut_before_threes(std::string_view text, std::vector<std::string_view>& out) {
  cut_in_threes(text, {kDigit, 0, false}, out);
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
