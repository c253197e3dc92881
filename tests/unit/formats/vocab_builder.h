#pragma once
// GGUF files that hold a tokenizer and nothing else.

#include <string>
#include <vector>

#include "models/unicode.h"
#include "tests/unit/formats/gguf_builder.h"

namespace bm::models::test {

struct TestToken {
  std::string text;
  float score = 0;
  int32_t type = 1;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
};

inline std::string byte_token(int b) {
  const char* hex = "0123456789ABCDEF";
  return std::string("<0x") + hex[b / 16] + hex[b % 16] + ">";
}

/// Tokens 0–2 <unk> <s> </s>, 3–258 the bytes, then `more`.
inline std::vector<TestToken> spm_tokens(const std::vector<TestToken>& more) {
  std::vector<TestToken> out = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}};
  for (int b = 0; b < 256; ++b) out.push_back({byte_token(b), 0, 6});
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

inline void add_tokens(GgufBuilder& b, const std::vector<TestToken>& tokens) {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const TestToken& t : tokens) {
    texts.push_back(t.text);
    scores.push_back(t.score);
    types.push_back(t.type);
  }
  b.strings("tokenizer.ggml.tokens", texts).f32s("tokenizer.ggml.scores", scores);
  b.i32s("tokenizer.ggml.token_type", types);
}

inline GgufBuilder tokenizer_file(std::string_view model, const std::vector<TestToken>& tokens) {
  GgufBuilder b;
  b.text("tokenizer.ggml.model", model);
  add_tokens(b, tokens);
  return b;
}

/// The spelling of `bytes` in byte-level vocabularies: bytes that are not printable Latin-1 become
/// U+0100, U+0101, … in order.
inline std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto b = static_cast<unsigned char>(c);
    char32_t rank = 0, code = 0;
    for (unsigned i = 0; i < 256; ++i) {
      const bool is_printable = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
      if (i == b) code = is_printable ? i : 256 + rank;
      if (!is_printable) ++rank;
    }
    append_utf8(out, code);
  }
  return out;
}

/// The 256 bytes (id = byte), then `more` spelled, then `specials` as they are (type 3).
inline GgufBuilder bpe_file(std::string_view pre, const std::vector<std::string>& more,
                            const std::vector<std::pair<std::string, std::string>>& merges,
                            const std::vector<TestToken>& specials = {}) {
  std::vector<TestToken> tokens;
  for (int b = 0; b < 256; ++b)
    tokens.push_back({spell_bytes(std::string(1, static_cast<char>(b)))});
  for (const std::string& text : more) tokens.push_back({spell_bytes(text)});
  tokens.insert(tokens.end(), specials.begin(), specials.end());
  std::vector<std::string> lines;
  for (const auto& [left, right] : merges)
    lines.push_back(spell_bytes(left) + " " + spell_bytes(right));
  GgufBuilder b = tokenizer_file("gpt2", tokens);
  b.text("tokenizer.ggml.pre", pre).strings("tokenizer.ggml.merges", lines);
  return b;
}

}  // namespace bm::models::test
