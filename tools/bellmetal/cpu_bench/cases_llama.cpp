// A language model of a quarter of a billion random weights, in each format.
#include <cmath>
#include <filesystem>

#include "models/llama_session.h"
#include "tools/bellmetal/cpu_bench/cases.h"
#include "tools/bellmetal/cpu_bench/llama_bench.h"
#include "tools/bellmetal/cpu_bench/random_llama.h"

namespace bm::cli {
namespace {

using models::GgmlType;

constexpr uint32_t kPrompt = 128, kDecode = 64;

RandomLlama model_of(const World& w, GgmlType format) {
  RandomLlama m;
  m.format = format;
  if (w.is_tiny()) {
    m.embedding = 256;
    m.feed_forward = 512;
    m.layers = 2;
    m.heads = 4;
    m.kv_heads = 2;
    m.vocabulary = 320;
  }
  return m;
}

/// A written model and one sequence of it.
struct LoadedModel {
  std::unique_ptr<TemporaryFile> file;
  std::unique_ptr<models::LlamaSession> session;
};

Result<std::shared_ptr<LoadedModel>> load(World& w, GgmlType format) {
  auto out = std::make_shared<LoadedModel>();
  out->file = BM_TRY(TemporaryFile::create(/*is_large=*/true));
  BM_TRY(
      write_random_llama([&](std::span<const std::byte> bytes) { return out->file->write(bytes); },
                         model_of(w, format)));
  auto gguf =
      std::make_shared<const models::GgufFile>(BM_TRY(models::GgufFile::open(out->file->path())));
  const auto model =
      BM_TRY(models::Llama::load(gguf, {.device = w.device(), .context = 0, .progress = {}}));
  out->session = std::make_unique<models::LlamaSession>(model);
  return out;
}

std::vector<int32_t> prompt_tokens() {
  std::vector<int32_t> out(kPrompt);
  for (uint32_t i = 0; i < kPrompt; ++i) out[i] = static_cast<int32_t>(3 + i * 37 % 300);
  return out;
}

void feed_prompt(models::LlamaSession& session) {
  session.reset();
  unwrap(session.feed(prompt_tokens()));
}

void decode(models::LlamaSession& session) {
  session.reset();
  for (int32_t i = 0; i < static_cast<int32_t>(kDecode); ++i) {
    const int32_t token = 3 + i * 37 % 300;
    unwrap(session.feed({&token, 1}));
  }
}

void add_peer(Contest& c, LlamaBench* peer, const std::string& name, const std::string& path,
              bool is_prompt, const std::string& extra = "") {
  if (peer)
    c.peers.push_back(
        peer->contender(name, path, is_prompt ? kPrompt : 0, is_prompt ? 0 : kDecode, extra));
}

Result<Contest> make_llama(World& w, GgmlType format, bool is_prompt) {
  const auto model = BM_TRY(load(w, format));
  Contest c;
  c.unit = Unit::kTokens;
  c.amount = is_prompt ? kPrompt : kDecode;
  c.ours = contender("ours", [model, is_prompt] {
    is_prompt ? feed_prompt(*model->session) : decode(*model->session);
  });
  const std::string& path = model->file->path();
  add_peer(c, w.llama_bench(), "llama.cpp", path, is_prompt);
  add_peer(c, w.ik_llama_bench(), "ik_llama.cpp", path, is_prompt);
  add_peer(c, w.ik_llama_bench(), "ik_llama.cpp -rtr 1", path, is_prompt, "-rtr 1");
  c.check = [model]() -> Result<double> {
    double largest = 0;
    for (const float x : model->session->logits())
      largest = std::isfinite(x) ? std::max(largest, std::abs(static_cast<double>(x))) : INFINITY;
    return std::isfinite(largest) && largest > 0 ? 0.0 : INFINITY;
  };
  c.goal = {.of_peer = w.ik_llama_bench() ? 1.0 : 1.1, .of_bound = 0, .at_most = 0};
  return c;
}

}  // namespace

std::vector<Case> llama_cases() {
  std::vector<Case> out;
  for (const GgmlType format : {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0,
                                GgmlType::kQ4_0, GgmlType::kQ4_K})
    for (const bool is_prompt : {true, false})
      out.push_back({fmt::format("llama 0.25B {} {}", models::ggml_type_info(format).name,
                                 is_prompt ? "prompt 128" : "decode 64"),
                     [=](World& w) { return make_llama(w, format, is_prompt); }});
  return out;
}

}  // namespace bm::cli
