#pragma once
// One sequence: tokens go in, logits come out. Prompt and decode steps are captured and replayed.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "models/llama.h"

namespace bm::models {

/// Consecutive tokens on their way through the stages of a model.
struct StagePiece {
  uint32_t position = 0, count = 0;
  bool is_last = false;  ///< of what was fed: its logits are wanted
};

/// Thread: belongs to one thread at a time; sessions of one model are independent.
class LlamaSession {
 public:
  /// Gives hidden states [count, embedding length] to the next stage of the model and, of the last
  /// piece, fills in what it answers: logits in the first stage, nothing in others.
  using NextStage = std::function<Status(const StagePiece& piece, std::span<const float> hidden,
                                         std::span<float> logits)>;
  struct Options {
    /// Of keys and values: kF32, kF16, or kI8 in blocks of 32 (see KvRows).
    DType cache_type = DType::kF16;
    NextStage next = {};  ///< of a model that is not the last stage
  };
  /// Throws: Exception (kOutOfMemory, device errors).
  explicit LlamaSession(std::shared_ptr<const Llama> model);
  LlamaSession(std::shared_ptr<const Llama> model, Options options);
  ~LlamaSession();

  /// Of a model with an encoder (LlamaConfig::encoder_block_count): reads a text, which what is fed
  /// then is written about, and begins anew. It is fed LlamaConfig::start_token first.
  /// Errors: kInvalidArgument (no tokens, too many, id out of range), kUnsupported (there is no
  /// encoder), errors of the device.
  Status encode(std::span<const int32_t> tokens);
  bool has_encoder() const;
  const int32_t& start_token() const;
  /// Appends tokens and computes the logits after the last one.
  /// Errors: kInvalidArgument (no tokens, id out of range, more tokens than room(), nothing
  /// encoded where there is an encoder); kOutOfMemory
  /// (keys and values need more than the device has: the sequence is as it was before the first
  /// token that did not fit); errors of the device.
  Status feed(std::span<const int32_t> tokens);
  /// The same for hidden states of the stage before, of one piece of at most max_piece() tokens.
  Status feed_hidden(const StagePiece& piece, std::span<const float> hidden);
  static uint32_t max_piece();
  /// Logits after the last token fed, one per token of the vocabulary.
  std::span<const float> logits() const;
  uint32_t position() const;  ///< tokens fed so far
  uint32_t room() const;      ///< tokens that still fit
  /// Positions that there is memory for now; it grows with use, by doubling.
  uint32_t capacity() const;
  /// Memory for that many positions now instead of when they come. Errors: kInvalidArgument,
  /// kOutOfMemory, errors of the device.
  Status reserve(uint32_t positions);
  /// Back to an empty sequence; captures and memory are kept.
  void reset();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bm::models
