// The library behind `bellmetal generate`: file, tokenizer, weights, one sequence, the next token.
#include <cstdio>

#include "models/llama_session.h"
#include "models/sampler.h"
#include "models/tokenizer.h"

namespace {

bm::Status run() {
  using namespace bm::models;
  auto file =
      std::make_shared<const GgufFile>(BM_TRY(GgufFile::open("models/bundled/licence.gguf")));
  const auto tokenizer = BM_TRY(Tokenizer::from_gguf(*file));
  const auto model = BM_TRY(Llama::load(file, {.device = "", .context = 128, .progress = {}}));
  LlamaSession session(model);
  Sampler sampler = BM_TRY(Sampler::create({.temperature = 0}));
  StreamDecoder decoder(*tokenizer);

  const std::vector<int32_t> prompt = BM_TRY(tokenizer->encode("You may"));
  BM_TRY(session.feed(prompt));
  std::printf("You may");
  for (int i = 0; i < 40; ++i) {
    const int32_t token = BM_TRY(sampler.sample(session.logits().first(tokenizer->size())));
    if (tokenizer->is_end_of_generation(token)) break;
    std::printf("%s", decoder.push(token).c_str());
    BM_TRY(session.feed({&token, 1}));
  }
  std::printf("%s\n", decoder.finish().c_str());
  return {};
}

}  // namespace

int main() {
  const auto status = run();
  if (!status) std::fprintf(stderr, "%s\n", status.error().message.c_str());
  return status ? 0 : 1;
}
