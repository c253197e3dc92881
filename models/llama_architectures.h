#pragma once
// What the families of transformers differ in: one row each.

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::models {

/// How the two halves of a rotary pair lie in a head. Source: llama.cpp, enum llama_rope_type.
enum class RopeStyle : uint8_t {
  kNone,         ///< positions are told otherwise: by a table, or by ALiBi
  kInterleaved,  ///< pairs (2i, 2i+1): llama
  kHalves,       ///< pairs (i, i + d/2): qwen, gemma
};
enum class Activation : uint8_t {
  kSilu,
  kGelu,       ///< by the hyperbolic tangent
  kExactGelu,  ///< by the error function
  kReluSquared,
  kRelu,
  kClampedSwiglu,  ///< gate and up are clamped to ±7; see clamped_swiglu() in llama.cpp
  kXielu,          ///< of four numbers that every block has; see xielu() in llama.cpp
  kSitu,           ///< both factors are capped smoothly; see SituConfig
};
/// What the router's logits become, before the best experts are taken or after. Numbers of the
/// key expert_gating_func. Source: llama.cpp, enum llama_expert_gating_func_type.
enum class Gating : uint8_t { kSoftmax = 1, kSigmoid = 2, kSoftmaxOfSelected = 3 };
enum class NormKind : uint8_t { kRms, kLayer };
enum class FeedForward : uint8_t {
  kGated,  ///< down(act(gate(x)) * up(x))
  kFused,  ///< the same; `ffn_up` has the rows of the gate, then those of up
  kPlain,  ///< down(act(up(x)))
};

enum Trait : uint64_t {
  kScaledEmbedding = 1,  ///< embeddings are multiplied by sqrt(embedding_length)
  kParallelBlock = 2,    ///< attention and feed-forward both read the block's input
  kPostNorms = 4,        ///< what attention and feed-forward give is normalised before it is added
  kNoPreNorms = 8,       ///< and what they read is not
  kNormsWithoutGain = 16,       ///< no norm of the file has a tensor
  kPositionTable = 32,          ///< a row per position is added to the embeddings
  kAlibi = 64,                  ///< scores fall with distance, by a slope per head
  kEmbeddingNorm = 128,         ///< embeddings are normalised
  kNoRopeInGlobal = 256,        ///< blocks without a window do not rotate
  kNoRopeInEveryFourth = 2048,  ///< likewise blocks 3, 7, 11 …
  kDividedLogits = 512,         ///< logit_scale divides instead of multiplying
  kLateFeedForwardNorm = 1024,  ///< the feed-forward's norm goes by the name post_attention_norm
  kExperts = 4096,              ///< files may have experts (expert_count)
  kNormalisedExperts = 8192,    ///< weights of the chosen experts sum to 1, unless the file says so
  kSigmoidGating = 16384,       ///< unless expert_gating_func says otherwise
  kSelectedGating = 32768,      ///< softmax over the chosen experts' logits
  kSharedExpert = 1u << 16,     ///< one more expert for all tokens, whatever the file's keys say
  kWeightedInputs = 1u << 17,   ///< experts read their input times their weight; chosen by logits
  kLateHeadNorms = 1u << 18,    ///< queries and keys are normalised after they are rotated
  kLatent = 1u << 19,           ///< multi-head latent attention: keys and values are compressed
  kChunked = 1u << 20,          ///< local blocks see their own chunk of the text, not a window
  kSinks = 1u << 21,            ///< a score per head takes part in the softmax, without a value
  kGatedSharedExpert = 1u << 22,  ///< the shared expert counts as much as a router of its own says
  kAttentionOutputNorm = 1u << 23,  ///< the feed-forward's norm goes by the name attn_output_norm
  /// A file without a norm of the feed-forward has blocks whose two halves read the same.
  kMayLackFeedForwardNorm = 1u << 24,
  /// An encoder: norms follow the sums, x = norm(x + f(x)); no logits are made. Source: "Attention
  /// Is All You Need" (2017), section 3.1.
  kNormsAfterSums = 1u << 25,
  kNoLogits = 1u << 26,                ///< hidden states are all that a model gives
  kSecondAttentionNorm = 1u << 27,     ///< attention may have a norm of its own (attn_norm_2)
  kTensorsTellFeedForward = 1u << 28,  ///< which of the three a block has, its tensors say
  kGlobalFirst = 1u << 29,             ///< of a period of windows the first block sees all
  /// Gated delta networks in most blocks; attention in the others, its results gated.
  kDeltaNet = 1u << 30,
  kShortConvolution = 1u << 31,  ///< in blocks without heads of keys; the output norm's other name
  /// Selective state spaces: Mamba-1, a state per channel; Mamba-2, one per head. In blocks without
  /// heads of keys, unless kBesideAttention.
  kMamba = 1ull << 32,
  kMamba2 = 1ull << 33,
  kNoAttention = 1ull << 34,         ///< no block has heads
  kNoFeedForward = 1ull << 35,       ///< blocks are recurrences alone
  kBesideAttention = 1ull << 36,     ///< every block has attention and a recurrence; they are added
  kOneOfThree = 1ull << 37,          ///< a block is a recurrence, attention or a feed-forward
  kRopeSwitch = 1ull << 38,          ///< rope.scaling.finetuned = false: nothing is rotated
  kUnevenBlocks = 1ull << 39,        ///< heads and hidden units may differ from block to block
  kLayerInputs = 1ull << 40,         ///< every block has a table of embeddings of its own
  kAltup = 1ull << 41,               ///< see AltupConfig
  kUnscaledScores = 1ull << 42,      ///< of attention, unless the file says otherwise
  kValueNorm = 1ull << 43,           ///< values are normalised, without a gain
  kExpertsBesideDense = 1ull << 44,  ///< blocks with experts have a dense feed-forward too
  kExpertsOfInput = 1ull << 45,      ///< likewise; experts read what the block does, normalised
  kGatedAttention = 1ull << 46,    ///< results of attention are multiplied by sigmoid(attn_gate(x))
  kSubNorms = 1ull << 47,          ///< what the last matrix of either half reads is normalised
  kEarlyRouter = 1ull << 48,       ///< the router reads the block's input
  kMayLackAttention = 1ull << 49,  ///< blocks may lack heads, of keys (a matrix instead) or all
  kTemperature = 1ull << 50,       ///< queries of all blocks grow with their position
  kSoftplusGate = 1ull << 51,      ///< with kGatedAttention, instead of sigmoid
  kMayHaveSinks = 1ull << 52,      ///< as kSinks, in blocks that have the tensor
  kHalvedExperts = 1ull << 53,     ///< the mean of the experts and the shared one, not the sum
  kPlainLocalRope = 1ull << 54,    ///< blocks with a window rotate without scaling
  kShortValues = 1ull << 55,       ///< values may be shorter than keys
  /// RWKV: states that decay by channels of the keys; of version 7 every token also takes out of
  /// them. In all blocks.
  kRwkv6 = 1ull << 56,
  kRwkv7 = 1ull << 57,
  kKeyDecay = 1ull << 59,    ///< a delta network whose state decays by channels of the keys
  kDenseToo = 1ull << 60,    ///< blocks with experts may have a dense feed-forward; √½ of their sum
  kChannelMix = 1ull << 58,  ///< feed-forwards read the token before too
  /// An indexer chooses which positions attention reads. Texts that it takes whole are as with
  /// others.
  kIndexed = 1ull << 61,
  /// Scores have a number added that heads learned for each distance. Source: "Exploring the Limits
  /// of Transfer Learning with a Unified Text-to-Text Transformer" (2019), section 2.1.
  kDistanceBias = 1ull << 62,
  /// The first blocks encode a text, the others write one and read in each what became of that.
  /// Source: "Attention Is All You Need" (2017), section 3.1.
  kEncoderDecoder = 1ull << 63,
};

struct Architecture {
  const char* name;  ///< general.architecture, and the prefix of its keys
  RopeStyle rope_style;
  NormKind norm;
  FeedForward feed_forward;
  Activation activation;
  uint64_t traits;  ///< Trait
  /// Of `period` blocks the last sees all positions, the others a window, unless the file says
  /// otherwise. 0: a window, if the file has one, holds for all.
  uint32_t window_period;
  const char* keys;  ///< metadata that is read beyond what every architecture has

  bool has(Trait trait) const { return (traits & trait) != 0; }
};

std::span<const Architecture> architectures();
/// Errors: kUnsupported, naming those that are known, or what keeps one from being.
Result<const Architecture*> find_architecture(std::string_view name);

}  // namespace bm::models
