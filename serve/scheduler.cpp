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
  uint32_t reserved = 0;  ///< pages
  std::vector<uint32_t> pages;
  uint32_t position = 0;  ///< tokens computed
  uint32_t generated = 0, cached = 0;
  int32_t next = 0;  ///< chosen and not computed yet

  explicit Sequence(Job j) : job(std::move(j)), sampler(job.sampling) {}
  bool is_prompt() const { return position < job.prompt.size(); }
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

  mutable std::mutex mutex;
  std::condition_variable work, idle;
  std::deque<SequencePtr> waiting;  ///< by priority, then by arrival
  std::set<uint64_t> cancelled;     ///< of running ones, to be seen before the next step
  uint64_t last_id = 0;
  size_t running_count = 0;
  bool is_draining = false, is_stopping = false;
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
  }

  // --- the thread ------------------------------------------------------------------------------

  void loop() {
    for (;;) {
      {
        std::unique_lock lock(mutex);
        note_load();
        if (running.empty() && waiting.empty()) idle.notify_all();
        work.wait(lock, [&] { return is_stopping || !running.empty() || !waiting.empty(); });
        if (is_stopping) break;
      }
      end_cancelled();
      end_overdue();
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
    const size_t tokens = job.prompt.size() + job.max_tokens - 1;
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
      if (options.has_prefix_cache) {
        // Logits are wanted after the last token: it is computed again.
        s->pages = pool.match(s->job.prompt, (s->job.prompt.size() - 1) / engine->page_length());
        s->cached = s->position = static_cast<uint32_t>(s->pages.size()) * engine->page_length();
        metrics.prefix_queries += s->job.prompt.size();
        metrics.prefix_hits += s->cached;
      }
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
    for (const SequencePtr& s : running) {
      if (s->is_prompt()) {
        if (!prompt || s->job.priority < prompt->job.priority) prompt = s.get();
        continue;
      }
      make_room(*s, s->position + 1);
      items.push_back({{&s->next, 1}, s->position, s->pages, false});
      owners.push_back(s.get());
    }
    if (prompt) {
      const uint32_t page = engine->page_length(), at = prompt->position;
      // Always to the end of the page: pieces depend on the prompt alone.
      const size_t count = std::min<size_t>(prompt->job.prompt.size() - at, page - at % page);
      make_room(*prompt, at + static_cast<uint32_t>(count));
      items.push_back({std::span(prompt->job.prompt).subspan(at, count), at, prompt->pages, true});
      owners.push_back(prompt);
    }
    BM_TRY(engine->run(items));
    ++metrics.steps;
    const Clock::time_point now = Clock::now();
    std::set<uint64_t> ended;
    for (size_t i = 0; i < items.size(); ++i) {
      Sequence& s = *owners[i];
      s.position += static_cast<uint32_t>(items[i].tokens.size());
      if (items[i].is_prompt) publish(s);
      if (!s.is_prompt() && !choose(s, engine->logits(i), now)) ended.insert(s.id);
    }
    if (!ended.empty()) remove_if([&](Sequence& s) { return ended.contains(s.id); });
    return {};
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

  /// The next token of a sequence; false when it was its last one.
  bool choose(Sequence& s, std::span<const float> logits, Clock::time_point now) {
    const auto chosen = s.sampler.sample(logits);
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
    if (std::ranges::find(options.end_tokens, *chosen) != options.end_tokens.end()) {
      finish(s, Finish::kStop, nullptr);
      return false;
    }
    ChosenToken token{.id = *chosen, .logprob = 0, .top = {}};
    if (s.job.top_logprobs) add_logprobs(logits, *s.job.top_logprobs, &token);
    s.next = *chosen;
    ++s.generated;
    ++metrics.generation_tokens;
    const bool goes_on = s.job.listener->on_token(token);
    if (goes_on && s.generated < s.job.max_tokens) return true;
    finish(s, goes_on ? Finish::kLength : Finish::kStop, nullptr);
    return false;
  }

  // --- ends ------------------------------------------------------------------------------------

  template <class F>
  void remove_if(F is_over) {
    std::erase_if(running, [&](SequencePtr& s) { return is_over(*s); });
  }

  void release(Sequence& s) {
    // The end of a prefix is of no use without its beginning and goes first.
    for (size_t i = s.pages.size(); i-- > 0;) pool.release(s.pages[i]);
    s.pages.clear();
    pool.cancel_reservation(std::exchange(s.reserved, 0));
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
    for (;;) {
      const Status back = engine->recover();
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
  if (job.max_tokens == 0) return fail(Code::kInvalidArgument, "max_tokens is 0");
  // The last token chosen takes no place.
  if (job.prompt.size() > context || job.max_tokens - 1 > context - job.prompt.size())
    return fail(Code::kInvalidArgument,
                "this model's context holds {} tokens; {} of the prompt and {} to be generated do "
                "not fit",
                context, job.prompt.size(), job.max_tokens);
  auto sequence = std::make_unique<Sequence>(std::move(job));
  sequence->arrived = Clock::now();
  const std::lock_guard lock(impl_->mutex);
  if (impl_->is_draining || impl_->is_stopping)
    return fail(Code::kCancelled, "the server is about to stop");
  if (impl_->health == Health::kDeviceLost)
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
