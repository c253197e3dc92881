#include "compiler/tune/tuner.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "compiler/compile.h"
#include "compiler/schedules/schedule.h"
#include "runtime/base/log.h"

namespace bm::compiler {
namespace {

using Clock = std::chrono::steady_clock;

/// A step must gain this much to be followed by another, and a winner over the untuned kernel.
constexpr double kLeastGain = 0.99;
/// Candidates that the cost model finds so much more expensive than the best known are not tried.
constexpr double kHopeless = 8;

struct Candidate {
  Knobs knobs;
  double seconds = 0;
};

class Search {
 public:
  Search(const ir::KernelIr& kernel, const hal::Arch& arch, std::string_view renderer,
         const TuneOptions& options, const Judge& judge)
      : kernel_(kernel),
        arch_(arch),
        target_(target_info(arch)),
        renderer_(renderer),
        options_(options),
        judge_(judge),
        deadline_(Clock::now() + options.limit) {}

  Result<TuneResult> run() {
    const hal::CodeObject untuned = BM_TRY(build({}));
    seen_.insert(untuned.image);
    result_.before = BM_TRY(judge_(untuned, INFINITY));
    std::vector<Candidate> beam{{{}, result_.before}};
    for (double last = INFINITY; beam[0].seconds < last * kLeastGain && !is_late();) {
      last = beam[0].seconds;
      step(&beam);
    }
    confirm(beam, untuned);
    return result_;
  }

 private:
  bool is_late() const { return Clock::now() >= deadline_; }

  Result<hal::CodeObject> build(const Knobs& knobs) {
    return compile(kernel_, arch_, renderer_, {.use_cache = false, .knobs = &knobs});
  }

  /// Adjacent points of the beam (local search), most promising first.
  std::vector<Knobs> candidates(const std::vector<Candidate>& beam) {
    std::vector<std::pair<double, Knobs>> ranked;
    for (const Candidate& from : beam)
      for (Knobs& k : tuning_candidates(kernel_, target_, from.knobs, arch_.units)) {
        if (!known_.insert(k.text()).second) continue;
        const double cost = predict(k);
        ranked.emplace_back(cost, std::move(k));
      }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    // Tiles have no cost here: they come first, and say nothing of the others.
    double least = 0;
    std::vector<Knobs> out;
    for (auto& [cost, knobs] : ranked) {
      if (least == 0) least = cost;
      if (cost <= least * kHopeless) out.push_back(std::move(knobs));
    }
    return out;
  }

  double predict(const Knobs& knobs) const {
    return make_schedule(kernel_, target_, arch_.units, {.knobs = &knobs}).predicted_cost;
  }

  void step(std::vector<Candidate>* beam) {
    const std::vector<Knobs> next = candidates(*beam);
    for (const Knobs& knobs : next) {
      if (is_late()) break;
      const auto code = build(knobs);
      // The same code again says nothing new.
      if (!code || !seen_.insert(code->image).second) continue;
      const auto seconds = judge_(*code, 2 * (*beam)[0].seconds);
      ++result_.tried;
      if (!seconds) {
        refuse(knobs, seconds.error());
        continue;
      }
      beam->push_back({knobs, *seconds});
      std::stable_sort(beam->begin(), beam->end(), [](const Candidate& a, const Candidate& b) {
        return a.seconds < b.seconds;
      });
      if (beam->size() > options_.beam) beam->resize(options_.beam);
    }
  }

  void refuse(const Knobs& knobs, const Error& error) {
    if (error.code != Code::kInternal) return;
    ++result_.refused;
    log("compiler", LogLevel::kWarning, "kernel {}: schedule '{}' refused: {}", kernel_.name,
        knobs.text(), error.message);
  }

  /// Noise favours the one that was lucky once: the best are measured again, in turn with the
  /// untuned kernel.
  void confirm(const std::vector<Candidate>& beam, const hal::CodeObject& untuned) {
    result_.after = result_.before;
    if (const auto again = judge_(untuned, INFINITY))
      result_.after = result_.before = std::min(result_.before, *again);
    for (const Candidate& c : beam) {
      if (c.knobs.empty()) continue;
      const auto code = build(c.knobs);
      if (!code) continue;
      const auto seconds = judge_(*code, INFINITY);
      if (!seconds || std::max(*seconds, c.seconds) >= result_.after * kLeastGain) continue;
      result_.after = *seconds;
      result_.knobs = c.knobs;
    }
  }

  const ir::KernelIr& kernel_;
  const hal::Arch& arch_;
  TargetInfo target_;
  std::string_view renderer_;
  const TuneOptions& options_;
  const Judge& judge_;
  Clock::time_point deadline_;
  std::set<std::vector<std::byte>> seen_;
  std::set<std::string> known_{""};
  TuneResult result_;
};

}  // namespace

Result<TuneResult> tune(const ir::KernelIr& kernel, const hal::Arch& arch,
                        std::string_view renderer, const TuneOptions& options, const Judge& judge) {
  return Search(kernel, arch, renderer, options, judge).run();
}

}  // namespace bm::compiler
