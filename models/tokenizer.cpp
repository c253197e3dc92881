#include "models/tokenizer.h"

#include <algorithm>
#include <optional>

#include "models/model_error.h"
#include "models/tokenizer_json.h"
#include "models/tokenizer_model.h"
#include "models/tokenizer_split.h"
#include "models/tokenizer_trie.h"
#include "models/tokenizer_vocab.h"
#include "models/unicode.h"
#include "runtime/base/out_of_memory.h"

namespace bm::models {

struct TokenizerParts {
  std::string model, pre;
  Vocab vocab;
  ByteTrie specials;  ///< control, unknown and user-defined tokens, found before anything else
  std::vector<int32_t> controls;  ///< control and unknown tokens
  std::vector<int32_t> end_tokens;
  std::unique_ptr<TokenModel> algorithm;
  bool has_nfc = false;  ///< texts between special tokens are put into normal form C
};

namespace {

constexpr size_t kMaxTextBytes = 64u << 20;
// Special tokens are searched at every position of the text.
constexpr size_t kMaxSpecialBytes = 256;
constexpr std::string_view kReplacement = "\xef\xbf\xbd";

Status check_pre_key(std::string_view pre) {
  if (!pre.empty()) return {};
  return fail(
      Code::kUnsupported,
      "tokenizer.ggml.pre is missing: the file does not say how its text is cut into words; "
      "convert the model again with a current converter");
}

/// Names of tokenizer.ggml.pre whose merges join characters, not bytes: files of these say "gpt2",
/// and are cut as Gemma 4's. Source: llama.cpp, src/llama-vocab.cpp.
constexpr std::string_view kCharacterPres[] = {"gemma4", "granite-embed-multi-311m", "mmbert",
                                               "sarvam-moe"};

Result<VocabDefaults> defaults_for(const std::string& model, const std::string& pre) {
  // Ids 0 to 2 are SentencePiece's own; see llama.cpp, llama_vocab::impl::load().
  if (model == "llama")
    return VocabDefaults{
        .add_bos = true, .add_space_prefix = true, .bos = 1, .eos = 2, .unknown = 0};
  if (model == "t5")
    return VocabDefaults{.add_eos = true, .add_space_prefix = true, .eos = 1, .unknown = 2};
  if (model == "gpt2" || model == "hybriddna") {
    BM_TRY(check_pre_key(pre));
    const bool is_roberta = pre == "jina-v1-en" || pre == "jina-v2-code" || pre == "roberta-bpe";
    return VocabDefaults{.add_bos = BM_TRY(Splitter::create(pre)).adds_bos(),
                         .add_separator = is_roberta};
  }
  // [UNK], [CLS] and [SEP] of the original BERT, which stand around every text.
  if (model == "bert")
    return VocabDefaults{.add_bos = true,
                         .add_eos = true,
                         .add_space_prefix = true,
                         .bos = 101,
                         .eos = 102,
                         .unknown = 100,
                         .eos_key = "tokenizer.ggml.seperator_token_id"};
  if (model == "rwkv") return VocabDefaults{};
  if (model == "plamo2" || model == "plamo3")
    return VocabDefaults{.bos = 1, .eos = 2, .unknown = 0};
  if (model == "whitespace") return VocabDefaults{};
  if (model == "gemma4") return VocabDefaults{.add_bos = pre != "sarvam-moe" && pre != "mmbert"};
  return fail(Code::kUnsupported, "tokenizer.ggml.model {} is not supported", quote_name(model));
}

Result<std::unique_ptr<TokenModel>> make_model(const GgufFile& file, TokenizerParts& parts) {
  if (parts.model == "llama") return make_spm_model(file, parts.vocab);
  if (parts.model == "t5") return make_unigram_model(file, parts.vocab);
  if (parts.model == "bert") return make_wordpiece_model(file, parts.vocab);
  if (parts.model == "rwkv") return make_rwkv_model(file, parts.vocab);
  if (parts.model == "gemma4")
    return make_character_bpe_model(
        file, parts.vocab,
        parts.pre == "mmbert" ? CharacterRuns::kMarkedWords : CharacterRuns::kLines);
  if (parts.model == "whitespace")
    return make_character_bpe_model(file, parts.vocab, CharacterRuns::kWords);
  if (parts.model.starts_with("plamo"))
    return make_plamo_model(file, parts.vocab, parts.model == "plamo3");
  if (parts.model == "hybriddna") return make_dna_model(file, parts.vocab, parts.pre);
  return make_bpe_model(file, parts.vocab, parts.pre);
}

bool has_scores(std::string_view model) {
  return model == "llama" || model == "t5" || model == "plamo2" || model == "plamo3";
}

Status index_specials(TokenizerParts& parts) {
  const Vocab& vocab = parts.vocab;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    const Token& token = vocab.tokens[i];
    const bool is_special = token.type == TokenType::kControl ||
                            token.type == TokenType::kUnknown ||
                            token.type == TokenType::kUserDefined;
    if (!is_special || token.text.empty()) continue;
    if (token.text.size() > kMaxSpecialBytes)
      return fail(Code::kUnsupported, "special token {} has {} bytes (at most {} supported)", i,
                  token.text.size(), kMaxSpecialBytes);
    // The text of a user-defined token is searched as it appears in texts: with spaces for marks.
    // A tokenizer.json makes marks of spaces later.
    parts.specials.insert(parts.model == "huggingface" ? token.text : token.bytes,
                          static_cast<int32_t>(i));
    if (token.type != TokenType::kUserDefined) parts.controls.push_back(static_cast<int32_t>(i));
  }
  return {};
}

void collect_end_tokens(TokenizerParts& parts) {
  Vocab& vocab = parts.vocab;
  for (const std::string_view name : kEndNames) {
    const std::optional<int32_t> id = vocab.find(name);
    if (!id) continue;
    parts.end_tokens.push_back(*id);
    const bool ends_turn = name == "<|eot_id|>" || name == "<|im_end|>" ||
                           name == "<end_of_turn>" || name == "<EOT>" || name == "<|endofturn|>";
    if (vocab.eot < 0 && ends_turn) vocab.eot = *id;
  }
  for (const auto& [role, name] : kFillNames) {
    int32_t& id = vocab.fill[static_cast<size_t>(role)];
    if (id < 0) id = vocab.find(name).value_or(-1);
  }
  const auto fill = [&](FillRole role) { return vocab.fill[static_cast<size_t>(role)]; };
  // Another file, or none, after a gap that is filled. Source: llama.cpp, as kFillNames.
  for (const int32_t id : {vocab.eos, vocab.eot, vocab.eom, fill(FillRole::kPad),
                           fill(FillRole::kRepository), fill(FillRole::kSeparator)})
    if (id >= 0) parts.end_tokens.push_back(id);
  std::sort(parts.end_tokens.begin(), parts.end_tokens.end());
}

struct SpecialMatch {
  size_t length = 0;
  int32_t token = -1;
};

/// Whether [begin, end) has a byte in common with one of the sorted `ranges`.
bool overlaps(std::span<const TextRange> ranges, size_t begin, size_t end) {
  const auto first = std::partition_point(ranges.begin(), ranges.end(),
                                          [&](const TextRange& r) { return r.end <= begin; });
  return first != ranges.end() && first->begin < end;
}

/// The longest special token at `pos`; control tokens only with `parse_special`, outside `literal`.
SpecialMatch special_at(const TokenizerParts& parts, std::string_view text, size_t pos,
                        const EncodeOptions& options) {
  SpecialMatch match;
  parts.specials.prefixes(text, pos, [&](size_t length, int32_t token) {
    const bool is_allowed =
        parts.vocab.at(token).type == TokenType::kUserDefined ||
        (options.parse_special && !overlaps(options.literal, pos, pos + length));
    if (is_allowed) match = {length, token};
  });
  return match;
}

size_t skip_space(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    const CodePoint c = decode_utf8(text, pos);
    if ((char_classes(c.value) & kSpace) == 0) break;
    pos += c.length;
  }
  return pos;
}

/// The end of [begin, end) without the white space it ends in.
size_t end_without_space(std::string_view text, size_t begin, size_t end) {
  size_t kept = begin;
  for (size_t pos = begin; pos < end;) {
    const CodePoint c = decode_utf8(text, pos);
    pos += c.length;
    if ((char_classes(c.value) & kSpace) == 0) kept = pos;
  }
  return kept;
}

void encode_text(const TokenizerParts& parts, std::string_view text, const EncodeOptions& options,
                 std::vector<int32_t>& out) {
  size_t begin = 0;  // of the stretch without special tokens
  // Nothing before `begin`'s stretch, or a token that was found as a whole: what follows is a text
  // of its own for llama.cpp and for huggingface/tokenizers, be that token special or not.
  bool starts_text = !options.is_continuation;
  const auto flush = [&](size_t end) {
    if (begin >= end) return;
    std::string_view part = text.substr(begin, end - begin);
    std::string normal;
    if (parts.has_nfc) part = normal = normal_form(part, true, false);
    parts.algorithm->encode_at(part, starts_text, begin == 0, begin == 0 && options.is_continuation,
                               out);
  };
  for (size_t pos = 0; pos < text.size();) {
    const SpecialMatch match = special_at(parts, text, pos, options);
    if (match.length == 0) {
      ++pos;
      continue;
    }
    flush(parts.vocab.at(match.token).strips_left ? end_without_space(text, begin, pos) : pos);
    out.push_back(match.token);
    starts_text = true;
    begin = pos += match.length;
    if (parts.vocab.at(match.token).strips_right) begin = pos = skip_space(text, pos);
  }
  flush(text.size());
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_gguf(const GgufFile& file) {
  return guard_memory("loading the tokenizer", [&]() -> Result<std::unique_ptr<Tokenizer>> {
    auto parts = std::make_unique<TokenizerParts>();
    if (file.find("tokenizer.ggml.model") == nullptr &&
        file.find("tokenizer.huggingface.json") != nullptr) {
      parts->model = "huggingface";
      parts->algorithm = BM_TRY(make_json_model(file, parts->vocab, &parts->end_tokens));
      BM_TRY(index_specials(*parts));
      collect_end_tokens(*parts);
      return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
    }
    if (file.find("bellmetal.missing_tokenizer") != nullptr)
      return fail(
          Code::kNotFound,
          "{} is missing: it is what a folder's tokenizer is read from (tokenizer.model and "
          "vocab.json are not)",
          BM_TRY(file.get_string("bellmetal.missing_tokenizer")));
    parts->model = BM_TRY(file.get_string("tokenizer.ggml.model"));
    if (parts->model == "gpt2" || parts->model == "hybriddna" || parts->model == "whitespace")
      parts->pre = BM_TRY(file.get_string("tokenizer.ggml.pre", ""));
    if (parts->pre == "whitespace") {
      parts->model = "whitespace";
    } else if (parts->model == "whitespace") {
      return fail(Code::kUnsupported,
                  "tokenizer.ggml.model \"whitespace\" with tokenizer.ggml.pre {}: only "
                  "\"whitespace\" is supported",
                  quote_name(parts->pre));
    }
    if (std::ranges::find(kCharacterPres, parts->pre) != std::end(kCharacterPres))
      parts->model = "gemma4";
    const VocabDefaults defaults = BM_TRY(defaults_for(parts->model, parts->pre));
    parts->vocab = BM_TRY(load_vocab(file, defaults, has_scores(parts->model)));
    parts->algorithm = BM_TRY(make_model(file, *parts));
    // Source: llama.cpp, src/llama-vocab.cpp: of byte-level models.
    if (parts->model == "gpt2")
      parts->has_nfc = BM_TRY(file.get_bool("tokenizer.ggml.normalizer.nfc", false));
    BM_TRY(index_specials(*parts));
    collect_end_tokens(*parts);
    return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
  });
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  return guard_memory("encoding a text", [&]() -> Result<std::vector<int32_t>> {
    const Vocab& vocab = parts_->vocab;
    const bool add_bos = options.add_bos.value_or(vocab.add_bos);
    const bool add_eos = options.add_eos.value_or(vocab.add_eos);
    if ((add_bos && vocab.bos < 0) || (add_eos && vocab.eos < 0))
      return fail(Code::kInvalidArgument, "the vocabulary has no {} token",
                  add_bos && vocab.bos < 0 ? "BOS" : "EOS");
    if (text.size() > kMaxTextBytes)
      return fail(Code::kInvalidArgument, "text of {} bytes (at most {} allowed)", text.size(),
                  kMaxTextBytes);
    std::vector<int32_t> out;
    if (add_bos) out.push_back(vocab.bos);
    const bool is_valid = is_valid_utf8(text);
    if (!is_valid && !options.literal.empty())
      return fail(Code::kInvalidArgument, "a text with literal ranges is not UTF-8");
    if (is_valid)
      encode_text(*parts_, text, options, out);
    else
      encode_text(*parts_, sanitize_utf8(text), options, out);
    if (add_eos) out.push_back(vocab.eos);
    return out;
  });
}

Result<std::vector<int32_t>> Tokenizer::around_gap(std::span<const int32_t> before,
                                                   std::span<const int32_t> behind) const {
  const Vocab& vocab = parts_->vocab;
  const auto token = [&](FillRole role) { return vocab.fill[static_cast<size_t>(role)]; };
  const int32_t prefix = token(FillRole::kPrefix), suffix = token(FillRole::kSuffix),
                middle = token(FillRole::kMiddle);
  if (prefix < 0 || suffix < 0 || middle < 0)
    return fail(Code::kUnsupported,
                "the vocabulary has no tokens for a gap in a text (fill in the middle)");
  std::vector<int32_t> out;
  if (vocab.add_bos) out.push_back(vocab.bos);
  out.push_back(prefix);
  out.insert(out.end(), before.begin(), before.end());
  out.push_back(suffix);
  out.insert(out.end(), behind.begin(), behind.end());
  out.push_back(middle);
  return out;
}

Result<std::vector<int32_t>> Tokenizer::before_gap(std::span<const File> files) const {
  const Vocab& vocab = parts_->vocab;
  const int32_t repository = vocab.fill[static_cast<size_t>(FillRole::kRepository)],
                separator = vocab.fill[static_cast<size_t>(FillRole::kSeparator)];
  std::vector<int32_t> out;
  const auto put = [&](const std::string& text) -> Status {
    const auto tokens = BM_TRY(encode(text, {.add_bos = false, .add_eos = false}));
    out.insert(out.end(), tokens.begin(), tokens.end());
    return {};
  };
  if (repository >= 0) {
    out.push_back(repository);
    BM_TRY(put("myproject\n"));
  }
  for (const File& file : files) {
    if (separator >= 0) out.push_back(separator);
    BM_TRY(put(separator >= 0 ? file.name + "\n" : "\n\n--- snippet ---\n\n"));
    BM_TRY(put(file.text));
  }
  if (separator >= 0) {
    out.push_back(separator);
    BM_TRY(put("filename\n"));
  }
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, const DecodeOptions& options) const {
  std::string out;
  bool is_first = true;
  for (const int32_t id : tokens) {
    if (is_special(id) && !options.render_special) continue;
    std::string text = piece(id);
    const bool may_strip = is_first && options.strip_space_prefix &&
                           parts_->vocab.add_space_prefix && parts_->vocab.is_valid(id) &&
                           !is_special(id) && parts_->vocab.at(id).type != TokenType::kUserDefined;
    if (may_strip && text.starts_with(' ')) text.erase(0, 1);
    is_first = is_first && is_special(id);
    out += text;
  }
  return sanitize_utf8(out);
}

std::string Tokenizer::piece(int32_t token) const {
  return std::string(parts_->vocab.is_valid(token) ? std::string_view(parts_->vocab.at(token).bytes)
                                                   : kReplacement);
}

size_t Tokenizer::size() const { return parts_->vocab.tokens.size(); }
int32_t Tokenizer::bos() const { return parts_->vocab.bos; }
int32_t Tokenizer::eos() const { return parts_->vocab.eos; }
int32_t Tokenizer::eot() const { return parts_->vocab.eot; }
int32_t Tokenizer::unknown() const { return parts_->vocab.unknown; }
Result<TokenPair> Tokenizer::encode_pair(std::string_view first, std::string_view second) const {
  const Vocab& vocab = parts_->vocab;
  TokenPair out;
  const auto put = [&](const std::vector<int32_t>& tokens) {
    out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
  };
  for (const PairPlace& place : vocab.pair) {
    if (place.kind > 0) out.second = std::min(out.second, out.tokens.size());
    if (place.token >= 0)
      out.tokens.push_back(place.token);
    else
      put(BM_TRY(encode(place.is_second ? second : first, {.add_bos = false, .add_eos = false})));
  }
  if (!vocab.pair.empty()) return out;
  put(BM_TRY(encode(first)));
  if (parts_->model == "bert")
    out.second = out.tokens.size();
  else if (vocab.separator >= 0)
    out.tokens.push_back(vocab.separator);
  put(BM_TRY(encode(second, {.add_bos = false})));
  return out;
}

bool Tokenizer::adds_bos() const { return parts_->vocab.add_bos; }
bool Tokenizer::adds_eos() const { return parts_->vocab.add_eos; }
const std::string& Tokenizer::model() const { return parts_->model; }
const std::string& Tokenizer::pre() const { return parts_->pre; }

bool Tokenizer::is_special(int32_t token) const {
  if (!parts_->vocab.is_valid(token)) return false;
  const TokenType type = parts_->vocab.at(token).type;
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

bool Tokenizer::is_end_of_generation(int32_t token) const {
  return std::binary_search(parts_->end_tokens.begin(), parts_->end_tokens.end(), token);
}

std::vector<TextRange> Tokenizer::find_control(std::string_view text) const {
  std::vector<TextRange> out;
  for (size_t pos = 0; pos < text.size();) {
    const SpecialMatch match = special_at(*parts_, text, pos, {.parse_special = true});
    if (match.length == 0) {
      ++pos;
      continue;
    }
    if (is_special(match.token)) out.push_back({pos, pos + match.length});
    pos += match.length;
  }
  return out;
}

size_t Tokenizer::control_tail(std::string_view text) const {
  size_t longest = 0;
  for (const int32_t id : parts_->controls) {
    const std::string_view all = parts_->vocab.at(id).bytes;
    for (size_t n = std::min(text.size() + 1, all.size()); n-- > longest + 1;)
      if (text.ends_with(all.substr(0, n))) longest = n;
  }
  return longest;
}

size_t Tokenizer::control_head(std::string_view text) const {
  size_t longest = 0;
  for (const int32_t id : parts_->controls) {
    const std::string_view all = parts_->vocab.at(id).bytes;
    for (size_t n = std::min(text.size() + 1, all.size()); n-- > longest + 1;)
      if (text.starts_with(all.substr(all.size() - n))) longest = n;
  }
  return longest;
}

std::optional<int32_t> Tokenizer::find(std::string_view text) const {
  return parts_->vocab.find(text);
}

std::string StreamDecoder::push(int32_t token) {
  if (tokenizer_->is_special(token) && !render_special_) return {};
  pending_ += tokenizer_->piece(token);
  const size_t tail = incomplete_tail(pending_);
  const size_t ready = pending_.size() - tail;
  std::string out = sanitize_utf8(std::string_view(pending_).substr(0, ready));
  pending_.erase(0, ready);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = sanitize_utf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace bm::models
