#pragma once
// Speculative decoding: tokens that may come next, guessed cheaply and checked by the model in one
// step. Guesses change how fast tokens come, never which.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/result.h"

namespace bm::serve {

/// Thread: the scheduler's.
class Drafter {
 public:
  virtual ~Drafter() = default;
  /// At most `most` tokens that may follow `tokens`, prompt and answer of sequence `id` so far.
  virtual std::vector<int32_t> draft(uint64_t id, std::span<const int32_t> tokens, size_t most) = 0;
  /// The sequence has ended.
  virtual void forget(uint64_t id) = 0;
  /// Gives up what it has on the device; until load() it guesses nothing. No sequence is left.
  virtual void unload() {}
  /// Errors: those of the first load; it guesses nothing then.
  virtual Status load() { return {}; }
};

/// What followed the last time that the same tokens were written: answers repeat their prompts.
/// Source: Saxena, "Prompt lookup decoding" (2023).
class LookupDrafter final : public Drafter {
 public:
  static constexpr size_t kLongest = 4, kShortest = 2;  ///< tokens that must have been written
  std::vector<int32_t> draft(uint64_t id, std::span<const int32_t> tokens, size_t most) override;
  void forget(uint64_t /*id*/) override {}
};

}  // namespace bm::serve
