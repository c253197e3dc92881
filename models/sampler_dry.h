#pragma once
// DRY ("don't repeat yourself"): what would go on with a repetition of several tokens is less
// likely, the more so the longer it is.
//
// Source: p-e-w, "DRY: A modern repetition penalty that reliably prevents looping"
// (text-generation- webui, pull request 5677); llama.cpp, llama_sampler_dry_apply().

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace bm::models {

/// Texts that no repetition goes across. Thread: immutable.
class DryBreakers {
 public:
  /// `piece`: bytes of a token; what it refers to outlives this.
  DryBreakers(std::vector<std::string> texts, std::function<std::string(int32_t)> piece);
  /// Whether one of the texts ends within the last of `tokens`.
  bool end_in(std::span<const int32_t> tokens) const;
  /// Whether one of the texts is part of the token's.
  bool are_in(int32_t token) const;

 private:
  std::vector<std::string> texts_;
  std::function<std::string(int32_t)> piece_;
  size_t longest_ = 0;
};

/// The breakers of those who name none. Source: llama.cpp, common.h, common_params_sampling.
std::vector<std::string> default_dry_breakers();

struct DryOptions {
  float multiplier = 0;  ///< 0: off
  float base = 1.75f;
  uint32_t allowed_length = 2;   ///< repetitions so long cost the multiplier, shorter ones nothing
  uint32_t last_n = UINT32_MAX;  ///< tokens of prompt and text that are looked back on
  std::shared_ptr<const DryBreakers> breakers = nullptr;  ///< none: nothing breaks
};

/// l → l − multiplier · base^(n − allowed_length) for each token t whose n ≥ allowed_length, where
/// n is the largest number, at most `limit`, so that the last n of `tokens` stand earlier among
/// them with t behind. Tokens that have a breaker in their text stay as they are. Results stay
/// finite.
void apply_dry(std::span<float> logits, std::span<const int32_t> tokens, size_t limit,
               const DryOptions& options);

}  // namespace bm::models
