#pragma once
// Hyper-parameters of llama-like models, read from GGUF metadata and checked against each other.

#include <cstdint>
#include <string>

#include "models/gguf.h"

namespace bm::models {

/// How the two halves of a rotary pair lie in a head. Source: llama.cpp, enum llama_rope_type.
enum class RopeStyle : uint8_t {
  kInterleaved,  ///< pairs (2i, 2i+1): llama
  kHalves,       ///< pairs (i, i + d/2): qwen, gemma
};
enum class Activation : uint8_t { kSilu, kGelu };

struct LlamaConfig {
  std::string architecture;     ///< "llama", "qwen2", "qwen3", "gemma"
  uint32_t context_length = 0;  ///< tokens the model was trained for
  uint32_t embedding_length = 0;
  uint32_t block_count = 0;
  uint32_t feed_forward_length = 0;
  uint32_t head_count = 0;
  uint32_t head_count_kv = 0;
  uint32_t head_length = 0;
  uint32_t rope_length = 0;  ///< leading components of a head that are rotated
  uint32_t vocab_size = 0;
  float norm_epsilon = 1e-5F;
  float rope_base = 10000.0F;
  float rope_scale = 1.0F;  ///< positions are divided by it (linear scaling)
  RopeStyle rope_style = RopeStyle::kInterleaved;
  Activation activation = Activation::kSilu;
  float embedding_scale = 1.0F;
  bool has_tied_output = false;

  /// Every key under the architecture's prefix is read, or known to change no result.
  /// Errors: kUnsupported (architecture, mixture of experts, rope scaling, a key that is not
  /// understood); kNotFound, kCorrupt for missing or inconsistent values, naming the keys.
  static Result<LlamaConfig> from_gguf(const GgufFile& file);
};

}  // namespace bm::models
