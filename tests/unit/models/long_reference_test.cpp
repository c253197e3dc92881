// Every architecture against the PyTorch reference over 512 tokens.
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/formats/test_support.h"
#include "tests/unit/models/reference.h"

namespace bm::models {
namespace {

constexpr size_t kTokens = 512, kVocabulary = 64;  // vocabulary of random_transformer.py

/// Every row of the table that makes logits, and what else depends on how far tokens are apart.
std::vector<std::string> variants() {
  std::vector<std::string> all;
  for (const Architecture& row : architectures())
    if (!row.has(kNoLogits)) all.push_back(row.name);
  for (const char* more :
       {"llama --key attention.sliding_window=70", "olmo2 --key attention.sliding_window=33",
        "exaone4 --layers 5 --key attention.sliding_window=65",
        "llama4 --key attention.sliding_window=64 --key attention.temperature_length=100",
        "mistral3 --key attention.temperature_scale=0.1 --key attention.temperature_length=90",
        "qwen2 --key rope.scaling.type=yarn --key rope.scaling.factor=4.0 --key "
        "rope.scaling.original_context_length=128",
        "phi3 --tensor rope_long --tensor rope_short --key rope.scaling.type=longrope --key "
        "rope.scaling.original_context_length=300 --key rope.scaling.attn_factor=1.19",
        "rwkv6 --tensor apart", "arwkv7 --tensor nogate", "llama --tensor moe"})
    all.emplace_back(more);
  for (std::string& one : all) one += " --context 640";
  return all;
}

/// Prompts in chunks whose ends are those of no page and no piece, single tokens between them.
void expect_chunks(const std::shared_ptr<const Llama>& model, const std::vector<int32_t>& tokens,
                   const std::vector<float>& want, std::mt19937& random, const std::string& what) {
  LlamaSession session(model, exact());
  std::string ends;
  for (size_t at = 0; at < kTokens;) {
    const size_t longest = random() % 3 == 0 ? 1 : random() % 2 == 0 ? 300 : 40;
    const size_t count = std::min(kTokens - at, 1 + random() % longest);
    const Status done = session.feed(std::span(tokens).subspan(at, count));
    ASSERT_TRUE(done) << what << ": " << done.error().message;
    at += count;
    ends += fmt::format(" {}", at);
    ASSERT_LT(
        distance(session.logits(), std::span(want).subspan((at - 1) * kVocabulary, kVocabulary)),
        2e-4)
        << what << ", chunks that end at" << ends;
  }
}

void expect_steps(const std::shared_ptr<const Llama>& model, const std::vector<int32_t>& tokens,
                  const std::vector<float>& want, const std::string& what) {
  LlamaSession session(model, exact());
  for (size_t at = 0; at < kTokens; ++at) {
    const Status done = session.feed({&tokens[at], 1});
    ASSERT_TRUE(done) << what << ": " << done.error().message;
    ASSERT_LT(distance(session.logits(), std::span(want).subspan(at * kVocabulary, kVocabulary)),
              2e-4)
        << what << ", token " << at << " by itself";
  }
}

/// GTEST_TOTAL_SHARDS divides them.
class LongReference : public testing::TestWithParam<std::string> {};

TEST_P(LongReference, AgreesInChunksAndByTokens) {
  if (!has_torch()) GTEST_SKIP() << kPython << " with torch is not installed";
  const test::TempFolder folder;
  const auto seed = static_cast<uint32_t>(std::random_device{}());
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(kTokens);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocabulary);
  const std::string command =
      fmt::format("{} tests/oracle/architecture_references.py {} {} '{}'", kPython, folder.file(""),
                  fmt::join(tokens, ","), GetParam());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const auto model = load(folder.file("0.gguf"), "CPU");
  const std::vector<float> want = read_floats(folder.file("0.f32"), kTokens * kVocabulary);
  expect_chunks(model, tokens, want, random, GetParam());
  expect_steps(model, tokens, want, GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, LongReference, testing::ValuesIn(variants()),
                         [](const auto& row) { return fmt::format("{}", row.index); });

}  // namespace
}  // namespace bm::models
