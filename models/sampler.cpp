// Compiled with -ffp-contract=off: see the promise of Sampler.

#include "models/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/check.h"

namespace bm::models {
namespace {

Status check_options(const SamplerOptions& o) {
  // Written so that NaN fails every test.
  if (!(o.temperature >= 0.0f && o.temperature <= 100.0f))
    return fail(Code::kInvalidArgument, "temperature {} is not in [0, 100]", o.temperature);
  if (!(o.top_p > 0.0f && o.top_p <= 1.0f))
    return fail(Code::kInvalidArgument, "top_p {} is not in (0, 1]", o.top_p);
  if (!(o.min_p >= 0.0f && o.min_p <= 1.0f))
    return fail(Code::kInvalidArgument, "min_p {} is not in [0, 1]", o.min_p);
  if (!(o.repeat_penalty > 0.0f && o.repeat_penalty <= 100.0f))
    return fail(Code::kInvalidArgument, "repeat_penalty {} is not in (0, 100]", o.repeat_penalty);
  return {};
}

}  // namespace

PhiloxBlock philox4x32(const PhiloxBlock& counter, uint64_t key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  PhiloxBlock c = counter;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = kMultiplier0 * c.words[0], b = kMultiplier1 * c.words[2];
    c = {{static_cast<uint32_t>(b >> 32) ^ c.words[1] ^ key0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c.words[3] ^ key1, static_cast<uint32_t>(a)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

double portable_exp(double x) {
  if (!(x > -708.0)) return 0.0;  // the smallest normal double is e^-708.4
  constexpr double kLog2E = 1.4426950408889634, kLn2High = 0x1.62e42fee00000p-1,
                   kLn2Low = 0x1.a39ef35793c76p-33;
  const double n = std::floor(x * kLog2E + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| ≤ ln 2 / 2
  double sum = 1.0;  // Taylor series to r^14 / 14!, from the inside
  for (int k = 14; k >= 1; --k) sum = 1.0 + sum * (r / k);
  return sum * std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52);
}

Result<Sampler> Sampler::create(const SamplerOptions& options) {
  BM_TRY(check_options(options));
  return Sampler(options);
}

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  BM_CHECK(check_options(options).has_value());
}

void Sampler::accept(int32_t token) {
  window_.push_back(token);
  while (window_.size() > options_.repeat_window) window_.pop_front();
}

void Sampler::reset() {
  draws_ = 0;
  window_.clear();
}

Result<int32_t> Sampler::sample(std::span<const float> logits) {
  if (logits.empty() || logits.size() > INT32_MAX)
    return fail(Code::kInvalidArgument, "{} logits", logits.size());
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i]))
      return fail(Code::kInvalidArgument, "logit {} is {}", i, logits[i]);
    candidates_[i] = {logits[i], static_cast<int32_t>(i)};
  }
  penalize();
  const int32_t token = draw();
  accept(token);
  return token;
}

void Sampler::penalize() {
  if (options_.repeat_penalty == 1.0f) return;
  std::vector<int32_t> seen(window_.begin(), window_.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const int32_t id : seen) {
    if (id < 0 || static_cast<size_t>(id) >= candidates_.size()) continue;
    float& logit = candidates_[static_cast<size_t>(id)].logit;
    logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
    // The penalty may push a huge logit past the range of float.
    logit = std::clamp(logit, -3.4e38f, 3.4e38f);
  }
}

int32_t Sampler::draw() {
  const auto more_likely = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const Candidate top = *std::min_element(candidates_.begin(), candidates_.end(), more_likely);
  if (options_.temperature == 0.0f) return top.id;
  if (options_.top_k > 0 && options_.top_k < candidates_.size()) {
    const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(options_.top_k);
    std::nth_element(candidates_.begin(), end, candidates_.end(), more_likely);
    candidates_.erase(end, candidates_.end());
  }
  // Sorting is needed for top_p only, but always done on few candidates: the draw must not depend
  // on the order that nth_element happens to leave.
  if (options_.top_p < 1.0f || options_.top_k > 0)
    std::sort(candidates_.begin(), candidates_.end(), more_likely);
  weights_.clear();
  for (const Candidate& c : candidates_)
    weights_.push_back(portable_exp((double{c.logit} - double{top.logit}) / options_.temperature));
  keep_most_likely();
  double total = 0.0;
  for (const double w : weights_) total += w;
  double left = next_uniform() * total;
  for (size_t i = 0; i < weights_.size(); ++i) {
    left -= weights_[i];
    if (left < 0.0) return candidates_[i].id;
  }
  return top.id;  // rounding left nothing: the draw fell on the very end of the range
}

/// top_p on sorted candidates, then min_p (the top weight is 1); dropped ones get weight 0.
void Sampler::keep_most_likely() {
  if (options_.top_p < 1.0f) {
    double total = 0.0, kept = 0.0;
    for (const double w : weights_) total += w;
    for (double& w : weights_) {
      const bool is_kept = kept < double{options_.top_p} * total;
      kept += w;
      if (!is_kept) w = 0.0;
    }
  }
  for (double& w : weights_)
    if (w < double{options_.min_p}) w = 0.0;
}

double Sampler::next_uniform() {
  const uint64_t n = draws_++;
  const PhiloxBlock block =
      philox4x32({{static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), 0, 0}}, options_.seed);
  const uint64_t bits = (uint64_t{block.words[0]} << 32) | block.words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace bm::models
