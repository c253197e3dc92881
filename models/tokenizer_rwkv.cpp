// RWKV "world": the longest token at each position, on bytes. Tokens are written with escapes.
// Source: BlinkDL/RWKV-LM, rwkv_tokenizer.py; the escapes as llama.cpp reads them.

#include <charconv>

#include "models/model_error.h"
#include "models/tokenizer_model.h"
#include "models/tokenizer_trie.h"

namespace bm::models {
namespace {

class RwkvModel final : public TokenModel {
 public:
  explicit RwkvModel(const Vocab& vocab) : vocab_(vocab) {
    for (const auto& [text, id] : vocab.by_text)
      if (!vocab.at(id).bytes.empty()) trie_.insert(vocab.at(id).bytes, id);
  }

  void encode(std::string_view text, bool, std::vector<int32_t>& out) const override {
    for (size_t pos = 0; pos < text.size();) {
      size_t length = 0;
      int32_t token = -1;
      trie_.prefixes(text, pos, [&](size_t n, int32_t id) {
        length = n;
        token = id;
      });
      if (token >= 0)
        out.push_back(token);
      else
        append_byte_fallback(vocab_, text.substr(pos, length = 1), out);
      pos += length;
    }
  }

 private:
  const Vocab& vocab_;
  ByteTrie trie_;
};

/// Bytes that `text` stands for. Errors: kCorrupt for an escape without its character or digits.
Result<std::string> unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    if (++i == text.size())
      return fail(Code::kCorrupt, "token {} ends in an escape", quote_name(text));
    if (text[i] != 'x') {
      const char c = text[i];
      out += c == 't' ? '\t' : c == 'n' ? '\n' : c == 'r' ? '\r' : c;
      continue;
    }
    uint8_t byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() != 2 || error != std::errc() || end != digits.data() + 2)
      return fail(Code::kCorrupt, "token {} has an escape without two digits", quote_name(text));
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<TokenModel>> make_rwkv_model(const GgufFile&, Vocab& vocab) {
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    Token& token = vocab.tokens[i];
    const bool is_plain = token.type == TokenType::kNormal || token.type == TokenType::kUndefined ||
                          token.type == TokenType::kUnused;
    token.bytes = is_plain ? BM_TRY(unescape(token.text)) : token.text;
    if (is_plain && token.bytes.size() == 1)
      vocab.byte_tokens[static_cast<uint8_t>(token.bytes[0])] = static_cast<int32_t>(i);
  }
  if (!can_express_all_bytes(vocab))
    return fail(Code::kUnsupported,
                "the vocabulary has neither all 256 bytes nor an unknown token");
  return std::make_unique<RwkvModel>(vocab);
}

}  // namespace bm::models
