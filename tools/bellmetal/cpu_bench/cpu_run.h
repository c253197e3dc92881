#pragma once
// Runs the chosen cases in this process, one after the other.

#include <functional>
#include <string>
#include <vector>

#include "tools/bellmetal/cpu_bench/cpu_report.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

/// Errors: kInvalidArgument for an --only that no case matches and a --peer that is none.
Status check_cpu_options(const CpuBenchOptions& options);

/// Whether `name` is asked for: every case, or one that holds one of the given texts.
bool is_chosen(const CpuBenchOptions& options, const std::string& name);

/// `threads` must be what BM_THREADS says. Missing peers are named in `notes`.
void run_cpu_cases(const CpuBenchOptions& options, uint32_t threads,
                   const std::function<void(const CpuRow&)>& row, std::vector<std::string>& notes);

}  // namespace bm::cli
