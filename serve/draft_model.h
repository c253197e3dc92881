#pragma once
// Speculative decoding with a small model that guesses what the large one will say.

#include <memory>
#include <string>

#include "models/llama_batch.h"
#include "serve/drafter.h"

namespace bm::serve {

struct DraftModelOptions {
  std::string path, device;
  uint32_t sequences = 8;
  uint32_t context = 0;   ///< positions; those of the large model
  size_t vocabulary = 0;  ///< tokens of the large model, which must be the small one's
};

/// Greedy guesses. A sequence has its own pages from its first guess to its end; where there are
/// none left, nothing is guessed, nor from a failure of the device to the next load().
/// Errors: those of Llama::load and LlamaBatch::create; kInvalidArgument for another vocabulary or
/// a context that is too short.
Result<std::shared_ptr<Drafter>> make_draft_model(const DraftModelOptions& options);

}  // namespace bm::serve
