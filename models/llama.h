#pragma once
// Llama-like language models: weights on a device, and the network as tensor operations.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/llama_config.h"
#include "models/llama_matrix.h"
#include "tensor/tensor.h"

namespace bm::models {

/// Keys and values of every position so far, one pair per block: [kv heads, capacity, head length].
struct KvCache {
  std::vector<Tensor> keys, values;
};

/// Immutable weights; shared by any number of sequences.
class Llama {
 public:
  struct LoadOptions {
    std::string device;    ///< "" = default device
    uint32_t context = 0;  ///< positions to prepare for; 0: min(model's, 4096)
    std::function<void(uint64_t done, uint64_t total)> progress;  ///< bytes of weights
    bool keep_blocks = true;  ///< false: no matrix is packed, block formats become float32
  };
  /// F32, F16 and BF16 weights are used as stored: on the CPU float32 without copying it out of the
  /// mapped file, the other two with rows interleaved. Q8_0, Q4_0, Q4_K and Q6_K stay blocks on
  /// the CPU and are multiplied with int8 codes of the activations (see Matrix); elsewhere, and in
  /// other formats, blocks are expanded to float32. Every tensor of the file is used.
  /// Errors, all before anything is allocated: those of LlamaConfig; kUnsupported naming a tensor
  /// that has no use here, kCorrupt one whose shape does not fit; kOutOfMemory when the device
  /// cannot hold the weights.
  static Result<std::shared_ptr<const Llama>> load(std::shared_ptr<const GgufFile> file,
                                                   const LoadOptions& options);

  const LlamaConfig& config() const { return config_; }
  uint32_t context() const { return context_; }
  const std::string& device() const { return device_; }
  KvCache make_cache() const;

  /// Logits after the last of `count` tokens that start at `position`; writes their keys and
  /// values. Shapes: tokens [>= count] int32 → [vocabulary] float32.
  Tensor forward(const Tensor& tokens, const SymInt& count, const SymInt& position,
                 KvCache& cache) const;

 private:
  struct Block {
    Tensor attention_norm;
    Matrix query, key, value, output;
    Tensor query_bias, key_bias, value_bias, output_bias;  ///< invalid when the model has none
    Tensor query_norm, key_norm;                           ///< per head; likewise
    Tensor feed_forward_norm;
    Matrix gate, up, down;
    Tensor gate_bias, up_bias, down_bias;  ///< likewise
  };
  LlamaConfig config_;
  uint32_t context_ = 0;
  std::string device_;
  Tensor output_norm_, output_bias_;  ///< the bias: of the vocabulary; invalid when there is none
  Matrix embedding_, output_;
  Tensor cosines_, sines_;  ///< [context, 1, head length]; sines carry the pair's sign
  std::vector<Block> blocks_;

  friend class LlamaLoader;
  Tensor rotate(const Tensor& x, const SymInt& count, const SymInt& position) const;
  Tensor attend(const Block& b, const Tensor& x, const SymInt& count, const SymInt& position,
                Tensor& keys, Tensor& values) const;
  Tensor feed_forward(const Block& b, const Tensor& x) const;
  void make_rope_tables(std::span<const float> frequency_factors);
};

}  // namespace bm::models
