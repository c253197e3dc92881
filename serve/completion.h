#pragma once
// One request from its checked values to its answer: choices given to the scheduler, their pieces
// as JSON in OpenAI's form, whole or as a stream of events.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "serve/chat_format.h"
#include "serve/hosted_model.h"
#include "serve/message_writer.h"
#include "serve/response_writer.h"

namespace bm::serve {

/// What the access log says of a request.
struct Usage {
  size_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  Timings timings = {};
  std::string_view finish = {};
};

/// The error of a request that the scheduler refused or ended.
ApiError api_error(const Error& error);

/// The error of a request that the scheduler did not take.
ApiError submit_error(const Error& error);

/// The error of a request whose field `param` has a token that the model does not know, if any.
std::optional<ApiError> outside_vocabulary(std::span<const int32_t> tokens,
                                           const models::Tokenizer& tokenizer,
                                           std::string_view param);

/// As llama-server tells it.
nlohmann::ordered_json progress_json(const PromptProgress& progress);

/// Thread: belongs to one connection. Destroying it cancels what still runs.
class Completion {
 public:
  /// Submits all choices. `id`: of the request. `model` outlives it.
  static ApiResult<std::unique_ptr<Completion>> start(HostedModel& model, GenerationRequest request,
                                                      std::string id);
  ~Completion();

  /// Asked now and then while waiting: whether anybody still wants the answer.
  using IsWanted = std::function<bool()>;

  /// The whole answer, as the text of a JSON object.
  /// Errors: of the first choice that failed; status 499 when nobody wants it any more.
  ApiResult<std::string> wait(const IsWanted& is_wanted);
  /// The next events of the stream, at least one; "" after the last. nullopt: nobody wants it.
  std::optional<std::string> next_events(const IsWanted& is_wanted);

  /// What llama-server's form is answered with where a request says nothing else.
  static nlohmann::ordered_json default_settings(HostedModel& model);

  Usage usage() const;
  /// Of the first page of the prompt, equal for all prompts that begin alike: where they are
  /// computed, the prefix cache has it. Empty for prompts that fill no page.
  const std::string& prefix_hash() const { return prefix_hash_; }

 private:
  struct Choice {
    std::shared_ptr<Generation> generation;
    uint64_t id = 0;
    std::optional<ChatParser> parser;  ///< of chats
    std::string text, reasoning;
    std::vector<CallPiece> calls;  ///< whole ones
    std::vector<ChosenToken> echoed, tokens;
    /// Of the answer before the tokens whose logprobs come next. Below 0 where the first token of
    /// an echo has a space that the prompt lacks.
    int64_t characters = 0;
    size_t prompt = 0;  ///< which one it answers
    size_t prompt_tokens = 0;
    std::string prompt_text;  ///< of llama-server's own form
    bool is_finished = false, has_begun = false;
  };
  Completion(HostedModel& model, GenerationRequest request, std::string id);
  ApiResult<std::vector<std::vector<int32_t>>> prompts();
  ApiResult<std::vector<std::vector<int32_t>>> native_prompts() const;
  std::optional<ApiError> bias_texts();
  /// What llama-server makes of a gap, within the model's context.
  ApiResult<std::vector<int32_t>> infill_prompt(const InfillPrompt& infill) const;
  /// The answer of a choice in llama-server's own form; `content`: its text, or what of it is new.
  nlohmann::ordered_json native_answer(size_t index, const Choice& choice,
                                       std::string content) const;
  /// completion_probabilities: of tokens, with their texts where these are characters.
  nlohmann::ordered_json native_probabilities(const std::vector<ChosenToken>& tokens) const;
  nlohmann::ordered_json generation_settings() const;
  nlohmann::ordered_json timings_json(const Choice& choice) const;
  nlohmann::ordered_json timings_so_far(const Choice& choice) const;
  std::string native_event(size_t index, Choice& choice, const Piece& piece) const;
  /// What the request says, the model's file, and OpenAI's defaults, in this order.
  models::SamplerOptions sampling(uint64_t seed) const;
  /// What a request for an echo is answered with before the choice.
  struct Echo {
    std::string text;
    int32_t first_token = 0;  ///< of which nobody says how likely it was
    int64_t characters = 0;   ///< see Choice
  };
  Echo echo_of(size_t prompt, const std::vector<int32_t>& tokens) const;
  /// `piece` with the echo of its prompt before it.
  void add_echo(const Choice& choice, Piece* piece) const;
  /// Indices of the choices that are answered, in order.
  std::vector<size_t> best_choices() const;
  /// The grammar of the request, compiled; null: anything may be written.
  ApiResult<std::shared_ptr<const models::Grammar>> grammar() const;
  ChatParser chat_parser() const;
  /// Takes the pieces of a chat apart.
  ChatPieces parse(Choice& choice, const Piece& piece) const;
  std::string call_id(size_t choice, size_t call) const;
  nlohmann::ordered_json message(size_t index, const Choice& choice) const;
  nlohmann::ordered_json head(std::string_view object) const;
  /// `characters`: of the answer before `tokens`; on return with them.
  nlohmann::ordered_json logprobs(const std::vector<ChosenToken>& tokens,
                                  int64_t* characters) const;
  nlohmann::ordered_json usage_json() const;
  nlohmann::ordered_json usage_so_far() const;
  /// Of a message: {stop_reason, usage}.
  std::string finish_message();
  /// Of an answer in the form of "Responses".
  nlohmann::ordered_json response_usage() const;
  /// Of the tokens of a choice those that reasoning is written in, with its markers.
  size_t reasoning_tokens(const Choice& choice) const;
  /// `piece` as items: the text of events.
  std::string write(Choice& choice, const Piece& piece);
  std::string event(size_t index, Choice& choice, Piece piece);
  std::string last_events();

  HostedModel& model_;
  GenerationRequest request_;
  std::string id_, prefix_hash_;
  int64_t created_;
  size_t prompt_tokens_ = 0;
  bool has_tools_ = false, is_reasoning_ = false;
  std::vector<Echo> echoes_;  ///< of each prompt, where asked for
  std::vector<Choice> choices_;
  std::optional<ResponseWriter> writer_;   ///< of requests in the form of "Responses"
  std::optional<MessageWriter> messages_;  ///< of requests in Anthropic's form
  bool is_over_ = false, has_begun_ = false;
};

}  // namespace bm::serve
