#include "models/tokenizer_vocab.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "models/model_error.h"

namespace bm::models {
namespace {

// Longer "tokens" exist in no vocabulary; the bound keeps the work per character bounded too.
constexpr size_t kMaxTokenBytes = 1024;

Result<int32_t> token_id(const GgufFile& file, const char* key, int32_t fallback, size_t count) {
  if (file.find(key) == nullptr)
    return fallback >= 0 && static_cast<size_t>(fallback) < count ? fallback : -1;
  const int32_t id = BM_TRY(file.get_i32(key));
  if (id < 0 || static_cast<size_t>(id) >= count)
    return fail(Code::kCorrupt, "metadata key {}: token id {} in a vocabulary of {}",
                quote_name(key), id, count);
  return id;
}

Status load_types(const GgufFile& file, Vocab& vocab) {
  constexpr const char* kKey = "tokenizer.ggml.token_type";
  if (file.find(kKey) == nullptr) return {};
  const std::vector<int32_t> types = BM_TRY(file.get_i32s(kKey));
  if (types.size() != vocab.tokens.size())
    return fail(Code::kCorrupt, "{} has {} elements for {} tokens", kKey, types.size(),
                vocab.tokens.size());
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] < 0 || types[i] > static_cast<int32_t>(TokenType::kByte))
      return fail(Code::kCorrupt, "{}: token {} has type {}, which does not exist", kKey, i,
                  types[i]);
    vocab.tokens[i].type = static_cast<TokenType>(types[i]);
  }
  return {};
}

Status load_scores(const GgufFile& file, Vocab& vocab) {
  constexpr const char* kKey = "tokenizer.ggml.scores";
  const std::vector<float> scores = BM_TRY(file.get_f32s(kKey));
  if (scores.size() != vocab.tokens.size())
    return fail(Code::kCorrupt, "{} has {} elements for {} tokens", kKey, scores.size(),
                vocab.tokens.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    // NaN would leave the order of merges undefined.
    if (!std::isfinite(scores[i]))
      return fail(Code::kCorrupt, "{}: the score of token {} is {}", kKey, i, scores[i]);
    vocab.tokens[i].score = scores[i];
  }
  return {};
}

bool is_plain(TokenType type) {
  switch (type) {
    case TokenType::kUndefined:
    case TokenType::kNormal:
    case TokenType::kUserDefined:
    case TokenType::kUnused: return true;
    case TokenType::kUnknown:
    case TokenType::kControl:
    case TokenType::kByte: return false;
  }
  __builtin_unreachable();
}

/// What ends or begins a text must not be written by whoever writes a part of it. Files call such
/// tokens user-defined, or even normal, when their converter did not know the role; a word of the
/// language with a role ("\n" as the end) stays one.
void mark_control_tokens(Vocab& vocab, bool is_sentencepiece) {
  const auto is_marker = [](const Token& t) {
    return t.type == TokenType::kUserDefined || (t.text.starts_with('<') && t.text.ends_with('>'));
  };
  const auto mark = [](Token& t) {
    if (is_plain(t.type)) t.type = TokenType::kControl;
  };
  for (const int32_t id : {vocab.bos, vocab.eos, vocab.eot, vocab.eom})
    if (vocab.is_valid(id) && is_marker(vocab.at(id))) mark(vocab.tokens[static_cast<size_t>(id)]);
  for (Token& t : vocab.tokens)
    if (std::find(std::begin(kEndNames), std::end(kEndNames), t.text) != std::end(kEndNames))
      mark(t);
  if (!is_sentencepiece) return;
  // SentencePiece's own; Phi-3 calls the second user-defined.
  for (Token& t : vocab.tokens)
    if (t.text == "<s>" || t.text == "</s>") mark(t);
}

/// White space after a marker is the chat format's, not the text's. Files do not say so; the
/// tokenizer of Phi-3 does. Source: its tokenizer.json, "added_tokens", "rstrip"; the names as in
/// llama.cpp, llama-vocab.cpp, llama_vocab::impl::load().
void mark_stripping_tokens(const GgufFile& file, Vocab& vocab) {
  const auto text_of = [&](const char* key) {
    auto text = file.get_string(key, "");
    return text ? std::string(*text) : std::string();
  };
  std::string name = text_of("general.name");
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto is_named = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (text_of("general.architecture") != "phi3" && !is_named("phi-3") && !is_named("phi3") &&
      !is_named("phi 3"))
    return;
  for (Token& t : vocab.tokens)
    t.strips_right = (t.type == TokenType::kControl || t.type == TokenType::kUserDefined) &&
                     t.text != "<s>" && t.text != "<|endoftext|>";
}

Status index_tokens(Vocab& vocab) {
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    const Token& token = vocab.tokens[i];
    const auto id = static_cast<int32_t>(i);
    if (token.text.size() > kMaxTokenBytes)
      return fail(Code::kCorrupt, "token {} is {} bytes long (at most {} allowed)", i,
                  token.text.size(), kMaxTokenBytes);
    if (token.type == TokenType::kByte) {
      const std::optional<uint8_t> byte = parse_byte_token(token.text);
      if (!byte)
        return fail(Code::kCorrupt, "token {} has type \"byte\" but text {}", i,
                    quote_name(token.text));
      vocab.byte_tokens[*byte] = id;
    }
    if (token.text.empty()) continue;  // fillers; nothing can match them
    if (is_plain(token.type)) {
      vocab.by_text.insert_or_assign(token.text, id);  // of equal texts the last wins, as in ggml
      vocab.longest = std::max(vocab.longest, token.text.size());
    } else {
      vocab.special_by_text.insert_or_assign(token.text, id);
    }
  }
  return {};
}

Status load_roles(const GgufFile& file, const VocabDefaults& defaults, Vocab& vocab) {
  const size_t count = vocab.tokens.size();
  vocab.bos = BM_TRY(token_id(file, "tokenizer.ggml.bos_token_id", defaults.bos, count));
  vocab.eos = BM_TRY(token_id(file, defaults.eos_key, defaults.eos, count));
  vocab.unknown =
      BM_TRY(token_id(file, "tokenizer.ggml.unknown_token_id", defaults.unknown, count));
  vocab.eot = BM_TRY(token_id(file, "tokenizer.ggml.eot_token_id", -1, count));
  vocab.eom = BM_TRY(token_id(file, "tokenizer.ggml.eom_token_id", -1, count));
  // Of a role the newer name, then that of older files (Code Llama's).
  constexpr std::pair<FillRole, const char*> kFillKeys[] = {
      {FillRole::kPrefix, "tokenizer.ggml.fim_pre_token_id"},
      {FillRole::kPrefix, "tokenizer.ggml.prefix_token_id"},
      {FillRole::kSuffix, "tokenizer.ggml.fim_suf_token_id"},
      {FillRole::kSuffix, "tokenizer.ggml.suffix_token_id"},
      {FillRole::kMiddle, "tokenizer.ggml.fim_mid_token_id"},
      {FillRole::kMiddle, "tokenizer.ggml.middle_token_id"},
      {FillRole::kPad, "tokenizer.ggml.fim_pad_token_id"},
      {FillRole::kRepository, "tokenizer.ggml.fim_rep_token_id"},
      {FillRole::kSeparator, "tokenizer.ggml.fim_sep_token_id"}};
  for (const auto& [role, key] : kFillKeys) {
    int32_t& id = vocab.fill[static_cast<size_t>(role)];
    if (id < 0) id = BM_TRY(token_id(file, key, -1, count));
  }
  vocab.add_bos =
      BM_TRY(file.get_bool("tokenizer.ggml.add_bos_token", defaults.add_bos && vocab.bos >= 0));
  if (BM_TRY(file.get_bool("tokenizer.ggml.add_sep_token", defaults.add_separator)))
    vocab.separator = BM_TRY(token_id(file, "tokenizer.ggml.seperator_token_id", -1, count));
  vocab.add_eos =
      BM_TRY(file.get_bool("tokenizer.ggml.add_eos_token", defaults.add_eos && vocab.eos >= 0));
  vocab.add_space_prefix =
      BM_TRY(file.get_bool("tokenizer.ggml.add_space_prefix", defaults.add_space_prefix));
  if (vocab.add_bos && vocab.bos < 0)
    return fail(Code::kCorrupt, "the tokenizer adds a BOS token but names none");
  if (vocab.add_eos && vocab.eos < 0)
    return fail(Code::kCorrupt, "the tokenizer adds an EOS token but names none");
  return {};
}

}  // namespace

std::optional<uint8_t> parse_byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  uint8_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, value, 16);
  if (error != std::errc() || end != text.data() + 5) return std::nullopt;
  return value;
}

std::optional<int32_t> Vocab::find(std::string_view text) const {
  if (const auto found = by_text.find(text); found != by_text.end()) return found->second;
  if (const auto found = special_by_text.find(text); found != special_by_text.end())
    return found->second;
  return std::nullopt;
}

Result<Vocab> load_vocab(const GgufFile& file, const VocabDefaults& defaults, bool needs_scores) {
  const auto texts = BM_TRY(file.get_strings("tokenizer.ggml.tokens"));
  if (texts.empty() || texts.size() > INT32_MAX)
    return fail(Code::kCorrupt, "a vocabulary of {} tokens", texts.size());
  Vocab vocab;
  vocab.byte_tokens.fill(-1);
  vocab.tokens.resize(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) vocab.tokens[i].text = texts[i];
  BM_TRY(load_types(file, vocab));
  if (needs_scores) BM_TRY(load_scores(file, vocab));
  BM_TRY(load_roles(file, defaults, vocab));
  mark_control_tokens(vocab, needs_scores);
  if (needs_scores) mark_stripping_tokens(file, vocab);
  BM_TRY(index_tokens(vocab));
  return vocab;
}

void append_byte_fallback(const Vocab& vocab, std::string_view bytes, std::vector<int32_t>& out) {
  const size_t start = out.size();
  for (const char c : bytes) {
    const int32_t id = vocab.byte_tokens[static_cast<uint8_t>(c)];
    if (id < 0) {
      out.resize(start);
      if (vocab.unknown >= 0) out.push_back(vocab.unknown);
      return;
    }
    out.push_back(id);
  }
}

bool can_express_all_bytes(const Vocab& vocab) {
  if (vocab.unknown >= 0) return true;
  for (size_t b = 0; b < 256; ++b) {
    const bool occurs = b != 0xC0 && b != 0xC1 && b < 0xF5;  // in valid UTF-8
    if (occurs && vocab.byte_tokens[b] < 0) return false;
  }
  return true;
}

}  // namespace bm::models
