#pragma once
// Choice of tokens for a gap in a text that is soon closed again: what an editor suggests.

#include <functional>
#include <string>
#include <vector>

#include "models/sampler_chain.h"

namespace bm::models {

/// What the sampler must know of tokens.
struct InfillVocabulary {
  std::function<bool(int32_t)> is_end;        ///< ends a text
  std::function<std::string(int32_t)> piece;  ///< empty: a token without a text
  int32_t end = -1;                           ///< chosen where nothing is likely enough
};

/// With p_i = softmax of the candidates' logits, n of them, E those that end a text:
/// - 3 n Σ_E p > Σ_others p: E alone.
/// - A token whose text begins another's, and that other, count as one: the likelier of the two.
/// - Of others than E those with p ≥ 0.2 stay, m of them; without any, `end` alone.
/// - Of these, p divided by what is left, those with p ≥ 1/(m + 1) stay.
/// More than 1000 candidates are cut to the likeliest before. The rest is sorted and has weights.
/// Source: llama.cpp, llama_sampler_init_infill() in llama.h.
void keep_infill(std::vector<Candidate>& candidates, const InfillVocabulary& vocabulary);

}  // namespace bm::models
