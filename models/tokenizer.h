#pragma once
// Text to token ids and back, with the vocabulary stored in a GGUF file, or in the tokenizer.json
// of a folder of Hugging Face.
//
// Models: "llama" (SentencePiece byte-pair merging by score), "t5" (SentencePiece unigram), "gpt2"
// (byte-level merging by rank after a pre-tokenizer), "bert" (WordPiece) and "rwkv" (the longest
// token). A model or pre-tokenizer that is not
// known here is refused, never replaced by a similar one. Time is O(n log n) in the text; no call
// recurses.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf.h"
#include "runtime/base/result.h"

namespace bm::models {

/// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
};

struct EncodeOptions {
  std::optional<bool> add_bos = std::nullopt;  ///< unset: as the model file says
  std::optional<bool> add_eos = std::nullopt;  ///< unset: as the model file says
  /// Text of control tokens ("<|im_end|>") becomes these tokens. Only for text that we wrote
  /// ourselves: a user could otherwise end the turn. User-defined tokens are always found.
  bool parse_special = false;
  /// With parse_special: a control token that has a byte in one of these ranges is plain text.
  /// Sorted, without overlaps; only for texts that are valid UTF-8.
  std::span<const TextRange> literal = {};
  /// The text goes on where another ended: no space is put before its first word.
  bool is_continuation = false;
};

struct DecodeOptions {
  bool render_special = false;  ///< control tokens appear as their text instead of nothing
  /// Drops the space that encode() puts before the first word. Off when decoding a continuation.
  bool strip_space_prefix = true;
};

/// Two texts in one list of tokens.
struct TokenPair {
  std::vector<int32_t> tokens;
  /// Where tokens of the second kind begin, for encoders that tell the two apart; behind the end:
  /// nowhere.
  size_t second = SIZE_MAX;
};

struct TokenizerParts;

/// Thread: immutable after construction; any number of threads may use one object.
class Tokenizer {
 public:
  /// Errors: kNotFound for missing keys; kCorrupt for wrong types, lengths or ids; kUnsupported
  /// naming a tokenizer model or pre-tokenizer.
  static Result<std::unique_ptr<Tokenizer>> from_gguf(const GgufFile& file);
  ~Tokenizer();

  /// Token ids of `text`. Bytes that are not UTF-8 become U+FFFD first.
  /// Errors: kInvalidArgument for texts over 64 MiB, add_bos/add_eos asked of a model without
  /// one, or `literal` of a text that is not UTF-8.
  Result<std::vector<int32_t>> encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;

  /// A prompt for what belongs between two texts: BOS where the model has it, the token "prefix",
  /// `before`, "suffix", `behind`, "middle". The texts are encoded without tokens around them.
  /// Errors: kUnsupported when the vocabulary has no such tokens.
  /// Source: llama.cpp, format_prompt_infill(); Bavarian et al., "Efficient training of language
  /// models to fill in the middle" (2022), "PSM".
  Result<std::vector<int32_t>> around_gap(std::span<const int32_t> before,
                                          std::span<const int32_t> behind) const;

  /// What comes before such a prompt: other files of a repository, with the tokens that the
  /// vocabulary has for that, else set apart by a line. Empty where it has none and there are no
  /// files. Source: llama.cpp, format_prompt_infill(); "Qwen2.5-Coder" (2024), section 3.2.
  struct File {
    std::string name, text;
  };
  Result<std::vector<int32_t>> before_gap(std::span<const File> files) const;

  /// Two texts as rerankers read them: as the template of a tokenizer.json says; else BOS, `first`,
  /// EOS, the separator where the file has it between texts, `second`, EOS; of these tokens the
  /// ones that the file has.
  /// Source: llama.cpp, format_prompt_rerank(); of "bert" models every text ends with [SEP], as in
  /// transformers, and the second is of the second kind.
  Result<TokenPair> encode_pair(std::string_view first, std::string_view second) const;

  /// Text of `tokens`; always valid UTF-8 (U+FFFD for broken bytes and for ids out of range).
  /// decode(encode(x)) == x for valid UTF-8, with these exceptions of the models themselves: a "▁"
  /// in the text of a SentencePiece model becomes a space, a user-defined token of one with a space
  /// prefix has a space behind it, and "t5" and "bert" models normalise.
  std::string decode(std::span<const int32_t> tokens, const DecodeOptions& options = {}) const;

  /// Bytes of one token, perhaps a part of a character; the text of control tokens; U+FFFD for an
  /// id out of range.
  std::string piece(int32_t token) const;

  size_t size() const;  ///< number of tokens; ids are 0 … size()−1
  int32_t bos() const;  ///< −1 when there is none; likewise the others
  int32_t eos() const;
  int32_t eot() const;  ///< end of turn
  int32_t unknown() const;
  bool adds_bos() const;
  bool adds_eos() const;
  bool is_special(int32_t token) const;  ///< control or unknown: no text of its own
  /// Whether generation stops at `token`: eos, eot, end of message, and their well-known names.
  bool is_end_of_generation(int32_t token) const;
  const std::string& model() const;  ///< "llama", "t5", "gpt2", "bert", "rwkv", "huggingface"
  const std::string& pre() const;    ///< pre-tokenizer name of a "gpt2" model, else empty

  /// Where control tokens stand in `text`: what parse_special would find, before `literal`. Of two
  /// that overlap the first, of two that begin alike the longest.
  std::vector<TextRange> find_control(std::string_view text) const;
  /// Length of the longest tail of `text` that begins the text of a control token without being
  /// one, and of the longest head that ends one.
  size_t control_tail(std::string_view text) const;
  size_t control_head(std::string_view text) const;

  /// Id of a token by its text as written in the file.
  std::optional<int32_t> find(std::string_view text) const;

 private:
  explicit Tokenizer(std::unique_ptr<TokenizerParts> parts);
  std::unique_ptr<TokenizerParts> parts_;
};

/// Turns tokens into text as they arrive and never emits a part of a character.
/// The tokenizer must outlive it. Thread: belongs to one stream.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool render_special = false)
      : tokenizer_(&tokenizer), render_special_(render_special) {}

  /// The text that `token` completes; may be empty.
  std::string push(int32_t token);
  /// U+FFFD when the stream ended inside a character, else empty; starts afresh.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
  bool render_special_;
};

}  // namespace bm::models
