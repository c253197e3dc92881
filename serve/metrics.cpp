#include "serve/metrics.h"

#include <algorithm>

#include <fmt/format.h>

namespace bm::serve {
namespace {

// Source: vLLM, vllm/v1/metrics/loggers.py.
constexpr double kFirstToken[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                  0.25,  0.5,   0.75, 1.0,  2.5,  5.0,  7.5,  10.0,
                                  20.0,  40.0,  80.0, 160., 640., 2560.};
constexpr double kBetweenTokens[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                     0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
constexpr double kRequest[] = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,   2.5,
                               5.0,  10.0,  15.0,  20.0,  30.0,  40.0,  50.0,
                               60.0, 120.0, 240.0, 480.0, 960.0, 1920., 7680.};

void head(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds), counts_(bounds.size() + 1) {}

void Histogram::observe(double value) {
  const auto at = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  const std::lock_guard lock(mutex_);
  ++counts_[static_cast<size_t>(at)];
  sum_ += value;
}

void Histogram::print(std::string& out, std::string_view name, std::string_view labels) const {
  const std::lock_guard lock(mutex_);
  uint64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, total);
  }
  out += fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, total);
}

Metrics::Metrics()
    : time_to_first_token(kFirstToken),
      inter_token_latency(kBetweenTokens),
      end_to_end(kRequest),
      queue_time(kRequest) {}

std::string escape_label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

std::string Metrics::print(std::string_view model) const {
  const std::string labels = fmt::format("model_name=\"{}\"", escape_label(model));
  std::string out;
  const auto histogram = [&](const Histogram& h, std::string_view what, std::string_view help) {
    const std::string name = fmt::format("bellmetal:{}", what);
    head(out, name, "histogram", help);
    h.print(out, name, labels);
  };
  histogram(time_to_first_token, "time_to_first_token_seconds", "From arrival to the first token.");
  histogram(inter_token_latency, "inter_token_latency_seconds", "Between two tokens of a request.");
  histogram(end_to_end, "e2e_request_latency_seconds", "From arrival to the end of a request.");
  histogram(queue_time, "request_queue_time_seconds", "From arrival to the start of the prompt.");
  const auto value = [&](const auto& number, std::string_view what, std::string_view type,
                         std::string_view help) {
    const std::string name = fmt::format("bellmetal:{}", what);
    head(out, name, type, help);
    out += fmt::format("{}{{{}}} {}\n", name, labels, number.load());
  };
  value(prompt_tokens, "prompt_tokens_total", "counter", "Tokens of prompts, cached ones too.");
  value(generation_tokens, "generation_tokens_total", "counter", "Tokens generated.");
  value(prefix_queries, "prefix_cache_queries_total", "counter", "Prompt tokens looked up.");
  value(prefix_hits, "prefix_cache_hits_total", "counter", "Prompt tokens found in the cache.");
  value(refused, "requests_refused_total", "counter", "Requests that found the queue full.");
  value(steps, "engine_steps_total", "counter", "Steps of the network.");
  value(draft_tokens, "spec_decode_num_draft_tokens_total", "counter", "Tokens guessed.");
  value(accepted_tokens, "spec_decode_num_accepted_tokens_total", "counter",
        "Guesses that were right.");
  value(device_faults, "device_faults_total", "counter", "Steps that failed with the device.");
  head(out, "bellmetal:request_success_total", "counter", "Requests that ended, by reason.");
  for (size_t i = 0; i < finished.size(); ++i)
    out += fmt::format("bellmetal:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels,
                       kFinishNames[i], finished[i].load());
  value(running, "num_requests_running", "gauge", "Requests being computed.");
  value(waiting, "num_requests_waiting", "gauge", "Requests that wait for a place.");
  value(pages, "kv_cache_pages", "gauge", "Pages of the KV cache.");
  value(pages_used, "kv_cache_pages_used", "gauge", "Pages that running requests have.");
  value(pages_cached, "kv_cache_pages_cached", "gauge", "Pages of the prefix cache nobody uses.");
  value(unloaded, "model_unloaded", "gauge", "1 while the model is unloaded for want of requests.");
  return out;
}

}  // namespace bm::serve
