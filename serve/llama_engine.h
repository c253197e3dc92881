#pragma once
// The engine of a language model on a device.

#include <functional>
#include <memory>

#include "models/tokenizer.h"
#include "serve/engine.h"

namespace bm::serve {

struct LlamaEngineOptions {
  /// Of the file, to be looked at before it is read another time: kCorrupt where it was written
  /// over in place, as what is mapped is no one model then. Empty: not looked at.
  std::string path = {};
  std::string device;    ///< as in Llama::LoadOptions
  uint32_t context = 0;  ///< positions of a sequence; 0: min(model's, 4096)
  uint32_t threads = 0;  ///< as BM_THREADS; 0: as that says
  models::LlamaBatch::Options batch;
};

/// Loads the model `file` and computes one token, so that the first request finds kernels compiled.
/// `vocabulary`: tokens that may be chosen; rows beyond are padding.
/// Errors: those of Llama::load and LlamaBatch::create; kCorrupt when the model lacks rows.
Result<std::unique_ptr<Engine>> make_llama_engine(std::shared_ptr<const models::GgufFile> file,
                                                  const LlamaEngineOptions& options,
                                                  size_t vocabulary);

}  // namespace bm::serve
