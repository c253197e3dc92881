#pragma once
// Choice of the next token from logits.

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "models/sampler_chain.h"
#include "models/sampler_math.h"
#include "runtime/base/result.h"

namespace bm::models {

enum class Mirostat : uint8_t { kOff = 0, kV1 = 1, kV2 = 2 };

struct SamplerOptions {
  float temperature = 0.8f;        ///< 0: always the most likely token
  uint32_t top_k = 0;              ///< keep the k most likely; 0: all
  float top_p = 1.0f;              ///< keep the fewest tokens whose probabilities reach p; 1: all
  float min_p = 0.0f;              ///< drop tokens less likely than min_p × the most likely one
  float typical_p = 1.0f;          ///< keep the most typical tokens that reach p; 1: all
  float repeat_penalty = 1.0f;     ///< > 1 makes tokens of the last repeat_window less likely
  uint32_t repeat_window = 64;     ///< tokens that penalties look back on
  float frequency_penalty = 0.0f;  ///< subtracted for each time a token is in the window
  float presence_penalty = 0.0f;   ///< subtracted from tokens in the window
  Mirostat mirostat = Mirostat::kOff;  ///< in place of top_k, typical_p, top_p and min_p
  float mirostat_tau = 5.0f;           ///< surprise aimed at, bits
  float mirostat_eta = 0.1f;           ///< how fast it learns
  std::vector<LogitBias> logit_bias = {};
  uint64_t seed = 0;
};

/// One bit per token, of token t bit t % 64 of word t / 64.
using TokenMask = std::span<const uint64_t>;

/// Applies logit bias, penalties, the caller's mask, temperature, top_k, typical_p, top_p and
/// min_p, in this order, and draws; with Mirostat it stands for the last four. The formulas are in
/// sampler_chain.h.
///
/// The n-th draw uses word n of a Philox4x32-10 stream keyed by the seed, and every floating-point
/// step is a plain IEEE operation in a fixed order: the same logits and seed give the same tokens
/// on every machine. Ties are broken by the lower token id. Thread: one sampler belongs to one
/// sequence.
class Sampler {
 public:
  /// Errors: kInvalidArgument naming the option that is out of range.
  static Result<Sampler> create(const SamplerOptions& options);
  /// For options known to be in range; BM_CHECK otherwise.
  explicit Sampler(const SamplerOptions& options);

  /// Index of the chosen logit; it also enters the window of the penalties. `allowed`: tokens that
  /// may be chosen; empty: all.
  /// Errors: kInvalidArgument when there are no logits, one is NaN or infinite (naming the index),
  /// or mask and biases leave no token.
  Result<int32_t> sample(std::span<const float> logits, TokenMask allowed = {});

  /// Puts a token that was not sampled (of the prompt) into the window.
  void accept(int32_t token);
  /// Back to the first draw and an empty window.
  void reset();

 private:
  int32_t draw();
  int32_t draw_mirostat();
  double next_uniform();

  SamplerOptions options_;
  uint64_t draws_ = 0;
  double mu_ = 0;  // of Mirostat: 2 τ at first
  std::deque<int32_t> window_;
  std::vector<float> logits_;
  std::vector<Candidate> candidates_;
};

}  // namespace bm::models
