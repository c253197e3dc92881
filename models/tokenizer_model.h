#pragma once
// The algorithms behind Tokenizer, each on a stretch of text without special tokens.

#include <memory>
#include <string_view>
#include <vector>

#include "models/gguf.h"
#include "models/tokenizer_vocab.h"

namespace bm::models {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the tokens of `text` (not empty, valid UTF-8). `starts_text` says that nothing, or a
  /// control or user-defined token, comes before: models with a space prefix put it here.
  virtual void encode(std::string_view text, bool starts_text, std::vector<int32_t>& out) const = 0;
  /// Models that look closer: `is_first` says that nothing comes before, `is_continued` that the
  /// text goes on where another ended.
  virtual void encode_at(std::string_view text, bool starts_text, [[maybe_unused]] bool is_first,
                         [[maybe_unused]] bool is_continued, std::vector<int32_t>& out) const {
    encode(text, starts_text, out);
  }
};

/// "▁", which stands for a space in SentencePiece vocabularies (U+2581).
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

// Each factory reads what the algorithm needs beside the vocabulary, fills in Token::bytes, and
// returns a model that refers to `vocab`, which must stay where it is.
// Errors: as Tokenizer::from_gguf().
Result<std::unique_ptr<TokenModel>> make_spm_model(const GgufFile& file, Vocab& vocab);
Result<std::unique_ptr<TokenModel>> make_unigram_model(const GgufFile& file, Vocab& vocab);
Result<std::unique_ptr<TokenModel>> make_bpe_model(const GgufFile& file, Vocab& vocab,
                                                   std::string_view pre);
/// DNA between "<dna>" and "</dna>" is cut in sixes, all else as by make_bpe_model().
Result<std::unique_ptr<TokenModel>> make_dna_model(const GgufFile& file, Vocab& vocab,
                                                   std::string_view pre);
/// What merges of characters join.
enum class CharacterRuns : uint8_t {
  kLines,        ///< spaces are marks; lines, and runs of line feeds
  kMarkedWords,  ///< likewise; a mark begins a word
  kWords,        ///< runs without white space, which is dropped
};
Result<std::unique_ptr<TokenModel>> make_character_bpe_model(const GgufFile& file, Vocab& vocab,
                                                             CharacterRuns runs);
/// `cuts_first`: PLaMo 3, which cuts texts at markers and long runs before.
Result<std::unique_ptr<TokenModel>> make_plamo_model(const GgufFile& file, Vocab& vocab,
                                                     bool cuts_first);
Result<std::unique_ptr<TokenModel>> make_wordpiece_model(const GgufFile& file, Vocab& vocab);
Result<std::unique_ptr<TokenModel>> make_rwkv_model(const GgufFile& file, Vocab& vocab);

/// Token::bytes of a SentencePiece vocabulary: marks become spaces, byte tokens their byte.
void fill_sentencepiece_bytes(Vocab& vocab);

}  // namespace bm::models
