#pragma once
// Words, literals and punctuation of PTX text.

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::sim::ptx {

struct Token {
  /// A word keeps its dots: `ld.global.v2.f32`, `.reg`, `%tid.x`.
  enum class Kind : uint8_t { kWord, kInteger, kFloat32, kFloat64, kString, kPunctuation, kEnd };
  Kind kind = Kind::kEnd;
  std::string_view text;
  uint64_t bits = 0;  ///< literals
  uint32_t line = 1;
};

/// The last token is kEnd. Errors: kCompile with the line.
Result<std::vector<Token>> tokens_of(std::string_view text);

}  // namespace bm::sim::ptx
