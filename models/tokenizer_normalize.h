#pragma once
// Text normalisation of SentencePiece unigram models: replacement rules compiled into the file.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::models {

/// The "precompiled charsmap": a double-array trie from source texts to replacements.
/// Source: google/sentencepiece, normalizer.cc and third_party/darts_clone (unit layout).
class CharsMap {
 public:
  CharsMap() = default;  ///< replaces nothing
  /// Errors: kCorrupt when the sizes in `blob` do not fit.
  static Result<CharsMap> parse(std::span<const std::byte> blob);

  /// `text` with every longest matching source replaced. Never reads outside the blob: a rule that
  /// points outside of it does not apply.
  std::string apply(std::string_view text) const;

 private:
  struct Match {
    size_t length = 0;
    uint32_t replacement = 0;
  };
  Match longest_match(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // NUL-terminated one after the other; ends with NUL
};

}  // namespace bm::models
