#include "models/sampler.h"
#include "models/sampler_defaults.h"
#include "tests/unit/formats/gguf_builder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace bm::models {
namespace {

std::vector<int32_t> draw(const SamplerOptions& options, std::span<const float> logits, int count) {
  Sampler sampler(options);
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back(sampler.sample(logits).value());
  return out;
}

// Known answers of the Random123 distribution, file kat_vectors.
TEST(Philox, GivesThePublishedAnswers) {
  const auto expect = [](PhiloxBlock counter, uint64_t key, std::array<uint32_t, 4> want) {
    const PhiloxBlock got = philox4x32(counter, key);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(got.words[i], want[i]) << i;
  };
  expect({{0, 0, 0, 0}}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect({{~0u, ~0u, ~0u, ~0u}}, ~uint64_t{0}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(PortableExp, IsWithinTwoUnitsOfTheLibrary) {
  for (double x = 0.0; x > -707.0; x -= 0.0137) {
    const double want = std::exp(x), got = portable_exp(x);
    ASSERT_NEAR(got / want, 1.0, 2 * std::numeric_limits<double>::epsilon()) << x;
  }
  EXPECT_EQ(portable_exp(0.0), 1.0);
  EXPECT_EQ(portable_exp(-1e9), 0.0);
  EXPECT_EQ(portable_exp(-std::numeric_limits<double>::infinity()), 0.0);
}

TEST(Sampler, TakesTheFirstMaximumAtTemperatureZero) {
  const float logits[] = {0.5f, 2.0f, -1.0f, 2.0f};
  EXPECT_EQ(draw({.temperature = 0}, logits, 3), (std::vector<int32_t>{1, 1, 1}));
}

TEST(Sampler, RefusesLogitsThatAreNotNumbers) {
  Sampler sampler({.temperature = 0});
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), inf, -inf}) {
    const float logits[] = {1.0f, bad};
    const auto token = sampler.sample(logits);
    ASSERT_FALSE(token);
    EXPECT_EQ(token.error().code, Code::kInvalidArgument);
    EXPECT_NE(token.error().message.find("logit 1"), std::string::npos) << token.error().message;
  }
  EXPECT_FALSE(sampler.sample({}));
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  const float nan = std::nanf("");
  for (const SamplerOptions& o :
       {SamplerOptions{.temperature = -1}, SamplerOptions{.temperature = nan},
        SamplerOptions{.top_p = 0}, SamplerOptions{.top_p = 1.5f}, SamplerOptions{.min_p = -0.1f},
        SamplerOptions{.min_p = nan}, SamplerOptions{.repeat_penalty = 0}})
    EXPECT_EQ(Sampler::create(o).error().code, Code::kInvalidArgument);
  EXPECT_TRUE(Sampler::create({}));
}

TEST(Sampler, RepeatsItselfForTheSameSeedOnly) {
  const float logits[] = {0.0f, 0.1f, 0.2f, 0.3f, 0.0f};
  const auto first = draw({.temperature = 1, .seed = 42}, logits, 64);
  EXPECT_EQ(first, draw({.temperature = 1, .seed = 42}, logits, 64));
  EXPECT_NE(first, draw({.temperature = 1, .seed = 43}, logits, 64));
  Sampler sampler({.temperature = 1, .seed = 42});
  EXPECT_TRUE(sampler.sample(logits));
  sampler.reset();
  EXPECT_EQ(sampler.sample(logits).value(), first[0]);
}

// Fixed for all platforms: a change here changes what users get for a seed.
TEST(Sampler, GivesTheSameTokensForASeedForever) {
  std::vector<float> logits(100);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 37) % 100) * 0.05f;
  EXPECT_EQ(
      draw({.temperature = 0.7f, .top_k = 40, .top_p = 0.9f, .min_p = 0.05f, .seed = 1}, logits, 8),
      (std::vector<int32_t>{67, 24, 8, 5, 8, 81, 89, 16}));
}

TEST(Sampler, FollowsTheProbabilities) {
  const float logits[] = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  std::array<int, 3> counts{};
  for (const int32_t t : draw({.temperature = 1, .seed = 9}, logits, 20'000))
    ++counts[static_cast<size_t>(t)];
  EXPECT_NEAR(counts[0], 10'000, 300);
  EXPECT_NEAR(counts[1], 6'000, 300);
  EXPECT_NEAR(counts[2], 4'000, 300);
}

/// Set of tokens that come up in many draws.
std::vector<bool> reachable(const SamplerOptions& options, std::span<const float> logits) {
  std::vector<bool> seen(logits.size());
  for (const int32_t t : draw(options, logits, 5'000)) seen[static_cast<size_t>(t)] = true;
  return seen;
}

TEST(Sampler, DropsWhatTheOptionsDrop) {
  const float logits[] = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
  EXPECT_EQ(reachable({.temperature = 1}, logits), (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(reachable({.temperature = 1, .top_k = 2}, logits),
            (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(reachable({.temperature = 1, .top_k = 9}, logits),
            (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(reachable({.temperature = 1, .top_p = 0.65f}, logits),
            (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(reachable({.temperature = 1, .top_p = 0.01f}, logits),
            (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(reachable({.temperature = 1, .min_p = 0.4f}, logits),
            (std::vector<bool>{false, true, true, true}));
}

TEST(Sampler, BreaksTopKTiesByTheLowerId) {
  const float logits[] = {1, 1, 1, 1};
  EXPECT_EQ(reachable({.temperature = 1, .top_k = 2}, logits),
            (std::vector<bool>{true, true, false, false}));
}

TEST(Sampler, MakesRecentTokensLessLikely) {
  Sampler sampler({.temperature = 0, .repeat_penalty = 2, .repeat_window = 1});
  const float logits[] = {1.0f, 1.5f, -0.5f};
  EXPECT_EQ(sampler.sample(logits).value(), 1);
  EXPECT_EQ(sampler.sample(logits).value(), 0);  // 1.5 / 2 < 1
  EXPECT_EQ(sampler.sample(logits).value(), 1);  // left the window
  sampler.accept(99);                            // of another vocabulary: ignored
  EXPECT_EQ(sampler.sample(logits).value(), 1);
}

TEST(SamplerDefaults, AreWhatTheFileSays) {
  const auto bytes = test::GgufBuilder()
                         .f32("general.sampling.temp", 0.5f)
                         .f32("general.sampling.top_p", 1.5f)
                         .i32("general.sampling.top_k", -1)
                         .i32("general.sampling.penalty_last_n", -1)
                         .u32("general.sampling.penalty_repeat", 2)
                         .i32("general.sampling.mirostat", 2)
                         .f32("general.sampling.xtc_probability", 0.5f)
                         .build();
  const auto file = GgufFile::from_bytes(bytes);
  ASSERT_TRUE(file) << file.error().message;
  const SamplerDefaults got = sampler_defaults(*file);
  EXPECT_EQ(got.temperature, 0.5f);
  EXPECT_EQ(got.top_p, 1.0f);
  EXPECT_EQ(got.top_k, 0u);
  EXPECT_EQ(got.repeat_window, UINT32_MAX);
  EXPECT_EQ(got.repeat_penalty, 2.0f);
  EXPECT_EQ(got.mirostat, Mirostat::kV2);
  EXPECT_EQ(got.xtc_probability, 0.5f);
  EXPECT_FALSE(got.min_p || got.mirostat_tau || got.mirostat_eta || got.xtc_threshold);
}

TEST(SamplerDefaults, ThatAreNoneAreLeftOut) {
  const auto bytes = test::GgufBuilder()
                         .text("general.sampling.temp", "warm")
                         .f32("general.sampling.min_p", std::nanf(""))
                         .build();
  const auto file = GgufFile::from_bytes(bytes);
  ASSERT_TRUE(file) << file.error().message;
  const SamplerDefaults got = sampler_defaults(*file);
  EXPECT_FALSE(got.temperature || got.min_p || got.top_k);
}

TEST(Sampler, HandlesHugeLogits) {
  const float logits[] = {3e38f, -3e38f};
  EXPECT_EQ(draw({.temperature = 0.01f, .repeat_penalty = 1.0f}, logits, 5),
            std::vector<int32_t>(5, 0));
  EXPECT_TRUE(Sampler({.temperature = 0.01f, .repeat_penalty = 50}).sample(logits));
}

}  // namespace
}  // namespace bm::models
