#pragma once
// Choice of the next token from logits.

#include <cstdint>
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "models/sampler_chain.h"
#include "models/sampler_dry.h"
#include "models/sampler_infill.h"
#include "models/sampler_math.h"
#include "runtime/base/result.h"

namespace bm::models {

enum class Mirostat : uint8_t { kOff = 0, kV1 = 1, kV2 = 2 };

/// A step of an order of the caller's own.
enum class SamplerStep : uint8_t {
  kPenalties,
  kDry,
  kTopNSigma,
  kTopK,
  kTypical,
  kTopP,
  kMinP,
  kXtc,
  kTemperature,
  kInfill,
};

struct SamplerOptions {
  float temperature = 0.8f;     ///< 0: always the most likely token
  float dynatemp_range = 0.0f;  ///< > 0: the temperature goes up and down by so much with entropy
  float dynatemp_exponent = 1.0f;
  float top_n_sigma = 0.0f;      ///< keep logits within n deviations of the highest; 0: all
  uint32_t top_k = 0;            ///< keep the k most likely; 0: all
  float top_p = 1.0f;            ///< keep the fewest tokens whose probabilities reach p; 1: all
  float min_p = 0.0f;            ///< drop tokens less likely than min_p × the most likely one
  float typical_p = 1.0f;        ///< keep the most typical tokens that reach p; 1: all
  float xtc_probability = 0.0f;  ///< how often the likeliest are left out; 0: never
  float xtc_threshold = 0.1f;    ///< from which probability on; above 0.5: never
  DryOptions dry = {};
  float repeat_penalty = 1.0f;     ///< > 1 makes tokens of the last repeat_window less likely
  uint32_t repeat_window = 64;     ///< tokens that penalties look back on
  float frequency_penalty = 0.0f;  ///< subtracted for each time a token is in the window
  float presence_penalty = 0.0f;   ///< subtracted from tokens in the window
  /// In place of top_n_sigma, top_k, typical_p, top_p, min_p, XTC and the dynamic temperature.
  Mirostat mirostat = Mirostat::kOff;
  float mirostat_tau = 5.0f;  ///< surprise aimed at, bits
  float mirostat_eta = 0.1f;  ///< how fast it learns
  std::vector<LogitBias> logit_bias = {};
  uint32_t min_keep = 0;  ///< that typical_p, top_p, min_p and XTC leave at least
  /// These steps alone, in this order, Mirostat not at all; penalties and DRY come first wherever
  /// they stand. Without kTemperature the temperature is 1.
  std::optional<std::vector<SamplerStep>> order = {};
  std::shared_ptr<const InfillVocabulary> infill = {};  ///< of kInfill
  uint64_t seed = 0;

  /// Whether the step is part of the order, as all but kInfill are where there is none.
  bool has_step(SamplerStep step) const {
    return order ? std::ranges::find(*order, step) != order->end() : step != SamplerStep::kInfill;
  }
};

/// One bit per token, of token t bit t % 64 of word t / 64.
using TokenMask = std::span<const uint64_t>;

/// Applies logit bias, penalties, DRY, the caller's mask, top_n_sigma, top_k, temperature,
/// typical_p, top_p, min_p and XTC, in this order, and draws; Mirostat stands for the others. A
/// dynamic temperature comes last, as it depends on what is left. The formulas are in
/// sampler_chain.h and sampler_dry.h.
///
/// The n-th random number, one for a token and one more for XTC, uses word n of a Philox4x32-10
/// stream keyed by the seed, and every floating-point step is a plain IEEE operation in a fixed
/// order: the same logits and seed give the same tokens on every machine. Ties are broken by the
/// lower token id. Thread: one sampler belongs to one sequence.
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

  /// What the last token was drawn from, the `count` likeliest first, with their probabilities;
  /// and those of the token itself.
  struct Drawn {
    double chosen = 0;
    std::vector<std::pair<int32_t, double>> top;
  };
  Drawn last_drawn(size_t count) const;

  /// Puts a token that was not sampled (of the prompt) into the window.
  void accept(int32_t token);
  /// The same for DRY alone, which looks back on prompts even where penalties do not.
  void accept_for_dry(std::span<const int32_t> tokens);
  /// Back to the first draw and an empty window.
  void reset();

 private:
  int32_t draw();
  int32_t draw_mirostat();
  int32_t draw_in_order();
  void apply_history();
  double next_uniform();

  SamplerOptions options_;
  uint64_t draws_ = 0;
  int32_t last_ = -1;
  double mu_ = 0;  // of Mirostat: 2 τ at first
  std::deque<int32_t> window_;
  std::vector<int32_t> history_;  // of DRY: all tokens
  std::vector<bool> breaks_;      // whether a breaker ends in them
  std::vector<float> logits_;
  std::vector<Candidate> candidates_;
};

}  // namespace bm::models
