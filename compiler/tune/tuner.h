#pragma once
// Search for a faster schedule of one kernel. Runs nothing itself: a judge does.

#include <chrono>
#include <functional>
#include <string_view>

#include "compiler/tune/knobs.h"
#include "runtime/hal/arch.h"
#include "runtime/hal/program.h"

namespace bm::compiler {

/// Runs a candidate, compares its results with those of the untuned kernel and returns its time in
/// seconds. It may stop early, with the time so far, once a candidate is slower than `enough`.
/// Errors: kInternal for other results than the untuned kernel's; anything else: it cannot run.
using Judge = std::function<Result<double>(const hal::CodeObject& candidate, double enough)>;

struct TuneOptions {
  uint32_t beam = 4;  ///< candidates kept at every step
  std::chrono::milliseconds limit{2000};
};

struct TuneResult {
  Knobs knobs;                   ///< empty: nothing was faster
  double before = 0, after = 0;  ///< seconds
  uint32_t tried = 0;            ///< candidates that ran
  uint32_t refused = 0;          ///< among them, those with other results
};

/// Starts from the scheduler's choice and changes one thing at a time, most promising candidates by
/// the cost model first, until a step gains less than one percent or time is up. A candidate wins
/// only if the judge has accepted it, and measured it twice.
/// Errors: of compiling and judging the untuned kernel.
Result<TuneResult> tune(const ir::KernelIr& kernel, const hal::Arch& arch,
                        std::string_view renderer, const TuneOptions& options, const Judge& judge);

}  // namespace bm::compiler
