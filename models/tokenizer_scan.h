#pragma once
// Hand-written linear matchers for the pre-tokenizer patterns of tokenizer_split.cpp. Each gives
// the length of the match that its pattern has exactly at `pos`, or 0, and looks at no byte twice
// more than a constant number of times.

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace bm::models {

using ScanFunction = size_t (*)(std::string_view text, size_t pos);

size_t scan_gpt2(std::string_view text, size_t pos);
size_t scan_llama3(std::string_view text, size_t pos);
size_t scan_qwen2(std::string_view text, size_t pos);
size_t scan_qwen35(std::string_view text, size_t pos);
size_t scan_tekken(std::string_view text, size_t pos);
size_t scan_gpt4o(std::string_view text, size_t pos);
size_t scan_deepseek3(std::string_view text, size_t pos);

size_t scan_kimi_k2(std::string_view text, size_t pos);
size_t scan_youtu(std::string_view text, size_t pos);
size_t scan_spark(std::string_view text, size_t pos);
size_t scan_jais2(std::string_view text, size_t pos);
size_t scan_seed_coder(std::string_view text, size_t pos);
size_t scan_minicpm5(std::string_view text, size_t pos);
size_t scan_no_contractions(std::string_view text, size_t pos);  ///< qwen2 without 's, 't, …
size_t scan_exaone_moe(std::string_view text, size_t pos);
size_t scan_k2_horizon(std::string_view text, size_t pos);

size_t scan_newline(std::string_view text, size_t pos);          ///< [\r\n]
size_t scan_line(std::string_view text, size_t pos);             ///< [^\n]+|\n+
size_t scan_last_spaces(std::string_view text, size_t pos);      ///< (?<!\s)\s++$
size_t scan_spaced_letters(std::string_view text, size_t pos);   ///< \s?\p{L}+
size_t scan_spaced_marks(std::string_view text, size_t pos);     ///< \s?\p{P}+
size_t scan_deepseek_cased(std::string_view text, size_t pos);   ///< \s?\T{cased}+
size_t scan_deepseek_marks(std::string_view text, size_t pos);   ///< \s?\T{marks}+
size_t scan_deepseek_asian(std::string_view text, size_t pos);   ///< \T{asian}+
size_t scan_bloom(std::string_view text, size_t pos);            ///<  ?[^\s(|)\T{stops}]+
size_t scan_youtu_asian(std::string_view text, size_t pos);      ///< Hangul, marks, Bopomofo, CJK
size_t scan_afmoe_asian(std::string_view text, size_t pos);      ///< \T{unspaced}+
size_t scan_sentinel(std::string_view text, size_t pos);         ///< <sentinel:[0-9]+>
size_t scan_image_token(std::string_view text, size_t pos);      ///< IMGIMG[A-I]{1,4}Z
size_t scan_indent(std::string_view text, size_t pos);           ///< [\t\n]|four or two spaces
size_t scan_one_punctuation(std::string_view text, size_t pos);  ///< [\p{P}!-/:-@\[-`{-~]

/// Cuts that depend on how far a run of digits goes, so that matching at each position would not be
/// linear. Appends the consecutive words that together are `text`.
using CutFunction = void (*)(std::string_view text, std::vector<std::string_view>& out);
/// Runs of \p{N} in threes from the right, each a word.
void cut_numbers_in_threes(std::string_view text, std::vector<std::string_view>& out);
/// The same for runs of \d, unless a letter, mark or connector follows.
void cut_digits_in_threes(std::string_view text, std::vector<std::string_view>& out);
/// Only the cuts before the last three, six, … of a run of \d.
void cut_before_threes(std::string_view text, std::vector<std::string_view>& out);

struct CharRange {
  char32_t first, last;
};
/// A set that patterns call \T{name}: "cased", "marks", "asian", "stops", "hangul", "asian_marks",
/// "bopomofo", "cjk", "unspaced", "han". Empty for other names.
std::span<const CharRange> char_set(std::string_view name);

size_t scan_number(std::string_view text, size_t pos);              ///< \p{N}
size_t scan_numbers(std::string_view text, size_t pos);             ///< \p{N}+
size_t scan_three_numbers(std::string_view text, size_t pos);       ///< \p{N}{1,3}
size_t scan_three_digits(std::string_view text, size_t pos);        ///< [0-9][0-9][0-9]
size_t scan_punctuation(std::string_view text, size_t pos);         ///< [\p{P}$+<=>^~|]+
size_t scan_falcon_punctuation(std::string_view text, size_t pos);  ///< the same with `
size_t scan_deepseek3_cjk(std::string_view text, size_t pos);       ///< [一-龥぀-ゟ゠-ヿ]+

}  // namespace bm::models
