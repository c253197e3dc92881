#pragma once
// Continuous batching: which tokens of which requests go into the next step.
//
// Every step takes the next token of all running requests and a piece of one prompt, so that a long
// prompt never stops others. Requests wait by priority, then by arrival; who is let in has
// reserved the pages it may need. A request's tokens depend on nothing but its prompt, parameters
// and seed (models::LlamaBatch::run).

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/grammar/grammar_matcher.h"
#include "models/sampler.h"
#include "serve/drafter.h"
#include "serve/engine.h"
#include "serve/metrics.h"

namespace bm::serve {

using Clock = std::chrono::steady_clock;

struct ChosenToken {
  int32_t id = 0;
  /// Of the model, at temperature 1; of a job with has_drawn_probabilities the probability (not its
  /// logarithm) among what the samplers left.
  double logprob = 0;
  std::vector<std::pair<int32_t, double>> top;  ///< most likely ones with theirs
};

/// How much of a prompt has been computed.
struct PromptProgress {
  uint32_t total = 0, cached = 0, processed = 0;  ///< tokens; processed: with the cached ones
  double seconds = 0;                             ///< since it was let in
};

/// Where the time of a request went, in seconds.
struct Timings {
  double queue = 0, prompt = 0, decode = 0;
  uint32_t cached_tokens = 0;
};

/// Hears what becomes of a request. Called by the scheduler's thread, which it must not keep.
class Listener {
 public:
  virtual ~Listener() = default;
  /// Before the end of a request for an embedding, which has no tokens.
  virtual void on_embedding(std::vector<double> /*values*/) {}
  /// False: enough, finish with kStop.
  virtual bool on_token(const ChosenToken& token) = 0;
  /// Before the first on_token() of a request that scores its prompt: every token of it but the
  /// first, which nothing comes before.
  virtual void on_prompt_token(const ChosenToken& /*token*/) {}
  /// Of requests for text: when they are let in, and after each piece of the prompt.
  virtual void on_progress(const PromptProgress& /*progress*/) {}
  /// The last call. `error` explains kError and kTimeout, else nullptr.
  virtual void on_finish(Finish finish, const Timings& timings, const Error* error) = 0;
};

/// How the hidden states of a prompt become one vector.
enum class Pooling : uint8_t { kMean, kFirst, kLast };

struct Job {
  std::vector<int32_t> prompt;
  uint32_t max_tokens = 16;  ///< 0: the prompt is computed, and that is all
  /// Logprobs of the prompt's tokens are wanted: all of it is computed token by token, in rows that
  /// nobody decodes in, as a prefix cache has no logits.
  bool scores_prompt = false;
  bool ignores_end = false;  ///< end tokens end nothing
  uint32_t min_tokens = 0;   ///< before so many, end tokens are not chosen
  models::SamplerOptions sampling;
  bool penalizes_prompt = false;         ///< penalties look back on the prompt too
  std::optional<uint32_t> top_logprobs;  ///< unset: no logprobs at all
  bool has_drawn_probabilities = false;  ///< in place of logprobs
  /// What may be written, with the vocabulary it is written in; none: anything.
  std::shared_ptr<const models::Grammar> grammar;
  std::shared_ptr<const models::GrammarVocabulary> vocabulary;
  std::string grammar_after;       ///< the text behind which the grammar holds; empty: all of it
  std::optional<Pooling> pooling;  ///< set: the prompt's embedding, and no tokens
  size_t second = SIZE_MAX;        ///< see models::TokenPair
  int32_t priority = 0;            ///< lower goes first
  std::optional<Clock::time_point> deadline;
  std::shared_ptr<Listener> listener;
};

/// kDeviceGone: this process cannot get it back, another one could.
enum class Health : uint8_t { kReady, kDraining, kDeviceLost, kDeviceGone };

/// Thread: any, but for the constructor's and destructor's own.
class Scheduler {
 public:
  struct Options {
    size_t queue_limit = 128;  ///< requests that wait
    bool has_prefix_cache = true;
    std::vector<int32_t> end_tokens;  ///< tokens that end a text
    uint32_t draft_tokens = 0;        ///< most guesses for a sequence and step; 0: none
    /// Tokens of a prompt in a step: a power of two; 0, or more than a page has: a page.
    uint32_t prompt_piece = 0;
    std::shared_ptr<Drafter> drafter = nullptr;
    /// The engine's model is unloaded when nothing has run for so long, and loaded again for the
    /// next request; 0: never.
    std::chrono::milliseconds idle_unload{0};
    /// Between attempts to get a lost device back.
    std::chrono::milliseconds recovery_pause{1000};
  };
  /// Starts its thread. `metrics` outlives it.
  Scheduler(std::unique_ptr<Engine> engine, Options options, Metrics* metrics);
  ~Scheduler();

  /// A number for cancel().
  /// Errors: kInvalidArgument (prompt empty, or prompt and max_tokens beyond the context);
  /// kOutOfMemory (the queue is full); kCancelled (draining); kDeviceLost naming the cause.
  Result<uint64_t> submit(Job job);
  /// Frees what the request has before the next step; the listener hears kCancelled. Requests that
  /// have ended are left alone.
  void cancel(uint64_t id);
  /// Takes no more requests; returns when none is left, or false at `deadline`.
  bool drain(Clock::time_point deadline);
  /// Ends its thread, and what still waits or runs with kCancelled. The destructor does so, too.
  void stop();
  /// Requests that wait or run.
  size_t load() const;
  Health health() const;
  std::string health_reason() const;  ///< of a lost device

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bm::serve
