#pragma once
// Hyper-parameters of decoder-only transformers, read from GGUF metadata and checked against each
// other.

#include <cstdint>
#include <string>
#include <vector>

#include "models/gguf.h"
#include "models/llama_architectures.h"

namespace bm::models {

/// Rotary positions of one kind of block.
struct RopeConfig {
  float base = 10000.0F;
  float scale = 1.0F;        ///< positions are divided by it
  float magnitude = 1.0F;    ///< what is rotated is multiplied by it
  bool is_longrope = false;  ///< the file has two sets of factors
  /// YaRN: fast pairs keep their frequency, slow ones have it divided by `scale`. Source: ggml,
  /// rope_yarn().
  bool is_yarn = false;
  float beta_fast = 32.0F, beta_slow = 1.0F;
  float extrapolation = 1.0F;     ///< share of the unscaled frequency in fast pairs
  uint32_t original_context = 0;  ///< positions before scaling

  bool operator==(const RopeConfig&) const = default;
};

struct BlockConfig {
  uint32_t window = 0;  ///< positions that a token sees, itself among them; 0: all
  bool is_rotated = true;
  bool is_local = false;  ///< rotates by `local_rope`
};

struct LlamaConfig {
  std::string architecture;     ///< "llama", "qwen2", "qwen3", "gemma" …
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
  RopeConfig rope, local_rope;
  std::vector<BlockConfig> blocks;
  float embedding_scale = 1.0F;
  float residual_scale = 1.0F;     ///< of what attention and feed-forward add
  float attention_scale = 1.0F;    ///< of the scores
  float attention_softcap = 0.0F;  ///< scores become c·tanh(score/c); 0: they stay
  float logit_softcap = 0.0F;      ///< likewise
  float logit_scale = 1.0F;
  float qkv_limit = 0.0F;    ///< queries, keys and values are clipped to ±limit; 0: they are not
  float alibi_bias = 0.0F;   ///< largest slope's exponent; see llama.cpp, ggml_soft_max_ext()
  bool is_parallel = false;  ///< kParallelBlock, or the file says so
  bool has_tied_output = false;
  const Architecture* row = nullptr;

  /// Every key under the architecture's prefix is read, or known to change no result.
  /// Errors: kUnsupported (architecture, mixture of experts, rope scaling, a key that is not
  /// understood); kNotFound, kCorrupt for missing or inconsistent values, naming the keys.
  static Result<LlamaConfig> from_gguf(const GgufFile& file);
};

}  // namespace bm::models
