#pragma once
// Hyper-parameters of transformers, read from GGUF metadata and checked against each
// other.

#include <algorithm>
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
  uint32_t length = 0;       ///< leading components of a head that are rotated
  bool has_factors = true;   ///< frequencies are divided by what the file has for that
  bool is_longrope = false;  ///< the file has two sets of factors
  /// YaRN: fast pairs keep their frequency, slow ones have it divided by `scale`. Source: ggml,
  /// rope_yarn().
  bool is_yarn = false;
  float beta_fast = 32.0F, beta_slow = 1.0F;
  bool is_untruncated = false;    ///< YaRN's first and last pair are not rounded to whole ones
  float extrapolation = 1.0F;     ///< share of the unscaled frequency in fast pairs
  uint32_t original_context = 0;  ///< positions before scaling

  bool operator==(const RopeConfig&) const = default;
};

/// Heads of a block.
struct HeadKind {
  uint32_t count = 0, count_kv = 0, length = 0;
  uint32_t value_length = 0;  ///< values are kept filled up with zeroes to `length`

  bool operator==(const HeadKind&) const = default;
};

/// Of blocks whose attention reads some of all positions.
enum class Indexer : uint8_t {
  kNone,
  kOwn,
  kShared,  ///< those that the last block with one of its own has chosen
};

struct BlockConfig {
  uint32_t heads = 0;                ///< index into LlamaConfig::head_kinds
  uint32_t kv_block = 0;             ///< whose keys and values it reads: its own, or an earlier one
  uint32_t feed_forward_length = 0;  ///< hidden units of a dense one
  /// Of the gate's outputs, only what lies so many standard deviations above their mean stays. 0:
  /// all do.
  float sparsity = 0.0F;
  /// Largest output of the activation, and absolute value of what it is multiplied with, of experts
  /// and of other feed-forwards. 0: any.
  float expert_limit = 0.0F, limit = 0.0F;
  uint32_t window = 0;  ///< positions that a token sees, itself among them; 0: all
  uint32_t chunk = 0;   ///< a token sees its own run of this many positions; 0: all
  bool is_rotated = true;
  bool is_local = false;         ///< rotates by `local_rope`
  bool is_recurrent = false;     ///< has a state of fixed size
  bool has_attention = true;     ///< has keys and values; a recurrent block may have both
  bool is_linear = false;        ///< a matrix (that of attention's results) stands for attention
  bool has_feed_forward = true;  ///< false: x + attention(norm(x)) is all
  /// Activation::kXielu: of positive values, of negative ones, of both, and the least of them.
  struct Xielu {
    float alpha_p = 0, alpha_n = 0, beta = 0, eps = 0;
  } xielu;
  bool has_experts = false;
  Indexer indexer = Indexer::kNone;
};

/// Mixture of experts: what every block that has experts shares.
struct ExpertConfig {
  uint32_t count = 0;          ///< 0: the model is dense
  uint32_t used = 0;           ///< a token's share of them
  uint32_t length = 0;         ///< hidden units of each
  uint32_t shared_length = 0;  ///< hidden units of the expert of all tokens; 0: none
  uint32_t latent = 0;         ///< components that experts read and give; 0: those of the embedding
  /// Only experts of the best `groups_used` of `groups` equal groups are chosen from.
  uint32_t groups = 1, groups_used = 1;
  Gating gating = Gating::kSoftmax;
  bool is_normalised = false;  ///< weights of a token's experts sum to 1
  float scale = 1.0F;          ///< of the weights
  float softcap = 0.0F;        ///< logits of the router become c·tanh(logit/c); 0: they stay
  /// Every `each` consecutive experts share one of `length` hidden units, which what chooses one of
  /// them adds, `scale` times. Source: "Grove MoE" (Wu and others, 2025), section 3.
  struct Adjugate {
    uint32_t each = 0, length = 0;  ///< 0: there are none
    float scale = 0.0F;
  } adjugate;
};

/// Multi-head latent attention. Source: "DeepSeek-V2" (2024), section 2.1.
struct LatentConfig {
  uint32_t query_rank = 0;    ///< 0: queries are not compressed
  uint32_t rank = 0;          ///< components that keys and values are made of; 0: other attention
  uint32_t value_length = 0;  ///< of a head
};

/// What chooses which positions attention reads, or which blocks of positions. Source:
/// "DeepSeek-V3.2" (2025), section 2.1; llama.cpp, src/models/minimax-m3.cpp.
struct IndexerConfig {
  uint32_t heads = 0, length = 0;
  uint32_t chosen = 0;  ///< positions, or blocks of them, that a token reads
  uint32_t block = 1;   ///< positions in a block
  uint32_t local = 0;   ///< last blocks that are always read
  /// Halves of what is rotated are pairs; else elements side by side, or as the model's own heads.
  RopeStyle rope_style = RopeStyle::kNone;
  bool rotates_tail = false;  ///< what is rotated comes last, not first
};

/// Disentangled attention: scores have what a query says of a distance and what a distance says of
/// a key. Source: "DeBERTa" (He and others, 2020), section 3.1.
struct RelativeConfig {
  uint32_t span = 0;   ///< distances in each direction that are told apart; 0: no such attention
  uint32_t limit = 0;  ///< distance from which on all are alike; 0: span is it, and none share one
  bool of_query = true, of_key = true;  ///< which of the two there is
};

/// Blocks with a state: of a head [length of values, length of keys]. Heads share keys by groups.
/// Those of Mamba-1 are channels: heads of one value.
struct RecurrentConfig {
  uint32_t kernel = 0;  ///< tokens that a convolution sees; 0: no such blocks
  uint32_t length = 0, keys = 0, heads = 0, groups = 0;  ///< no heads: a convolution alone
  uint32_t channels = 0;                                 ///< of the convolution
  uint32_t step_rank = 0;        ///< Mamba-1: components that steps are made of
  bool has_plain_norms = false;  ///< Mamba-1: what x gives is normalised, without gains
  bool has_bonus = false;        ///< RWKV 6: what a token writes counts otherwise for itself
  uint32_t halved_every = 0;     ///< RWKV 6: what every so-manieth block gives is halved; 0: none
  uint32_t vectors = 0;          ///< of decaying states: how many [heads · keys] a token's row has
  uint64_t inner() const { return uint64_t{heads} * length; }
  bool decays_by_keys = false;  ///< Kimi: a decay for every component of the keys, not of a head
  /// Logarithms of its decays are floor·sigmoid(rate·step); 0: they have no bound, see
  /// Llama::key_decay_net().
  float decay_floor = 0.0F;
  uint64_t decays() const { return decays_by_keys ? inner() : heads; }
  /// What a recurrence reads of a token at once.
  uint64_t row_length() const {
    return vectors > 0 ? vectors * inner() : uint64_t{channels} + heads + decays();
  }
};

/// Alternating updates: a token has several vectors, of which a block computes one and predicts the
/// others. Source: "Alternating Updates for Efficient Transformers" (Baykal and others, 2023).
struct AltupConfig {
  uint32_t count = 0;        ///< vectors of a token; 0: there is one
  uint32_t laurel_rank = 0;  ///< components that every block has of its input beside attention
};

/// Hyper-connections: between blocks a token has several vectors, and weights of its own say what a
/// half of a block reads of each and adds to it. Source: "Hyper-Connections" (Zhu and others,
/// 2024); llama.cpp, src/models/hy-v4.cpp.
struct HyperConfig {
  uint32_t count = 0;      ///< vectors of a token; 0: there is one
  float epsilon = 0.0F;    ///< added to all weights
  float magnitude = 1.0F;  ///< of what is added
};

/// Activation::kSitu: β·tanh(g/β)·sigmoid(g) · λ·tanh(u/λ). Source: llama.cpp,
/// src/models/kimi-k3.cpp.
struct SituConfig {
  float beta = 1.0F;
  float linear_beta = 0.0F;  ///< λ; 0: u stays
};

struct LlamaConfig {
  std::string architecture;     ///< "llama", "qwen2", "qwen3", "gemma" …
  uint32_t context_length = 0;  ///< tokens the model was trained for, or those it can be run with
  uint32_t indexed_from = 0;  ///< positions beyond which an indexer chooses; 0: attention reads all
  IndexerConfig indexer;
  uint32_t embedding_length = 0;
  uint32_t output_length = 0;  ///< of what encoders give: embedding_length, or what they make of it
  uint32_t block_count = 0;
  uint32_t encoder_block_count = 0;  ///< the first of them, of kEncoderDecoder
  int32_t start_token = 0;           ///< what a decoder reads first, likewise
  uint32_t loop_length = 0;    ///< blocks of a pass; all passes have the same weights. 0: one pass
  bool has_loop_norm = false;  ///< what a pass gives the next is normalised, as the output is
  uint32_t draft_block_count = 0;    ///< blocks after those, which guess further tokens: not used
  uint32_t feed_forward_length = 0;  ///< the largest of all blocks
  uint32_t head_count = 0;           ///< likewise
  uint32_t head_count_kv = 0;        ///< likewise
  uint32_t head_length = 0;          ///< likewise
  uint32_t value_length = 0;         ///< of a head
  uint32_t rope_length = 0;          ///< of blocks without a window
  uint32_t layer_input_length = 0;   ///< of what every block has of a token's own; 0: none
  std::vector<HeadKind> head_kinds;  ///< of blocks with attention
  uint32_t vocab_size = 0;
  float norm_epsilon = 1e-5F;
  RopeConfig rope, local_rope;
  /// That of the row; folders of Hugging Face keep pairs in halves where GGUF files have them
  /// interleaved (key bellmetal.rope.halves).
  RopeStyle rope_style = RopeStyle::kNone;
  std::vector<BlockConfig> blocks;
  ExpertConfig experts;
  LatentConfig latent;
  RecurrentConfig recurrent;
  AltupConfig altup;
  HyperConfig hyper;
  SituConfig situ;
  /// Every so-manieth block keeps what it reads; attention and feed-forwards read a mixture of the
  /// kept. Source: "Attention Residuals" (Kimi Team, 2026). 0: blocks add up.
  uint32_t kept_every = 0;
  float embedding_scale = 1.0F;
  float residual_scale = 1.0F;     ///< of what attention and feed-forward add
  float attention_scale = 1.0F;    ///< of the scores
  float value_scale = 1.0F;        ///< of what attention gives
  float gate_sharpness = 1.0F;     ///< kSoftplusGate: ln(1 + exp(s·x)) / s
  uint32_t norm_groups = 1;        ///< equal parts of a vector that are normalised each by itself
  float attention_softcap = 0.0F;  ///< scores become c·tanh(score/c); 0: they stay
  float logit_softcap = 0.0F;      ///< likewise
  float logit_scale = 1.0F;
  /// Queries of blocks without rotation, or of all (kTemperature), are multiplied by
  /// 1 + temperature_scale · ln(1 + ⌊(position + temperature_offset) / temperature_length⌋). 0:
  /// they are not.
  float temperature_scale = 0.0F;
  uint32_t temperature_length = 0, temperature_offset = 0;
  bool has_l2_norm = false;  ///< rotated queries and keys are divided by their root mean square
  float qkv_limit = 0.0F;    ///< queries, keys and values are clipped to ±limit; 0: they are not
  uint32_t distance_buckets = 0;  ///< of learned numbers for distances; 0: there are none
  RelativeConfig relative;
  float alibi_bias = 0.0F;   ///< largest slope's exponent; see llama.cpp, ggml_soft_max_ext()
  bool is_parallel = false;  ///< kParallelBlock, or the file says so
  std::vector<int32_t> suppressed;  ///< tokens that are never written
  bool has_tied_output = false;
  bool is_causal = true;  ///< false: every token sees all others, and hidden states are the result
  Activation activation = Activation::kSilu;  ///< that of the row, unless the file says otherwise
  const Architecture* row = nullptr;
  NormKind norm = NormKind::kRms;  ///< likewise

  /// What names of the tensors of a block begin with.
  std::string block_prefix(size_t block) const {
    if (encoder_block_count > 0 && block >= encoder_block_count)
      return "dec.blk." + std::to_string(block - encoder_block_count) + ".";
    return (row->has(kDistanceBias) ? "enc.blk." : "blk.") + std::to_string(block) + ".";
  }
  /// Whether tokens of the block see only those before them.
  bool is_causal_in(size_t block) const { return is_causal && block >= encoder_block_count; }
  const HeadKind& heads_of(size_t block) const { return head_kinds[blocks[block].heads]; }
  bool has_own_kv(size_t block) const {
    return blocks[block].has_attention && blocks[block].kv_block == block;
  }
  /// Of all the vectors that a token has between blocks. RWKV 7: the values of the first block go
  /// along. Of those that are kept, places for all of them.
  uint64_t stream_length() const {
    const uint32_t kept = kept_every > 0 ? 1 + (block_count + kept_every - 1) / kept_every : 0;
    const uint32_t vectors = row->has(kRwkv7) ? 2 : std::max({altup.count, hyper.count, kept});
    return uint64_t{embedding_length} * (vectors > 0 ? vectors : 1);
  }

  /// Every key under the architecture's prefix is read, or known to change no result.
  /// Errors: kUnsupported (architecture, experts of an architecture without, rope scaling, a
  /// key that is not understood); kNotFound, kCorrupt for missing or inconsistent values, naming
  /// the keys.
  static Result<LlamaConfig> from_gguf(const GgufFile& file);
};

}  // namespace bm::models
