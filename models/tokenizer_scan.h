#pragma once
// Hand-written linear matchers for the pre-tokenizer patterns of tokenizer_split.cpp. Each gives
// the length of the match that its pattern has exactly at `pos`, or 0, and looks at no byte twice
// more than a constant number of times.

#include <cstddef>
#include <string_view>

namespace bm::models {

using ScanFunction = size_t (*)(std::string_view text, size_t pos);

size_t scan_gpt2(std::string_view text, size_t pos);
size_t scan_llama3(std::string_view text, size_t pos);
size_t scan_qwen2(std::string_view text, size_t pos);
size_t scan_qwen35(std::string_view text, size_t pos);
size_t scan_tekken(std::string_view text, size_t pos);
size_t scan_gpt4o(std::string_view text, size_t pos);
size_t scan_deepseek3(std::string_view text, size_t pos);

size_t scan_number(std::string_view text, size_t pos);              ///< \p{N}
size_t scan_numbers(std::string_view text, size_t pos);             ///< \p{N}+
size_t scan_three_numbers(std::string_view text, size_t pos);       ///< \p{N}{1,3}
size_t scan_three_digits(std::string_view text, size_t pos);        ///< [0-9][0-9][0-9]
size_t scan_punctuation(std::string_view text, size_t pos);         ///< [\p{P}$+<=>^~|]+
size_t scan_falcon_punctuation(std::string_view text, size_t pos);  ///< the same with `
size_t scan_deepseek3_cjk(std::string_view text, size_t pos);       ///< [一-龥぀-ゟ゠-ヿ]+

}  // namespace bm::models
