#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

void add_bench(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("bench", "Measure this build against a peer in the same run");
  command->require_subcommand(1);
  auto options = std::make_shared<BenchOptions>();
  const auto add_suite = [&](const char* name, const char* what, BenchSuite suite) {
    CLI::App* one = command->add_subcommand(name, what);
    one->add_option("--device", options->device, "Device as in DEV, for example CPU");
    one->add_flag("--json", options->json,
                  "Print one JSON object; rows: name, ours, peer, peer_name, ratio, goal");
    one->footer(examples("bellmetal bench replay\nbellmetal bench overhead --json --device CPU"));
    if (suite == BenchSuite::kBandwidth)
      one->add_option("--mib", options->mib, "MiB of the large copies")->check(CLI::Range(1, 4096));
    if (suite == BenchSuite::kMatmul)
      one->add_option("--size", options->size, "Rows and columns")->check(CLI::Range(16, 32768));
    one->callback([&run, options, suite] {
      options->suite = suite;
      run = [options] { return run_bench(*options); };
    });
  };
  add_suite("replay", "Time of replaying a captured graph", BenchSuite::kReplay);
  add_suite("overhead", "Time the runtime adds to each step of a computation",
            BenchSuite::kOverhead);
  add_suite("latency", "Submission to completion of a small kernel, beside CUDA's stream and graph",
            BenchSuite::kLatency);
  add_suite("bandwidth", "Copies between host and device, beside CUDA's", BenchSuite::kBandwidth);
  add_suite("matmul", "A bfloat16 matmul, beside cuBLAS", BenchSuite::kMatmul);
  command->footer(examples("bellmetal bench replay\nbellmetal bench overhead --json --device CPU"));
}

}  // namespace bm::cli
