#pragma once
// One model that is served: file, tokenizer, chat template and scheduler; loaded by a thread of
// its own, so that the server answers meanwhile.

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "models/chat/chat_template.h"
#include "models/chat_prompt.h"
#include "models/embedding_head.h"
#include "models/grammar/vocabulary.h"
#include "models/sampler_defaults.h"
#include "serve/chat_format.h"
#include "serve/generation.h"
#include "serve/llama_engine.h"
#include "serve/request.h"

namespace bm::serve {

struct HostedModelOptions {
  std::string name, path;
  std::string chat_template;  ///< path; empty: the model file's own
  LlamaEngineOptions engine;
  size_t queue_limit = 128;
  bool has_prefix_cache = true;
  uint32_t draft_tokens = 0;  ///< most guesses for a sequence and step (Drafter); 0: none
  std::string draft_model;    ///< path of the model that guesses; empty: the text so far
  std::chrono::milliseconds idle_unload{0};  ///< Scheduler::Options::idle_unload
  /// Counted on by whom this model takes the place of; nullptr: none.
  std::shared_ptr<Metrics> metrics = nullptr;
};

/// Thread: any.
class HostedModel {
 public:
  /// Starts loading.
  explicit HostedModel(HostedModelOptions options);
  ~HostedModel();

  const std::string& name() const { return options_.name; }
  const std::string& path() const { return options_.path; }
  int64_t created() const { return created_; }  ///< Unix time
  const HostedModelOptions& options() const { return options_; }
  const std::shared_ptr<Metrics>& metrics() const { return metrics_; }

  enum class State : uint8_t { kLoading, kReady, kDraining, kDeviceLost, kDeviceGone, kFailed };
  State state() const;
  /// Why it is not ready; empty when it is.
  std::string reason() const;
  /// Waits for the end of loading.
  /// Errors: those of the file, and of the device.
  Status wait_loaded();

  // Of a loaded model.
  const models::Tokenizer& tokenizer() const { return *tokenizer_; }
  Scheduler& scheduler() { return *scheduler_; }
  uint32_t context() const { return context_; }
  bool writes_text() const { return writes_text_; }  ///< otherwise vectors alone
  /// What its file recommends.
  const models::SamplerDefaults& sampler_defaults() const { return sampler_defaults_; }
  /// Of embeddings: as the file says, otherwise the last token's, which has seen all others; of
  /// encoders, whose tokens all have, the mean.
  Pooling pooling() const { return pooling_; }
  /// Of this model's tokens; lives as long as the model.
  models::InfillVocabulary infill_vocabulary() const;
  /// What its file has behind pooled hidden states.
  const models::EmbeddingHead& embedding_head() const { return embedding_head_; }
  struct EncodedChat {
    std::vector<int32_t> tokens;
    bool is_reasoning = false;  ///< the template has opened the reasoning already
  };
  /// A chat as the model's template writes it.
  ApiResult<models::ChatPrompt> render_chat(const GenerationRequest& request) const;
  /// The same as tokens.
  ApiResult<EncodedChat> encode_chat(const GenerationRequest& request) const;
  /// How it writes calls and reasoning.
  const ChatFormat& chat_format() const { return format_; }
  /// Whether what marks these are control tokens, which are no text otherwise.
  bool has_control_markers(bool has_tools) const {
    return has_tools ? has_control_calls_ : has_control_reasoning_;
  }
  /// What clients are told of the file.
  struct Facts {
    uint64_t parameters = 0, bytes = 0;
    uint32_t trained_context = 0, width = 0;
    std::string chat_template;  ///< its text; empty: none
  };
  const Facts& facts() const { return facts_; }
  /// For grammars; the tokens of chat_format() are part of it. Made when it is first asked for.
  std::shared_ptr<const models::GrammarVocabulary> vocabulary();

  /// See Scheduler::stop; waits for the end of loading.
  void stop();
  /// See Scheduler::drain; at once where nothing is loaded.
  bool drain(Clock::time_point deadline);

 private:
  Status load();
  /// The template over `messages`, arguments of calls as objects or, where that fails, as texts.
  Result<models::ChatPrompt> render(models::ChatInput input,
                                    const nlohmann::ordered_json& messages) const;
  bool has_opened_reasoning(std::string_view text) const;
  void go_on(const nlohmann::ordered_json& begun, models::ChatPrompt* prompt) const;
  HostedModelOptions options_;
  int64_t created_;
  std::shared_ptr<Metrics> metrics_;
  std::unique_ptr<models::Tokenizer> tokenizer_;
  std::optional<models::ChatTemplate> template_;
  std::string template_problem_;
  Facts facts_;
  ChatFormat format_;
  bool has_control_calls_ = false, has_control_reasoning_ = false;
  bool knows_developers_ = false;  ///< the template tells this role apart
  std::mutex vocabulary_mutex_;
  std::shared_ptr<const models::GrammarVocabulary> vocabulary_;
  std::unique_ptr<Scheduler> scheduler_;
  models::SamplerDefaults sampler_defaults_;
  uint32_t context_ = 0;
  bool writes_text_ = true;
  Pooling pooling_ = Pooling::kLast;
  models::EmbeddingHead embedding_head_;
  mutable std::mutex mutex_;
  std::condition_variable loaded_;
  std::optional<Status> status_;  ///< of loading, once it is over
  std::thread loader_;
};

}  // namespace bm::serve
