#pragma once
// Texts to hidden states, by models whose tokens see all others: what embeddings are made of.

#include <memory>
#include <span>

#include "models/llama.h"

namespace bm::models {

/// Thread: belongs to one thread at a time; encoders of one model are independent.
class LlamaEncoder {
 public:
  /// Errors: kUnsupported (a model that writes text: LlamaBatch::embed), errors of the device.
  static Result<std::unique_ptr<LlamaEncoder>> create(std::shared_ptr<const Llama> model);
  ~LlamaEncoder();

  const Llama& model() const;
  /// One whole text, or two: tokens from `second` on are of the second kind where the model tells
  /// kinds apart. Errors: kInvalidArgument (no tokens, more than the context, id out of range);
  /// errors of the device.
  Status encode(std::span<const int32_t> tokens, size_t second = SIZE_MAX);
  /// Hidden states of the last text, [tokens, LlamaConfig::output_length].
  std::span<const float> hidden() const;

 private:
  struct Impl;
  explicit LlamaEncoder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bm::models
