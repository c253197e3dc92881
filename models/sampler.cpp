// Compiled with -ffp-contract=off: see the promise of Sampler.

#include "models/sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/check.h"

namespace bm::models {
namespace {

// Written so that NaN fails every test.
Status check_closed(const char* name, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return fail(Code::kInvalidArgument, "{} {} is not in [{}, {}]", name, value, low, high);
}

Status check_half_open(const char* name, float value, float high) {
  if (value > 0.0f && value <= high) return {};
  return fail(Code::kInvalidArgument, "{} {} is not in (0, {}]", name, value, high);
}

Status check_options(const SamplerOptions& o) {
  BM_TRY(check_closed("temperature", o.temperature, 0, 100));
  BM_TRY(check_half_open("top_p", o.top_p, 1));
  BM_TRY(check_closed("min_p", o.min_p, 0, 1));
  BM_TRY(check_half_open("typical_p", o.typical_p, 1));
  BM_TRY(check_closed("dynatemp_range", o.dynatemp_range, 0, 100));
  BM_TRY(check_closed("dynatemp_exponent", o.dynatemp_exponent, 0, 100));
  BM_TRY(check_closed("top_n_sigma", o.top_n_sigma, 0, 100));
  BM_TRY(check_closed("xtc_probability", o.xtc_probability, 0, 1));
  BM_TRY(check_closed("xtc_threshold", o.xtc_threshold, 0, 1));
  BM_TRY(check_closed("dry multiplier", o.dry.multiplier, 0, 100));
  BM_TRY(check_closed("dry base", o.dry.base, 1, 100));
  BM_TRY(check_half_open("repeat_penalty", o.repeat_penalty, 100));
  BM_TRY(check_closed("frequency_penalty", o.frequency_penalty, -100, 100));
  BM_TRY(check_closed("presence_penalty", o.presence_penalty, -100, 100));
  BM_TRY(check_half_open("mirostat_tau", o.mirostat_tau, 100));
  BM_TRY(check_closed("mirostat_eta", o.mirostat_eta, 0, 1));
  if (o.has_step(SamplerStep::kInfill) && !o.infill)
    return fail(Code::kInvalidArgument, "the sampler infill without a vocabulary");
  for (const LogitBias& b : o.logit_bias)
    if (b.token < 0 || std::isnan(b.bias) || (std::isinf(b.bias) && b.bias > 0))
      return fail(Code::kInvalidArgument, "logit_bias {} of token {}: a finite number or -inf",
                  b.bias, b.token);
  return {};
}

}  // namespace

Result<Sampler> Sampler::create(const SamplerOptions& options) {
  BM_TRY(check_options(options));
  return Sampler(options);
}

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  BM_CHECK(check_options(options).has_value());
  reset();
}

void Sampler::accept(int32_t token) {
  window_.push_back(token);
  while (window_.size() > options_.repeat_window) window_.pop_front();
  accept_for_dry({&token, 1});
}

void Sampler::accept_for_dry(std::span<const int32_t> tokens) {
  if (options_.dry.multiplier == 0) return;
  for (const int32_t token : tokens) {
    history_.push_back(token);
    breaks_.push_back(options_.dry.breakers && options_.dry.breakers->end_in(history_));
  }
}

void Sampler::apply_history() {
  if (options_.dry.multiplier == 0 || !options_.has_step(SamplerStep::kDry)) return;
  const size_t size = std::min<size_t>(history_.size(), options_.dry.last_n);
  size_t limit = 0;
  while (limit < size && !breaks_[history_.size() - 1 - limit]) ++limit;
  apply_dry(logits_, std::span(history_).last(size), limit, options_.dry);
}

void Sampler::reset() {
  draws_ = 0;
  mu_ = 2.0 * double{options_.mirostat_tau};
  window_.clear();
  history_.clear();
  breaks_.clear();
}

Result<int32_t> Sampler::sample(std::span<const float> logits, TokenMask allowed) {
  if (logits.empty() || logits.size() > INT32_MAX)
    return fail(Code::kInvalidArgument, "{} logits", logits.size());
  if (!allowed.empty() && allowed.size() < (logits.size() + 63) / 64)
    return fail(Code::kInvalidArgument, "a mask of {} words for {} logits", allowed.size(),
                logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    if (!std::isfinite(logits[i]))
      return fail(Code::kInvalidArgument, "logit {} is {}", i, logits[i]);
  logits_.assign(logits.begin(), logits.end());
  apply_logit_bias(logits_, options_.logit_bias);
  const Penalties penalties{options_.repeat_penalty, options_.frequency_penalty,
                            options_.presence_penalty};
  if (!penalties.is_neutral() && options_.has_step(SamplerStep::kPenalties))
    apply_penalties(logits_, std::vector<int32_t>(window_.begin(), window_.end()), penalties);
  apply_history();
  candidates_.clear();
  for (size_t i = 0; i < logits_.size(); ++i) {
    if (!allowed.empty() && (allowed[i / 64] >> (i % 64) & 1) == 0) continue;
    if (std::isinf(logits_[i])) continue;  // a bias of −infinity
    candidates_.push_back({logits_[i], static_cast<int32_t>(i), 0.0});
  }
  if (candidates_.empty())
    return fail(Code::kInvalidArgument, "mask and biases leave none of {} tokens", logits.size());
  const int32_t token = options_.order ? draw_in_order() : draw();
  last_ = token;
  accept(token);
  return token;
}

int32_t Sampler::draw() {
  const bool is_dynamic = options_.dynatemp_range > 0.0f;
  const auto best = [&] {
    candidates_.front() = *std::min_element(candidates_.begin(), candidates_.end(), is_likelier);
    candidates_.front().weight = 1.0;
    candidates_.resize(1);
    return candidates_.front().id;
  };
  if (options_.temperature == 0.0f && (!is_dynamic || options_.mirostat != Mirostat::kOff))
    return best();
  if (options_.mirostat != Mirostat::kOff) return draw_mirostat();
  keep_top_n_sigma(candidates_, double{options_.top_n_sigma});
  keep_top_k(candidates_, options_.top_k);
  weigh(candidates_, is_dynamic ? 1.0 : double{options_.temperature});
  const size_t least = options_.min_keep;
  keep_typical(candidates_, double{options_.typical_p}, least);
  keep_top_p(candidates_, double{options_.top_p}, least);
  keep_min_p(candidates_, double{options_.min_p}, least);
  const bool may_exclude = options_.xtc_probability > 0.0f && options_.xtc_threshold <= 0.5f;
  if (may_exclude && next_uniform() < double{options_.xtc_probability})
    exclude_top_choices(candidates_, double{options_.xtc_threshold}, least);
  if (is_dynamic) {
    const double temperature =
        dynamic_temperature(candidates_, double{options_.temperature},
                            double{options_.dynatemp_range}, double{options_.dynatemp_exponent});
    if (temperature == 0.0) return best();
    weigh(candidates_, temperature);
  }
  return candidates_[draw_index(candidates_, next_uniform())].id;
}

int32_t Sampler::draw_in_order() {
  // What needs no weights may leave few that need them.
  bool is_weighed = false;
  const auto weigh_once = [&] {
    if (!std::exchange(is_weighed, true)) weigh(candidates_, 1.0);
  };
  const size_t least = options_.min_keep;
  for (const SamplerStep step : *options_.order) {
    if (step != SamplerStep::kTopNSigma && step != SamplerStep::kTopK) weigh_once();
    switch (step) {
      case SamplerStep::kPenalties:
      case SamplerStep::kDry: break;
      case SamplerStep::kTopNSigma:
        keep_top_n_sigma(candidates_, double{options_.top_n_sigma});
        break;
      case SamplerStep::kTopK: keep_top_k(candidates_, options_.top_k); break;
      case SamplerStep::kTypical:
        keep_typical(candidates_, double{options_.typical_p}, least);
        break;
      case SamplerStep::kTopP: keep_top_p(candidates_, double{options_.top_p}, least); break;
      case SamplerStep::kMinP: keep_min_p(candidates_, double{options_.min_p}, least); break;
      case SamplerStep::kXtc:
        if (options_.xtc_probability > 0.0f && options_.xtc_threshold <= 0.5f &&
            next_uniform() < double{options_.xtc_probability})
          exclude_top_choices(candidates_, double{options_.xtc_threshold}, least);
        break;
      case SamplerStep::kTemperature: {
        double temperature = double{options_.temperature};
        if (options_.dynatemp_range > 0.0f)
          temperature =
              dynamic_temperature(candidates_, temperature, double{options_.dynatemp_range},
                                  double{options_.dynatemp_exponent});
        if (temperature == 0.0) {
          keep_top_k(candidates_, 1);
          break;
        }
        for (Candidate& c : candidates_)
          c.logit = static_cast<float>(std::clamp(double{c.logit} / temperature, -3e38, 3e38));
        weigh(candidates_, 1.0);
        break;
      }
      case SamplerStep::kInfill: keep_infill(candidates_, *options_.infill); break;
    }
  }
  weigh_once();
  return candidates_[draw_index(candidates_, next_uniform())].id;
}

Sampler::Drawn Sampler::last_drawn(size_t count) const {
  std::vector<Candidate> all = candidates_;
  double total = 0.0;
  for (const Candidate& c : all) total += c.weight;
  count = std::min(count, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(),
                    is_likelier);
  Drawn out;
  for (const Candidate& c : candidates_)
    if (c.id == last_) out.chosen = c.weight / total;
  for (const Candidate& c : std::span(all).first(count))
    out.top.emplace_back(c.id, c.weight / total);
  return out;
}

int32_t Sampler::draw_mirostat() {
  weigh(candidates_, double{options_.temperature});
  if (options_.mirostat == Mirostat::kV1) {
    sort_candidates(candidates_);
    candidates_.resize(mirostat_k(candidates_, mu_, logits_.size()));
  } else {
    keep_unsurprising(candidates_, mu_);
  }
  const Candidate& chosen = candidates_[draw_index(candidates_, next_uniform())];
  double total = 0.0;
  for (const Candidate& c : candidates_) total += c.weight;
  constexpr double kLn2 = 0.6931471805599453;
  const double surprise = -portable_log(std::max(chosen.weight / total, 1e-300)) / kLn2;
  mu_ -= double{options_.mirostat_eta} * (surprise - double{options_.mirostat_tau});
  return chosen.id;
}

double Sampler::next_uniform() {
  const uint64_t n = draws_++;
  const PhiloxBlock block =
      philox4x32({{static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), 0, 0}}, options_.seed);
  const uint64_t bits = (uint64_t{block.words[0]} << 32) | block.words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace bm::models
