#pragma once
// Transformers: weights on a device, and the network as tensor operations. What the
// families differ in is in llama_architectures.h.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/kv_cache.h"
#include "models/llama_config.h"
#include "models/llama_matrix.h"
#include "tensor/tensor.h"

namespace bm::models {

/// Consecutive tokens of one sequence among the rows of a batch.
struct BatchRun {
  SymInt row;       ///< the first of them
  SymInt count;     ///< how many
  SymInt position;  ///< of the first token in its sequence
  SymInt slot;      ///< of the pool, where the keys of the first token go; the others follow
  SymInt state;     ///< of recurrent blocks: which of them is the sequence's
  /// [pages of a sequence] int32: its page table, on each of the model's devices.
  std::vector<Tensor> pages;
};

/// What every device of a model has of a step.
struct BatchWorkspace {
  /// [capacity, …] float32: working memory that blocks with the same heads share.
  struct HeadSpace {
    Tensor queries, pairs, joined;
  };
  Tensor positions;                                 ///< [capacity] int32, one per row
  std::vector<HeadSpace> heads;                     ///< one per LlamaConfig::head_kinds
  Tensor inputs, mixed;                             ///< as of heads, of recurrent blocks
  Tensor index_queries, index_keys, index_weights;  ///< as of heads, of indexers
};

/// Tokens of several sequences that go through the network together; see llama_batch.h.
struct BatchStep {
  Tensor tokens;   ///< [capacity] int32, one per row; on the first device
  Tensor outputs;  ///< [capacity of outputs] int32: rows whose logits are asked for; on the last
  SymInt rows, output_count;
  std::vector<BatchRun> runs;
  std::span<const BatchWorkspace> workspaces;  ///< one per device
};

/// Keys and values of many sequences in pages of one pool: a slot has both, [2 · kv heads, head
/// length], one pool per block. With latent attention, [1, components + rotated length].
struct PagedKvCache {
  int64_t page_length = 0;  ///< positions in a page, a power of two
  std::vector<KvRows> slots;
  std::vector<KvRows> index_slots;     ///< of blocks with an indexer: its keys, at the same places
  std::vector<Tensor> chosen;          ///< while a step is described, of its runs: see KvCache
  std::vector<Tensor> inputs, states;  ///< [sequences, …], see KvCache; invalid of other blocks
  std::vector<RopeTables> rope;        ///< one per device, of the whole context
};

/// Immutable weights; shared by any number of sequences.
class Llama {
 public:
  struct LoadOptions {
    /// "" = default device. Several, as in runtime::device_list(): pipeline parallelism. Each has
    /// the weights and the cache of its share of the blocks, in order, by the memory that is free.
    std::string device;
    /// Pipeline parallelism over processes: one of `stages`, which has a share of the blocks.
    uint32_t stage = 0, stages = 1;
    uint32_t context = 0;  ///< positions to prepare for; 0: min(model's, 4096)
    std::function<void(uint64_t done, uint64_t total)> progress;  ///< bytes of weights
    /// Hot restart: weights are looked for in the device's memory, and stay there afterwards
    /// (llama_kept_weights.h). kUnsupported on devices that cannot.
    bool keep_weights = false;
    bool keep_blocks = true;  ///< false: no matrix is packed, block formats become float32
    /// On CPUs: float32 matrices are packed too. Steps of several sequences take a fraction of the
    /// time then; the start takes as long as copying the file.
    bool packs_float32 = false;
  };
  /// F32, F16 and BF16 weights are used as stored: on the CPU float32 without copying it out of the
  /// mapped file (see packs_float32), the other two with rows interleaved. Matrices of every
  /// quantised format stay blocks on CPUs, NVIDIA's and AMD's GPUs and are multiplied with int8
  /// codes of the activations (see Matrix); on other devices they are expanded to float32. Every
  /// tensor of the file is used. Errors, all before anything is allocated: those of LlamaConfig;
  /// kUnsupported naming a tensor that has no use here, kCorrupt one whose shape does not fit;
  /// kOutOfMemory when the device cannot hold the weights.
  static constexpr uint32_t kPromptPiece = 128;  ///< most tokens that a session computes at once
  static constexpr uint32_t kDeltaPiece = 64, kDeltaChunk = 8;  ///< of delta networks
  /// What a session needs on one device, bytes.
  struct MemoryNeed {
    std::string device;
    uint32_t context = 0;
    uint64_t free = 0;          ///< that nobody uses now
    uint64_t weights = 0;       ///< as they would lie there; those read in place count too
    uint64_t per_position = 0;  ///< keys, values and rotary tables
    uint64_t states = 0;        ///< of recurrent blocks
    uint64_t scratch = 0;       ///< about: what a block has of a piece of a prompt, and logits
  };
  /// One per device, without loading anything. Errors: those of load() but kOutOfMemory.
  static Result<std::vector<MemoryNeed>> memory_need(std::shared_ptr<const GgufFile> file,
                                                     const LoadOptions& options, DType cache_type);
  static Result<std::shared_ptr<const Llama>> load(std::shared_ptr<const GgufFile> file,
                                                   const LoadOptions& options);

  const LlamaConfig& config() const { return config_; }
  uint32_t context() const { return context_; }
  /// Tokens of a prompt that may be computed at once. 1: recurrences of Mamba-1 go from token to
  /// token.
  uint32_t most_piece() const;
  bool takes_pieces() const { return most_piece() > 1; }
  /// Matrices are multiplied with as plain elements, not packed.
  bool has_plain_matrices() const { return has_plain_matrices_; }
  /// Takes tokens in; the last one gives logits out. One but for models that are divided.
  size_t device_count() const { return places_.size(); }
  const std::string& device(size_t index = 0) const { return places_[index].device; }
  size_t device_of(size_t block) const { return place_of_block_[block]; }
  /// Whether tokens go in here, and logits come out: in a model of one stage both.
  bool is_first_stage() const { return first_block_ == 0; }
  bool is_last_stage() const { return end_block_ == config_.block_count; }
  /// For one sequence of at most `capacity` positions; `type`: as of KvRows.
  KvCache make_cache(int64_t capacity, DType type) const;
  /// The same for more positions; the first `used` stay. Throws: Exception (kOutOfMemory naming
  /// what would fit), after which it is as it was.
  void grow(KvCache& cache, int64_t capacity, int64_t used) const;
  /// Bytes of keys and values of a position in the blocks of one device.
  uint64_t cache_bytes(size_t device, DType type) const;
  /// Bytes of the states of a sequence in the recurrent blocks of one device.
  uint64_t state_bytes(size_t device) const;
  /// Bytes of rotary tables for a position, on each device.
  uint64_t rope_bytes() const;
  /// Whether attention of the block reads what an indexer chooses, as the context may be longer.
  bool is_indexed(size_t block) const {
    return config_.indexed_from > 0 && context_ > config_.indexed_from &&
           config_.blocks[block].indexer != Indexer::kNone;
  }
  bool has_indexer(size_t block) const {
    return is_indexed(block) && config_.blocks[block].indexer == Indexer::kOwn;
  }
  /// Of positions 0 … length − 1, for each device.
  std::vector<RopeTables> make_rope_tables(int64_t length) const;
  /// Bytes of weights that were found on the device, and that were written to it, when weights are
  /// kept; else 0.
  uint64_t attached_bytes() const { return attached_bytes_; }
  uint64_t uploaded_bytes() const { return uploaded_bytes_; }

  /// Logits after the last of `count` tokens that start at `position`; writes their keys and
  /// values. Shapes: tokens [>= count] int32, on the first device → [vocabulary] float32, on the
  /// last. A later stage takes hidden states in, [>= count, embedding length] float32, an earlier
  /// one gives them out, [count, embedding length].
  /// Of kEncoderDecoder: by the blocks of the decoder, over what encode_prompt() has left.
  Tensor forward(const Tensor& in, const SymInt& count, const SymInt& position,
                 KvCache& cache) const;
  /// What the decoder's blocks read of a text becomes that of `tokens` [>= cache.encoded]. → hidden
  /// states, [cache.encoded, embedding length].
  Tensor encode_prompt(const Tensor& tokens, KvCache& cache) const;

  /// Logits of the rows asked for, [output_count, vocabulary]; writes keys and values of all rows.
  /// What is computed for a row does not depend on the others: everything but attention, which is
  /// a kernel per run, runs in kernels for any number of rows.
  Tensor forward_batch(const BatchStep& step, PagedKvCache& cache) const;
  /// Hidden states of a whole text of which every token sees all others, [count, embedding length].
  /// Shapes: tokens and their kinds [>= count] int32. `rope`: of as many positions.
  Tensor encode(const Tensor& tokens, const Tensor& kinds, const SymInt& count,
                std::span<const RopeTables> rope) const;
  /// How many kinds of tokens an encoder tells apart; 0: none.
  uint32_t token_kinds() const { return token_kinds_; }
  /// What logits are made of, [rows, embedding length]: the last block's output, normalised.
  Tensor hidden_batch(const BatchStep& step, PagedKvCache& cache) const;

 private:
  /// Gain and bias, each invalid where the model has none.
  struct Norm {
    bool is_used = false;
    Tensor weight, bias;
    double epsilon = 0;  ///< 0: the model's
    int64_t groups = 1;  ///< see LlamaConfig::norm_groups
  };
  /// A matrix and its bias, which is invalid where the model has none.
  struct Projection {
    Matrix matrix;
    Tensor bias;
    Tensor scale;  ///< [1]: of the product; invalid where there is none
  };
  /// Matrices of all experts, stacked; biases [experts, length], invalid where there are none.
  struct Experts {
    Projection router;
    Tensor router_bias;  ///< [experts], added to choose by; invalid where there is none
    Matrix gate, up, down;
    Matrix gate_up;                    ///< of both, gate first; invalid where they are apart
    Projection latent_in, latent_out;  ///< of ExpertConfig::latent; invalid without
    Norm latent_norm;                  ///< of the sum of what they give
    Tensor gate_bias, up_bias, down_bias;
    Tensor sum_bias;  ///< [embedding length], added to what all of them give; invalid without
    Tensor gate_scale, up_scale, down_scale;  ///< [experts]: of the products; invalid without
    Matrix shared_router;  ///< [1, embedding length]: how much the shared expert counts
    Tensor input_scale;    ///< [embedding length]: of what the router reads; invalid without
    Tensor scales;         ///< [experts]: of what they give; invalid without
    Norm before, after, dense_after;  ///< kExpertsBesideDense: of the experts, and of the others
    Projection shared_gate, shared_up, shared_down;
    Matrix adjugate_gate, adjugate_up, adjugate_down;  ///< see ExpertConfig::adjugate
  };
  /// Multi-head latent attention: queries, keys and values are made of few components.
  struct Latent {
    Projection query_down;  ///< invalid where queries are not compressed
    Norm query_norm, key_norm;
    Projection key_down;  ///< components of keys and values, then what is rotated
    Tensor key_up;        ///< [heads, key length without what is rotated, components]
    Tensor value_up;      ///< [heads, value length, components]
  };
  struct Recurrent {
    Projection in, gate, out;
    Projection gate_in;                    ///< of Kimi: a gate of low rank
    Projection beta, alpha, beta_alpha;    ///< the third: of both, by groups
    Tensor convolution, convolution_bias;  ///< [channels, kernel], [channels]
    Tensor step;                           ///< [heads]: added to how much a token counts
    Tensor rate;                           ///< [heads], of Mamba-1 [heads, keys]: A of state spaces
    Tensor skip;   ///< [heads]: D of state spaces, how much of its input a head gives out
    Tensor bonus;  ///< [heads, keys]: of RWKV 6, how much a token's key counts for itself
    Norm norm;     ///< of Mamba-2: [groups, inner / groups]
    /// Mamba-1: components of the step, then keys B and queries C, of what the convolution gives;
    /// steps of their components. Kimi: components of the decays, and decays of these.
    Projection parameters, steps;
    Norm steps_norm, keys_norm, queries_norm;
  };
  /// What RWKV makes of a token and the one before it.
  struct Rwkv {
    Projection query, key, value, gate, output;
    Projection gate_in, gate_out;    ///< of version 7: a gate of low rank; invalid without
    Projection decay_in, decay_out;  ///< of low rank, and of others its part
    Tensor decay;                    ///< [embedding length]
    Tensor share;                    ///< [embedding length]: version 6
    Projection shares_in;            ///< [5 · rank, embedding length]
    Tensor shares_out;               ///< [5, embedding length, rank]
    std::vector<Tensor> shares;      ///< [embedding length]: of the token before
    Projection first_in, first_out, rate_in, rate_out;  ///< version 7, of low rank
    Tensor first, rate;                                 ///< [embedding length]: added to those
    Tensor removed_key, rate_key, own;                  ///< [embedding length]
    Projection channel_key, channel_value, receptance;
    Tensor key_share, receptance_share;  ///< [embedding length]; the second of version 6
  };
  /// An indexer; weights of its heads only where positions are chosen one by one.
  struct Index {
    Projection query, key, weights;
    Norm query_norm, key_norm;
  };
  /// Weights of the vectors of a token, see HyperConfig: [vectors, or twice as many; all vectors].
  struct Hyper {
    Projection mix;
    Tensor base, scale;  ///< [rows of mix], [1] or [2]
  };
  /// What a block of a decoder reads of the encoded text.
  struct Cross {
    Norm norm;
    Projection query, key, value, output;
  };
  /// What a block makes of the part of a token's embeddings that is the block's own.
  struct LayerInput {
    Projection gate, out;
    Norm norm;
  };
  struct Altup {
    Norm router_norm;
    Projection router, predict, correct;
    Tensor correct_scale;              ///< [embedding length]
    Projection laurel_in, laurel_out;  ///< a low-rank path beside attention
    Norm laurel_norm;
  };
  struct Block {
    Norm attention_norm, second_attention_norm;  ///< the second: of attention alone
    Projection qkv;                              ///< rows of all three, or
    Projection query, key, value;
    bool has_joined_heads = false;  ///< qkv is made of what the file has as three
    Projection output;
    Projection attention_gate;  ///< of every result or of every head; invalid without
    Norm attention_sub_norm, feed_forward_sub_norm;
    /// [head length], [heads, head length], or [heads · head length]: over all heads at once.
    Norm query_norm, key_norm;
    Norm attention_post_norm, second_post_norm, feed_forward_norm, feed_forward_post_norm;
    FeedForward feed_forward = FeedForward::kGated;
    Projection gate, up, down;
    Experts experts;
    Tensor sinks;  ///< [heads]; invalid without kSinks
    /// [2 · context − 1, heads]: what is added to scores of keys so far from the query, from the
    /// farthest before it to the farthest behind. Invalid without LlamaConfig::distance_buckets.
    Tensor distance_bias;
    /// [heads, length, 2 · span] and [heads, 2 · span, length]: keys and queries of distances, of
    /// LlamaConfig::relative; invalid without.
    Tensor relative_keys, relative_queries;
    Tensor relative_numbers;  ///< [2 · context − 1]: which of these a distance has, likewise
    Cross cross;
    Index index;
    LayerInput layer_input;
    Altup altup;
    Hyper attention_hyper, feed_forward_hyper;
    /// [embedding length]: what scores the vectors that are kept (LlamaConfig::kept_every).
    Tensor attention_scorer, feed_forward_scorer;
    Tensor scale;  ///< [1]: of what the block gives; invalid where there is none
    Latent latent;
    Recurrent recurrent;
    Rwkv rwkv;
  };
  LlamaConfig config_;
  uint32_t context_ = 0;
  uint64_t attached_bytes_ = 0, uploaded_bytes_ = 0;
  bool has_plain_matrices_ = false;
  Matrix embedding_;
  Matrix layer_embedding_;  ///< [vocabulary, blocks · layer input length]; encoders have none
  Projection layer_projection_;
  Norm layer_norm_;
  std::vector<Matrix> altup_in_, altup_out_;  ///< of all vectors of a token but the first
  Norm embedding_norm_, output_norm_;
  Norm encoder_norm_;  ///< of kEncoderDecoder
  Hyper output_hyper_;
  Tensor output_scorer_;
  Projection output_;  ///< its matrix is the embedding's where they are tied
  Tensor suppressed_;  ///< [vocabulary]: 1 of tokens that are never written; invalid without any
  Tensor positions_;   ///< [context, embedding length]; invalid without kPositionTable
  /// [kinds, embedding length], added to tokens by their kind; invalid where there are none.
  Tensor token_types_;
  uint32_t token_kinds_ = 0;
  /// A device, and what blocks on it share.
  struct Place {
    std::string device;
    Tensor slopes;  ///< ALiBi: [kv heads, heads of each, 1, 1]
  };
  std::vector<float> rope_factors_;     ///< what frequencies are divided by, one a pair, or none
  std::vector<Place> places_;           ///< in the order of the blocks
  std::vector<size_t> place_of_block_;  ///< index into places_; of this stage's
  size_t first_block_ = 0, end_block_ = 0;  ///< of this stage
  std::vector<Block> blocks_;

  friend class LlamaLoader;
  /// Of all rows: [rows, heads or kv heads, head length], rotated.
  struct Heads {
    Tensor query, key, value;
    Tensor gate;  ///< of the results; invalid where they are not gated
  };
  /// Rows of rotary tables, [rows, 1, rotated length].
  struct RopeRows {
    std::span<const RopeTables> tables;  ///< one per device
    std::function<Tensor(const Tensor& table, int64_t width)> rows;
  };
  static RopeRows rope_rows(const KvCache& cache, const SymInt& count, const SymInt& position);
  /// The pieces of a feed-forward of the architecture.
  Tensor activate(size_t block, const Tensor& x) const;
  /// `limit`: see BlockConfig.
  Tensor activated(size_t block, const Tensor& gate, const Tensor& up, float limit) const;
  static Tensor project(const QuantisedActivations& in, const Projection& p);
  Tensor norm(const Tensor& x, const Norm& n) const;
  Tensor rotate(size_t block, const Tensor& x, const RopeRows& rows) const;
  /// `positions`: of the rows, [rows] int64, asked for where queries depend on them otherwise.
  Heads project_heads(size_t block, const Tensor& x, const SymInt& count, const RopeRows& rows,
                      const std::function<Tensor()>& positions) const;
  Tensor project_output(size_t block, const Tensor& joined) const;
  /// What results of attention are multiplied with, [count, values].
  Tensor gate_attention(size_t block, const QuantisedActivations& in, const SymInt& count,
                        int64_t values) const;
  /// [count, heads, head length], axes of heads split or not → [count, heads · value length].
  Tensor join_values(size_t block, const Tensor& mixed, const SymInt& count) const;
  /// What the next block reads: between passes of the same blocks it is normalised.
  Tensor after_block(size_t block, const Tensor& x) const;
  /// Attention of queries [count, heads, head length] over keys and values [kv heads, position +
  /// count, head length] → [count, kv heads, heads of each, head length]. `kept`: the type that
  /// keys and values are stored as. Queries and weights of prompts are rounded to its factor_type.
  Tensor mix(size_t block, const Tensor& queries, const Tensor& keys, const Tensor& values,
             DType kept, const SymInt& count, const SymInt& position,
             const Tensor& chosen = {}) const;
  /// What keys and values that are kept as this type are multiplied as.
  static DType factor_type(DType kept);
  /// Whether queries [.., head length] of `count` tokens and their weights are rounded to the
  /// factor_type of `kept`.
  static bool rounds_attention(const Tensor& queries, DType kept, const SymInt& count);
  /// Of [..., heads' axes, keys] scores; `axes`: the shape of the sinks, if there are any.
  Tensor shares_of(size_t block, const Tensor& scores, const Shape& axes) const;
  /// What distances add to scores, [kv, 1, count, keys]; see LlamaConfig::relative.
  Tensor relative_scores(size_t block, const Tensor& queries, const Tensor& keys,
                         const SymInt& count) const;
  Tensor mask_scores(size_t block, const Tensor& scores, const SymInt& count,
                     const SymInt& position) const;
  const Place& place(size_t block) const { return places_[place_of_block_[block]]; }
  /// Of `count` tokens, where the block computes: [count] int64.
  Tensor positions(size_t block, const SymInt& count, const SymInt& first) const;
  /// x where the block computes.
  Tensor bring(size_t block, const Tensor& x) const;
  Tensor attend(size_t block, const Tensor& x, const SymInt& count, const SymInt& position,
                KvCache& cache) const;
  Tensor attend_heads(size_t block, const Tensor& x, const SymInt& count, const SymInt& position,
                      KvCache& cache) const;
  Tensor attend_heads_paged(size_t block, const Tensor& x, const BatchStep& step,
                            PagedKvCache& cache) const;
  bool has_mixer(size_t block) const;
  /// Latent attention, the up-projections taken into queries and results: the cache holds the
  /// components, and has no values of its own.
  Tensor attend_latent(size_t block, const Tensor& x, const SymInt& count, const SymInt& position,
                       KvCache& cache) const;
  Tensor attend_latent_paged(size_t block, const Tensor& x, const BatchStep& step,
                             PagedKvCache& cache) const;
  struct LatentParts {
    Tensor queries;     ///< [heads, rows, components + rotated length]
    Tensor stored;      ///< [rows, components + rotated length]
    Tensor compressed;  ///< [rows, query rank]: what queries are made of; invalid without
    Tensor gate;        ///< of the results; invalid where they are not gated
  };
  /// What an indexer makes of rows: queries [rows, heads, length], keys [rows, 1, length], weights
  /// [rows, heads] or nothing.
  struct IndexParts {
    Tensor queries, keys, weights;
  };
  /// `compressed`: see LatentParts.
  IndexParts index_parts(size_t block, const Tensor& x, const Tensor& compressed,
                         const SymInt& rows, const RopeRows& rope) const;
  /// Which of the positions so far attention of `count` tokens reads: bool [1 or heads, count,
  /// position + count]. `past`: keys of all of them, [position + count, 1, length].
  Tensor choose(size_t block, const IndexParts& parts, const Tensor& past, const SymInt& count,
                const SymInt& position) const;
  /// Stores keys of an indexer and chooses. Invalid where attention reads all.
  Tensor chosen_of(size_t block, const Tensor& x, const Tensor& compressed, const SymInt& count,
                   const SymInt& position, KvCache& cache) const;
  /// The same for each run of a step.
  std::vector<Tensor> chosen_of_runs(size_t block, const Tensor& x, const Tensor& compressed,
                                     const BatchStep& step, PagedKvCache& cache) const;
  LatentParts latent_parts(size_t block, const Tensor& x, const SymInt& rows, const RopeRows& rope,
                           const std::function<Tensor()>& positions) const;
  /// What queries [rows, ..] grow by with their positions, [rows, 1, 1].
  Tensor temperature(const Tensor& positions) const;
  /// Over `past` [1, position + count, components + rotated] → [count, heads · value length].
  Tensor mix_latent(size_t block, const Tensor& queries, const Tensor& past, const SymInt& count,
                    const SymInt& position, const Tensor& chosen) const;
  Tensor attend_recurrent(size_t block, const Tensor& x, const SymInt& count,
                          const SymInt& position, KvCache& cache) const;
  Tensor attend_recurrent_paged(size_t block, const Tensor& x, const BatchStep& step,
                                PagedKvCache& cache) const;
  /// What a recurrence reads, a row each: inputs of the convolution, and of a delta network how
  /// much is written and forgotten; of Mamba-2 the second alone, its steps.
  struct RecurrentInputs {
    Tensor convolved, beta, alpha;
  };
  /// What comes before and after a recurrence, of all rows; `run` gives its results.
  Tensor recur(size_t block, const Tensor& x, const SymInt& rows,
               const std::function<Tensor(const RecurrentInputs&)>& run) const;
  /// One token of one sequence, or several where takes_pieces().
  Tensor recur_run(size_t block, const RecurrentInputs& in, const SymInt& count,
                   const SymInt& position, const Tensor& past, const Tensor& state) const;
  Tensor recur_piece(size_t block, const RecurrentInputs& in, const SymInt& count,
                     const SymInt& position, const Tensor& past, const Tensor& state) const;
  Tensor delta_heads(size_t block, const Tensor& rows) const;
  Tensor delta_piece(size_t block, const Tensor& convolved, const RecurrentInputs& in,
                     const SymInt& count, const SymInt& position, Tensor state) const;
  Tensor scan_piece(size_t block, const Tensor& convolved, const RecurrentInputs& in,
                    const SymInt& count, const SymInt& position, Tensor state) const;
  /// One token of one sequence, whose `past` inputs and `state` become those of the next.
  Tensor recur_token(size_t block, const RecurrentInputs& in, const SymInt& position,
                     const Tensor& past, const Tensor& state) const;
  /// Whether a recurrence's heads are a state space (Mamba-1 or -2).
  bool has_state_space() const;
  Tensor state_space(size_t block, const Tensor& convolved, const RecurrentInputs& in,
                     const SymInt& position, Tensor state) const;
  /// What comes before and after Mamba-1 or -2.
  Tensor mamba(size_t block, const QuantisedActivations& in, const SymInt& rows,
               const std::function<Tensor(const RecurrentInputs&)>& run) const;
  Tensor delta_net(size_t block, const Tensor& convolved, const RecurrentInputs& in,
                   const SymInt& position, Tensor state) const;
  bool has_grouped_heads(size_t block) const;
  Tensor key_decay_net(size_t block, const QuantisedActivations& in, const SymInt& rows,
                       const std::function<Tensor(const RecurrentInputs&)>& run) const;
  /// What a state that decays reads of tokens, [rows, heads · keys] each, of values [rows, heads ·
  /// length]. `decay`: the logarithms. The last two: invalid where nothing is removed.
  struct DecayInputs {
    Tensor query, decay, key, value, removed, added;
  };
  DecayInputs key_decay_inputs(const Tensor& convolved, const RecurrentInputs& in,
                               const SymInt& count) const;
  Tensor decay_token(size_t block, const DecayInputs& in, const SymInt& position,
                     Tensor state) const;
  Tensor decay_piece(size_t block, const DecayInputs& in, const SymInt& count,
                     const SymInt& position, Tensor state) const;
  Tensor decay_run(size_t block, const DecayInputs& in, const SymInt& count, const SymInt& position,
                   const Tensor& state) const;
  /// What goes from token to token: `shift` gives the row before each of [rows, embedding length],
  /// of what the mix reads (0) and of what the feed-forward does (1).
  struct RwkvSteps {
    std::function<Tensor(const Tensor& x, int64_t which)> shift;
    std::function<Tensor(const DecayInputs&)> run;
  };
  static Tensor shift_rows(const Tensor& x, const SymInt& count, const SymInt& position,
                           Tensor past, const std::string& device);
  RwkvSteps rwkv_steps(size_t block, const SymInt& count, const SymInt& position,
                       KvCache& cache) const;
  RwkvSteps rwkv_steps_paged(size_t block, const BatchStep& step, PagedKvCache& cache) const;
  static Tensor between(const Tensor& x, const Tensor& before, const Tensor& share);
  Tensor rwkv_norm(size_t block, const Tensor& read) const;
  Tensor rwkv6_mix(size_t block, const Tensor& x, const RwkvSteps& steps) const;
  /// `first`: the values of the first block. → what is added, and those.
  std::pair<Tensor, Tensor> rwkv7_mix(size_t block, const Tensor& x, const Tensor& first,
                                      const RwkvSteps& steps) const;
  Tensor channel_mix(size_t block, const Tensor& x, const Tensor& before) const;
  Tensor run_rwkv_block(size_t block, const Tensor& x, const RwkvSteps& steps) const;
  bool is_rwkv() const { return config_.row->has(kRwkv6) || config_.row->has(kRwkv7); }
  Tensor attend_all(size_t block, const Tensor& x, const SymInt& count,
                    std::span<const RopeTables> rope) const;
  /// Of x [count, embedding length] over the encoded text.
  Tensor attend_cross(size_t block, const Tensor& x, const SymInt& count,
                      const KvCache& cache) const;
  Tensor feed_forward(size_t block, const Tensor& x) const;
  Tensor dense_feed_forward(size_t block, const Tensor& x) const;
  /// What a block adds to `sum`, norms and all; `in`: what attention read, for parallel blocks.
  Tensor feed_forward_of_sum(size_t block, const Tensor& sum, const Tensor& x,
                             const Tensor& in) const;
  Tensor attend_paged(size_t block, const Tensor& x, const BatchStep& step,
                      PagedKvCache& cache) const;
  Tensor gated(size_t block, const QuantisedActivations& in, const Projection& gate,
               const Projection& up, const Projection& down) const;
  /// Which experts each of x [m, embedding length] takes, and with which weights: both [m, used].
  std::pair<Tensor, Tensor> route(const Block& b, const QuantisedActivations& x) const;
  /// `of_pair`: a row for each pair of a token and one of its experts.
  Tensor mix_adjugates(size_t block, const QuantisedActivations& of_pair, const Tensor& chosen,
                       const Tensor& weights) const;
  /// `routed`: what the router reads, [m, embedding length]; invalid: x.
  Tensor mix_experts(size_t block, const Tensor& x, const Tensor& routed = {}) const;
  /// What the first block reads; `rows`: those of the table of positions.
  /// `kinds`: of the tokens, for models that tell them apart.
  Tensor embed(const Tensor& tokens, const std::function<Tensor(const Tensor& table)>& rows,
               const Tensor& kinds = {}) const;
  /// `attention` is given the block's normalised input. `inputs`: see layer_inputs().
  Tensor run_block(size_t block, const Tensor& x, const Tensor& inputs,
                   const std::function<Tensor(const Tensor&)>& attention) const;
  /// Of tokens whose embeddings are `x`, what is each block's own: [rows, blocks · layer input
  /// length]; invalid where blocks have none.
  Tensor layer_inputs(const Tensor& tokens, const Tensor& x) const;
  Tensor layer_input(size_t block, const Tensor& x, const Tensor& inputs) const;
  /// [rows, embedding length] → all vectors of a token, side by side, and back.
  Tensor widen(const Tensor& x) const;
  Tensor narrow(const Tensor& x) const;
  /// Shares of all vectors of x, [rows, vectors] or twice as many: those that are read, then those
  /// that are added to.
  Tensor hyper_shares(const Tensor& x, const Hyper& h) const;
  Tensor run_hyper_block(size_t block, const Tensor& x,
                         const std::function<Tensor(const Tensor&)>& attention) const;
  /// A mixture of `current` [rows, embedding length] and of the first `count` kept vectors of x.
  Tensor mix_kept(const Tensor& x, const Tensor& current, int64_t count,
                  const Tensor& scorer) const;
  Tensor run_keeping_block(size_t block, const Tensor& x,
                           const std::function<Tensor(const Tensor&)>& attention) const;
  Tensor run_altup_block(size_t block, const Tensor& x, const Tensor& inputs,
                         const std::function<Tensor(const Tensor&)>& attention) const;
  /// How much each vector of a token counts, of the one that is computed: [rows, vectors].
  Tensor altup_modalities(size_t block, const Tensor& x) const;
  Tensor run_blocks(const BatchStep& step, PagedKvCache& cache) const;
  Tensor project_logits(const Tensor& x) const;
  RopeTable make_rope_table(const RopeConfig& rope, int64_t length,
                            const std::string& device) const;
  bool has_local_rope() const;  ///< tables of its own
  const RopeConfig& rope_of(size_t block) const {
    return config_.blocks[block].is_local ? config_.local_rope : config_.rope;
  }
  /// Of a row of a rotary table.
  uint64_t rope_width(const RopeConfig& rope) const;
  Tensor make_slopes(const std::string& device) const;
};

}  // namespace bm::models
