#pragma once
// /v1/embeddings: texts to vectors. The model's hidden states are pooled as its file says.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/hosted_model.h"

namespace bm::serve {

/// Thread: belongs to one connection. Destroying it cancels what still runs.
class Embedding {
 public:
  /// `model` outlives it. Nothing runs before wait().
  Embedding(HostedModel& model, EmbeddingRequest request);
  ~Embedding();

  /// The whole answer, as the text of a JSON object. Vectors have length 1.
  /// Errors: of the first input that failed; status 499 when nobody wants it any more.
  ApiResult<std::string> wait(const std::function<bool()>& is_wanted);
  size_t prompt_tokens() const { return prompt_tokens_; }

 private:
  class Input;
  ApiResult<std::vector<std::vector<int32_t>>> encode() const;
  HostedModel& model_;
  EmbeddingRequest request_;
  std::vector<std::shared_ptr<Input>> inputs_;
  size_t prompt_tokens_ = 0;
};

/// Source: RFC 4648, 4.
std::string base64(std::string_view bytes);

}  // namespace bm::serve
