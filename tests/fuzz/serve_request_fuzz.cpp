// Bodies of requests: any bytes become values within their limits, or an error that says why.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "serve/generation.h"
#include "serve/request.h"

namespace {

void check(bool is_true) {
  if (!is_true) std::abort();
}

template <class T>
void check_error(const bm::serve::ApiResult<T>& r) {
  if (r) return;
  check(r.error().status >= 400 && !r.error().message.empty());
  check(nlohmann::json::parse(bm::serve::error_body(r.error())).contains("error"));
}

void check_generation(const bm::serve::ApiResult<bm::serve::GenerationRequest>& r) {
  check_error(r);
  if (!r) return;
  const uint32_t choices = bm::serve::RequestLimits().choices;
  check(r->n >= 1 && r->n <= choices && r->stop.size() <= 64);
  check(r->is_chat || (r->best_of >= r->n && r->best_of <= choices));
  // Unset: what the model's file recommends.
  check(!r->temperature || (*r->temperature >= 0 && *r->temperature <= (r->native ? 100 : 2)));
  check(!r->top_p || (*r->top_p > 0 && *r->top_p <= 1));
  check(!r->is_chat || !r->max_tokens || *r->max_tokens >= 1);
  const bool has_prompt =
      !r->texts.empty() || !r->token_lists.empty() || (r->native && !r->native->prompts.empty());
  check(r->is_chat ? !r->messages.empty() : has_prompt);
  if (r->native)
    for (const auto& parts : r->native->prompts) check(!parts.empty());
  check(!r->top_logprobs || *r->top_logprobs <= 1024);
  check(!r->mirostat || *r->mirostat <= 2);
  check(!r->has_native_logprobs || r->top_logprobs);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check_generation(bm::serve::parse_chat(body));
  check_generation(bm::serve::parse_completion(body));
  check_generation(bm::serve::parse_response(body));
  check_generation(bm::serve::parse_native_completion(body));
  check_generation(bm::serve::parse_message(body));
  const auto infill = bm::serve::parse_infill(body);
  check_error(infill);
  check(!infill || (infill->native && infill->native->infill && infill->n >= 1));
  const auto embedding = bm::serve::parse_embedding(body);
  check_error(embedding);
  check(!embedding || embedding->texts.empty() || embedding->token_lists.empty());
  check_error(bm::serve::parse_native_embedding(body));
  const auto rerank = bm::serve::parse_rerank(body);
  check_error(rerank);
  check(!rerank || (!rerank->documents.empty() && (!rerank->top_n || *rerank->top_n >= 1)));
  check_error(bm::serve::parse_tokenize(body));
  check_error(bm::serve::parse_detokenize(body));
  // The same text in pieces of any size is cut at the same place.
  bm::serve::StopFilter whole({"ab", "\n\n"}), pieces({"ab", "\n\n"});
  std::string a = whole.push(body), b;
  for (const char c : body) b += pieces.push(std::string_view(&c, 1));
  check(a + whole.finish() == b + pieces.finish());
  return 0;
}
