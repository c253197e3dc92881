#include "tools/bellmetal/cpu_bench/cpu_run.h"

#include <algorithm>
#include <array>

#include "tensor/exception.h"
#include "tools/bellmetal/cpu_bench/cases.h"
#include "tools/bellmetal/interrupt.h"

namespace bm::cli {
namespace {

constexpr std::array kPeers = {"openblas", "onednn",      "python",        "onnxruntime",
                               "ggml",     "llama-bench", "ik-llama-bench"};

/// OpenMP's idle threads spin for up to about 18 ms (libgomp, GOMP_SPINCOUNT of 300,000 pauses).
constexpr double kSettleMs = 20;

CpuRow run_case(const Case& c, World& world, const Pace& pace) {
  CpuRow row;
  row.outcome.name = c.name;
  row.outcome.threads = world.threads();
  try {
    auto contest = c.make(world);
    auto outcome = contest ? hold(*contest, c.name, world.threads(), pace, interrupt_flag())
                           : tl::unexpected(contest.error());
    if (outcome)
      row.outcome = std::move(*outcome);
    else
      row.problem = outcome.error().message;
  } catch (const std::exception& e) {
    row.problem = e.what();
  }
  return row;
}

}  // namespace

bool is_chosen(const CpuBenchOptions& options, const std::string& name) {
  return options.only.empty() ||
         std::any_of(options.only.begin(), options.only.end(),
                     [&](const std::string& part) { return name.find(part) != std::string::npos; });
}

Status check_cpu_options(const CpuBenchOptions& options) {
  const std::vector<Case> cases = all_cases();
  for (const std::string& only : options.only) {
    const auto matches = [&](const Case& c) { return c.name.find(only) != std::string::npos; };
    if (std::none_of(cases.begin(), cases.end(), matches))
      return fail(Code::kInvalidArgument,
                  "no case holds \"{}\"; `bellmetal bench cpu --list` names them", only);
  }
  for (const std::string& given : options.peers) {
    const auto names = [&](const char* peer) { return given.starts_with(std::string(peer) + "="); };
    if (std::none_of(kPeers.begin(), kPeers.end(), names))
      return fail(Code::kInvalidArgument, "--peer {}: not NAME=PATH with one of {}", given,
                  fmt::join(kPeers, ", "));
  }
  return {};
}

void run_cpu_cases(const CpuBenchOptions& options, uint32_t threads,
                   const std::function<void(const CpuRow&)>& row, std::vector<std::string>& notes) {
  World world(options, threads);
  Pace pace{.seconds = options.seconds};
  if (threads > 1 && options.has_peers) pace.settle_ms = kSettleMs;
  if (options.is_tiny) pace = {.seconds = 0, .min_repeats = 2, .sample_ms = 0};
  for (const Case& c : all_cases()) {
    if (is_interrupted()) break;
    if (is_chosen(options, c.name)) row(run_case(c, world, pace));
  }
  notes = world.notes();
}

}  // namespace bm::cli
