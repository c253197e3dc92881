#pragma once
// Outcomes of contests as JSON and as a table.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/bellmetal/cpu_bench/contest.h"

namespace bm::cli {

/// One line of a run: an outcome, or why there is none.
struct CpuRow {
  Outcome outcome;      ///< name and threads are always set; threads 0: of no account
  std::string problem;  ///< empty: the outcome counts
};

nlohmann::ordered_json to_json(const CpuRow& row);
/// Errors: kCorrupt naming the missing key.
Result<CpuRow> cpu_row_from_json(const nlohmann::ordered_json& json);

/// Best value first come peers, then what the machine could do; the ratio is last.
std::string cpu_table(const std::vector<CpuRow>& rows);

}  // namespace bm::cli
