#pragma once
// Pre-tokenizers: cutting a text into words before byte-level merging, by the pattern that the
// model was trained with (tokenizer.ggml.pre).

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::models {

struct SplitPreset;

/// Which engine finds the words. Both give the same words; the tests compare them.
enum class SplitEngine : uint8_t {
  kRegex,    ///< PCRE2 with limits, scanner where a limit is hit
  kScanner,  ///< hand-written and linear
};

/// Thread: immutable; any number of threads may split.
class Splitter {
 public:
  /// Errors: kUnsupported naming a pre-tokenizer that is not known.
  static Result<Splitter> create(std::string_view pre);
  Splitter(Splitter&&) noexcept;
  ~Splitter();

  /// Consecutive words that together are `text` (valid UTF-8).
  std::vector<std::string_view> split(std::string_view text,
                                      SplitEngine engine = SplitEngine::kRegex) const;

  bool ignores_merges() const;  ///< a word that is itself a token is taken whole
  bool adds_bos() const;        ///< default of the add_bos flag

  /// All names that create() accepts.
  static std::vector<std::string> known_names();

 private:
  struct Stage;
  Splitter();
  std::vector<Stage> stages_;
  const SplitPreset* preset_ = nullptr;
};

}  // namespace bm::models
