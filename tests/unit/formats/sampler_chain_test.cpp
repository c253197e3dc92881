// Each sampler beside its formula, written down naively in long double with the C library's
// functions; and what is drawn beside the probabilities, by chi-square.
#include "models/sampler_chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "models/sampler.h"

namespace bm::models {
namespace {

using Real = long double;

std::vector<float> random_logits(uint32_t seed, size_t count, float spread) {
  std::mt19937 random(seed);
  std::vector<float> logits(count);
  for (float& l : logits) l = spread * (static_cast<float>(random() % 20'001) / 10'000.0f - 1.0f);
  return logits;
}

/// softmax(logits / temperature), by id.
std::map<int32_t, Real> softmax(const std::map<int32_t, Real>& logits, Real temperature) {
  Real top = -INFINITY, sum = 0;
  for (const auto& [id, l] : logits) top = std::max(top, l);
  std::map<int32_t, Real> p;
  for (const auto& [id, l] : logits) sum += p[id] = std::exp((l - top) / temperature);
  for (auto& [id, value] : p) value /= sum;
  return p;
}

std::map<int32_t, Real> as_map(std::span<const float> logits) {
  std::map<int32_t, Real> out;
  for (size_t i = 0; i < logits.size(); ++i) out[static_cast<int32_t>(i)] = Real{logits[i]};
  return out;
}

/// Ids by falling key; of equals the lower id first.
std::vector<int32_t> order_by(const std::map<int32_t, Real>& keys) {
  std::vector<int32_t> ids;
  for (const auto& [id, key] : keys) ids.push_back(id);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return keys.at(a) > keys.at(b); });
  return ids;
}

std::set<int32_t> reference_top_p(const std::map<int32_t, Real>& p, Real limit) {
  std::set<int32_t> kept;
  Real sum = 0;
  for (const int32_t id : order_by(p)) {
    if (sum >= limit) break;
    sum += p.at(id);
    kept.insert(id);
  }
  return kept;
}

std::set<int32_t> reference_typical(const std::map<int32_t, Real>& p, Real limit) {
  Real entropy = 0;
  for (const auto& [id, value] : p) entropy -= value * std::log(value);
  std::map<int32_t, Real> nearness;
  for (const auto& [id, value] : p) nearness[id] = -std::abs(-std::log(value) - entropy);
  std::set<int32_t> kept;
  Real sum = 0;
  for (const int32_t id : order_by(nearness)) {
    kept.insert(id);
    if ((sum += p.at(id)) > limit) break;
  }
  return kept;
}

std::vector<Candidate> candidates_of(std::span<const float> logits, double temperature) {
  std::vector<Candidate> out;
  for (size_t i = 0; i < logits.size(); ++i)
    out.push_back({logits[i], static_cast<int32_t>(i), 0.0});
  weigh(out, temperature);
  return out;
}

std::set<int32_t> ids_of(const std::vector<Candidate>& candidates) {
  std::set<int32_t> out;
  for (const Candidate& c : candidates) out.insert(c.id);
  return out;
}

TEST(SamplerChain, WeightsAreProportionalToTheSoftmax) {
  const auto logits = random_logits(1, 200, 20);
  for (const double temperature : {0.1, 0.7, 1.0, 3.0}) {
    const auto want = softmax(as_map(logits), temperature);
    const auto got = candidates_of(logits, temperature);
    Real total = 0;
    for (const Candidate& c : got) total += c.weight;
    for (const Candidate& c : got)
      EXPECT_NEAR(static_cast<double>(c.weight / total), static_cast<double>(want.at(c.id)), 1e-14);
  }
}

TEST(SamplerChain, KeepsWhatTheFormulasKeep) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const auto logits = random_logits(seed, 50 + seed, 0.5f + static_cast<float>(seed % 8));
    const double temperature = 0.5 + 0.1 * (seed % 10);
    const auto p = softmax(as_map(logits), temperature);
    const std::vector<int32_t> order = order_by(p);
    for (const double limit : {0.05, 0.3, 0.7, 0.95}) {
      auto c = candidates_of(logits, temperature);
      keep_top_p(c, limit);
      EXPECT_EQ(ids_of(c), reference_top_p(p, limit)) << seed << " top-p " << limit;
      EXPECT_TRUE(std::is_sorted(c.begin(), c.end(), is_likelier));
      c = candidates_of(logits, temperature);
      keep_typical(c, limit);
      EXPECT_EQ(ids_of(c), reference_typical(p, limit)) << seed << " typical-p " << limit;
      c = candidates_of(logits, temperature);
      keep_min_p(c, limit);
      std::set<int32_t> want;
      for (const auto& [id, value] : p)
        if (value >= limit * p.at(order[0])) want.insert(id);
      EXPECT_EQ(ids_of(c), want) << seed << " min-p " << limit;
    }
    for (const size_t k : {size_t{1}, size_t{7}, size_t{1000}}) {
      auto c = candidates_of(logits, temperature);
      keep_top_k(c, k);
      EXPECT_EQ(ids_of(c),
                std::set<int32_t>(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(
                                                                     std::min(k, order.size()))));
    }
  }
}

TEST(SamplerChain, TypicalPicksTheMiddleOfThisDistribution) {
  // p = ½, ¼, ¼: H = 1.5 bits; distances ½, ½, ½ are equal up to rounding, so take another:
  // p = 0.6, 0.2, 0.1, 0.1: H = 1.571 bits; surprises 0.737, 2.322, 3.322: the second is nearest.
  const float logits[] = {std::log(0.6f), std::log(0.2f), std::log(0.1f), std::log(0.1f)};
  auto c = candidates_of(logits, 1.0);
  keep_typical(c, 0.1);
  EXPECT_EQ(ids_of(c), (std::set<int32_t>{1}));
  c = candidates_of(logits, 1.0);
  keep_typical(c, 0.5);
  EXPECT_EQ(ids_of(c), (std::set<int32_t>{0, 1}));
}

TEST(SamplerChain, PenaltiesFollowTheirFormula) {
  const std::vector<int32_t> window = {3, 1, 3, 3, 0, 99, -1};
  std::vector<float> logits = {2.0f, -1.0f, 0.5f, 4.0f, -3.0f};
  apply_penalties(logits, window, {.repeat = 2.0f, .frequency = 0.25f, .presence = 0.5f});
  EXPECT_EQ(logits, (std::vector<float>{2 / 2.0f - 0.25f - 0.5f, -1 * 2.0f - 0.25f - 0.5f, 0.5f,
                                        4 / 2.0f - 3 * 0.25f - 0.5f, -3.0f}));
}

TEST(SamplerChain, LogitBiasIsAddedAndMayBan) {
  std::vector<float> logits = {1.0f, 2.0f, 3.0f};
  const LogitBias biases[] = {{0, 1.5f}, {2, -INFINITY}, {77, 1.0f}, {-1, 1.0f}};
  apply_logit_bias(logits, biases);
  EXPECT_EQ(logits[0], 2.5f);
  EXPECT_EQ(logits[1], 2.0f);
  EXPECT_EQ(logits[2], -INFINITY);
}

size_t reference_mirostat_k(const std::map<int32_t, Real>& p, Real mu, Real vocabulary) {
  std::vector<Real> sorted;
  for (const int32_t id : order_by(p)) sorted.push_back(p.at(id));
  Real tb = 0, tt = 0;
  for (size_t i = 0; i < 99 && i + 1 < sorted.size(); ++i) {
    const Real t = std::log(Real(i + 2) / Real(i + 1)), b = std::log(sorted[i] / sorted[i + 1]);
    tb += t * b;
    tt += t * t;
  }
  const Real s = tb / tt, e = s - 1;
  const Real k = std::pow(e * std::pow(Real{2}, mu) / (1 - std::pow(vocabulary, -e)), 1 / s);
  return static_cast<size_t>(std::clamp(std::floor(k), Real{1}, Real(sorted.size())));
}

TEST(SamplerChain, MirostatKeepsAsManyAsTheFormula) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const size_t count = 3 + seed * 7 % 400;
    const auto logits = random_logits(seed, count, 0.2f + static_cast<float>(seed % 13));
    const double mu = 0.5 + 0.37 * (seed % 30);
    auto c = candidates_of(logits, 1.0);
    sort_candidates(c);
    const size_t want =
        reference_mirostat_k(softmax(as_map(logits), 1), mu, static_cast<Real>(count));
    EXPECT_NEAR(static_cast<double>(mirostat_k(c, mu, count)), static_cast<double>(want), 1.0)
        << seed;  // a k next to an integer may round either way
  }
  std::vector<Candidate> one = {{1.0f, 0, 1.0}};
  EXPECT_EQ(mirostat_k(one, 5, 1), 1u);
  const float equal[] = {1, 1, 1, 1};
  auto c = candidates_of(equal, 1.0);
  EXPECT_EQ(mirostat_k(c, 0.1, 4), 4u);
}

TEST(SamplerChain, MirostatTwoCutsAtTheSurprise) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const auto logits = random_logits(seed, 60, 6);
    const auto p = softmax(as_map(logits), 1);
    for (const double mu : {-1.0, 0.5, 2.3, 5.1, 50.0}) {
      auto c = candidates_of(logits, 1.0);
      keep_unsurprising(c, mu);
      std::set<int32_t> want = {order_by(p)[0]};
      for (const auto& [id, value] : p)
        if (-std::log2(value) <= mu) want.insert(id);
      EXPECT_EQ(ids_of(c), want) << seed << " " << mu;
    }
  }
}

std::vector<int32_t> draws(const SamplerOptions& options, std::span<const float> logits,
                           int count) {
  Sampler sampler(options);
  std::vector<int32_t> out;
  while (static_cast<int>(out.size()) < count) out.push_back(sampler.sample(logits).value());
  return out;
}

/// Chi-square of many draws beside the probabilities.
void expect_distribution(const SamplerOptions& options, std::span<const float> logits,
                         const std::map<int32_t, Real>& want, TokenMask mask = {}) {
  constexpr int kDraws = 20'000;
  Sampler sampler(options);
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.sample(logits, mask).value()];
  double chi_square = 0;
  for (const auto& [id, n] : counts) ASSERT_TRUE(want.contains(id)) << id;
  for (const auto& [id, p] : want) {
    const double expected = static_cast<double>(p) * kDraws;
    chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
  }
  // Mean n − 1, variance 2 (n − 1): five deviations.
  const double freedom = static_cast<double>(want.size()) - 1;
  EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom) + 1);
}

std::map<int32_t, Real> restrict_to(const std::map<int32_t, Real>& p,
                                    const std::set<int32_t>& ids) {
  std::map<int32_t, Real> out;
  Real sum = 0;
  for (const int32_t id : ids) sum += out[id] = p.at(id);
  for (auto& [id, value] : out) value /= sum;
  return out;
}

TEST(SamplerChain, DrawsFollowTheProbabilitiesOfEverySampler) {
  const auto logits = random_logits(5, 24, 2);
  const auto p = softmax(as_map(logits), 0.9f);
  const auto order = order_by(p);
  const SamplerOptions base{.temperature = 0.9f, .seed = 77};
  expect_distribution(base, logits, p);
  SamplerOptions o = base;
  o.top_k = 6;
  expect_distribution(o, logits, restrict_to(p, {order.begin(), order.begin() + 6}));
  o = base;
  o.top_p = 0.6f;
  expect_distribution(o, logits, restrict_to(p, reference_top_p(p, 0.6f)));
  o = base;
  o.typical_p = 0.5f;
  expect_distribution(o, logits, restrict_to(p, reference_typical(p, 0.5f)));
  o = base;
  o.logit_bias = {{order[0], -INFINITY}, {order[1], 1.0f}};
  auto biased = as_map(logits);
  biased.erase(order[0]);
  biased[order[1]] += 1;
  expect_distribution(o, logits, softmax(biased, 0.9f));
  // Even ids alone.
  const uint64_t mask[] = {0x5555555555555555};
  auto even = as_map(logits);
  std::erase_if(even, [](const auto& pair) { return pair.first % 2 != 0; });
  expect_distribution(base, logits, softmax(even, 0.9f), mask);
}

std::vector<Candidate> of_probabilities(std::initializer_list<double> shares) {
  std::vector<float> logits;
  for (const double p : shares) logits.push_back(static_cast<float>(std::log(p)));
  return candidates_of(logits, 1.0);
}

TEST(SamplerChain, XtcLeavesTheLeastLikelyOfTheTopChoices) {
  const std::pair<double, std::set<int32_t>> rows[] = {
      {0.5, {0, 1, 2, 3}}, {0.35, {0, 1, 2, 3}}, {0.25, {0, 2, 3}}, {0.15, {2, 3}}, {0.05, {3}}};
  for (const auto& [threshold, want] : rows) {
    auto c = of_probabilities({0.3, 0.4, 0.2, 0.1});
    exclude_top_choices(c, threshold);
    EXPECT_EQ(ids_of(c), want) << threshold;
    EXPECT_TRUE(std::is_sorted(c.begin(), c.end(), is_likelier));
  }
  // Drawn for half of the tokens, after min-p; above 0.5 never.
  const auto logits = random_logits(6, 12, 2);
  const auto p = softmax(as_map(logits), 1);
  const auto order = order_by(p);
  std::set<int32_t> left(order.begin(), order.end());
  for (const int32_t id : order)
    if (left.size() > 1 && p.at(order[order.size() - left.size() + 1]) >= 0.1L) left.erase(id);
  ASSERT_LT(left.size(), order.size());
  auto want = p;
  const auto without = restrict_to(p, left);
  for (auto& [id, value] : want)
    value = value / 2 + (without.contains(id) ? without.at(id) / 2 : 0);
  SamplerOptions o{.temperature = 1, .xtc_probability = 0.5f, .xtc_threshold = 0.1f, .seed = 5};
  expect_distribution(o, logits, want);
  o.xtc_threshold = 0.6f;
  expect_distribution(o, logits, p);
}

TEST(SamplerChain, TopNSigmaCutsBelowTheHighestLogit) {
  // Mean 3.2, deviation 3.544.
  const float logits[] = {0, 1, 2, 3, 10};
  const std::pair<double, std::set<int32_t>> rows[] = {
      {0, {0, 1, 2, 3, 4}}, {-1, {0, 1, 2, 3, 4}}, {1, {4}},
      {2, {3, 4}},          {2.5, {2, 3, 4}},      {3, {0, 1, 2, 3, 4}}};
  for (const auto& [n, want] : rows) {
    auto c = candidates_of(logits, 1.0);
    keep_top_n_sigma(c, n);
    EXPECT_EQ(ids_of(c), want) << n;
  }
  const auto random = random_logits(9, 60, 3);
  Real mean = 0, variance = 0;
  for (const float l : random) mean += Real{l} / 60;
  for (const float l : random) variance += (l - mean) * (l - mean) / 60;
  std::set<int32_t> kept;
  const Real least = *std::max_element(random.begin(), random.end()) - 1.5L * std::sqrt(variance);
  for (size_t i = 0; i < random.size(); ++i)
    if (random[i] >= least) kept.insert(static_cast<int32_t>(i));
  // The cut is of logits, whatever the temperature.
  expect_distribution({.temperature = 2, .top_n_sigma = 1.5f, .seed = 8}, random,
                      restrict_to(softmax(as_map(random), 2), kept));
}

TEST(SamplerChain, TheDynamicTemperatureFollowsTheEntropy) {
  EXPECT_DOUBLE_EQ(dynamic_temperature(of_probabilities({0.25, 0.25, 0.25, 0.25}), 1, 0.5, 1), 1.5);
  EXPECT_NEAR(dynamic_temperature(of_probabilities({1 - 1e-12, 1e-12}), 1, 0.5, 1), 0.5, 1e-9);
  // H = 0.562335 of at most 0.693147.
  EXPECT_NEAR(dynamic_temperature(of_probabilities({0.75, 0.25}), 1, 0.5, 1), 0.5 + 0.811278, 1e-6);
  EXPECT_NEAR(dynamic_temperature(of_probabilities({0.75, 0.25}), 0.2, 0.5, 2),
              0.7 * 0.811278 * 0.811278, 1e-6);
  EXPECT_DOUBLE_EQ(dynamic_temperature(of_probabilities({0.75, 0.25}), 1, 0.5, 0), 1.5);
  // It comes last: of what top-p has left at temperature 1.
  const auto logits = random_logits(12, 20, 3);
  const auto p = softmax(as_map(logits), 1);
  const auto kept = reference_top_p(p, 0.8f);
  Real entropy = 0;
  for (const auto& [id, value] : restrict_to(p, kept)) entropy -= value * std::log(value);
  const Real evenness = entropy / std::log(static_cast<Real>(kept.size()));
  const Real temperature = 0.4L + 1.2L * std::pow(evenness, 1.5L);
  expect_distribution({.temperature = 1,
                       .dynatemp_range = 0.6f,
                       .dynatemp_exponent = 1.5f,
                       .top_p = 0.8f,
                       .seed = 4},
                      logits, restrict_to(softmax(as_map(logits), temperature), kept));
}

/// n of apply_dry(), looked for token by token.
size_t repeated(const std::vector<int32_t>& tokens, int32_t next, size_t limit) {
  size_t best = 0;
  for (size_t end = 0; end + 1 < tokens.size(); ++end) {
    if (tokens[end + 1] != next) continue;
    size_t n = 0;
    while (n < limit && n <= end && tokens[end - n] == tokens[tokens.size() - 1 - n]) ++n;
    best = std::max(best, n);
  }
  return best;
}

TEST(SamplerChain, DryGrowsWithTheRepetitionThatWouldGoOn) {
  // a b c c b c y a b c: c goes on with "a b c", y with "b c", b with "c" alone.
  const std::vector<int32_t> tokens = {0, 1, 2, 2, 1, 2, 3, 0, 1, 2};
  std::vector<float> logits(5, 1.0f);
  const DryOptions options{.multiplier = 0.8f, .base = 1.75f, .allowed_length = 2};
  apply_dry(logits, tokens, 10, options);
  EXPECT_FLOAT_EQ(logits[2], 1 - 0.8f * 1.75f);
  EXPECT_FLOAT_EQ(logits[3], 1 - 0.8f);
  for (const int32_t id : {0, 1, 4}) EXPECT_EQ(logits[static_cast<size_t>(id)], 1.0f) << id;
  // Behind a breaker before the last two tokens only these count.
  logits.assign(5, 1.0f);
  apply_dry(logits, tokens, 2, options);
  EXPECT_FLOAT_EQ(logits[2], 1 - 0.8f);
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> text(1 + random() % 40);
    for (int32_t& t : text) t = static_cast<int32_t>(random() % 3);
    DryOptions o{
        .multiplier = 0.5f, .base = 1.5f, .allowed_length = static_cast<uint32_t>(random() % 4)};
    const size_t limit = random() % (text.size() + 1);
    logits.assign(3, 0.0f);
    apply_dry(logits, text, limit, o);
    for (int32_t id = 0; id < 3; ++id) {
      const size_t n = repeated(text, id, limit);
      const bool follows = std::find(text.begin() + 1, text.end(), id) != text.end();
      const double want =
          follows && n >= o.allowed_length ? -0.5 * std::pow(1.5, n - o.allowed_length) : 0;
      EXPECT_NEAR(logits[static_cast<size_t>(id)], want, 1e-4 * std::abs(want)) << round;
    }
  }
  // A long loop stays finite.
  logits.assign(5, 1.0f);
  apply_dry(logits, std::vector<int32_t>(500, 1), 500, options);
  EXPECT_TRUE(std::isfinite(logits[1]) && logits[1] < -1e37f);
}

TEST(SamplerChain, DryStopsAtBreakers) {
  const std::vector<std::string> pieces = {"a", "b", "\n", "x:", "<e", "nd>", "c"};
  const auto breakers = std::make_shared<const DryBreakers>(
      std::vector<std::string>{"\n", ":", "<end>"},
      [&](int32_t id) { return pieces.at(static_cast<size_t>(id)); });
  using Ids = std::vector<int32_t>;
  EXPECT_TRUE(breakers->end_in(Ids{0, 2}));
  EXPECT_TRUE(breakers->end_in(Ids{3}));
  EXPECT_TRUE(breakers->end_in(Ids{0, 4, 5}));  // of two tokens
  EXPECT_FALSE(breakers->end_in(Ids{4, 5, 0}));
  EXPECT_FALSE(breakers->end_in(Ids{4, 6, 5}));
  EXPECT_FALSE(breakers->end_in(Ids{2, 0}));
  EXPECT_FALSE(breakers->end_in(Ids{}));
  EXPECT_TRUE(breakers->are_in(3) && breakers->are_in(2));
  EXPECT_FALSE(breakers->are_in(0) || breakers->are_in(5));
  // "a b c" would go on with b, but not across the line's end; and a breaker costs nothing.
  const float logits[] = {0, 1, 0.5f, 0, 0, 0, 0.9f};
  const auto next = [&](const Ids& text, bool has_breakers) {
    Sampler sampler({.temperature = 0,
                     .dry = {.multiplier = 5, .breakers = has_breakers ? breakers : nullptr}});
    sampler.accept_for_dry(text);
    return sampler.sample(logits).value();
  };
  EXPECT_EQ(next({0, 6, 1, 0, 6}, true), 6);
  EXPECT_EQ(next({0, 6, 1, 0, 2, 6}, true), 1);
  EXPECT_EQ(next({2, 6, 1, 2, 6}, false), 6);
  EXPECT_EQ(next({2, 6, 1, 2, 6}, true), 1);
}

TEST(SamplerChain, TopPAfterTypicalUsesTheProbabilitiesOfWhatIsLeft) {
  const auto logits = random_logits(8, 30, 2);
  const auto p = softmax(as_map(logits), 1);
  const auto typical = restrict_to(p, reference_typical(p, 0.8f));
  const auto both = restrict_to(typical, reference_top_p(typical, 0.5f));
  expect_distribution({.temperature = 1, .top_p = 0.5f, .typical_p = 0.8f, .seed = 3}, logits,
                      both);
}

/// The draws of both algorithms as their papers write them, with the sampler's uniform numbers.
std::vector<int32_t> reference_mirostat(Mirostat version, std::span<const float> logits, Real tau,
                                        Real eta, uint64_t seed, int count, Real* mean_surprise) {
  const auto p = softmax(as_map(logits), 1);
  const std::vector<int32_t> order = order_by(p);
  Real mu = 2 * tau, sum_of_surprises = 0;
  std::vector<int32_t> out;
  for (int n = 0; n < count; ++n) {
    size_t kept = 1;
    if (version == Mirostat::kV1)
      kept = reference_mirostat_k(p, mu, static_cast<Real>(logits.size()));
    else
      while (kept < order.size() && -std::log2(p.at(order[kept])) <= mu) ++kept;
    Real total = 0, reached = 0;
    for (size_t i = 0; i < kept; ++i) total += p.at(order[i]);
    const PhiloxBlock block = philox4x32({{static_cast<uint32_t>(n), 0, 0, 0}}, seed);
    const uint64_t bits = (uint64_t{block.words[0]} << 32) | block.words[1];
    const Real uniform = static_cast<Real>(bits >> 11) / 9007199254740992.0L;
    size_t chosen = 0;
    while ((reached += p.at(order[chosen])) <= uniform * total && chosen + 1 < kept) ++chosen;
    const Real surprise = -std::log2(p.at(order[chosen]) / total);
    sum_of_surprises += surprise;
    mu -= eta * (surprise - tau);
    out.push_back(order[chosen]);
  }
  *mean_surprise = sum_of_surprises / count;
  return out;
}

TEST(SamplerChain, MirostatDrawsAsThePapersDoAndSettlesAtTheSurpriseAskedFor) {
  const auto logits = random_logits(11, 300, 4);
  for (const Mirostat version : {Mirostat::kV1, Mirostat::kV2}) {
    SamplerOptions o{.temperature = 1, .mirostat = version, .mirostat_tau = 4, .seed = 5};
    Real mean = 0;
    const auto want = reference_mirostat(version, logits, 4, Real{0.1f}, 5, 400, &mean);
    EXPECT_EQ(draws(o, logits, 400), want) << static_cast<int>(version);
    EXPECT_NEAR(static_cast<double>(mean), 4.0, 0.15);
  }
}

TEST(SamplerChain, LogprobsAreTheLogarithmOfTheSoftmax) {
  const auto logits = random_logits(4, 500, 15);
  const auto p = softmax(as_map(logits), 1);
  const auto order = order_by(p);
  const TokenLogprobs got = token_logprobs(logits, 123, 5);
  EXPECT_EQ(got.chosen.id, 123);
  EXPECT_NEAR(got.chosen.logprob, static_cast<double>(std::log(p.at(123))), 1e-12);
  ASSERT_EQ(got.top.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(got.top[i].id, order[i]);
    EXPECT_NEAR(got.top[i].logprob, static_cast<double>(std::log(p.at(order[i]))), 1e-12);
  }
  EXPECT_EQ(token_logprobs(std::vector<float>{1, 2}, 0, 9).top.size(), 2u);
}

TEST(SamplerChain, ExtremeLogitsGiveNoSurpriseAndNoCrash) {
  const float logits[] = {3.4e38f, -3.4e38f, 0.0f, -3.4e38f};
  for (const Mirostat version : {Mirostat::kOff, Mirostat::kV1, Mirostat::kV2}) {
    SamplerOptions o{.temperature = 0.5f, .top_p = 0.9f, .min_p = 0.1f, .typical_p = 0.9f};
    o.mirostat = version;
    Sampler sampler(o);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(sampler.sample(logits).value(), 0);
  }
}

TEST(SamplerChain, RefusesWhatIsOutOfRange) {
  for (const SamplerOptions& o :
       {SamplerOptions{.typical_p = 0}, SamplerOptions{.frequency_penalty = NAN},
        SamplerOptions{.dynatemp_range = -1}, SamplerOptions{.top_n_sigma = NAN},
        SamplerOptions{.xtc_probability = 1.5f}, SamplerOptions{.xtc_threshold = -1},
        SamplerOptions{.dry = {.multiplier = -1}}, SamplerOptions{.dry = {.base = 0.5f}},
        SamplerOptions{.presence_penalty = -101}, SamplerOptions{.mirostat_tau = 0},
        SamplerOptions{.mirostat_eta = 2}, SamplerOptions{.logit_bias = {{-1, 0.0f}}},
        SamplerOptions{.logit_bias = {{1, NAN}}}, SamplerOptions{.logit_bias = {{1, INFINITY}}}})
    EXPECT_EQ(Sampler::create(o).error().code, Code::kInvalidArgument);
  Sampler sampler(SamplerOptions{.temperature = 0});
  const float logits[] = {1.0f, 2.0f};
  const uint64_t none[] = {0}, second[] = {2};
  EXPECT_EQ(sampler.sample(logits, none).error().code, Code::kInvalidArgument);
  EXPECT_EQ(sampler.sample(logits, second).value(), 1);
}

TEST(PortableLog, IsWithinThreeUnitsOfTheLibrary) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200'000; ++i) {
    const double x = std::ldexp(1.0 + static_cast<double>(random() >> 12) * 0x1p-52,
                                static_cast<int>(random() % 2000) - 1000);
    const double want = std::log(x);
    ASSERT_NEAR(portable_log(x), want, 3 * 2.3e-16 * std::abs(want) + 1e-300) << x;
  }
  EXPECT_EQ(portable_log(1.0), 0.0);
}

/// What keep_infill() leaves of tokens with these probabilities and texts; those without end a
/// text.
std::vector<int32_t> left_by_infill(const std::vector<std::pair<double, const char*>>& tokens) {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < tokens.size(); ++i)
    candidates.push_back(
        {static_cast<float>(std::log(tokens[i].first)), static_cast<int32_t>(i), 0});
  const auto text = [&](int32_t id) { return std::string(tokens[static_cast<size_t>(id)].second); };
  keep_infill(candidates,
              {.is_end = [&](int32_t id) { return text(id).empty(); }, .piece = text, .end = 99});
  std::vector<int32_t> out;
  for (const Candidate& c : candidates) out.push_back(c.id);
  return out;
}

TEST(SamplerChain, InfillClosesAGapSoon) {
  using Ids = std::vector<int32_t>;
  // Ends are worth three times as many tokens as there are: 3 · 0.1 · 4 > 0.9.
  EXPECT_EQ(left_by_infill({{0.5, "a"}, {0.3, "b"}, {0.1, ""}, {0.1, "c"}}), (Ids{2}));
  EXPECT_EQ(left_by_infill({{0.6, "a"}, {0.38, "b"}, {0.02, ""}}), (Ids{0, 1, 2}));
  // 0.15 + 0.15 are one token of 0.3, by the likelier or the first.
  EXPECT_EQ(left_by_infill({{0.7, "x"}, {0.15, "a"}, {0.15, "ab"}}), (Ids{0}));
  EXPECT_EQ(left_by_infill({{0.4, "x"}, {0.16, "a"}, {0.24, "ab"}, {0.2, "y"}}), (Ids{0, 2}));
  // Nothing is likely.
  EXPECT_EQ(left_by_infill(
                {{0.19, "a"}, {0.17, "b"}, {0.16, "c"}, {0.16, "d"}, {0.16, "e"}, {0.16, "f"}}),
            (Ids{99}));
}

TEST(SamplerChain, SomeAreKeptWhateverTheirProbability) {
  const auto kept = [](auto keep) {
    std::vector<Candidate> candidates;
    for (int32_t i = 0; i < 6; ++i) candidates.push_back({3.0F - static_cast<float>(i), i, 0});
    weigh(candidates, 1.0);
    keep(candidates);
    return candidates.size();
  };
  EXPECT_EQ(kept([](auto& c) { keep_top_p(c, 0.1); }), 1u);
  EXPECT_EQ(kept([](auto& c) { keep_top_p(c, 0.1, 3); }), 3u);
  EXPECT_EQ(kept([](auto& c) { keep_top_p(c, 0.1, 9); }), 6u);
  EXPECT_EQ(kept([](auto& c) { keep_min_p(c, 0.9); }), 1u);
  EXPECT_EQ(kept([](auto& c) { keep_min_p(c, 0.9, 4); }), 4u);
  EXPECT_EQ(kept([](auto& c) { keep_min_p(c, 0.1, 2); }), 3u);
  EXPECT_EQ(kept([](auto& c) { keep_typical(c, 0.1, 4); }), 4u);
  EXPECT_EQ(kept([](auto& c) { exclude_top_choices(c, 0.01); }), 2u);
  EXPECT_EQ(kept([](auto& c) { exclude_top_choices(c, 0.01, 3); }), 6u);
}

TEST(Sampler, TellsWhatTheLastTokenWasDrawnFrom) {
  const std::vector<float> logits{0, 3, 1, 2};
  Sampler greedy({.temperature = 0});
  EXPECT_EQ(*greedy.sample(logits), 1);
  EXPECT_EQ(greedy.last_drawn(9).chosen, 1.0);
  EXPECT_EQ(greedy.last_drawn(9).top.size(), 1u);
  using enum SamplerStep;
  for (const auto& order : {std::optional<std::vector<SamplerStep>>(),
                            std::optional(std::vector{kTopK, kTemperature})}) {
    Sampler sampler({.temperature = 2, .top_k = 2, .order = order});
    const int32_t token = *sampler.sample(logits);
    const Sampler::Drawn drawn = sampler.last_drawn(9);
    ASSERT_EQ(drawn.top.size(), 2u);
    EXPECT_EQ(drawn.top[0].first, 1);
    EXPECT_NEAR(drawn.top[0].second, 1 / (1 + std::exp(-0.5)), 1e-9);
    EXPECT_EQ(drawn.chosen, drawn.top[token == 1 ? 0 : 1].second);
  }
}

TEST(Sampler, AnOrderHasItsStepsAlone) {
  const std::vector<float> logits = {0, 3, 1, 2};
  using Step = SamplerStep;
  const auto drawn = [&](std::vector<Step> order) {
    std::set<int32_t> out;
    Sampler sampler({.temperature = 0.5f,
                     .top_k = 2,
                     .min_p = 0.5f,
                     .repeat_penalty = 50.0f,
                     .order = std::move(order),
                     .seed = 7});
    for (int i = 0; i < 300; ++i) out.insert(*sampler.sample(logits));
    return out;
  };
  EXPECT_EQ(drawn({}), (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(drawn({Step::kTopK}), (std::set<int32_t>{1, 3}));
  // The second is e^-1 as likely as the first.
  EXPECT_EQ(drawn({Step::kMinP}), (std::set<int32_t>{1}));
  EXPECT_FALSE(Sampler::create({.order = std::vector{Step::kInfill}}));
}

}  // namespace
}  // namespace bm::models
