#include "serve/scheduler.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "runtime/base/out_of_memory.h"
#include "serve/page_pool.h"

namespace bm::serve {
namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// A request from arrival to end.
struct Sequence {
  uint64_t id = 0;
  Job job;
  Clock::time_point arrived, admitted, first_token, last_token;
  bool has_token = false, is_over = false;
  models::Sampler sampler;
  std::unique_ptr<models::GrammarMatcher> matcher;  ///< null: anything may be written
  std::string unbound;    ///< the end of what was written before the grammar holds
  uint32_t reserved = 0;  ///< pages
  std::vector<uint32_t> pages;
  uint32_t state = 0;     ///< its place in an engine with states
  uint32_t position = 0;  ///< tokens computed
  uint32_t generated = 0, cached = 0;
  int32_t next = 0;             ///< chosen and not computed yet
  std::vector<int32_t> tokens;  ///< prompt and answer, where guesses are made of them
  std::vector<int32_t> draft;   ///< guesses of this step
  std::vector<double> pooled;   ///< of an embedding, so far

  explicit Sequence(Job j) : job(std::move(j)), sampler(job.sampling) {
    if (job.grammar && job.grammar_after.empty()) bind();
    if (!job.penalizes_prompt) sampler.accept_for_dry(job.prompt);
    if (job.penalizes_prompt)
      for (const int32_t token : job.prompt) sampler.accept(token);
  }
  bool is_prompt() const { return position < job.prompt.size(); }
  void bind() { matcher = std::make_unique<models::GrammarMatcher>(job.grammar, job.vocabulary); }

  /// What a token that was chosen does to the grammar.
  Status follow(int32_t token) {
    if (matcher) return matcher->accept(token);
    if (!job.grammar) return {};
    unbound += job.vocabulary->piece(token);
    const size_t at = unbound.find(job.grammar_after);
    if (at == std::string::npos) {
      const size_t keep = std::min(unbound.size(), job.grammar_after.size() - 1);
      unbound.erase(0, unbound.size() - keep);
      return {};
    }
    bind();
    std::string_view rest = std::string_view(unbound).substr(at + job.grammar_after.size());
    // Lines between the reasoning and the answer are no part of it.
    rest.remove_prefix(std::min(rest.find_first_not_of(" \n"), rest.size()));
    return matcher->accept_bytes(rest);
  }
};
using SequencePtr = std::unique_ptr<Sequence>;

/// Logarithms of probabilities of `logits`: the chosen token's, and the `count` largest.
void add_logprobs(std::span<const float> logits, uint32_t count, ChosenToken* token) {
  const double most = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - most);
  const double norm = most + std::log(sum);
  const auto logprob = [&](size_t i) { return static_cast<double>(logits[i]) - norm; };
  token->logprob = logprob(static_cast<size_t>(token->id));
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto n = std::min<size_t>(count, order.size());
  std::ranges::partial_sort(
      order, order.begin() + static_cast<ptrdiff_t>(n), [&](int32_t a, int32_t b) {
        const float la = logits[static_cast<size_t>(a)], lb = logits[static_cast<size_t>(b)];
        return la != lb ? la > lb : a < b;
      });
  for (size_t i = 0; i < n; ++i)
    token->top.emplace_back(order[i], logprob(static_cast<size_t>(order[i])));
}

}  // namespace

struct Scheduler::Impl {
  std::unique_ptr<Engine> engine;
  Options options;
  Metrics& metrics;
  PagePool pool;
  std::vector<uint32_t> free_states;

  mutable std::mutex mutex;
  std::condition_variable work, idle;
  std::deque<SequencePtr> waiting;  ///< by priority, then by arrival
  std::set<uint64_t> cancelled;     ///< of running ones, to be seen before the next step
  uint64_t last_id = 0;
  size_t running_count = 0;
  bool is_draining = false, is_stopping = false;
  bool is_unloaded = false;  ///< the thread's own
  Health health = Health::kReady;
  std::string reason;

  std::vector<SequencePtr> running;  ///< the thread's own, in the order they were let in
  std::thread thread;

  Impl(std::unique_ptr<Engine> e, Options o, Metrics* m)
      : engine(std::move(e)),
        options(std::move(o)),
        metrics(*m),
        pool(engine->page_count(), engine->page_length()) {
    metrics.pages = engine->page_count();
    for (uint32_t i = engine->most_sequences(); i-- > 0;) free_states.push_back(i);
    if (!engine->has_states()) return;
    // Nothing begins behind the beginning, and a guess that was wrong cannot be taken back.
    options.has_prefix_cache = false;
    options.drafter = nullptr;
  }

  // --- the thread ------------------------------------------------------------------------------

  /// Guesses for what comes after `next`, at most `free` ones. They take places that nobody else
  /// has in this step, and pages that are reserved already.
  void guess(Sequence& s, size_t free) {
    s.draft.clear();
    const size_t most =
        std::min<size_t>({options.draft_tokens, free, size_t{s.job.max_tokens} - s.generated - 1});
    if (!options.drafter || most == 0) return;
    s.draft = options.drafter->draft(s.id, s.tokens, most);
    s.draft.resize(std::min(s.draft.size(), most));
    metrics.draft_tokens += s.draft.size();
  }

  void loop() {
    for (;;) {
      {
        std::unique_lock lock(mutex);
        note_load();
        if (running.empty() && waiting.empty()) idle.notify_all();
        const auto is_wanted = [&] { return is_stopping || !running.empty() || !waiting.empty(); };
        if (!is_wanted() && !is_draining && !engine->is_prepared()) {
          lock.unlock();
          if (const Status done = engine->prepare(); !done) fail_all(done.error());
          continue;
        }
        if (!wait_for_work(lock, is_wanted)) {
          lock.unlock();
          unload();
          continue;
        }
        if (is_stopping) break;
      }
      end_cancelled();
      end_overdue();
      if (is_unloaded && !wake()) continue;
      admit();
      if (running.empty()) continue;
      const Status done = guarded_step();
      if (!done) fail_all(done.error());
    }
    for (SequencePtr& s : running) finish(*s, Finish::kCancelled, nullptr);
    running.clear();
    const std::lock_guard lock(mutex);
    for (SequencePtr& s : waiting) tell(*s, Finish::kCancelled, nullptr);
    waiting.clear();
    note_load();
    idle.notify_all();
  }

  /// False: nothing came for as long as a model is kept for nobody.
  template <class F>
  bool wait_for_work(std::unique_lock<std::mutex>& lock, const F& is_wanted) {
    if (options.idle_unload.count() > 0 && !is_unloaded && !is_draining)
      return work.wait_for(lock, options.idle_unload, is_wanted);
    work.wait(lock, is_wanted);
    return true;
  }

  void unload() {
    if (options.drafter) options.drafter->unload();
    engine->unload();
    pool.reset();
    is_unloaded = true;
    metrics.unloaded = 1;
  }

  /// Whoever waits is told why it cannot be.
  bool wake() {
    {
      const std::lock_guard lock(mutex);
      if (waiting.empty()) return false;  // cancelled meanwhile
    }
    const Status loaded = engine->load();
    if (loaded) {
      load_drafter();
      is_unloaded = false;
      metrics.unloaded = 0;
      return true;
    }
    if (is_device_error(loaded.error().code)) {
      is_unloaded = false;  // what gets the device back loads it
      metrics.unloaded = 0;
      fail_all(loaded.error());
      return false;
    }
    std::deque<SequencePtr> hopeless;
    {
      const std::lock_guard lock(mutex);
      hopeless.swap(waiting);
      note_load();
    }
    for (SequencePtr& s : hopeless) tell(*s, Finish::kError, &loaded.error());
    return false;
  }

  /// Without it nothing is guessed, and that is all.
  void load_drafter() {
    if (options.drafter) (void)options.drafter->load();
  }

  /// With the lock held.
  void note_load() {
    running_count = running.size();
    metrics.running = running.size();
    metrics.waiting = waiting.size();
    metrics.pages_used = pool.used();
    metrics.pages_cached = pool.cached();
  }

  void end_cancelled() {
    std::set<uint64_t> ids;
    {
      const std::lock_guard lock(mutex);
      ids.swap(cancelled);
    }
    if (!ids.empty())
      remove_if([&](Sequence& s) {
        if (!ids.contains(s.id)) return false;
        finish(s, Finish::kCancelled, nullptr);
        return true;
      });
  }

  void end_overdue() {
    const Clock::time_point now = Clock::now();
    const Error error{Code::kTimeout, "the deadline of the request has passed"};
    remove_if([&](Sequence& s) {
      if (!s.job.deadline || *s.job.deadline > now) return false;
      finish(s, Finish::kTimeout, &error);
      return true;
    });
    std::vector<SequencePtr> late;
    {
      const std::lock_guard lock(mutex);
      std::erase_if(waiting, [&](SequencePtr& s) {
        if (!s->job.deadline || *s->job.deadline > now) return false;
        late.push_back(std::move(s));
        return true;
      });
    }
    for (SequencePtr& s : late) tell(*s, Finish::kTimeout, &error);
  }

  /// Pages that a request needs at most. The last token chosen is never computed.
  uint32_t pages_for(const Job& job) const {
    const size_t tokens = job.prompt.size() + std::max(job.max_tokens, 1U) - 1;
    return static_cast<uint32_t>((tokens + engine->page_length() - 1) / engine->page_length());
  }

  void admit() {
    while (running.size() < engine->most_sequences()) {
      SequencePtr s;
      {
        const std::lock_guard lock(mutex);
        if (waiting.empty() || !pool.reserve(pages_for(waiting.front()->job))) return;
        s = std::move(waiting.front());
        waiting.pop_front();
        running_count = running.size() + 1;
      }
      s->reserved = pages_for(s->job);
      s->admitted = Clock::now();
      metrics.queue_time.observe(seconds_between(s->arrived, s->admitted));
      metrics.prompt_tokens += s->job.prompt.size();
      // An embedding wants hidden states of the whole prompt, from kernels of its own.
      if (options.has_prefix_cache && !s->job.pooling && !s->job.scores_prompt) {
        // Logits are wanted after the last token: it is computed again.
        s->pages = pool.match(s->job.prompt, (s->job.prompt.size() - 1) / engine->page_length());
        s->cached = s->position = static_cast<uint32_t>(s->pages.size()) * engine->page_length();
        metrics.prefix_queries += s->job.prompt.size();
        metrics.prefix_hits += s->cached;
      }
      if (options.drafter) s->tokens = s->job.prompt;
      s->state = free_states.back();
      free_states.pop_back();
      tell_progress(*s, s->admitted);
      running.push_back(std::move(s));
    }
  }

  Status guarded_step() {
    try {
      return step();
    } catch (const std::exception&) {
      return tl::unexpected<Error>(error_of_exception("a step of the scheduler"));
    }
  }

  /// Decodes everybody and computes a piece of the first prompt.
  Status step() {
    std::vector<BatchItem> items;
    std::vector<Sequence*> owners;
    Sequence* prompt = nullptr;
    std::vector<Sequence*> decoding;
    for (const SequencePtr& s : running) {
      if (s->is_prompt() && (s->job.pooling || (engine->takes_pieces() && !s->job.scores_prompt))) {
        if (!prompt || s->job.priority < prompt->job.priority) prompt = s.get();
        continue;
      }
      decoding.push_back(s.get());
    }
    size_t free = engine->most_sequences() - decoding.size();
    for (Sequence* s : decoding) {
      if (s->is_prompt()) {
        // Rows that nobody decodes in; in the order of the prompt, as a state goes through them.
        const size_t more = std::min(free, s->job.prompt.size() - s->position - 1);
        free -= more;
        make_room(*s, s->position + static_cast<uint32_t>(1 + more));
        for (uint32_t at = s->position; at <= s->position + more; ++at) {
          items.push_back({std::span(s->job.prompt).subspan(at, 1), at, s->pages, false, s->state});
          owners.push_back(s);
        }
        continue;
      }
      guess(*s, free);
      free -= s->draft.size();
      const auto count = static_cast<uint32_t>(s->draft.size());
      make_room(*s, s->position + 1 + count);
      items.push_back({{&s->next, 1}, s->position, s->pages, false, s->state});
      owners.push_back(s);
      // As if each were a sequence of its own: the same kernels as without guesses.
      for (uint32_t k = 0; k < count; ++k) {
        items.push_back({{&s->draft[k], 1}, s->position + 1 + k, s->pages, false, s->state});
        owners.push_back(s);
      }
    }
    if (prompt && prompt->job.pooling) {
      const bool is_over = BM_TRY(embed(*prompt));
      if (is_over) remove_if([&](Sequence& s) { return &s == prompt; });
      prompt = nullptr;
    }
    if (prompt) {
      items.push_back(piece_of(*prompt));
      owners.push_back(prompt);
    }
    if (items.empty()) return {};
    BM_TRY(engine->run(items));
    ++metrics.steps;
    const Clock::time_point now = Clock::now();
    std::set<uint64_t> ended;
    for (size_t i = 0, guesses = 0; i < items.size(); i += 1 + guesses) {
      Sequence& s = *owners[i];
      guesses = items[i].is_prompt ? 0 : s.draft.size();
      const bool was_prompt = s.is_prompt();
      s.position += static_cast<uint32_t>(items[i].tokens.size());
      if (items[i].is_prompt) publish(s);
      if (was_prompt) tell_progress(s, now);
      if (s.job.scores_prompt && s.is_prompt()) {
        ChosenToken token{.id = s.job.prompt[s.position], .logprob = 0, .top = {}};
        add_logprobs(engine->logits(i), s.job.top_logprobs.value_or(0), &token);
        s.job.listener->on_prompt_token(token);
      }
      if (s.is_prompt()) continue;
      bool goes_on = choose(s, engine->logits(i), now);
      // What follows a guess counts if the guess is what was chosen.
      for (size_t k = 0; k < guesses && goes_on && s.next == s.draft[k]; ++k) {
        ++s.position;
        ++metrics.accepted_tokens;
        goes_on = choose(s, engine->logits(i + 1 + k), now);
      }
      if (!goes_on) ended.insert(s.id);
    }
    if (!ended.empty()) remove_if([&](Sequence& s) { return ended.contains(s.id); });
    return {};
  }

  /// The next piece of a prompt, always to a multiple of its length: pieces depend on the prompt
  /// alone.
  /// Without pieces a token.
  BatchItem piece_of(Sequence& s) {
    const uint32_t at = s.position, page = engine->page_length(),
                   most = options.prompt_piece == 0 ? page : std::min(page, options.prompt_piece);
    const bool is_token = !engine->takes_pieces();
    const size_t count =
        is_token ? 1 : std::min<size_t>(s.job.prompt.size() - at, most - at % most);
    make_room(s, at + static_cast<uint32_t>(count));
    return {
        std::span(s.job.prompt).subspan(at, count), at, s.pages, !is_token, s.state, s.job.second};
  }

  /// A piece of a prompt whose embedding is asked for; true when it was the last one.
  Result<bool> embed(Sequence& s) {
    const BatchItem piece = piece_of(s);
    BM_TRY(engine->embed(piece));
    ++metrics.steps;
    const std::span<const float> hidden = engine->hidden();
    const size_t rows = piece.tokens.size(), length = hidden.size() / rows;
    s.pooled.resize(length);
    for (size_t row = 0; row < rows; ++row)
      for (size_t i = 0; i < length; ++i) {
        const auto value = static_cast<double>(hidden[row * length + i]);
        switch (*s.job.pooling) {
          case Pooling::kMean: s.pooled[i] += value; break;
          case Pooling::kFirst: s.pooled[i] = s.position + row == 0 ? value : s.pooled[i]; break;
          case Pooling::kLast: s.pooled[i] = value; break;
        }
      }
    s.position += static_cast<uint32_t>(rows);
    if (s.is_prompt()) return false;
    if (*s.job.pooling == Pooling::kMean)
      for (double& value : s.pooled) value /= static_cast<double>(s.position);
    s.job.listener->on_embedding(std::move(s.pooled));
    finish(s, Finish::kStop, nullptr);
    return true;
  }

  void tell_progress(const Sequence& s, Clock::time_point now) const {
    if (s.job.pooling) return;
    s.job.listener->on_progress({.total = static_cast<uint32_t>(s.job.prompt.size()),
                                 .cached = s.cached,
                                 .processed = s.position,
                                 .seconds = seconds_between(s.admitted, now)});
  }

  void make_room(Sequence& s, uint32_t positions) {
    while (s.pages.size() * engine->page_length() < positions) s.pages.push_back(pool.take());
  }

  /// Only pages that were computed as part of a prompt: their bits are those that the prompt
  /// itself would have.
  void publish(const Sequence& s) {
    if (options.has_prefix_cache && s.position % engine->page_length() == 0)
      pool.publish(s.job.prompt, std::span(s.pages).first(s.position / engine->page_length()));
  }

  Result<int32_t> sample(Sequence& s, std::span<const float> logits) const {
    models::TokenMask mask;
    if (s.matcher) mask = BM_TRY(s.matcher->allowed());
    if (s.generated >= s.job.min_tokens) return s.sampler.sample(logits, mask);
    std::vector<uint64_t> longer(mask.begin(), mask.end());
    if (longer.empty()) longer.assign((logits.size() + 63) / 64, ~uint64_t{0});
    for (const int32_t end : options.end_tokens)
      if (static_cast<size_t>(end) < logits.size())
        longer[static_cast<size_t>(end) / 64] &= ~(uint64_t{1} << end % 64);
    // A grammar may allow nothing but the end.
    const bool goes_on = std::ranges::any_of(longer, [](uint64_t word) { return word != 0; });
    return s.sampler.sample(logits, goes_on ? models::TokenMask(longer) : mask);
  }

  /// The next token of a sequence; false when it was its last one.
  bool choose(Sequence& s, std::span<const float> logits, Clock::time_point now) {
    if (s.job.max_tokens == 0) {
      finish(s, Finish::kLength, nullptr);
      return false;
    }
    const auto chosen = sample(s, logits);
    if (!chosen) {
      const Error error{Code::kCorrupt,
                        "the model gives no numbers to choose from: " + chosen.error().message};
      finish(s, Finish::kError, &error);
      return false;
    }
    if (s.has_token)
      metrics.inter_token_latency.observe(seconds_between(s.last_token, now));
    else
      metrics.time_to_first_token.observe(seconds_between(s.arrived, now));
    if (!s.has_token) s.first_token = now;
    s.has_token = true;
    s.last_token = now;
    if (!s.job.ignores_end &&
        std::ranges::find(options.end_tokens, *chosen) != options.end_tokens.end()) {
      finish(s, Finish::kStop, nullptr);
      return false;
    }
    ChosenToken token{.id = *chosen, .logprob = 0, .top = {}};
    if (s.job.top_logprobs && s.job.has_drawn_probabilities) {
      models::Sampler::Drawn drawn = s.sampler.last_drawn(*s.job.top_logprobs);
      token.logprob = drawn.chosen;
      token.top = std::move(drawn.top);
    } else if (s.job.top_logprobs) {
      add_logprobs(logits, *s.job.top_logprobs, &token);
    }
    s.next = *chosen;
    if (options.drafter) s.tokens.push_back(*chosen);
    ++s.generated;
    ++metrics.generation_tokens;
    const Status followed = s.follow(*chosen);
    const bool goes_on = s.job.listener->on_token(token);
    if (!followed) {
      finish(s, Finish::kError, &followed.error());
      return false;
    }
    const bool is_complete = !goes_on || (s.matcher && s.matcher->is_finished());
    if (!is_complete && s.generated < s.job.max_tokens) return true;
    finish(s, is_complete ? Finish::kStop : Finish::kLength, nullptr);
    return false;
  }

  // --- ends ------------------------------------------------------------------------------------

  template <class F>
  void remove_if(F is_over) {
    std::erase_if(running, [&](SequencePtr& s) { return is_over(*s); });
  }

  void release(Sequence& s) {
    if (options.drafter) options.drafter->forget(s.id);
    // The end of a prefix is of no use without its beginning and goes first.
    for (size_t i = s.pages.size(); i-- > 0;) pool.release(s.pages[i]);
    s.pages.clear();
    pool.cancel_reservation(std::exchange(s.reserved, 0));
    free_states.push_back(s.state);
  }

  void finish(Sequence& s, Finish how, const Error* error) {
    if (std::exchange(s.is_over, true)) return;  // before memory ran out in the same step
    release(s);
    tell(s, how, error);
  }

  void tell(const Sequence& s, Finish how, const Error* error) {
    const Clock::time_point now = Clock::now();
    Timings t{.cached_tokens = s.cached};
    const bool is_admitted = s.admitted != Clock::time_point();
    t.queue = seconds_between(s.arrived, is_admitted ? s.admitted : now);
    if (is_admitted) t.prompt = seconds_between(s.admitted, s.has_token ? s.first_token : now);
    if (s.has_token) t.decode = seconds_between(s.first_token, now);
    metrics.end_to_end.observe(seconds_between(s.arrived, now));
    ++metrics.finished[static_cast<size_t>(how)];
    s.job.listener->on_finish(how, t, error);
  }

  /// Running requests end with the cause; a lost device is tried to get back until it is.
  void fail_all(const Error& error) {
    const bool is_lost = is_device_error(error.code);
    if (is_lost) {
      ++metrics.device_faults;
      const std::lock_guard lock(mutex);
      if (health == Health::kReady) health = Health::kDeviceLost;
      reason = error.message;
    }
    for (SequencePtr& s : running) finish(*s, Finish::kError, &error);
    running.clear();
    pool.reset();
    if (!is_lost) return;
    if (options.drafter) options.drafter->unload();
    for (;;) {
      const Status back = engine->recover();
      if (back) load_drafter();
      std::unique_lock lock(mutex);
      note_load();
      if (back) {
        health = is_draining ? Health::kDraining : Health::kReady;
        reason.clear();
        return;
      }
      reason = error.message + "; not recovered: " + back.error().message;
      std::deque<SequencePtr> hopeless;
      hopeless.swap(waiting);
      note_load();
      lock.unlock();
      for (SequencePtr& s : hopeless) tell(*s, Finish::kError, &error);
      lock.lock();
      if (is_draining) idle.notify_all();
      if (back.error().code == Code::kUnsupported) {
        health = Health::kDeviceGone;
        work.wait(lock, [&] { return is_stopping; });
        return;
      }
      if (work.wait_for(lock, options.recovery_pause, [&] { return is_stopping; })) return;
    }
  }
};

Scheduler::Scheduler(std::unique_ptr<Engine> engine, Options options, Metrics* metrics)
    : impl_(std::make_unique<Impl>(std::move(engine), std::move(options), metrics)) {
  impl_->thread = std::thread([this] { impl_->loop(); });
}

Scheduler::~Scheduler() { stop(); }

void Scheduler::stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->is_stopping = true;
  }
  impl_->work.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
}

Result<uint64_t> Scheduler::submit(Job job) {
  const uint32_t context = impl_->engine->context();
  if (job.prompt.empty()) return fail(Code::kInvalidArgument, "the prompt is empty");
  if (!job.pooling && !impl_->engine->writes_text())
    return fail(Code::kInvalidArgument,
                "this model makes embeddings and writes no text: ask /v1/embeddings");
  if (job.pooling && job.prompt.size() > context)
    return fail(Code::kInvalidArgument, "this model's context holds {} tokens; {} do not fit",
                context, job.prompt.size());
  // The last token chosen takes no place.
  if (job.prompt.size() > context || std::max(job.max_tokens, 1U) - 1 > context - job.prompt.size())
    return fail(Code::kInvalidArgument,
                "this model's context holds {} tokens; {} of the prompt and {} to be generated do "
                "not fit",
                context, job.prompt.size(), job.max_tokens);
  auto sequence = std::make_unique<Sequence>(std::move(job));
  sequence->arrived = Clock::now();
  const std::lock_guard lock(impl_->mutex);
  if (impl_->is_draining || impl_->is_stopping)
    return fail(Code::kCancelled, "the server is about to stop");
  if (impl_->health == Health::kDeviceLost || impl_->health == Health::kDeviceGone)
    return fail(Code::kDeviceLost, "the device is lost: {}", impl_->reason);
  if (impl_->waiting.size() >= impl_->options.queue_limit) {
    ++impl_->metrics.refused;
    return fail(Code::kOutOfMemory, "{} requests are waiting already", impl_->waiting.size());
  }
  const uint64_t id = sequence->id = ++impl_->last_id;
  const auto at = std::ranges::find_if(impl_->waiting, [&](const SequencePtr& s) {
    return s->job.priority > sequence->job.priority;
  });
  impl_->waiting.insert(at, std::move(sequence));
  impl_->metrics.waiting = impl_->waiting.size();
  impl_->work.notify_all();
  return id;
}

void Scheduler::cancel(uint64_t id) {
  SequencePtr gone;
  {
    const std::lock_guard lock(impl_->mutex);
    const auto at = std::ranges::find(impl_->waiting, id, &Sequence::id);
    if (at == impl_->waiting.end()) {
      impl_->cancelled.insert(id);
      return;
    }
    gone = std::move(*at);
    impl_->waiting.erase(at);
    impl_->metrics.waiting = impl_->waiting.size();
  }
  impl_->tell(*gone, Finish::kCancelled, nullptr);
}

bool Scheduler::drain(Clock::time_point deadline) {
  std::unique_lock lock(impl_->mutex);
  impl_->is_draining = true;
  if (impl_->health == Health::kReady) impl_->health = Health::kDraining;
  return impl_->idle.wait_until(
      lock, deadline, [&] { return impl_->waiting.empty() && impl_->running_count == 0; });
}

size_t Scheduler::load() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->waiting.size() + impl_->running_count;
}

Health Scheduler::health() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->health;
}

std::string Scheduler::health_reason() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->reason;
}

}  // namespace bm::serve
