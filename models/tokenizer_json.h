#pragma once
// Tokenizers of Hugging Face (tokenizer.json), as the library "tokenizers" runs them.
//
// Source of the format and of what each part does: huggingface/tokenizers, src/normalizers,
// pre_tokenizers, models, processors, decoders.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer_model.h"

namespace bm::models {

/// Where a stretch of text without special tokens stands.
struct TextPlace {
  bool is_first = true;       ///< nothing comes before it, no special token either
  bool is_continued = false;  ///< it goes on where another text ended: nothing is put before it
};

struct TextStep;

/// The normalizer and the pre-tokenizer: a text becomes words.
/// Thread: immutable; any number of threads may use one object.
class TextSteps {
 public:
  TextSteps();
  TextSteps(TextSteps&&) noexcept;
  TextSteps& operator=(TextSteps&&) noexcept;
  ~TextSteps();

  /// Either may be null. Errors: kCorrupt; kUnsupported naming a step that is not known.
  Status add_normalizer(const nlohmann::json& from);
  Status add_pre_tokenizer(const nlohmann::json& from);

  std::vector<std::string> run(std::string_view text, const TextPlace& place) const;
  /// Words are spelled in the byte alphabet.
  bool is_byte_level() const { return is_byte_level_; }
  /// A space or a mark is put before a text that has none.
  bool puts_space() const { return puts_space_; }

 private:
  Status add(const nlohmann::json& from, bool is_normalizer, int depth);
  std::vector<std::unique_ptr<const TextStep>> steps_;
  bool is_byte_level_ = false, puts_space_ = false;
};

/// Fills in `vocab`, which must stay where it is, from the tokenizer.json that the model file
/// carries (tokenizer.huggingface.json). `ends`: tokens that end a text, where the file says so.
/// Errors: kCorrupt naming what is wrong; kUnsupported naming what is not done.
Result<std::unique_ptr<TokenModel>> make_json_model(const GgufFile& file, Vocab& vocab,
                                                    std::vector<int32_t>* ends);

}  // namespace bm::models
