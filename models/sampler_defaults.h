#pragma once
// What a model file says of how its tokens are to be chosen, for whoever was told nothing else.

#include <optional>

#include "models/gguf.h"
#include "models/sampler.h"

namespace bm::models {

/// Unset: the file says nothing.
/// Source of the keys, and of what is beyond a range: llama.cpp, common_init_sampler_from_model()
/// and llama-arch.cpp (general.sampling.*); of a folder of Hugging
/// Face its generation_config.json, as hugging_face.h says.
struct SamplerDefaults {
  std::optional<float> temperature, top_p, min_p, repeat_penalty, mirostat_tau, mirostat_eta,
      xtc_probability, xtc_threshold;
  std::optional<uint32_t> top_k, repeat_window;
  std::optional<Mirostat> mirostat;
};

/// The order of samplers (general.sampling.sequence) is left out. The log has a warning of values
/// that are of another kind or no numbers.
SamplerDefaults sampler_defaults(const GgufFile& file);

}  // namespace bm::models
