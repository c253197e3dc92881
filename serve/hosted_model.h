#pragma once
// One model that is served: file, tokenizer, chat template and scheduler; loaded by a thread of
// its own, so that the server answers meanwhile.

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "models/chat/chat_template.h"
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
  Metrics& metrics() { return metrics_; }

  enum class State : uint8_t { kLoading, kReady, kDraining, kDeviceLost, kFailed };
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
  /// Tokens of a chat, by the model's template.
  ApiResult<std::vector<int32_t>> encode_chat(const GenerationRequest& request) const;

  /// See Scheduler::stop; waits for the end of loading.
  void stop();
  /// See Scheduler::drain; at once where nothing is loaded.
  bool drain(Clock::time_point deadline);

 private:
  Status load();
  HostedModelOptions options_;
  int64_t created_;
  Metrics metrics_;
  std::unique_ptr<models::Tokenizer> tokenizer_;
  std::optional<models::ChatTemplate> template_;
  std::string template_problem_;
  std::unique_ptr<Scheduler> scheduler_;
  uint32_t context_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable loaded_;
  std::optional<Status> status_;  ///< of loading, once it is over
  std::thread loader_;
};

}  // namespace bm::serve
