#pragma once
// Splits a chat template into text and the tokens of its tags, with Jinja's rules of whitespace.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::models::jinja {

enum class TokenType : uint8_t {
  kText,           ///< outside of tags; whitespace control is done
  kVariableBegin,  ///< {{
  kVariableEnd,    ///< }}
  kBlockBegin,     ///< {%
  kBlockEnd,       ///< %}
  kName,
  kString,  ///< escapes are resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Position {
  uint32_t row = 1, column = 1;  ///< from 1; columns count code points
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;
  int64_t integer = 0;
  double number = 0;
  Position at;
};

/// "row 3, column 7", as errors name places.
std::string place(Position at);

/// Tokens of `source` (UTF-8), the last of which is kEnd. trim_blocks and lstrip_blocks are on and
/// one newline at the end is dropped, as Hugging Face's apply_chat_template has it. Errors:
/// kInvalidArgument naming row and column.
Result<std::vector<Token>> tokenize_template(std::string_view source);

}  // namespace bm::models::jinja
