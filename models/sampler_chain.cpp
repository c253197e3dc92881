// Compiled with -ffp-contract=off: see the promise of Sampler.

#include "models/sampler_chain.h"

#include <algorithm>
#include <cmath>

#include "models/sampler_math.h"

namespace bm::models {
namespace {

constexpr float kLargest = 3.4e38f;
constexpr double kLn2 = 0.6931471805599453;

double total_weight(std::span<const Candidate> candidates) {
  double total = 0.0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

}  // namespace

void apply_logit_bias(std::span<float> logits, std::span<const LogitBias> biases) {
  for (const LogitBias& b : biases) {
    if (b.token < 0 || static_cast<size_t>(b.token) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(b.token)];
    logit = std::isinf(b.bias) ? b.bias : std::clamp(logit + b.bias, -kLargest, kLargest);
  }
}

void apply_penalties(std::span<float> logits, std::span<const int32_t> window,
                     const Penalties& penalties) {
  if (penalties.is_neutral()) return;
  std::vector<int32_t> seen(window.begin(), window.end());
  std::sort(seen.begin(), seen.end());
  for (size_t begin = 0, end = 0; begin < seen.size(); begin = end) {
    while (end < seen.size() && seen[end] == seen[begin]) ++end;
    const int32_t id = seen[begin];
    if (id < 0 || static_cast<size_t>(id) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(id)];
    if (std::isinf(logit)) continue;  // banned
    logit = logit > 0 ? logit / penalties.repeat : logit * penalties.repeat;
    logit -= static_cast<float>(end - begin) * penalties.frequency + penalties.presence;
    // Penalties may push a huge logit past the range of float.
    logit = std::clamp(logit, -kLargest, kLargest);
  }
}

bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

void sort_candidates(std::vector<Candidate>& candidates) {
  std::sort(candidates.begin(), candidates.end(), is_likelier);
}

void weigh(std::vector<Candidate>& candidates, double temperature) {
  if (candidates.empty()) return;
  const double top = std::min_element(candidates.begin(), candidates.end(), is_likelier)->logit;
  for (Candidate& c : candidates) c.weight = portable_exp((double{c.logit} - top) / temperature);
}

void keep_top_k(std::vector<Candidate>& candidates, size_t k) {
  if (k == 0) return;
  if (k < candidates.size()) {
    const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(k);
    std::nth_element(candidates.begin(), end, candidates.end(), is_likelier);
    candidates.erase(end, candidates.end());
  }
  // Always: a draw must not depend on the order that nth_element happens to leave.
  sort_candidates(candidates);
}

void keep_typical(std::vector<Candidate>& candidates, double p, size_t at_least) {
  if (p >= 1.0 || candidates.empty()) return;
  sort_candidates(candidates);
  const double total = total_weight(candidates);
  struct Surprise {
    double value;  // −ln p_i, then its distance from the entropy
    size_t index;
  };
  std::vector<Surprise> surprises;
  double entropy = 0.0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const double share = candidates[i].weight / total;
    if (share < 1e-300) break;  // no part of any sum; the rest is less likely still
    surprises.push_back({-portable_log(share), i});
    entropy += share * surprises.back().value;
  }
  for (Surprise& s : surprises) s.value = std::abs(s.value - entropy);
  std::sort(surprises.begin(), surprises.end(), [](const Surprise& a, const Surprise& b) {
    return a.value != b.value ? a.value < b.value : a.index < b.index;
  });
  std::vector<Candidate> kept;
  double reached = 0.0;
  for (const Surprise& s : surprises) {
    kept.push_back(candidates[s.index]);
    reached += candidates[s.index].weight;
    if (reached > p * total && kept.size() >= at_least) break;
  }
  candidates = std::move(kept);
  sort_candidates(candidates);
}

void keep_top_p(std::vector<Candidate>& candidates, double p, size_t at_least) {
  if (p >= 1.0) return;
  sort_candidates(candidates);
  const double total = total_weight(candidates);
  double kept = 0.0;
  size_t count = 0;
  while (count < candidates.size() && (count < std::max<size_t>(at_least, 1) || kept < p * total))
    kept += candidates[count++].weight;
  candidates.resize(count);
}

void keep_min_p(std::vector<Candidate>& candidates, double p, size_t at_least) {
  double top = 0.0;
  for (const Candidate& c : candidates) top = std::max(top, c.weight);
  const auto is_unlikely = [&](const Candidate& c) { return c.weight < p * top; };
  if (at_least > 1) {
    sort_candidates(candidates);
    const auto end = std::ranges::find_if(candidates, is_unlikely) - candidates.begin();
    candidates.resize(std::min(candidates.size(), std::max(static_cast<size_t>(end), at_least)));
    return;
  }
  std::erase_if(candidates, is_unlikely);
}

void keep_top_n_sigma(std::vector<Candidate>& candidates, double n) {
  if (!(n > 0.0) || candidates.size() < 2) return;
  const auto size = static_cast<double>(candidates.size());
  double top = candidates.front().logit, mean = 0.0, variance = 0.0;
  for (const Candidate& c : candidates) {
    top = std::max(top, double{c.logit});
    mean += c.logit / size;
  }
  for (const Candidate& c : candidates) variance += (c.logit - mean) * ((c.logit - mean) / size);
  const double least = top - n * std::sqrt(variance);
  std::erase_if(candidates, [&](const Candidate& c) { return c.logit < least; });
}

void exclude_top_choices(std::vector<Candidate>& candidates, double threshold, size_t at_least) {
  sort_candidates(candidates);
  const double least = threshold * total_weight(candidates);
  size_t count = 0;
  while (count < candidates.size() && candidates[count].weight >= least) ++count;
  if (count > 1 && candidates.size() - (count - 1) >= at_least)
    candidates.erase(candidates.begin(),
                     candidates.begin() + static_cast<std::ptrdiff_t>(count - 1));
}

double dynamic_temperature(std::span<const Candidate> candidates, double temperature, double range,
                           double exponent) {
  const double low = std::max(temperature - range, 0.0), high = temperature + range;
  if (candidates.size() < 2) return high;  // whatever it is, there is one choice
  const double total = total_weight(candidates);
  double entropy = 0.0;
  for (const Candidate& c : candidates) {
    const double share = c.weight / total;
    if (share >= 1e-300) entropy -= share * portable_log(share);
  }
  const double evenness = entropy / portable_log(static_cast<double>(candidates.size()));
  double power = exponent == 0.0 ? 1.0 : 0.0;
  if (exponent > 0.0 && evenness >= 1e-300)
    power = portable_exp(std::min(exponent * portable_log(std::min(evenness, 1.0)), 0.0));
  return low + (high - low) * power;
}

size_t mirostat_k(std::span<const Candidate> candidates, double mu, size_t vocabulary) {
  constexpr size_t kMost = 100;
  if (candidates.size() < 2) return candidates.size();
  double sum_tb = 0.0, sum_tt = 0.0;
  for (size_t i = 0; i + 1 < std::min(kMost, candidates.size()); ++i) {
    const double a = candidates[i].weight, b = candidates[i + 1].weight;
    if (b < 1e-300) break;
    const double t = portable_log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    sum_tb += t * portable_log(a / b);
    sum_tt += t * t;
  }
  if (sum_tt == 0.0) return 1;  // the first has all the probability
  const double s = sum_tb / sum_tt, epsilon = s - 1.0;
  const double log_n = portable_log(static_cast<double>(vocabulary));
  if (s <= 0.0) return candidates.size();  // all are equally likely: the exponent is infinite
  // ln(ε / (1 − N^−ε)), the same for −ε but for a factor N^ε; 1 / ln N at 0.
  const double size = std::abs(epsilon);
  double log_ratio = size * log_n < 1e-9 ? -portable_log(log_n)
                                         : portable_log(size / (1.0 - portable_exp(-size * log_n)));
  if (epsilon < 0.0) log_ratio -= size * log_n;
  const double log_k = (log_ratio + mu * kLn2) / s;
  if (log_k >= portable_log(static_cast<double>(candidates.size()))) return candidates.size();
  if (log_k <= 0.0) return 1;
  return std::max<size_t>(1, static_cast<size_t>(1.0 / portable_exp(-log_k)));
}

void keep_unsurprising(std::vector<Candidate>& candidates, double mu) {
  sort_candidates(candidates);
  const double total = total_weight(candidates);
  size_t count = 1;
  while (count < candidates.size()) {
    const double share = candidates[count].weight / total;
    if (share < 1e-300 || -portable_log(share) > mu * kLn2) break;
    ++count;
  }
  if (count < candidates.size()) candidates.resize(count);
}

size_t draw_index(std::span<const Candidate> candidates, double uniform) {
  double left = uniform * total_weight(candidates);
  for (size_t i = 0; i < candidates.size(); ++i) {
    left -= candidates[i].weight;
    if (left < 0.0) return i;
  }
  // Rounding left nothing: the draw fell on the very end of the range.
  return static_cast<size_t>(std::min_element(candidates.begin(), candidates.end(), is_likelier) -
                             candidates.begin());
}

TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, size_t count) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float l : logits) sum += portable_exp(double{l} - top);
  const double log_sum = top + portable_log(sum);
  const auto logprob = [&](int32_t id) {
    return TokenLogprob{id, double{logits[static_cast<size_t>(id)]} - log_sum};
  };
  TokenLogprobs out{.chosen = logprob(token), .top = {}};
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(count, ids.size()));
  std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (auto id = ids.begin(); id != end; ++id) out.top.push_back(logprob(*id));
  return out;
}

}  // namespace bm::models
