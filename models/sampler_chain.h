#pragma once
// The samplers one by one: pure functions over logits and over candidates. sampler.h strings them
// together; a caller with an order of its own may use them directly.
//
// p_i below is softmax(logits / temperature) over the candidates there are, recomputed for each
// sampler. Every step is a plain IEEE operation in a fixed order.

#include <cstdint>
#include <span>
#include <vector>

namespace bm::models {

/// Added to one logit; −infinity: the token is never chosen.
struct LogitBias {
  int32_t token = 0;
  float bias = 0;
};

struct Penalties {
  /// > 1 divides positive logits of tokens seen and multiplies negative ones. Source: Keskar et
  /// al., "CTRL" (2019), section 4.1, with the sign rule of llama.cpp.
  float repeat = 1.0f;
  float frequency = 0.0f;  ///< subtracted once for each time that the token was seen
  float presence = 0.0f;   ///< subtracted from every token seen
  bool is_neutral() const { return repeat == 1.0f && frequency == 0.0f && presence == 0.0f; }
};

/// Ids out of range are ignored.
void apply_logit_bias(std::span<float> logits, std::span<const LogitBias> biases);

/// l → l / repeat (l > 0) or l · repeat, then l − count · frequency − presence, for each token of
/// `window` (ids out of range are ignored). Results stay finite.
/// Source: llama.cpp, llama_sampler_penalties_apply(); the last two are OpenAI's.
void apply_penalties(std::span<float> logits, std::span<const int32_t> window,
                     const Penalties& penalties);

struct Candidate {
  float logit;
  int32_t id;
  double weight;  ///< p_i · (an unknown constant): e^((logit − highest logit) / temperature)
};

/// Likelier first, of equals the lower id.
bool is_likelier(const Candidate& a, const Candidate& b);
void sort_candidates(std::vector<Candidate>& candidates);

/// Fills in the weights; temperature > 0.
void weigh(std::vector<Candidate>& candidates, double temperature);

// The functions below want weights and leave at least one candidate.

/// The k likeliest, sorted. k = 0: all, as they are. Fan et al., "Hierarchical neural story
/// generation" (2018). Needs no weights.
void keep_top_k(std::vector<Candidate>& candidates, size_t k);

/// `at_least`, below: so many are left whatever p is, as long as there are so many.

/// Locally typical sampling: in the order of |−ln p_i − H| with the entropy H = −Σ p_i ln p_i, the
/// fewest whose p_i reach more than p together; the result is sorted by likelihood. p = 1: all.
/// Source: Meister et al. (2022); llama.cpp, llama_sampler_typical_apply().
void keep_typical(std::vector<Candidate>& candidates, double p, size_t at_least = 1);

/// The fewest whose p_i reach p together, sorted. p = 1: all. Holtzman et al., "The curious case
/// of neural text degeneration" (2020).
void keep_top_p(std::vector<Candidate>& candidates, double p, size_t at_least = 1);

/// Those with p_i ≥ p · max p. Nguyen et al., "Turning up the heat: min-p sampling" (2024).
void keep_min_p(std::vector<Candidate>& candidates, double p, size_t at_least = 1);

/// Top-nσ: those whose logit is at most n standard deviations of all logits below the highest one.
/// n ≤ 0: all. Needs no weights. Source: Tang et al., "Top-nσ: Not all logits are you need" (2024);
/// llama.cpp, llama_sampler_top_n_sigma_apply().
void keep_top_n_sigma(std::vector<Candidate>& candidates, double n);

/// XTC, "exclude top choices": of those with p_i ≥ threshold all but the least likely one go; the
/// result is sorted. None goes where fewer than `at_least` would be left. Source: p-e-w,
/// text-generation-webui, pull request 6335; llama.cpp, llama_sample_xtc_apply().
void exclude_top_choices(std::vector<Candidate>& candidates, double threshold, size_t at_least = 1);

/// low + (high − low) (H / ln n)^exponent with low = max(temperature − range, 0) and high =
/// temperature + range, H the entropy of the n candidates. Source: llama.cpp,
/// llama_sampler_temp_ext_apply().
double dynamic_temperature(std::span<const Candidate> candidates, double temperature, double range,
                           double exponent);

/// How many candidates Mirostat keeps so that the expected surprise is `mu` bits, and how mu
/// learns. Source: Basu et al., "Mirostat" (2021), with llama.cpp's m = 100 and its surprise,
/// which is that among the candidates kept: llama_sampler_mirostat_apply().
///
/// ŝ = Σ t_i b_i / Σ t_i², t_i = ln((i+2)/(i+1)), b_i = ln(p_i / p_{i+1}), i < m − 1;
/// ε = ŝ − 1; k = (ε 2^mu / (1 − N^−ε))^(1/ŝ), N: vocabulary. `candidates` must be sorted.
size_t mirostat_k(std::span<const Candidate> candidates, double mu, size_t vocabulary);

/// Mirostat 2: keeps those whose surprise −log2 p_i is at most mu; sorts.
/// Source: llama.cpp, llama_sampler_mirostat_v2_apply().
void keep_unsurprising(std::vector<Candidate>& candidates, double mu);

/// The first candidate at which the sum of weights passes `uniform` (in [0, 1)) times their sum.
size_t draw_index(std::span<const Candidate> candidates, double uniform);

struct TokenLogprob {
  int32_t id = -1;
  double logprob = 0;  ///< ln softmax(logits)
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  ///< likeliest first
};

/// Of `token` and of the `count` likeliest, from the model's logits as they are: before bias,
/// penalties and temperature. `token` is in range, logits are finite.
TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, size_t count);

}  // namespace bm::models
