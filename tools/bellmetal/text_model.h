#pragma once
// A language model as commands use it: the file opened, and answers made token by token.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "models/gguf.h"
#include "models/grammar/grammar_matcher.h"
#include "models/llama_session.h"
#include "models/sampler.h"
#include "models/tokenizer.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

double seconds_since(std::chrono::steady_clock::time_point start);
/// Per second; 0 where no time was measured.
double rate(size_t count, double seconds);

/// --threads and --bundle, for as long as it lives.
class ModelSettings {
 public:
  static Result<ModelSettings> apply(const ModelOptions& options);
  ModelSettings(ModelSettings&&) noexcept;
  ~ModelSettings();

 private:
  ModelSettings();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

DType cache_dtype(const std::string& name);  ///< of --cache-type

/// Bytes of weights with --keep-weights: found on the card, and copied to it.
struct KeptWeights {
  uint64_t attached = 0, uploaded = 0;
};

class TextModel {
 public:
  /// Opens file, tokenizer, device and weights. Not kOk: the exit code of an error that was
  /// reported. Errors of the file get kBadFile, others their own code.
  /// `next`: where options.stages is more than 1.
  int open(const ModelOptions& options, models::LlamaSession::NextStage next = {});

  const models::GgufFile& file() const { return *file_; }
  const models::Tokenizer& tokenizer() const { return *tokenizer_; }
  models::LlamaSession& session() { return *session_; }
  const std::string& device() const { return device_; }
  const std::string& path() const { return options_.path; }
  /// Empty without --keep-weights.
  const std::optional<KeptWeights>& weights() const { return weights_; }

  /// Of the last token fed. Rows of the embedding table beyond the vocabulary are padding and never
  /// chosen. Errors: kCorrupt when the model gives no numbers.
  Result<std::span<const float>> logits() const;

 private:
  ModelOptions options_;
  std::shared_ptr<const models::GgufFile> file_;
  std::unique_ptr<models::Tokenizer> tokenizer_;
  std::unique_ptr<models::LlamaSession> session_;
  std::string device_;
  std::optional<KeptWeights> weights_;
};

/// What one answer consists of and how long its parts took.
struct Answer {
  std::vector<int32_t> tokens;
  std::string text;
  size_t prefilled = 0;                  ///< tokens computed before the first one was chosen
  bool is_prompt_done = false;           ///< false: interrupted before that
  std::vector<int32_t> not_fed;          ///< the last token, where the sequence lacks it
  std::string finish_reason = "length";  ///< stop, stop_string, context_full, interrupted
  std::vector<models::TokenLogprobs> logprobs;
  double prefill_s = 0, first_token_s = 0, decode_s = 0;
  double prefill_rate() const { return rate(prefilled, prefill_s); }
  double decode_rate() const { return rate(tokens.empty() ? 0 : tokens.size() - 1, decode_s); }
};

/// Options of sampling that were understood: before a model is loaded for nothing.
struct SamplingPlan {
  models::SamplerOptions sampler;
  std::shared_ptr<const models::Grammar> grammar;  ///< none: anything goes
};
/// Errors: kInvalidArgument naming an option; what is wrong with a grammar, a schema or their file.
Result<SamplingPlan> plan_sampling(const SamplingOptions& options);

/// What was not asked for as the model's file recommends it (models/sampler_defaults.h).
/// Errors: kInvalidArgument naming a token of --logit-bias that the model does not know.
Status finish_plan(const SamplingOptions& options, const TextModel& model, SamplingPlan* plan);

/// Makes answers with one sampler, whose draws and window go on from one to the next.
class Answerer {
 public:
  /// `model` and `options` must outlive it.
  Answerer(TextModel& model, const SamplingOptions& options, const SamplingPlan& plan);

  /// Feeds `prompt` and writes until max_tokens, an end-of-text token, a stop string, the end of
  /// the context or Ctrl-C. `show` gets the text as it is made. `start`: of the user's waiting.
  Result<Answer> answer(std::span<const int32_t> prompt,
                        std::chrono::steady_clock::time_point start,
                        const std::function<Status(const std::string&)>& show);

 private:
  Status prefill(std::span<const int32_t> prompt, Answer& answer);
  Result<int32_t> choose(Answer& answer);

  TextModel* model_;
  const SamplingOptions* options_;
  models::Sampler sampler_;
  std::unique_ptr<models::GrammarMatcher> grammar_;  ///< none: anything goes
};

/// [{"token", "id", "logprob", "top": [{"token", "id", "logprob"}]}]
nlohmann::ordered_json json_of(const std::vector<models::TokenLogprobs>& logprobs,
                               const models::Tokenizer& tokenizer);

/// The whole of a file, or of stdin for "-"; at most 64 MiB.
Result<std::string> read_text(const std::string& path);

/// Writes a piece of the answer to stdout, at once.
Status write_text(const std::string& piece);

}  // namespace bm::cli
