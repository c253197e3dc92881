#include "tools/bellmetal/cpu_bench/stats.h"

#include <algorithm>
#include <cmath>

namespace bm::cli {
namespace {

double quantile(const std::vector<double>& sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(place));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - std::floor(place)) * (sorted[above] - sorted[below]);
}

}  // namespace

Summary summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {.count = samples.size(),
          .median = quantile(samples, 0.5),
          .low = quantile(samples, 0.25),
          .high = quantile(samples, 0.75),
          .least = samples.front()};
}

}  // namespace bm::cli
