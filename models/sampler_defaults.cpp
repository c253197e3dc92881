#include "models/sampler_defaults.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/log.h"

namespace bm::models {
namespace {

/// No reason to refuse a model: it can be run without what it recommends.
void ignore(const Error& error) { log("models", LogLevel::kWarning, "ignored: {}", error.message); }

std::optional<float> number(const GgufFile& file, const char* key, float low, float high) {
  if (file.find(key) == nullptr) return std::nullopt;
  Result<float> value = file.get_f32(key);
  if (!value)
    if (const auto whole = file.get_i32(key)) value = static_cast<float>(*whole);
  if (value && !std::isfinite(*value)) value = fail(Code::kCorrupt, "{} is {}", key, *value);
  if (value) return std::clamp(*value, low, high);
  ignore(value.error());
  return std::nullopt;
}

/// `below_0`: what a negative value stands for.
std::optional<uint32_t> count(const GgufFile& file, const char* key, uint32_t below_0) {
  if (file.find(key) == nullptr) return std::nullopt;
  const Result<int32_t> value = file.get_i32(key);
  if (value) return *value < 0 ? below_0 : static_cast<uint32_t>(*value);
  ignore(value.error());
  return std::nullopt;
}

}  // namespace

SamplerDefaults sampler_defaults(const GgufFile& file) {
  SamplerDefaults out;
  out.temperature = number(file, "general.sampling.temp", 0, 100);
  // None is what 0 would leave; the likeliest one is kept.
  out.top_p = number(file, "general.sampling.top_p", std::numeric_limits<float>::min(), 1);
  out.min_p = number(file, "general.sampling.min_p", 0, 1);
  out.top_k = count(file, "general.sampling.top_k", 0);
  out.repeat_window = count(file, "general.sampling.penalty_last_n", UINT32_MAX);
  out.repeat_penalty = number(file, "general.sampling.penalty_repeat", 0.01f, 100);
  out.mirostat_tau =
      number(file, "general.sampling.mirostat_tau", std::numeric_limits<float>::min(), 100);
  out.mirostat_eta = number(file, "general.sampling.mirostat_eta", 0, 1);
  if (const auto kind = count(file, "general.sampling.mirostat", 0))
    out.mirostat = *kind == 1 ? Mirostat::kV1 : *kind == 2 ? Mirostat::kV2 : Mirostat::kOff;
  out.xtc_probability = number(file, "general.sampling.xtc_probability", 0, 1);
  out.xtc_threshold = number(file, "general.sampling.xtc_threshold", 0, 1);
  return out;
}

}  // namespace bm::models
