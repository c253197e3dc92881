#pragma once
// What the families of decoder-only transformers differ in: one row each.

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
enum class Activation : uint8_t { kSilu, kGelu, kReluSquared };
enum class NormKind : uint8_t { kRms, kLayer };
enum class FeedForward : uint8_t {
  kGated,  ///< down(act(gate(x)) * up(x))
  kFused,  ///< the same; `ffn_up` has the rows of the gate, then those of up
  kPlain,  ///< down(act(up(x)))
};

enum Trait : uint32_t {
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
};

struct Architecture {
  const char* name;  ///< general.architecture, and the prefix of its keys
  RopeStyle rope_style;
  NormKind norm;
  FeedForward feed_forward;
  Activation activation;
  uint32_t traits;  ///< Trait
  /// Of `period` blocks the last sees all positions, the others a window, unless the file says
  /// otherwise. 0: a window, if the file has one, holds for all.
  uint32_t window_period;
  const char* keys;  ///< metadata that is read beyond what every architecture has

  bool has(Trait trait) const { return (traits & trait) != 0; }
};

std::span<const Architecture> architectures();
/// Errors: kUnsupported, naming those that are known.
Result<const Architecture*> find_architecture(std::string_view name);

}  // namespace bm::models
