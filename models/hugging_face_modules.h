#pragma once
// What sentence-transformers puts behind a model of Hugging Face: modules.json, pooling, dense
// layers.
//
// Source: sentence-transformers, base/modules, sentence_transformer/modules/pooling.py,
// cross_encoder/modules/logit_score.py.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace bm::models {

/// Numbers of the key pooling_type. Source: llama.cpp, enum llama_pooling_type.
enum class PoolingType : uint32_t { kMean = 1, kFirst = 2, kLast = 3, kRank = 4 };

struct FolderModules {
  struct Dense {
    std::string weights;  ///< path of its safetensors file
    bool has_tanh = false;
  };
  /// Tokens whose logits behind a pair of texts say how well the second answers the first.
  struct LogitScore {
    uint32_t yes = 0, no = 0;
  };
  std::optional<PoolingType> pooling;
  std::vector<Dense> dense;  ///< what is pooled goes through them in this order
  std::optional<LogitScore> score;
  /// Prompts are tokens like others to the pooling.
  bool pools_prompt = true;
};

/// Nothing for a folder without modules.json. `folder` ends with a slash.
/// Errors: kNotFound naming the file that is missing; kCorrupt, kUnsupported naming the module.
Result<FolderModules> read_folder_modules(const std::string& folder);

}  // namespace bm::models
