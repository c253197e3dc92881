#pragma once
// Requests in OpenAI's form, from bytes to checked values. What is not known or not supported is
// refused by name: nothing asked for is silently left out.
//
// Source of names, ranges and defaults: OpenAI's API reference, "Chat", "Completions",
// "Responses" and "Embeddings"; Anthropic's API reference, "Messages";
// top_k, min_p, repetition_penalty, min_tokens, priority, timeout, chat_template_kwargs and
// continuous_usage_stats as vLLM has them,
// grammar and what take_llama_fields() reads as llama-server.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/sampler.h"
#include "models/sampler_dry.h"
#include "runtime/base/result.h"

namespace bm::serve {

/// An error as clients see it.
struct ApiError {
  int status = 400;
  std::string message = {};
  std::string type = "invalid_request_error";
  std::string param = {};  ///< empty: null
  std::string code = {};   ///< empty: null
};
template <class T>
using ApiResult = tl::expected<T, ApiError>;

/// {"error": {…}}
std::string error_body(const ApiError& error);

enum class ToolChoice : uint8_t { kAuto, kNone, kRequired, kNamed };

/// A gap in a text, and what an editor knows besides.
struct InfillPrompt {
  std::string prefix, suffix;  ///< what stands before the gap, and behind it
  std::string begun;           ///< what of the gap is written already
  struct File {
    std::string name, text;
  };
  std::vector<File> extra;
};

/// A text, or tokens.
struct PromptPart {
  std::string text;
  std::vector<int32_t> tokens;
};

/// Of requests in llama-server's own form, which are answered in that form.
struct NativeForm {
  std::optional<InfillPrompt> infill;
  std::vector<std::vector<PromptPart>> prompts;  ///< each of parts; without an infill
  std::vector<std::string> response_fields;      ///< of the answer; empty: all
  bool has_tokens = false;                       ///< their ids are part of the answer
};

struct GenerationRequest {
  bool is_chat = false;
  /// Of OpenAI's newer interface, "Responses": a chat that is answered in another form, with these
  /// fields of the request in it.
  bool is_response = false;
  bool is_message = false;  ///< likewise of Anthropic's interface
  nlohmann::ordered_json response_fields;
  std::optional<NativeForm> native;
  std::string model;                                           ///< empty: the first
  nlohmann::ordered_json messages, tools, template_variables;  ///< of a chat; null without
  /// Of a completion: texts or lists of tokens, one of the two.
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> token_lists;
  uint32_t n = 1, best_of = 1;  ///< of best_of choices the n likeliest are answered; at least n
  std::string suffix;     ///< of a completion: what stands behind the gap to be filled; empty: none
  bool has_echo = false;  ///< of a completion: the prompt is part of the answer
  bool ignores_end = false;  ///< tokens that end a text are tokens like others
  bool is_stream = false, has_stream_usage = false, has_timings = false;
  bool has_usage_so_far = false;  ///< in every event of the stream, not in the last one alone
  std::optional<uint32_t> max_tokens;
  uint32_t min_tokens = 0;  ///< before so many nothing ends the text
  /// Unset: as the model's file says, otherwise OpenAI's defaults.
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<uint32_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::optional<uint32_t> top_logprobs;
  /// top_logprobs in llama-server's form, whatever the form of the answer.
  bool has_native_logprobs = false;
  bool has_drawn_probabilities = false;  ///< of what the samplers left, in place of logprobs
  bool has_timings_so_far = false, has_progress = false;  ///< in the events of a stream
  std::optional<std::vector<models::SamplerStep>> steps;
  std::optional<uint32_t> repeat_window;
  /// Penalties look back on the prompt too, as llama-server's do.
  bool penalizes_prompt = false;
  uint32_t min_keep = 0;
  std::optional<uint32_t> mirostat;  ///< 0: none, whatever the model's file says
  std::optional<float> mirostat_tau, mirostat_eta;
  uint32_t indent = 0;  ///< see LineLimits
  int32_t predict_ms = 0;
  std::optional<float> xtc_probability, xtc_threshold;
  float typical_p = 1, top_n_sigma = 0, dynatemp_range = 0, dynatemp_exponent = 1;
  models::DryOptions dry;  ///< without its breakers
  std::vector<std::string> dry_breakers = models::default_dry_breakers();
  float presence_penalty = 0, frequency_penalty = 0;
  std::vector<models::LogitBias> logit_bias;
  std::vector<std::pair<std::string, float>> text_bias;  ///< for all tokens of each text
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_name;  ///< of kNamed
  bool has_parallel_calls = true;
  bool parses_calls = true;        ///< otherwise calls are text
  bool has_raw_reasoning = false;  ///< reasoning is part of the text, with its markers
  bool has_generation_prompt = true;
  /// Whether the answer goes on with the last message, which is an assistant's; unset: it does
  /// where that is the last one.
  std::optional<bool> goes_on;
  nlohmann::ordered_json schema;                 ///< that the answer keeps to; null: any text
  std::string schema_param = "response_format";  ///< where the schema stands
  std::string grammar;                           ///< likewise, GBNF
  int32_t priority = 0;
  std::optional<double> timeout_s;
};

struct RequestLimits {
  uint32_t json_depth = 64, choices = 128, prompts = 128, stops = 64, stop_bytes = 1024,
           top_logprobs = 20, native_logprobs = 1024, tools = 128, biases = 1024, inputs = 2048,
           breakers = 32, breaker_bytes = 40;
};

/// The JSON object of a body. Source of the limit on depth: RFC 8259, 9 lets parsers have one.
ApiResult<nlohmann::ordered_json> parse_body(std::string_view body,
                                             const RequestLimits& limits = {});
ApiResult<GenerationRequest> parse_chat(std::string_view body, const RequestLimits& limits = {});
ApiResult<GenerationRequest> parse_completion(std::string_view body,
                                              const RequestLimits& limits = {});
ApiResult<GenerationRequest> parse_native_completion(std::string_view body,
                                                     const RequestLimits& limits = {});
ApiResult<GenerationRequest> parse_infill(std::string_view body, const RequestLimits& limits = {});
/// Blocks become the messages of a chat.
ApiResult<GenerationRequest> parse_message(std::string_view body, const RequestLimits& limits = {});
/// Items become the messages of a chat.
ApiResult<GenerationRequest> parse_response(std::string_view body,
                                            const RequestLimits& limits = {});

struct EmbeddingRequest {
  std::string model;
  std::optional<uint32_t> dimensions;  ///< so many of the first ones; all without
  std::vector<std::string> texts;      ///< or
  std::vector<std::vector<int32_t>> token_lists;
  bool is_base64 = false;
  bool is_native = false;  ///< answered as llama-server's /embedding
  int32_t norm = 2;        ///< see parse_native_embedding()
  /// Which of the model's prompts is put before each text; "" for none; its default without.
  std::optional<std::string> prompt_name;
};
ApiResult<EmbeddingRequest> parse_embedding(std::string_view body,
                                            const RequestLimits& limits = {});
/// llama-server's own form; embd_normalize: −1 none, 0 the largest becomes 32760, 1 and more: the
/// p-norm becomes 1.
ApiResult<EmbeddingRequest> parse_native_embedding(std::string_view body,
                                                   const RequestLimits& limits = {});

/// In the form of Jina's and Cohere's.
struct RerankRequest {
  std::string model, query;
  std::vector<std::string> documents;
  std::optional<uint32_t> top_n;  ///< so many of the best; all without
  bool has_documents = false;     ///< their texts are part of the answer
  bool is_tei = false;            ///< asked and answered as Text Embeddings Inference does
};
ApiResult<RerankRequest> parse_rerank(std::string_view body, const RequestLimits& limits = {});

struct TokenizeRequest {
  std::string model, text;
  bool add_special = true;
  bool parses_special = false;  ///< control tokens' texts become these tokens
  bool has_pieces = false;      ///< the answer has the tokens' texts too
};
/// The messages of a chat, to be written by the model's template.
ApiResult<GenerationRequest> parse_apply_template(std::string_view body,
                                                  const RequestLimits& limits = {});
ApiResult<TokenizeRequest> parse_tokenize(std::string_view body);
struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};
ApiResult<DetokenizeRequest> parse_detokenize(std::string_view body);

}  // namespace bm::serve
