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
std::vector<Case> net_cases();
std::vector<Case> attention_cases();
std::vector<Case> quant_cases();
std::vector<Case> llama_cases();
std::vector<Case> runtime_cases();

struct AttentionShape {
  int64_t heads = 1, length = 1, queries = 1, positions = 1;
};
/// Relative error of the last query of every head, in float64. Causal or not, it sees every
/// position.
double last_query_error(const AttentionShape& s, const std::vector<float>& got,
                        const std::vector<float>& q, const std::vector<float>& k,
                        const std::vector<float>& v);
/// The same in Python, over q, k and v.
std::string torch_attention(bool is_causal);

/// Time of the first prompt and the first steps of a model minus that of later ones. Meant for a
/// process of its own without a cache of kernels.
Result<double> compile_seconds(const std::string& model, const std::string& device);

/// Every row, in the order of the table.
std::vector<Case> all_cases();

}  // namespace bm::cli
