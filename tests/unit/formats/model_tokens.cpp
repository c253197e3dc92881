// Tokens of many texts by the tokenizer of a GGUF file, for judges outside:
// tests/oracle/judge_tokenizers.py and judge_tokenizer_json.mjs.
//   model_tokens FILE.gguf TEXTS [special]   TEXTS: separated by NUL; prints a line of ids each
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "models/gguf.h"
#include "models/tokenizer.h"

int main(int argc, char** argv) {
  using namespace bm::models;
  if (argc < 3) return 2;
  const auto file = GgufFile::open(argv[1]);
  if (!file) return std::fprintf(stderr, "%s\n", file.error().message.c_str()), 1;
  const auto tokenizer = Tokenizer::from_gguf(*file);
  if (!tokenizer) return std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str()), 1;
  std::ifstream in(argv[2], std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(in)), {});
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\0', begin), all.size());
    const auto ids =
        (*tokenizer)->encode(all.substr(begin, end - begin), {.parse_special = argc > 3});
    if (!ids) return std::fprintf(stderr, "%s\n", ids.error().message.c_str()), 1;
    const char* comma = "";
    for (const int32_t id : *ids) std::printf("%s%d", std::exchange(comma, ","), id);
    std::printf("\n");
    begin = end + 1;
  }
  return 0;
}
