#pragma once
// The vocabulary as stored in a model file: texts, scores, types and the ids with a role.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/gguf.h"

namespace bm::models {

/// Numbers of tokenizer.ggml.token_type. Source: llama.cpp, llama.h, enum llama_token_type.
enum class TokenType : uint8_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

/// Ends of a turn or message in the chat formats of Llama 3, ChatML, Gemma, GPT-2, DeepSeek and
/// others, for files that name only one of them.
inline constexpr std::string_view kEndNames[] = {
    "<|eot_id|>",    "<|eom_id|>",    "<|im_end|>",     "<|end_of_text|>",
    "<|endoftext|>", "<end_of_turn>", "<|endofturn|>",  "<｜end▁of▁sentence｜>",
    "<EOT>",         "<|return|>",    "<|ifm|im_end|>",
};

/// Roles of tokens that stand around the texts before and behind a gap to be filled, and of those
/// that end such a text.
enum class FillRole : uint8_t { kPrefix, kSuffix, kMiddle, kPad, kRepository, kSeparator };
inline constexpr size_t kFillRoles = 6;

/// Texts of these tokens in files that do not name them. Source: the model cards of Qwen 2.5 Coder,
/// StarCoder, Granite, DeepSeek Coder, Code Llama and GLM 4; llama.cpp, llama_vocab::impl::load().
inline constexpr std::pair<FillRole, std::string_view> kFillNames[] = {
    {FillRole::kPrefix, "<|fim_prefix|>"},
    {FillRole::kPrefix, "<fim-prefix>"},
    {FillRole::kPrefix, "<fim_prefix>"},
    {FillRole::kPrefix, "<｜fim▁begin｜>"},
    {FillRole::kPrefix, "<PRE>"},
    {FillRole::kPrefix, "▁<PRE>"},
    {FillRole::kPrefix, "<|code_prefix|>"},
    {FillRole::kPrefix, "<|plamo:fim_prefix|>"},
    {FillRole::kSuffix, "<|fim_suffix|>"},
    {FillRole::kSuffix, "<fim-suffix>"},
    {FillRole::kSuffix, "<fim_suffix>"},
    {FillRole::kSuffix, "<｜fim▁hole｜>"},
    {FillRole::kSuffix, "<SUF>"},
    {FillRole::kSuffix, "▁<SUF>"},
    {FillRole::kSuffix, "<|code_suffix|>"},
    {FillRole::kSuffix, "<|plamo:fim_suffix|>"},
    {FillRole::kMiddle, "<|fim_middle|>"},
    {FillRole::kMiddle, "<fim-middle>"},
    {FillRole::kMiddle, "<fim_middle>"},
    {FillRole::kMiddle, "<｜fim▁end｜>"},
    {FillRole::kMiddle, "<MID>"},
    {FillRole::kMiddle, "▁<MID>"},
    {FillRole::kMiddle, "<|code_middle|>"},
    {FillRole::kMiddle, "<|plamo:fim_middle|>"},
    {FillRole::kPad, "<|fim_pad|>"},
    {FillRole::kPad, "<fim-pad>"},
    {FillRole::kPad, "<fim_pad>"},
    {FillRole::kRepository, "<|fim_repo|>"},
    {FillRole::kRepository, "<|repo_name|>"},
    {FillRole::kRepository, "<fim-repo>"},
    {FillRole::kRepository, "<reponame>"},
    {FillRole::kSeparator, "<|file_sep|>"},
    {FillRole::kSeparator, "<|plamo:file_separator|>"},
};

struct Token {
  std::string text;   ///< as in the file
  std::string bytes;  ///< what it stands for in the output; for control tokens the text
  float score = 0;
  TokenType type = TokenType::kNormal;
  bool strips_right = false;  ///< white space of a text that follows it is dropped
  bool strips_left = false;   ///< likewise before it
};

/// What a tokenizer model does when the file does not say.
struct VocabDefaults {
  bool add_bos = false, add_eos = false, add_space_prefix = false;
  int32_t bos = -1, eos = -1, unknown = -1;
  const char* eos_key = "tokenizer.ggml.eos_token_id";
  bool add_separator = false;
};

/// A place in what two texts become together: a token, or a text.
struct PairPlace {
  int32_t token = -1;      ///< −1: a text
  bool is_second = false;  ///< which
  uint32_t kind = 0;       ///< of token that an encoder adds there
};

struct Vocab {
  std::vector<Token> tokens;
  /// Text → id of what plain text may become: never control, unknown or byte tokens, so that a
  /// prompt cannot smuggle them in. Keys view tokens[id].text.
  std::unordered_map<std::string_view, int32_t> by_text;
  std::unordered_map<std::string_view, int32_t> special_by_text;  ///< all the others
  std::array<int32_t, 256> byte_tokens;                           ///< −1 where there is none
  int32_t bos = -1, eos = -1, unknown = -1, eot = -1, eom = -1;
  std::array<int32_t, kFillRoles> fill = {-1, -1, -1, -1, -1, -1};  ///< by FillRole
  int32_t separator = -1;       ///< stands between two texts besides EOS; −1: none does
  std::vector<PairPlace> pair;  ///< of a tokenizer.json that says it; empty: by the tokens above
  bool add_bos = false, add_eos = false, add_space_prefix = false;
  size_t longest = 0;  ///< bytes of the longest text in by_text

  bool is_valid(int64_t id) const { return id >= 0 && static_cast<uint64_t>(id) < tokens.size(); }
  const Token& at(int32_t id) const { return tokens[static_cast<size_t>(id)]; }
  std::optional<int32_t> find(std::string_view text) const;
};

/// Reads the tokenizer.ggml.* keys. Token::bytes is left empty: the models fill it in.
/// Errors: kNotFound, kCorrupt naming the key and the token.
Result<Vocab> load_vocab(const GgufFile& file, const VocabDefaults& defaults, bool needs_scores);

/// Value of "<0x41>", in exactly this form.
std::optional<uint8_t> parse_byte_token(std::string_view text);

/// Appends the byte tokens of `bytes`, or the unknown token once where some byte has none.
void append_byte_fallback(const Vocab& vocab, std::string_view bytes, std::vector<int32_t>& out);

/// Whether append_byte_fallback() has an answer for every byte of valid UTF-8.
bool can_express_all_bytes(const Vocab& vocab);

}  // namespace bm::models
