// Logits of a GGUF model at every position, for judges outside: tests/oracle/judge_models.py. Of
// models that make embeddings, the hidden states of all tokens.
//   model_logits FILE.gguf OUT.f32 FIRST TOKEN…   the first FIRST tokens as a prompt, then one by
//   one
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "models/llama_encoder.h"
#include "models/llama_session.h"

int main(int argc, char** argv) {
  using namespace bm;
  if (argc < 5) return 2;
  auto file = models::GgufFile::open(argv[1]);
  if (!file) return std::fprintf(stderr, "%s\n", file.error().message.c_str()), 1;
  auto shared = std::make_shared<const models::GgufFile>(std::move(*file));
  auto model = models::Llama::load(shared, {.device = "CPU", .context = 0, .progress = {}});
  if (!model) return std::fprintf(stderr, "%s\n", model.error().message.c_str()), 1;
  std::vector<int32_t> tokens;
  for (int i = 4; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
  const size_t prompt = std::min(static_cast<size_t>(std::atoi(argv[3])), tokens.size());
  std::ofstream out(argv[2], std::ios::binary);
  if (!(*model)->config().is_causal) {
    auto encoder = models::LlamaEncoder::create(*model);
    if (!encoder) return std::fprintf(stderr, "%s\n", encoder.error().message.c_str()), 1;
    if (const Status done = (*encoder)->encode(tokens); !done)
      return std::fprintf(stderr, "%s\n", done.error().message.c_str()), 1;
    out.write(reinterpret_cast<const char*>((*encoder)->hidden().data()),
              static_cast<std::streamsize>((*encoder)->hidden().size_bytes()));
    return out ? 0 : 1;
  }
  models::LlamaSession session(*model);
  // The same text is read and written.
  if ((*model)->config().encoder_block_count > 0)
    if (const Status done = session.encode(tokens); !done)
      return std::fprintf(stderr, "%s\n", done.error().message.c_str()), 1;
  for (size_t at = 0; at < tokens.size();) {
    const size_t n = at == 0 && prompt > 0 ? prompt : 1;
    if (const Status fed = session.feed({&tokens[at], n}); !fed)
      return std::fprintf(stderr, "%s\n", fed.error().message.c_str()), 1;
    at += n;
    out.write(reinterpret_cast<const char*>(session.logits().data()),
              static_cast<std::streamsize>(session.logits().size_bytes()));
  }
  return out ? 0 : 1;
}
