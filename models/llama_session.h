#pragma once
// One sequence: tokens go in, logits come out. Prompt and decode steps are captured and replayed.

#include <memory>
#include <span>
#include <vector>

#include "models/llama.h"

namespace bm::models {

/// Thread: belongs to one thread at a time; sessions of one model are independent.
class LlamaSession {
 public:
  explicit LlamaSession(std::shared_ptr<const Llama> model);
  ~LlamaSession();

  /// Appends tokens and computes the logits after the last one.
  /// Errors: kInvalidArgument (no tokens, id out of range, more tokens than room()); errors of the
  /// device.
  Status feed(std::span<const int32_t> tokens);
  /// Logits after the last token fed, one per token of the vocabulary.
  std::span<const float> logits() const;
  uint32_t position() const;  ///< tokens fed so far
  uint32_t room() const;      ///< tokens that still fit
  /// Back to an empty sequence; captures are kept.
  void reset();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bm::models
