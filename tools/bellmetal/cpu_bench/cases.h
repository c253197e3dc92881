#pragma once
// The rows of `bellmetal bench cpu`.

#include <functional>
#include <string>
#include <vector>

#include "tools/bellmetal/cpu_bench/contest.h"
#include "tools/bellmetal/cpu_bench/world.h"

namespace bm::cli {

struct Case {
  std::string name;  ///< "sgemm 512"
  std::function<Result<Contest>(World&)> make;
};

std::vector<Case> limit_cases();
std::vector<Case> gemm_cases();
std::vector<Case> gemv_cases();
std::vector<Case> row_cases();

/// Every row, in the order of the table.
std::vector<Case> all_cases();

}  // namespace bm::cli
