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

  /// The whole answer, as the text of a JSON object, or of llama-server's list. Vectors have length
  /// 1 unless the request says otherwise.
  /// Errors: of the first input that failed; status 499 when nobody wants it any more.
  ApiResult<std::string> wait(const std::function<bool()>& is_wanted);
  size_t prompt_tokens() const { return prompt_tokens_; }
  /// What the model's head makes of each of `lists`, given to `take` in their order.
  ApiResult<void> pool(std::vector<models::TokenPair> lists, const std::function<bool()>& is_wanted,
                       const std::function<ApiResult<void>(std::vector<double>)>& take);

 private:
  class Input;
  ApiResult<std::vector<models::TokenPair>> encode() const;
  HostedModel& model_;
  EmbeddingRequest request_;
  std::vector<std::shared_ptr<Input>> inputs_;
  size_t prompt_tokens_ = 0;
};

/// How well each document answers the query, the best first, as the text of a JSON object in the
/// form of Jina's and Cohere's, or in that of Text Embeddings Inference. Errors: status 400 for a
/// model that is no reranker; as Embedding::wait().
ApiResult<std::string> rerank(HostedModel& model, const RerankRequest& request,
                              const std::function<bool()>& is_wanted);

/// Source: RFC 4648, 4.
std::string base64(std::string_view bytes);

}  // namespace bm::serve
