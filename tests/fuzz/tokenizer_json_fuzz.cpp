// tokenizer.json: two bytes of length of a text, the text, then the JSON.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer.h"
#include "models/unicode.h"

namespace {

/// A GGUF file with the JSON and nothing else.
std::vector<std::byte> file_with(std::string_view json) {
  std::string out = "GGUF";
  const auto put = [&](uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 255);
  };
  constexpr std::string_view kKey = "tokenizer.huggingface.json";
  put(3, 4);
  put(0, 8);
  put(1, 8);
  put(kKey.size(), 8);
  out += kKey;
  put(8, 4);
  put(json.size(), 8);
  out += json;
  const auto bytes = std::as_bytes(std::span(out));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bm::models;
  if (size < 2) return 0;
  const size_t length = std::min<size_t>(data[0] + size_t{256} * data[1], size - 2);
  const std::string_view all(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::vector<std::byte> bytes = file_with(all.substr(length));
  const auto file = GgufFile::from_bytes(bytes);
  if (!file) return 0;
  const auto tokenizer = Tokenizer::from_gguf(*file);
  if (!tokenizer) return 0;
  for (const bool parse_special : {false, true}) {
    const auto ids = (*tokenizer)->encode(all.substr(0, length), {.parse_special = parse_special});
    if (!ids) continue;
    for (const int32_t id : *ids)
      if (id < 0 || static_cast<size_t>(id) >= (*tokenizer)->size()) std::abort();
    if (!is_valid_utf8((*tokenizer)->decode(*ids))) std::abort();
  }
  return 0;
}
