#pragma once
// Tokens of several sequences through the network at once, keys and values in pages of one pool,
// states of recurrent blocks in places. A step is the replay of a captured program; there is one
// for every power of two of decoding sequences, with and without a piece of a prompt.

#include <memory>
#include <span>

#include "models/llama.h"

namespace bm::models {

/// Consecutive tokens of one sequence. What lies before `position` was computed in earlier steps.
struct BatchItem {
  std::span<const int32_t> tokens;
  uint32_t position = 0;
  /// Pages of the sequence in order, up to the last token's at least. Whoever calls deals them out:
  /// a page belongs to one sequence, or is shared once it is full.
  std::span<const uint32_t> pages;
  bool is_prompt = false;  ///< computed as part of a prompt, though it were one token
  /// Of a model with states: the sequence's place for them, below Options::sequences, from position
  /// 0 on, which begins them anew. Whoever calls deals them out.
  uint32_t state = 0;
  /// Of an encoder's text: the token from which on they are of the second kind.
  size_t second = SIZE_MAX;
};

/// Thread: belongs to one thread at a time; batches of one model are independent.
class LlamaBatch {
 public:
  static constexpr uint32_t kPageLength = 64;     ///< positions
  static constexpr uint32_t kMostSequences = 64;  ///< the first page has a slot for each

  struct Options {
    uint32_t sequences = 8;    ///< most items of a step, the piece of a prompt not counted
    uint64_t cache_bytes = 0;  ///< most memory for keys and values; 0: a context for every sequence
    DType cache_type = DType::kF16;
    uint32_t piece = kPageLength;  ///< most tokens of a prompt in a step, a divisor of a page
  };
  /// Errors: kInvalidArgument (sequences or piece out of range, or a bound too small for one
  /// context), kOutOfMemory saying what would fit, errors of the device.
  static Result<std::unique_ptr<LlamaBatch>> create(std::shared_ptr<const Llama> model,
                                                    const Options& options);
  ~LlamaBatch();

  const Llama& model() const;
  uint32_t page_count() const;  ///< pages are numbered from 1
  uint64_t page_bytes() const;  ///< of all blocks together
  /// The model has recurrent blocks: its states go from token to token, and never back.
  bool has_states() const;
  /// Prompts come in pieces. Else they are items of one token, and no item has is_prompt.
  bool takes_pieces() const;
  /// One step: items of one token, and perhaps a last one of a prompt: up to Options::piece tokens,
  /// of which the first is at a multiple of that. The same item gives the same bits in whatever
  /// company.
  ///
  /// Errors: kInvalidArgument; errors of the device, after which no page holds what it should.
  Status run(std::span<const BatchItem> items);
  /// Captures one more of the programs that steps to come may want, which the first such step would
  /// do otherwise. Pages keep what they hold. After a failure, or where one takes long, there is
  /// nothing more to prepare. Errors: as run().
  Status prepare();
  bool is_prepared() const;
  /// Logits after the last token of an item of the last step.
  std::span<const float> logits(size_t item) const;
  /// A step of a piece of a prompt alone (of one token, without pieces), of which hidden() is asked
  /// instead of logits.
  Status embed(const BatchItem& piece);
  /// Hidden states of the last embed(), as the logits' matrix would read them: [tokens of the
  /// piece, embedding length].
  std::span<const float> hidden() const;

 private:
  struct Impl;
  explicit LlamaBatch(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bm::models
