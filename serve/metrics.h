#pragma once
// Counters and histograms of one model, in Prometheus's text format.

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bm::serve {

/// Thread: any.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds);
  void observe(double value);
  /// Lines of `name` with `labels` ("a=\"b\"").
  void print(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::span<const double> bounds_;
  mutable std::mutex mutex_;
  std::vector<uint64_t> counts_;  ///< one more than bounds
  double sum_ = 0;
};

/// Why a request ended.
enum class Finish : uint8_t { kStop, kLength, kCancelled, kTimeout, kError };
inline constexpr std::array<std::string_view, 5> kFinishNames{"stop", "length", "abort", "timeout",
                                                              "error"};

/// Names and bounds of the histograms are vLLM's, so that its dashboards fit after a change of
/// prefix. Source: vLLM, docs/design/metrics.md. Times in seconds.
struct Metrics {
  Metrics();
  Histogram time_to_first_token, inter_token_latency, end_to_end, queue_time;
  std::atomic<uint64_t> prompt_tokens{0}, generation_tokens{0}, prefix_queries{0}, prefix_hits{0},
      refused{0}, steps{0}, device_faults{0}, draft_tokens{0}, accepted_tokens{0};
  std::array<std::atomic<uint64_t>, kFinishNames.size()> finished{};
  std::atomic<uint64_t> running{0}, waiting{0}, pages_used{0}, pages_cached{0}, pages{0},
      unloaded{0};

  std::string print(std::string_view model) const;
};

/// `text` as the value of a label.
std::string escape_label(std::string_view text);

}  // namespace bm::serve
