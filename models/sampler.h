#pragma once
// Choice of the next token from logits.

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "runtime/base/result.h"

namespace bm::models {

struct SamplerOptions {
  float temperature = 0.8f;     ///< 0: always the most likely token
  uint32_t top_k = 0;           ///< keep the k most likely; 0: all
  float top_p = 1.0f;           ///< keep the fewest tokens whose probabilities reach p; 1: all
  float min_p = 0.0f;           ///< drop tokens less likely than min_p × the most likely one
  float repeat_penalty = 1.0f;  ///< > 1 makes tokens of the last repeat_window less likely
  uint32_t repeat_window = 64;
  uint64_t seed = 0;
};

/// Applies repeat penalty, temperature, top_k, top_p and min_p, in this order, and draws.
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

  /// Index of the chosen logit; it also enters the repeat window.
  /// Errors: kInvalidArgument when there are no logits or one is NaN or infinite (naming the
  /// index).
  Result<int32_t> sample(std::span<const float> logits);

  /// Puts a token that was not sampled (of the prompt) into the repeat window.
  void accept(int32_t token);
  /// Back to the first draw and an empty window.
  void reset();

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  void penalize();
  int32_t draw();
  void keep_most_likely();
  double next_uniform();

  SamplerOptions options_;
  uint64_t draws_ = 0;
  std::deque<int32_t> window_;
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

/// Philox4x32-10: ten rounds of the counter-based generator of Salmon et al., "Parallel random
/// numbers: as easy as 1, 2, 3" (SC 2011).
struct PhiloxBlock {
  uint32_t words[4];
};
PhiloxBlock philox4x32(const PhiloxBlock& counter, uint64_t key);

/// e^x for x ≤ 0, within 2 units in the last place; 0 below −708. Built from additions and
/// multiplications alone, unlike the C library's, which differs between systems.
double portable_exp(double x);

}  // namespace bm::models
