// Tokenizer: two bytes of length of a text, the text, then a GGUF file with a vocabulary.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "models/tokenizer.h"
#include "models/unicode.h"

namespace {

void check(const bm::models::Tokenizer& tokenizer, std::string_view text, bool parse_special) {
  const auto ids = tokenizer.encode(text, {.parse_special = parse_special});
  if (!ids) std::abort();
  bm::models::StreamDecoder stream(tokenizer);
  std::string streamed;
  for (const int32_t id : *ids) {
    if (id < 0 || static_cast<size_t>(id) >= tokenizer.size()) std::abort();
    streamed += stream.push(id);
  }
  streamed += stream.finish();
  if (!bm::models::is_valid_utf8(streamed)) std::abort();
  if (streamed != tokenizer.decode(*ids, {.strip_space_prefix = false})) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bm::models;
  if (size < 2) return 0;
  const size_t length = std::min<size_t>(data[0] + size_t{256} * data[1], size - 2);
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, length);
  const auto file = GgufFile::from_bytes(
      std::span(reinterpret_cast<const std::byte*>(data), size).subspan(2 + length));
  if (!file) return 0;
  const auto tokenizer = Tokenizer::from_gguf(*file);
  if (!tokenizer) return 0;
  check(**tokenizer, text, false);
  check(**tokenizer, text, true);
  return 0;
}
