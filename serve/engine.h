#pragma once
// What the scheduler drives: something that computes one step for tokens of several sequences.

#include <span>

#include "models/llama_batch.h"
#include "runtime/base/result.h"

namespace bm::serve {

using models::BatchItem;

/// Thread: belongs to the scheduler's.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual uint32_t page_length() const = 0;  ///< positions
  /// Pages are numbered from 1; there are enough for one context.
  virtual uint32_t page_count() const = 0;
  virtual uint32_t most_sequences() const = 0;  ///< items of one token in a step
  virtual uint32_t context() const = 0;         ///< positions of a sequence
  /// See models::LlamaBatch::run. Errors that say that the device failed (is_device_error) leave
  /// nothing usable before recover().
  virtual Status run(std::span<const BatchItem> items) = 0;
  /// Logits after the last token of an item of the last step, of tokens that may be chosen.
  virtual std::span<const float> logits(size_t item) const = 0;
  /// Recurrent: prompts are computed from the beginning, and items have places below
  /// most_sequences() for what goes from token to token. See models::LlamaBatch.
  virtual bool has_states() const { return false; }
  /// false: prompts are items of one token; several of one sequence may be in a step, in their
  /// order.
  virtual bool takes_pieces() const { return !has_states(); }
  /// false: embeddings are all that the model makes, and run() is not called.
  virtual bool writes_text() const { return true; }
  /// A piece of a prompt alone, and then its hidden states: [tokens, any length]; see
  /// models::LlamaBatch::embed.
  virtual Status embed(const BatchItem& /*piece*/) {
    return fail(Code::kUnsupported, "this engine gives no embeddings");
  }
  virtual std::span<const float> hidden() const { return {}; }
  /// What would make later steps faster is done bit by bit while nothing waits. Errors: as run().
  virtual bool is_prepared() const { return true; }
  virtual Status prepare() { return {}; }
  /// Gives back the memory that the model takes; all pages are lost. Nothing runs until load().
  virtual void unload() {}
  /// Errors: those of the first load, after which it may be tried again.
  virtual Status load() { return {}; }
  /// Makes a failed device usable again; all pages are lost.
  virtual Status recover() = 0;
};

}  // namespace bm::serve
