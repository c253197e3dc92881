#include "tools/bellmetal/cpu_bench/contest.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "tensor/exception.h"
#include "tools/bellmetal/cpu_bench/machine_load.h"

namespace bm::cli {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One contender with what was measured of it.
struct Runner {
  const Contender* contender;
  int calls = 1;  ///< per sample
  std::vector<double> seconds;
  bool is_ours = false;
  std::string failure = {};  ///< not empty: dropped out

  /// Does `work`. Only ours may fail.
  template <class Work>
  void guarded(Work&& work) {
    if (is_ours) return work();
    if (!failure.empty()) return;
    try {
      work();
    } catch (const std::exception& e) {
      failure = *e.what() != 0 ? e.what() : "it failed";
    }
  }
};

void settle(const Pace& pace) {
  if (pace.settle_ms > 0)
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(pace.settle_ms));
}

void choose_calls(Runner& r, const Pace& pace) {
  if (r.contender->is_whole) return;
  r.contender->seconds(1);
  const double once = std::max(r.contender->seconds(1), 1e-9);
  r.calls = static_cast<int>(std::clamp(std::ceil(pace.sample_ms * 1e-3 / once), 1.0, 1e5));
}

/// What `before` left in caches and clocks is made good by one call that does not count.
void sample(Runner& r, const Pace& pace) {
  settle(pace);
  if (!r.contender->is_whole) r.contender->seconds(1);
  r.seconds.push_back(r.contender->seconds(r.calls) / r.calls);
}

Score score(const Runner& r, const Contest& contest) {
  const Summary s = summarize(r.seconds);
  Score out{r.contender->name, 0, s.spread()};
  switch (contest.unit) {
    case Unit::kGflops:
    case Unit::kGops:
    case Unit::kGbytes: out.value = s.median > 0 ? contest.amount / s.median * 1e-9 : 0; break;
    case Unit::kTokens: out.value = s.median > 0 ? contest.amount / s.median : 0; break;
    case Unit::kMillis: out.value = s.median * 1e3; break;
    case Unit::kMicros: out.value = s.median * 1e6; break;
  }
  return out;
}

const Score* best_of(const std::vector<Score>& scores, Unit unit) {
  const Score* best = nullptr;
  for (const Score& s : scores) {
    if (s.value <= 0) continue;
    if (!best || (is_rate(unit) ? s.value > best->value : s.value < best->value)) best = &s;
  }
  return best;
}

Status check(const Contest& contest, const std::string& name, Outcome& out) {
  if (!contest.check) return {};
  out.error = BM_TRY(contest.check());
  // Not "greater": NaN is wrong, too.
  if (!(*out.error <= contest.tolerance))
    return fail(Code::kInternal, "{}: wrong result: relative error {:.3g}, {:.3g} are allowed",
                name, *out.error, contest.tolerance);
  return {};
}

}  // namespace

Contender contender(std::string name, std::function<void()> work) {
  return {std::move(name), [work = std::move(work)](int calls) {
            const auto start = Clock::now();
            for (int i = 0; i < calls; ++i) work();
            return since(start);
          }};
}

void invite(Contest& contest, std::string_view who, const std::function<Status(Contest&)>& add) {
  std::string failure;
  try {
    if (const Status added = add(contest); !added) failure = added.error().message;
  } catch (const std::exception& e) {
    failure = e.what();
  }
  if (!failure.empty()) contest.notes.push_back(fmt::format("{} stays out: {}", who, failure));
}

const char* unit_name(Unit unit) {
  switch (unit) {
    case Unit::kGflops: return "GF/s";
    case Unit::kGops: return "GOP/s";
    case Unit::kGbytes: return "GB/s";
    case Unit::kTokens: return "t/s";
    case Unit::kMillis: return "ms";
    case Unit::kMicros: return "us";
  }
  __builtin_unreachable();
}

bool is_rate(Unit unit) { return unit != Unit::kMillis && unit != Unit::kMicros; }

std::string Goal::text(Unit unit) const {
  std::string out;
  const auto add = [&](std::string part) { out += (out.empty() ? "" : ", ") + std::move(part); };
  if (of_peer > 0) add(fmt::format(">= {:.2f}x", of_peer));
  if (of_bound > 0) add(fmt::format(">= {:.2f} of roofline", of_bound));
  if (at_most > 0) add(fmt::format("<= {:g} {}", at_most, unit_name(unit)));
  return out;
}

const Score* Outcome::best_peer() const { return best_of(peers, unit); }
const Score* Outcome::best_bound() const { return best_of(bounds, unit); }

double Outcome::ratio_to(const Score* other) const {
  if (!other || other->value <= 0 || ours.value <= 0) return 0;
  return is_rate(unit) ? ours.value / other->value : other->value / ours.value;
}

std::optional<bool> Outcome::is_met() const {
  std::optional<bool> met;
  const auto need = [&](bool is_good) { met = met.value_or(true) && is_good; };
  if (goal.of_peer > 0 && best_peer()) need(ratio_to(best_peer()) >= goal.of_peer);
  if (goal.of_bound > 0 && best_bound()) need(ratio_to(best_bound()) >= goal.of_bound);
  if (goal.at_most > 0 && ours.value > 0) need(ours.value <= goal.at_most);
  return met;
}

Result<Outcome> hold(const Contest& contest, std::string name, uint32_t threads, Pace pace,
                     const std::atomic<bool>& stop) {
  if (pace.settle_ms > 0) pace.settle_ms = std::max(pace.settle_ms, contest.settle_ms);
  Outcome out{.name = std::move(name),
              .threads = threads,
              .unit = contest.unit,
              .goal = contest.goal,
              .ours = {},
              .peers = {},
              .bounds = {},
              .error = {},
              .busy_elsewhere = 0,
              .notes = contest.notes};
  try {
    if (!contest.ours.is_whole) contest.ours.seconds(1);
    BM_TRY(check(contest, out.name, out));
    std::vector<Runner> runners{{&contest.ours, 1, {}, true}};
    for (const Contender& p : contest.peers) runners.push_back({&p, 1, {}});
    for (const Contender& b : contest.bounds) runners.push_back({&b, 1, {}});
    for (Runner& r : runners) r.guarded([&] { choose_calls(r, pace); });
    const bool has_whole = std::any_of(runners.begin(), runners.end(),
                                       [](const Runner& r) { return r.contender->is_whole; });
    const int least = has_whole ? std::min(pace.min_repeats, 3) : pace.min_repeats;
    const MachineLoad load;
    const auto start = Clock::now();
    for (int i = 0; i < pace.max_repeats && !stop.load(); ++i) {
      if (i >= least && since(start) > pace.seconds) break;
      // Nobody is always behind the same one.
      for (size_t j = 0; j < runners.size(); ++j) {
        Runner& r = runners[(j + static_cast<size_t>(i)) % runners.size()];
        r.guarded([&] { sample(r, pace); });
      }
    }
    out.busy_elsewhere = load.others();
    out.ours = score(runners[0], contest);
    for (size_t j = 1; j < runners.size(); ++j) {
      const Runner& r = runners[j];
      if (r.failure.empty())
        (j <= contest.peers.size() ? out.peers : out.bounds).push_back(score(r, contest));
      else
        out.notes.push_back(fmt::format("{} dropped out: {}", r.contender->name, r.failure));
    }
  } catch (const Exception& e) {
    return tl::unexpected(Error(e.error()).within(out.name));
  }
  return out;
}

}  // namespace bm::cli
