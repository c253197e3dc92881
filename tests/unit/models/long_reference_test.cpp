// Every architecture against the PyTorch reference over 512 tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
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

/// Prompts in chunks whose ends are those of no page and no piece, single tokens between them. →
/// how far logits behind each are, in order.
std::vector<double> expect_chunks(const std::shared_ptr<const Llama>& model,
                                  const std::vector<int32_t>& tokens,
                                  const std::vector<float>& want, std::mt19937& random,
                                  const std::string& what) {
  LlamaSession session(model, exact());
  begin(session, tokens);
  std::vector<double> out;
  std::string ends;
  for (size_t at = 0; at < kTokens;) {
    const size_t longest = random() % 3 == 0 ? 1 : random() % 2 == 0 ? 300 : 40;
    const size_t count = std::min(kTokens - at, 1 + random() % longest);
    const Status done = session.feed(std::span(tokens).subspan(at, count));
    if (!done) throw std::runtime_error(what + ": " + done.error().message);
    at += count;
    ends += fmt::format(" {}", at);
    out.push_back(
        distance(session.logits(), std::span(want).subspan((at - 1) * kVocabulary, kVocabulary)));
    EXPECT_LT(out.back(), 2e-4) << what << ", chunks that end at" << ends;
    if (testing::Test::HasFailure()) break;
  }
  std::ranges::sort(out);
  return out;
}

void expect_steps(const std::shared_ptr<const Llama>& model, const std::vector<int32_t>& tokens,
                  const std::vector<float>& want, const std::string& what) {
  LlamaSession session(model, exact());
  begin(session, tokens);
  for (size_t at = 0; at < kTokens; ++at) {
    const Status done = session.feed({&tokens[at], 1});
    ASSERT_TRUE(done) << what << ": " << done.error().message;
    ASSERT_LT(distance(session.logits(), std::span(want).subspan(at * kVocabulary, kVocabulary)),
              2e-4)
        << what << ", token " << at << " by itself";
  }
}

/// BM_TEST_SEED=N repeats what a run drew.
uint32_t drawn_seed() {
  const char* const chosen = std::getenv("BM_TEST_SEED");
  return chosen ? static_cast<uint32_t>(std::strtoul(chosen, nullptr, 10)) : std::random_device{}();
}

/// A random model of `options` and what PyTorch makes of random tokens.
struct Case {
  Case(const std::string& options, std::mt19937& random) : tokens(kTokens) {
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocabulary);
    const std::string command =
        fmt::format("{} tests/oracle/architecture_references.py {} {} '{}'", kPython,
                    folder.file(""), fmt::join(tokens, ","), options);
    if (std::system(command.c_str()) != 0) throw std::runtime_error(command);
    want = read_floats(folder.file("0.f32"), kTokens * kVocabulary);
  }
  std::string path() const { return folder.file("0.gguf"); }

  test::TempFolder folder;
  std::vector<int32_t> tokens;
  std::vector<float> want;
};

/// GTEST_TOTAL_SHARDS divides them.
class LongReference : public testing::TestWithParam<std::string> {};

TEST_P(LongReference, AgreesInChunksAndByTokens) {
  if (!has_torch()) GTEST_SKIP() << kPython << " with torch is not installed";
  const uint32_t seed = drawn_seed();
  SCOPED_TRACE(fmt::format("BM_TEST_SEED={}", seed));
  std::mt19937 random(seed);
  const Case drawn(GetParam(), random);
  const auto model = load(drawn.path(), "CPU");
  expect_chunks(model, drawn.tokens, drawn.want, random, GetParam());
  expect_steps(model, drawn.tokens, drawn.want, GetParam());
}

/// Of every position fed by itself or as the end of a chunk: how far its logits are.
std::vector<double> distances(const std::shared_ptr<const Llama>& model, const Case& drawn,
                              size_t longest, std::mt19937& random) {
  LlamaSession session(model, exact());
  begin(session, drawn.tokens);
  std::vector<double> out;
  for (size_t at = 0; at < kTokens;) {
    const size_t count = std::min(kTokens - at, 1 + random() % longest);
    const Status done = session.feed(std::span(drawn.tokens).subspan(at, count));
    if (!done) throw std::runtime_error(done.error().message);
    at += count;
    out.push_back(distance(session.logits(),
                           std::span(drawn.want).subspan((at - 1) * kVocabulary, kVocabulary)));
  }
  std::ranges::sort(out);
  return out;
}

/// Matrices in a format that is drawn, and PyTorch on the values that they stand for.
TEST_P(LongReference, AgreesWithQuantisedMatrices) {
  if (!has_torch()) GTEST_SKIP() << kPython << " with torch is not installed";
  const uint32_t seed = drawn_seed();
  std::mt19937 random(seed);
  constexpr std::array kTypes{"F16",  "BF16", "Q8_0",   "Q4_0",   "Q5_0", "Q4_K",
                              "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"};
  const std::string type = kTypes[random() % kTypes.size()];
  // Rows of whole blocks of 256.
  const std::string options = GetParam() + " --dim 256 --heads 8 --ffn 256 --type " + type;
  SCOPED_TRACE(fmt::format("BM_TEST_SEED={}: {}", seed, options));
  const Case drawn(options, random);
  // As float32, what the blocks stand for is all that matters.
  const std::vector<double> exactly =
      expect_chunks(load(drawn.path(), "CPU", 0, false), drawn.tokens, drawn.want, random, options);
  ASSERT_FALSE(HasFailure());
  const auto blocks = load(drawn.path(), "CPU");
  const LlamaConfig& c = blocks->config();
  const bool is_exact = type == "F16" || type == "BF16";
  // How much of an error a network makes of one that every product has, the float32 results tell:
  // there it is 10⁻⁷ of what the product gives, of int8 codes of 32 numbers 0.5 %, 5 · 10⁴ times
  // that. Seen: 0.8 to 5.9 · 10⁴ times, of medians of few chunks. Where that were no bound at all,
  // a third of the largest logit is; of blocks that are read wrongly the median is about 1.
  const double usual = is_exact ? 2e-4 : std::min(0.33, 1e5 * exactly[exactly.size() / 2]);
  for (const size_t longest : {size_t{1}, size_t{60}}) {
    const std::vector<double> far = distances(blocks, drawn, longest, random);
    // Of two experts that are almost as good, rounding may choose the other, here and in tokens
    // that are read: a part of the positions is without.
    const bool may_flip = c.experts.count > 0 && !is_exact;
    const double shown = far[far.size() / (may_flip ? 4 : 2)];
    RecordProperty(fmt::format("typical_{}", longest), fmt::format("{:.1e}", shown));
    EXPECT_LT(shown, usual) << "chunks of up to " << longest;
    if (!may_flip)
      EXPECT_LT(far.back(), is_exact ? usual : 5 * usual) << "chunks of up to " << longest;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LongReference, testing::ValuesIn(variants()),
                         [](const auto& row) { return fmt::format("{}", row.index); });

}  // namespace
}  // namespace bm::models
