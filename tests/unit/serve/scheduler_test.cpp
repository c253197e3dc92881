// The scheduler over an engine that keeps tokens where a model would keep keys and values: a page
// that is wrong, shared too early or lost changes what comes out.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <random>
#include <map>
#include <set>
#include <thread>

#include "serve/drafter.h"
#include "serve/scheduler.h"
#include "tests/patience.h"

namespace bm::serve {
namespace {

using test::patience;

constexpr uint32_t kPage = 4, kVocabulary = 50;
constexpr int32_t kEnd = 0;

/// The token after `tokens`, never kEnd.
int32_t successor(std::span<const int32_t> tokens) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t t : tokens) hash = (hash ^ static_cast<uint64_t>(t)) * 0x100000001b3;
  return static_cast<int32_t>((hash >> 20) % (kVocabulary - 1)) + 1;
}

/// What `prompt` is continued by.
std::vector<int32_t> continuation(std::vector<int32_t> tokens, size_t count) {
  std::vector<int32_t> out;
  while (out.size() < count) {
    out.push_back(successor(tokens));
    tokens.push_back(out.back());
  }
  return out;
}

/// What a test sees of the engine, and does to it.
struct Controls {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t allowed = UINT64_MAX;  ///< steps
  uint64_t steps = 0;
  size_t prompt_tokens = 0, most_items = 0, largest_piece = 0;
  std::optional<Error> next_failure;
  int to_prepare = 0;
  std::optional<Error> preparing_fails, loading_fails;
  bool is_unloaded = false;
  int loads = 0;
  int failing_recoveries = 0, recoveries = 0;

  void allow(uint64_t more) {
    const std::lock_guard lock(mutex);
    allowed = more == UINT64_MAX ? more : steps + more;
    changed.notify_all();
  }
  void wait_steps(uint64_t count) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(
        changed.wait_for(lock, patience(std::chrono::seconds(20)), [&] { return steps >= count; }));
  }
};

class FakeEngine : public Engine {
 public:
  FakeEngine(Controls& controls, uint32_t pages, uint32_t sequences)
      : controls_(controls),
        pages_(pages),
        sequences_(sequences),
        slots_((pages + 1) * kPage, -1) {}

  uint32_t page_length() const override { return kPage; }
  uint32_t page_count() const override { return pages_; }
  uint32_t most_sequences() const override { return sequences_; }
  uint32_t context() const override { return 64; }

  Status run(std::span<const BatchItem> items) override {
    std::unique_lock lock(controls_.mutex);
    EXPECT_FALSE(controls_.is_unloaded);
    controls_.changed.wait(lock, [&] { return controls_.steps < controls_.allowed; });
    ++controls_.steps;
    controls_.changed.notify_all();
    if (auto failure = std::exchange(controls_.next_failure, {}))
      return tl::unexpected<Error>(*failure);
    controls_.most_items = std::max(controls_.most_items, items.size());
    rows_.assign(items.size(), std::vector<float>(kVocabulary, 0));
    for (size_t i = 0; i < items.size(); ++i) {
      const BatchItem& item = items[i];
      EXPECT_EQ(item.is_prompt && i + 1 != items.size(), false);
      if (item.is_prompt) {
        controls_.prompt_tokens += item.tokens.size();
        controls_.largest_piece = std::max(controls_.largest_piece, item.tokens.size());
      }
      for (size_t k = 0; k < item.tokens.size(); ++k)
        slot(item, item.position + k) = item.tokens[k];
      std::vector<int32_t> past;
      for (size_t p = 0; p < item.position + item.tokens.size(); ++p) past.push_back(slot(item, p));
      rows_[i][static_cast<size_t>(successor(past))] = 30;
    }
    return {};
  }

  std::span<const float> logits(size_t item) const override { return rows_[item]; }

  bool is_prepared() const override {
    const std::lock_guard lock(controls_.mutex);
    return controls_.to_prepare == 0;
  }
  void unload() override {
    const std::lock_guard lock(controls_.mutex);
    controls_.is_unloaded = true;
    std::fill(slots_.begin(), slots_.end(), -1);
    controls_.changed.notify_all();
  }
  Status load() override {
    const std::lock_guard lock(controls_.mutex);
    ++controls_.loads;
    if (auto failure = std::exchange(controls_.loading_fails, {}))
      return tl::unexpected<Error>(*failure);
    controls_.is_unloaded = false;
    return {};
  }
  Status prepare() override {
    const std::lock_guard lock(controls_.mutex);
    --controls_.to_prepare;
    controls_.changed.notify_all();
    if (auto failure = std::exchange(controls_.preparing_fails, {}))
      return tl::unexpected<Error>(*failure);
    return {};
  }

  Status recover() override {
    const std::lock_guard lock(controls_.mutex);
    ++controls_.recoveries;
    controls_.changed.notify_all();
    if (controls_.failing_recoveries-- > 0) return fail(Code::kDeviceLost, "still gone");
    std::fill(slots_.begin(), slots_.end(), -1);
    return {};
  }

 private:
  int32_t& slot(const BatchItem& item, size_t position) {
    return slots_.at(item.pages[position / kPage] * kPage + position % kPage);
  }
  Controls& controls_;
  uint32_t pages_, sequences_;
  std::vector<int32_t> slots_;
  std::vector<std::vector<float>> rows_;
};

class Recorder : public Listener {
 public:
  bool on_token(const ChosenToken& token) override {
    const std::lock_guard lock(mutex_);
    tokens_.push_back(token.id);
    last_ = token;
    changed_.notify_all();
    return tokens_.size() != enough;
  }
  void on_prompt_token(const ChosenToken& token) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(tokens_.empty());
    scored.push_back(token);
  }
  void on_finish(Finish finish, const Timings& timings, const Error* error) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(finish_) << "told twice";
    finish_ = finish;
    cached_ = timings.cached_tokens;
    if (error) message_ = error->message;
    changed_.notify_all();
  }
  Finish finish() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, patience(std::chrono::seconds(20)),
                           [&] { return finish_.has_value(); }))
      throw std::runtime_error("the request does not end");
    return *finish_;
  }
  bool is_finished() {
    const std::lock_guard lock(mutex_);
    return finish_.has_value();
  }
  std::vector<int32_t> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  uint32_t cached() const { return cached_; }
  const std::string& message() const { return message_; }
  const ChosenToken& last() const { return last_; }
  size_t enough = 0;
  std::vector<ChosenToken> scored;  ///< of the prompt; read at the end

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  std::optional<Finish> finish_;
  uint32_t cached_ = 0;
  std::string message_;
  ChosenToken last_;
};

struct Rig {
  Controls controls;
  Metrics metrics;
  std::unique_ptr<Scheduler> scheduler;

  explicit Rig(uint32_t pages = 64, uint32_t sequences = 4, size_t queue = 100,
               uint32_t draft_tokens = 0, std::shared_ptr<Drafter> drafter = nullptr,
               std::chrono::milliseconds idle_unload = {}, uint32_t prompt_piece = 0)
      : scheduler(std::make_unique<Scheduler>(
            std::make_unique<FakeEngine>(controls, pages, sequences),
            Scheduler::Options{.queue_limit = queue,
                               .has_prefix_cache = true,
                               .end_tokens = {kEnd},
                               .draft_tokens = draft_tokens,
                               .prompt_piece = prompt_piece,
                               .drafter = std::move(drafter),
                               .idle_unload = idle_unload,
                               .recovery_pause = std::chrono::milliseconds(1)},
            &metrics)) {}
  ~Rig() { controls.allow(UINT64_MAX); }

  struct Ticket {
    std::shared_ptr<Recorder> recorder;
    Result<uint64_t> id;
  };
  Ticket submit(std::vector<int32_t> prompt, uint32_t max_tokens, int32_t priority = 0,
                std::optional<Clock::time_point> deadline = {}) {
    Job job;
    job.prompt = std::move(prompt);
    job.max_tokens = max_tokens;
    job.sampling.temperature = 0;
    job.priority = priority;
    job.deadline = deadline;
    auto recorder = std::make_shared<Recorder>();
    job.listener = recorder;
    auto id = scheduler->submit(std::move(job));
    return {recorder, id};
  }
};

std::vector<int32_t> random_prompt(std::mt19937& random, size_t length) {
  std::vector<int32_t> out;
  while (out.size() < length) out.push_back(static_cast<int32_t>(random() % (kVocabulary - 1)) + 1);
  return out;
}

/// Keeps tokens by the places of sequences, where a recurrent model would have its states.
class StateEngine final : public FakeEngine {
 public:
  StateEngine(Controls& controls, uint32_t sequences)
      : FakeEngine(controls, 64, sequences), controls_(controls), past_(sequences) {}
  bool has_states() const override { return true; }

  Status run(std::span<const BatchItem> items) override {
    std::map<uint32_t, const uint32_t*> owners;  // of places, by their pages
    rows_.assign(items.size(), std::vector<float>(kVocabulary, 0));
    for (size_t i = 0; i < items.size(); ++i) {
      const BatchItem& item = items[i];
      EXPECT_FALSE(item.is_prompt);
      EXPECT_EQ(item.tokens.size(), 1u);
      EXPECT_EQ(owners.emplace(item.state, item.pages.data()).first->second, item.pages.data())
          << "two sequences in one place";
      std::vector<int32_t>& past = past_.at(item.state);
      if (item.position == 0) past.clear();
      EXPECT_EQ(item.position, past.size());
      past.push_back(item.tokens[0]);
      rows_[i][static_cast<size_t>(successor(past))] = 30;
    }
    std::unique_lock lock(controls_.mutex);
    controls_.changed.wait(lock, [&] { return controls_.steps < controls_.allowed; });
    ++controls_.steps;
    controls_.most_items = std::max(controls_.most_items, items.size());
    controls_.changed.notify_all();
    if (auto failure = std::exchange(controls_.next_failure, {}))
      return tl::unexpected<Error>(*failure);
    return {};
  }
  std::span<const float> logits(size_t item) const override { return rows_[item]; }

 private:
  Controls& controls_;
  std::vector<std::vector<int32_t>> past_;
  std::vector<std::vector<float>> rows_;
};

TEST(Scheduler, PromptsAreScoredWholeBesideOthers) {
  Rig rig;
  std::mt19937 random(7);
  std::vector<int32_t> prompt = random_prompt(random, 9);
  for (const int32_t likely : continuation(prompt, 6)) prompt.push_back(likely);
  // What the prefix cache has of it would have no logprobs.
  EXPECT_EQ(rig.submit(prompt, 1).recorder->finish(), Finish::kLength);
  const auto other = rig.submit(random_prompt(random, 5), 20);
  const double norm = std::log(std::exp(30.0) + kVocabulary - 1);
  for (const uint32_t max_tokens : {0U, 2U}) {
    Job job;
    job.prompt = prompt;
    job.max_tokens = max_tokens;
    job.sampling.temperature = 0;
    job.scores_prompt = true;
    job.top_logprobs = 1;
    const auto recorder = std::make_shared<Recorder>();
    job.listener = recorder;
    ASSERT_TRUE(rig.scheduler->submit(std::move(job)));
    EXPECT_EQ(recorder->finish(), Finish::kLength);
    EXPECT_EQ(recorder->tokens(), continuation(prompt, max_tokens));
    EXPECT_EQ(recorder->cached(), 0u);
    ASSERT_EQ(recorder->scored.size(), prompt.size() - 1);
    for (size_t i = 1; i < prompt.size(); ++i) {
      const ChosenToken& token = recorder->scored[i - 1];
      const int32_t likely = successor(std::span(prompt).first(i));
      EXPECT_EQ(token.id, prompt[i]);
      EXPECT_NEAR(token.logprob, (prompt[i] == likely ? 30 : 0) - norm, 1e-9) << i;
      ASSERT_EQ(token.top.size(), 1u);
      EXPECT_EQ(token.top[0].first, likely);
    }
  }
  EXPECT_EQ(other.recorder->finish(), Finish::kLength);
  EXPECT_EQ(other.recorder->tokens().size(), 20u);
  // A whole context and nothing behind it.
  EXPECT_TRUE(rig.submit(random_prompt(random, 64), 0).id);
  EXPECT_FALSE(rig.submit(random_prompt(random, 65), 0).id);
}

TEST(Scheduler, StatesGoFromTokenToTokenWithoutPrefixesAndGuesses) {
  Rig rig;
  rig.scheduler = std::make_unique<Scheduler>(
      std::make_unique<StateEngine>(rig.controls, 3),
      Scheduler::Options{.end_tokens = {kEnd},
                         .draft_tokens = 4,
                         .drafter = std::make_shared<LookupDrafter>(),
                         .recovery_pause = std::chrono::milliseconds(1)},
      &rig.metrics);
  std::mt19937 random(std::random_device{}());
  const std::vector<int32_t> first = random_prompt(random, 17);
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<std::pair<std::vector<int32_t>, Rig::Ticket>> all;
    // Steps wait until all have asked: on one busy core each could end before the next begins.
    rig.controls.allow(0);
    for (int i = 0; i < 8; ++i) {
      const auto prompt = i < 2 ? first : random_prompt(random, 1 + random() % 20);
      all.emplace_back(prompt, rig.submit(prompt, 9));
    }
    rig.controls.allow(UINT64_MAX);
    for (auto& [prompt, ticket] : all) {
      ASSERT_TRUE(ticket.id);
      EXPECT_EQ(ticket.recorder->finish(), Finish::kLength);
      EXPECT_EQ(ticket.recorder->tokens(), continuation(prompt, 9));
      EXPECT_EQ(ticket.recorder->cached(), 0u);
    }
    EXPECT_EQ(rig.controls.most_items, 3u) << "prompts and answers go together";
    // Who fails gives his place back.
    {
      const std::lock_guard lock(rig.controls.mutex);
      rig.controls.next_failure = Error{Code::kInternal, "planted"};
    }
    EXPECT_EQ(rig.submit(first, 9).recorder->finish(), Finish::kError);
  }
  EXPECT_EQ(rig.metrics.draft_tokens, 0u);
}

TEST(Scheduler, PromptsOfModelsWithStatesTakeTheRowsThatAreFree) {
  Rig rig;
  rig.scheduler = std::make_unique<Scheduler>(
      std::make_unique<StateEngine>(rig.controls, 3),
      Scheduler::Options{.end_tokens = {kEnd}, .recovery_pause = std::chrono::milliseconds(1)},
      &rig.metrics);
  std::mt19937 random(5);
  const std::vector<int32_t> prompt = random_prompt(random, 17);
  const auto ticket = rig.submit(prompt, 9);
  EXPECT_EQ(ticket.recorder->finish(), Finish::kLength);
  EXPECT_EQ(ticket.recorder->tokens(), continuation(prompt, 9));
  EXPECT_EQ(rig.metrics.steps, 6u + 8u) << "of three tokens each, and one for every token more";
}

TEST(Scheduler, PreparesWhileNothingWaitsAndRecoversFromIt) {
  Rig rig;
  const auto ticket = rig.submit({1, 2, 3}, 5);
  EXPECT_EQ(ticket.recorder->finish(), Finish::kLength);
  {
    const std::lock_guard lock(rig.controls.mutex);
    rig.controls.to_prepare = 3;
    rig.controls.preparing_fails = Error{Code::kDeviceLost, "fell off the bus"};
  }
  // While the device is lost, before recover() has come back, requests are refused.
  const auto accepted = [&](const std::vector<int32_t>& prompt) {
    for (;;) {
      auto one = rig.submit(prompt, 5);
      if (one.id) return one;
      EXPECT_EQ(one.id.error().code, Code::kDeviceLost);
      std::this_thread::yield();
    }
  };
  // The thread sees it after the next request, or before it.
  EXPECT_EQ(accepted({4, 5}).recorder->finish(), Finish::kLength);
  {
    std::unique_lock lock(rig.controls.mutex);
    ASSERT_TRUE(rig.controls.changed.wait_for(lock, patience(std::chrono::seconds(20)), [&] {
      return rig.controls.to_prepare == 0 && rig.controls.recoveries == 1;
    }));
  }
  const auto after = accepted({1, 2, 3});
  EXPECT_EQ(after.recorder->finish(), Finish::kLength);
  EXPECT_EQ(after.recorder->tokens(), continuation({1, 2, 3}, 5));
}

/// Guesses nothing; counts what it is asked for.
class CountingDrafter final : public Drafter {
 public:
  std::vector<int32_t> draft(uint64_t, std::span<const int32_t>, size_t) override { return {}; }
  void forget(uint64_t) override {}
  void unload() override { ++unloads; }
  Status load() override { return ++loads, Status(); }
  std::atomic<int> unloads{0}, loads{0};
};

TEST(Scheduler, UnloadsWhatNobodyUsesAndLoadsItForTheNextRequest) {
  const auto drafter = std::make_shared<CountingDrafter>();
  Rig rig(64, 4, 100, 1, drafter, std::chrono::milliseconds(20));
  const auto wait_unloaded = [&] {
    std::unique_lock lock(rig.controls.mutex);
    return rig.controls.changed.wait_for(lock, patience(std::chrono::seconds(20)),
                                         [&] { return rig.controls.is_unloaded; });
  };
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (int turn = 0; turn < 3; ++turn) {
    const auto ticket = rig.submit(prompt, 5);
    EXPECT_EQ(ticket.recorder->finish(), Finish::kLength);
    EXPECT_EQ(ticket.recorder->tokens(), continuation(prompt, 5));
    EXPECT_EQ(ticket.recorder->cached(), 0u) << "pages are gone with the model";
    ASSERT_TRUE(wait_unloaded());
    EXPECT_EQ(rig.scheduler->health(), Health::kReady);
  }
  EXPECT_EQ(rig.controls.loads, 2);
  EXPECT_EQ(drafter->loads, 2);
  {
    const std::lock_guard lock(rig.controls.mutex);
    rig.controls.loading_fails = Error{Code::kCorrupt, "another file"};
  }
  const auto hopeless = rig.submit(prompt, 5);
  EXPECT_EQ(hopeless.recorder->finish(), Finish::kError);
  EXPECT_EQ(hopeless.recorder->message(), "another file");
  EXPECT_EQ(rig.submit(prompt, 5).recorder->finish(), Finish::kLength) << "it is tried again";
}

TEST(Scheduler, TheDrafterIsLoadedAgainOnceTheDeviceIsBack) {
  const auto drafter = std::make_shared<CountingDrafter>();
  Rig rig(64, 4, 100, 1, drafter);
  {
    const std::lock_guard lock(rig.controls.mutex);
    rig.controls.next_failure = Error{Code::kDeviceLost, "fell off the bus"};
    rig.controls.failing_recoveries = 2;
  }
  EXPECT_EQ(rig.submit({1, 2, 3}, 5).recorder->finish(), Finish::kError);
  for (;;) {  // refused while the device is lost
    const auto ticket = rig.submit({1, 2, 3}, 5);
    if (!ticket.id) continue;
    EXPECT_EQ(ticket.recorder->finish(), Finish::kLength);
    break;
  }
  EXPECT_EQ(drafter->unloads, 1);
  EXPECT_EQ(drafter->loads, 1);
}

TEST(Scheduler, EveryRequestGetsItsOwnTokensWhateverElseRuns) {
  std::mt19937 random(std::random_device{}());
  Rig rig(24, 4);
  std::vector<std::pair<std::vector<int32_t>, Rig::Ticket>> all;
  // Prompts share beginnings, so that pages are shared, cached and thrown out.
  const std::vector<int32_t> stem = random_prompt(random, 30);
  std::vector<uint32_t> lengths;
  rig.controls.allow(0);  // until some have asked: on one busy core each could end before the next
  for (int i = 0; i < 90; ++i) {
    if (i == 30) rig.controls.allow(UINT64_MAX);
    std::vector<int32_t> prompt(stem.begin(), stem.begin() + random() % 30);
    const std::vector<int32_t> rest = random_prompt(random, 1 + random() % 10);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    lengths.push_back(static_cast<uint32_t>(1 + random() % 15));
    all.emplace_back(prompt,
                     rig.submit(prompt, lengths.back(), static_cast<int32_t>(random() % 3)));
    if (random() % 8 == 0) rig.scheduler->cancel(*all[random() % all.size()].second.id);
  }
  size_t whole = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    auto& [prompt, ticket] = all[i];
    const Finish finish = ticket.recorder->finish();
    std::vector<int32_t> expected = continuation(prompt, lengths[i]);
    const std::vector<int32_t> got = ticket.recorder->tokens();
    if (finish == Finish::kCancelled) {
      expected.resize(got.size());
    } else {
      ASSERT_EQ(finish, Finish::kLength);
      ++whole;
    }
    EXPECT_EQ(got, expected) << "request " << i;
  }
  EXPECT_GT(whole, 60u);
  EXPECT_GT(rig.metrics.prefix_hits.load(), 0u);
  EXPECT_GT(rig.controls.most_items, 2u);
  EXPECT_LE(rig.controls.largest_piece, kPage);
}

/// Guesses right most of the time, and more than it is asked for.
class Guesser final : public Drafter {
 public:
  std::vector<int32_t> draft(uint64_t id, std::span<const int32_t> tokens, size_t most) override {
    ids.insert(id);
    std::vector<int32_t> out = continuation({tokens.begin(), tokens.end()}, most + random_() % 2);
    for (int32_t& t : out)
      if (random_() % 4 == 0) t = static_cast<int32_t>(random_() % kVocabulary);
    return out;
  }
  void forget(uint64_t id) override { ids.erase(id); }
  std::set<uint64_t> ids;

 private:
  std::mt19937 random_{7};
};

TEST(Scheduler, GuessesMakeStepsFewerAndTokensNoOthers) {
  std::mt19937 random(std::random_device{}());
  const auto guesser = std::make_shared<Guesser>();
  Rig rig(40, 8, 100, 3, guesser);
  std::vector<std::tuple<std::vector<int32_t>, uint32_t, Rig::Ticket>> all;
  for (int i = 0; i < 40; ++i) {
    std::vector<int32_t> prompt = random_prompt(random, 1 + random() % 12);
    const auto length = static_cast<uint32_t>(1 + random() % 30);
    all.emplace_back(prompt, length, rig.submit(prompt, length));
  }
  for (auto& [prompt, length, ticket] : all) {
    EXPECT_EQ(ticket.recorder->finish(), Finish::kLength);
    EXPECT_EQ(ticket.recorder->tokens(), continuation(prompt, length));
  }
  const std::vector<int32_t> alone = random_prompt(random, 3);
  const uint64_t before = rig.controls.steps;
  const auto last = rig.submit(alone, 40);
  EXPECT_EQ(last.recorder->finish(), Finish::kLength);
  EXPECT_EQ(last.recorder->tokens(), continuation(alone, 40));
  EXPECT_LT(rig.controls.steps - before, 30u);
  EXPECT_GT(rig.metrics.accepted_tokens.load(), 0u);
  EXPECT_LT(rig.metrics.accepted_tokens.load(), rig.metrics.draft_tokens.load());
  EXPECT_TRUE(rig.scheduler->drain(Clock::now() + patience(std::chrono::seconds(20))));
  EXPECT_TRUE(guesser->ids.empty());
  EXPECT_EQ(rig.metrics.pages_used.load(), 0u);
}

TEST(Drafter, WhatFollowedTheSameTokensLastTime) {
  LookupDrafter drafter;
  const std::vector<int32_t> tokens{1, 2, 3, 4, 9, 2, 3, 5, 6, 2, 3};
  EXPECT_EQ(drafter.draft(1, tokens, 2), (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(drafter.draft(1, tokens, 9), (std::vector<int32_t>{5, 6, 2, 3}));
  EXPECT_TRUE(drafter.draft(1, tokens, 0).empty());
  EXPECT_TRUE(drafter.draft(1, std::vector<int32_t>{1, 2, 3}, 4).empty());
  EXPECT_TRUE(drafter.draft(1, std::vector<int32_t>{1}, 4).empty());
  EXPECT_TRUE(drafter.draft(1, {}, 4).empty());
}

/// A vocabulary whose token t is the letter 'a' + t, and the grammar over it.
TEST(Scheduler, WhatAGrammarForbidsIsNotWritten) {
  std::vector<std::string> pieces(kVocabulary);
  for (size_t i = 1; i < 20; ++i) pieces[i] = std::string(1, static_cast<char>('a' + i));
  const auto vocabulary =
      std::make_shared<const models::GrammarVocabulary>(pieces, std::vector<int32_t>{kEnd});
  const auto parsed = models::Grammar::parse("root ::= [bc]{3} \"def\"");
  ASSERT_TRUE(parsed);
  const auto grammar = std::make_shared<const models::Grammar>(*parsed);
  for (const bool is_bound_late : {false, true}) {
    Rig rig(64, 4, 100, 2, std::make_shared<LookupDrafter>());
    Job job;
    job.prompt = {3};
    job.max_tokens = 60;
    job.sampling.temperature = 0;
    job.grammar = grammar;
    job.vocabulary = vocabulary;
    // Whatever token is chosen first, when it has a letter.
    const int32_t first = continuation(job.prompt, 1)[0];
    pieces[static_cast<size_t>(first)] = "z";
    if (is_bound_late) {
      job.vocabulary =
          std::make_shared<const models::GrammarVocabulary>(pieces, std::vector<int32_t>{kEnd});
      job.grammar_after = "z";
    }
    const auto recorder = std::make_shared<Recorder>();
    job.listener = recorder;
    ASSERT_TRUE(rig.scheduler->submit(std::move(job)));
    EXPECT_EQ(recorder->finish(), Finish::kStop) << recorder->message();
    std::string text;
    for (const int32_t t : recorder->tokens()) text += pieces[static_cast<size_t>(t)];
    if (is_bound_late) {
      ASSERT_EQ(text.front(), 'z');
      text.erase(0, 1);
    }
    ASSERT_EQ(text.size(), 6u) << text;
    EXPECT_EQ(text.find_first_not_of("bc"), 3u);
    EXPECT_EQ(text.substr(3), "def");
  }
}

TEST(Scheduler, ALongPromptDoesNotStopOthers) {
  std::mt19937 random(3);
  Rig rig;
  rig.controls.allow(3);
  const auto fast = rig.submit(random_prompt(random, 2), 40);
  rig.controls.wait_steps(3);  // its prompt and two tokens
  const auto slow = rig.submit(random_prompt(random, 40), 1);
  rig.controls.allow(6);
  rig.controls.wait_steps(9);
  // The pieces of 40 tokens take ten steps, in each of which the other got a token.
  EXPECT_FALSE(slow.recorder->is_finished());
  EXPECT_GE(fast.recorder->tokens().size(), 7u);
  rig.controls.allow(UINT64_MAX);
  EXPECT_EQ(slow.recorder->finish(), Finish::kLength);
  EXPECT_EQ(fast.recorder->finish(), Finish::kLength);
}

TEST(Scheduler, PiecesOfAPromptMayBeShorterThanAPage) {
  std::mt19937 random(8);
  Rig rig(64, 4, 100, 0, nullptr, {}, 2);
  rig.controls.allow(UINT64_MAX);
  const std::vector<int32_t> prompt = random_prompt(random, 4 * kPage + 1);
  for (int again = 0; again < 2; ++again) {
    const auto ticket = rig.submit(prompt, 5);
    EXPECT_EQ(ticket.recorder->finish(), Finish::kLength);
    EXPECT_EQ(ticket.recorder->tokens(), continuation(prompt, 5));
  }
  EXPECT_EQ(rig.controls.largest_piece, 2u);
  // Whole pages are found again all the same.
  EXPECT_GT(rig.metrics.prefix_hits.load(), 0u);
}

TEST(Scheduler, APrefixThatWasComputedIsNotComputedAgain) {
  std::mt19937 random(4);
  Rig rig;
  std::vector<int32_t> prompt = random_prompt(random, 23);
  const auto first = rig.submit(prompt, 3);
  EXPECT_EQ(first.recorder->finish(), Finish::kLength);
  EXPECT_EQ(first.recorder->cached(), 0u);
  EXPECT_EQ(rig.controls.prompt_tokens, 23u);
  prompt.back() = prompt.back() == 1 ? 2 : 1;
  const auto second = rig.submit(prompt, 3);
  EXPECT_EQ(second.recorder->finish(), Finish::kLength);
  EXPECT_EQ(second.recorder->cached(), 20u);
  EXPECT_EQ(rig.controls.prompt_tokens, 26u);
  EXPECT_EQ(second.recorder->tokens(), continuation(prompt, 3));
  // Of a prompt of whole pages the last one is computed again: its logits are wanted.
  const auto third = rig.submit({prompt.begin(), prompt.begin() + 20}, 1);
  EXPECT_EQ(third.recorder->finish(), Finish::kLength);
  EXPECT_EQ(third.recorder->cached(), 16u);
}

TEST(Scheduler, CancellingFreesPagesAndLeavesOthersAlone) {
  std::mt19937 random(5);
  Rig rig(16, 2);
  rig.controls.allow(5);
  const std::vector<int32_t> kept = random_prompt(random, 3);
  const auto a = rig.submit(kept, 20), b = rig.submit(random_prompt(random, 5), 20),
             c = rig.submit(random_prompt(random, 4), 5);
  rig.controls.wait_steps(5);
  rig.scheduler->cancel(*b.id);
  rig.scheduler->cancel(*c.id);  // still waits: heard at once
  EXPECT_EQ(c.recorder->finish(), Finish::kCancelled);
  rig.controls.allow(UINT64_MAX);
  EXPECT_EQ(b.recorder->finish(), Finish::kCancelled);
  EXPECT_EQ(a.recorder->finish(), Finish::kLength);
  EXPECT_EQ(a.recorder->tokens(), continuation(kept, 20));
  rig.scheduler->cancel(*a.id);  // over already
  EXPECT_EQ(rig.submit(kept, 1).recorder->finish(), Finish::kLength);
  EXPECT_TRUE(rig.scheduler->drain(Clock::now() + patience(std::chrono::seconds(20))));
  EXPECT_EQ(rig.metrics.pages_used.load(), 0u);
}

TEST(Scheduler, PrioritiesGoFirstAndEqualsInOrder) {
  Rig rig(64, 1);
  rig.controls.allow(0);
  const auto running = rig.submit({1}, 2);
  const auto late = rig.submit({2}, 30, 1), low = rig.submit({3}, 1, 5),
             high = rig.submit({4}, 1, 0);
  rig.controls.allow(UINT64_MAX);
  EXPECT_EQ(high.recorder->finish(), Finish::kLength);
  EXPECT_EQ(low.recorder->finish(), Finish::kLength);
  EXPECT_TRUE(late.recorder->is_finished());
  EXPECT_EQ(running.recorder->finish(), Finish::kLength);
}

TEST(Scheduler, AFullQueueRefuses) {
  Rig rig(64, 1, 2);
  rig.controls.allow(1);
  const auto first = rig.submit({1}, 5);
  rig.controls.wait_steps(1);
  const auto second = rig.submit({2}, 1), third = rig.submit({3}, 1), fourth = rig.submit({4}, 1);
  EXPECT_TRUE(third.id);
  ASSERT_FALSE(fourth.id);
  EXPECT_EQ(fourth.id.error().code, Code::kOutOfMemory);
  EXPECT_EQ(rig.metrics.refused.load(), 1u);
  rig.controls.allow(UINT64_MAX);
  EXPECT_EQ(third.recorder->finish(), Finish::kLength);
}

TEST(Scheduler, DeadlinesEndWaitingAndRunningRequests) {
  Rig rig(64, 1);
  rig.controls.allow(1);
  const auto running = rig.submit({1}, 5, 0, Clock::now() + std::chrono::hours(1));
  rig.controls.wait_steps(1);
  const auto waiting = rig.submit({2}, 5, 0, Clock::now() - std::chrono::seconds(1));
  rig.controls.allow(UINT64_MAX);
  EXPECT_EQ(waiting.recorder->finish(), Finish::kTimeout);
  EXPECT_FALSE(waiting.recorder->message().empty());
  EXPECT_EQ(running.recorder->finish(), Finish::kLength);
}

TEST(Scheduler, RequestsThatCannotFitAreRefusedAtOnce) {
  Rig rig;
  EXPECT_FALSE(rig.submit({}, 1).id);
  EXPECT_FALSE(rig.submit(std::vector<int32_t>(65, 1), 1).id);
  EXPECT_FALSE(rig.submit(std::vector<int32_t>(60, 1), 6).id);
  const auto fits = rig.submit(std::vector<int32_t>(60, 1), 5);
  EXPECT_EQ(fits.recorder->finish(), Finish::kLength);
  const auto nothing = rig.submit({1}, 0);  // but to compute the prompt
  EXPECT_EQ(nothing.recorder->finish(), Finish::kLength);
  EXPECT_TRUE(nothing.recorder->tokens().empty());
}

TEST(Scheduler, MemoryForTwoContextsIsNeverPromisedToThree) {
  std::mt19937 random(6);
  Rig rig(32, 4);  // two contexts of 64
  std::vector<std::pair<std::vector<int32_t>, Rig::Ticket>> all;
  for (int i = 0; i < 6; ++i) {
    std::vector<int32_t> prompt = random_prompt(random, 20);
    all.emplace_back(prompt, rig.submit(prompt, 45));
  }
  for (auto& [prompt, ticket] : all) {
    EXPECT_EQ(ticket.recorder->finish(), Finish::kLength);
    EXPECT_EQ(ticket.recorder->tokens(), continuation(prompt, 45));
  }
  EXPECT_LE(rig.controls.most_items, 2u);
}

TEST(Scheduler, ALostDeviceFailsWhoRunsAndComesBack) {
  Rig rig(64, 1);
  rig.controls.allow(2);
  const auto running = rig.submit({1}, 9);
  rig.controls.wait_steps(2);
  const auto waiting = rig.submit({2, 3}, 4);
  {
    const std::lock_guard lock(rig.controls.mutex);
    rig.controls.next_failure = Error{Code::kDeviceFault, "page fault at 0x1000"};
  }
  rig.controls.allow(UINT64_MAX);
  EXPECT_EQ(running.recorder->finish(), Finish::kError);
  EXPECT_EQ(running.recorder->message(), "page fault at 0x1000");
  EXPECT_EQ(waiting.recorder->finish(), Finish::kLength);
  EXPECT_EQ(waiting.recorder->tokens(), continuation({2, 3}, 4));
  EXPECT_EQ(rig.scheduler->health(), Health::kReady);
  EXPECT_EQ(rig.metrics.device_faults.load(), 1u);
}

TEST(Scheduler, WhileTheDeviceIsGoneRequestsAreRefusedWithTheCause) {
  Rig rig(64, 1);
  {
    const std::lock_guard lock(rig.controls.mutex);
    rig.controls.next_failure = Error{Code::kDeviceLost, "fell off the bus"};
    rig.controls.failing_recoveries = 1'000'000'000;
  }
  EXPECT_EQ(rig.submit({1}, 9).recorder->finish(), Finish::kError);
  {
    std::unique_lock lock(rig.controls.mutex);
    rig.controls.changed.wait(lock, [&] { return rig.controls.recoveries >= 2; });
  }
  EXPECT_EQ(rig.scheduler->health(), Health::kDeviceLost);
  const auto refused = rig.submit({1}, 1);
  ASSERT_FALSE(refused.id);
  EXPECT_EQ(refused.id.error().code, Code::kDeviceLost);
  EXPECT_NE(refused.id.error().message.find("fell off the bus"), std::string::npos);
  {
    std::unique_lock lock(rig.controls.mutex);
    rig.controls.failing_recoveries = 0;
    const int before = rig.controls.recoveries;
    rig.controls.changed.wait(lock, [&] { return rig.controls.recoveries > before; });
  }
  while (rig.scheduler->health() != Health::kReady) std::this_thread::yield();
  EXPECT_EQ(rig.submit({1}, 1).recorder->finish(), Finish::kLength);
}

TEST(Scheduler, OtherFailuresEndTheStepsRequestsOnly) {
  Rig rig;
  {
    const std::lock_guard lock(rig.controls.mutex);
    rig.controls.next_failure = Error{Code::kOutOfMemory, "no memory"};
  }
  EXPECT_EQ(rig.submit({1}, 9).recorder->finish(), Finish::kError);
  EXPECT_EQ(rig.submit({1}, 9).recorder->finish(), Finish::kLength);
  EXPECT_EQ(rig.controls.recoveries, 0);
}

TEST(Scheduler, DrainingFinishesWhatThereIsAndTakesNoMore) {
  Rig rig;
  rig.controls.allow(1);
  const auto a = rig.submit({1}, 6), b = rig.submit({2}, 6);
  rig.controls.wait_steps(1);
  EXPECT_FALSE(rig.scheduler->drain(Clock::now()));
  EXPECT_EQ(rig.scheduler->health(), Health::kDraining);
  const auto refused = rig.submit({3}, 1);
  ASSERT_FALSE(refused.id);
  EXPECT_EQ(refused.id.error().code, Code::kCancelled);
  rig.controls.allow(UINT64_MAX);
  EXPECT_TRUE(rig.scheduler->drain(Clock::now() + patience(std::chrono::seconds(20))));
  EXPECT_EQ(a.recorder->finish(), Finish::kLength);
  EXPECT_EQ(b.recorder->finish(), Finish::kLength);
}

TEST(Scheduler, StoppingEndsEverybody) {
  Rig rig(64, 1);
  rig.controls.allow(2);
  const auto a = rig.submit({1}, 60), b = rig.submit({2}, 6);
  rig.controls.wait_steps(2);
  std::thread stopper([&] { rig.scheduler->stop(); });
  rig.controls.allow(1);
  rig.controls.allow(UINT64_MAX);
  stopper.join();
  EXPECT_TRUE(a.recorder->is_finished());
  EXPECT_TRUE(b.recorder->is_finished());
  EXPECT_FALSE(rig.submit({3}, 1).id);
}

TEST(Scheduler, AListenerMayHaveEnough) {
  Rig rig;
  rig.controls.allow(0);
  const auto a = rig.submit({1}, 20);
  a.recorder->enough = 3;
  rig.controls.allow(UINT64_MAX);
  EXPECT_EQ(a.recorder->finish(), Finish::kStop);
  EXPECT_EQ(a.recorder->tokens(), continuation({1}, 3));
}

TEST(Scheduler, LogprobsAreThoseOfTheModel) {
  Rig rig;
  Job job;
  job.prompt = {1};
  job.max_tokens = 1;
  job.sampling.temperature = 0;
  job.top_logprobs = 2;
  auto recorder = std::make_shared<Recorder>();
  job.listener = recorder;
  ASSERT_TRUE(rig.scheduler->submit(std::move(job)));
  EXPECT_EQ(recorder->finish(), Finish::kLength);
  // One logit of 30, 49 of 0.
  const double expected = -std::log1p(49 * std::exp(-30.0));
  EXPECT_NEAR(recorder->last().logprob, expected, 1e-12);
  ASSERT_EQ(recorder->last().top.size(), 2u);
  EXPECT_EQ(recorder->last().top[0].first, recorder->last().id);
  EXPECT_NEAR(recorder->last().top[1].second, -30 + expected, 1e-12);
}

TEST(Scheduler, ProbabilitiesAreThoseOfWhatTheSamplersLeave) {
  Rig rig;
  const auto last = [&](bool penalizes_prompt) {
    Job job;
    job.prompt = {1, 2, 3};
    job.max_tokens = 1;
    job.sampling.temperature = 10;
    job.sampling.top_k = 3;
    // Down to the 49 others, where the prompt has it.
    job.sampling.presence_penalty = 30;
    job.penalizes_prompt = penalizes_prompt;
    job.top_logprobs = 5;
    job.has_drawn_probabilities = true;
    auto recorder = std::make_shared<Recorder>();
    job.listener = recorder;
    EXPECT_TRUE(rig.scheduler->submit(std::move(job)));
    EXPECT_EQ(recorder->finish(), Finish::kLength);
    return recorder->last();
  };
  const ChosenToken token = last(false);
  ASSERT_EQ(token.top.size(), 3u);
  const double other = 1 / (std::exp(3.0) + 2);
  EXPECT_NEAR(token.top[0].second, 1 - 2 * other, 1e-9);
  EXPECT_NEAR(token.top[2].second, other, 1e-9);
  const auto at = std::ranges::find(token.top, token.id, &std::pair<int32_t, double>::first);
  ASSERT_NE(at, token.top.end());
  EXPECT_EQ(token.logprob, at->second);
  for (const auto& [id, probability] : last(true).top) EXPECT_FALSE(id >= 1 && id <= 3) << id;
}

TEST(Scheduler, TellsHowFarAPromptIs) {
  class Listening final : public Recorder {
   public:
    void on_progress(const PromptProgress& progress) override {
      EXPECT_TRUE(tokens().empty());
      seen.push_back(progress.processed);
      EXPECT_EQ(progress.total, 20u);
      cached_tokens = progress.cached;
    }
    std::vector<uint32_t> seen;
    uint32_t cached_tokens = 0;
  };
  Rig rig;
  std::mt19937 random(3);
  const std::vector<int32_t> prompt = random_prompt(random, 20);
  const auto run = [&] {
    auto listener = std::make_shared<Listening>();
    Job job;
    job.prompt = prompt;
    job.max_tokens = 2;
    job.sampling.temperature = 0;
    job.listener = listener;
    EXPECT_TRUE(rig.scheduler->submit(std::move(job)));
    listener->finish();
    return listener;
  };
  const auto fresh = run(), again = run();
  EXPECT_EQ(fresh->seen.front(), 0u);
  EXPECT_EQ(fresh->seen.back(), 20u);
  EXPECT_TRUE(std::ranges::is_sorted(fresh->seen));
  EXPECT_GT(again->cached_tokens, 0u);
  EXPECT_EQ(again->seen.front(), again->cached_tokens);
}

}  // namespace
}  // namespace bm::serve
