#pragma once
// A contest: our way to do some work and others' ways, measured in turn within one run.

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "tools/bellmetal/cpu_bench/stats.h"

namespace bm::cli {

/// One way to do the work. `seconds(n)` does it n times in a row and says how long that took.
struct Contender {
  std::string name;
  std::function<double(int calls)> seconds;
  /// One call is one sample: it warms up by itself.
  bool is_whole = false;
};

/// `work` called in a loop in this process.
Contender contender(std::string name, std::function<void()> work);

enum class Unit { kGflops, kGops, kGbytes, kTokens, kMillis, kMicros };
const char* unit_name(Unit unit);  ///< "GF/s"
bool is_rate(Unit unit);           ///< more is better

/// What is asked of us; a number that is 0 is not asked for.
struct Goal {
  double of_peer = 0;   ///< ratio to the best peer
  double of_bound = 0;  ///< ratio to the best bound
  double at_most = 0;   ///< in the unit of the contest

  /// ">= 1.00x, >= 0.85 of roofline", "<= 20 us".
  std::string text(Unit unit) const;
};

struct Contest {
  Unit unit = Unit::kMillis;
  double amount = 1;  ///< per call: floating-point operations, bytes, tokens; unused for times
  Contender ours;
  std::vector<Contender> peers;
  /// What the machine could do at best, for example moving the same bytes.
  std::vector<Contender> bounds;
  /// Largest relative error of our result, measured after ours ran once.
  std::function<Result<double>()> check;
  double tolerance = 0;  ///< of the relative error
  Goal goal;
  /// Between samples with more than one thread, where idle threads of a peer spin for longer than
  /// Pace::settle_ms.
  double settle_ms = 0;
  std::vector<std::string> notes;
};

struct Score {
  std::string name;
  double value = 0;  ///< median in the unit of the contest
  double spread = 0;
};

struct Outcome {
  std::string name;
  uint32_t threads = 1;
  Unit unit = Unit::kMillis;
  Goal goal;
  Score ours;
  std::vector<Score> peers, bounds;
  std::optional<double> error;  ///< relative; empty: not checked
  double busy_elsewhere = 0;    ///< share of the machine that others used meanwhile
  std::vector<std::string> notes;

  /// The peer or bound with the best value; nullptr when there is none.
  const Score* best_peer() const;
  const Score* best_bound() const;
  /// Above 1: ours is better. 0: nothing to compare with.
  double ratio_to(const Score* other) const;
  /// Whether every part of the goal that could be measured is met; empty: none could.
  std::optional<bool> is_met() const;
};

struct Pace {
  double seconds = 1;  ///< measured time of one contest, settling included
  int min_repeats = 5;
  int max_repeats = 200;
  double sample_ms = 2;  ///< short work is repeated within a sample until it takes this long
  double settle_ms = 0;  ///< before each sample: threads of the one before stop spinning
};

/// Lets `add` add peers of the library `who`. When it fails, those it has not added are missing and
/// a note says why: a peer's failure is no reason to lose our own measurement.
void invite(Contest& contest, std::string_view who, const std::function<Status(Contest&)>& add);

/// Checks, warms up, measures in turn. A peer or bound that fails drops out, and a note says why.
/// Errors: kInternal when our result is wrong, what `check` and our own work say. Ends early once
/// `stop` is set.
Result<Outcome> hold(const Contest& contest, std::string name, uint32_t threads, Pace pace,
                     const std::atomic<bool>& stop);

}  // namespace bm::cli
