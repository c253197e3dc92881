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
    one->callback([&run, options, suite] {
      options->suite = suite;
      run = [options] { return run_bench(*options); };
    });
  };
  add_suite("replay", "Time of replaying a captured graph", BenchSuite::kReplay);
  add_suite("overhead", "Time the runtime adds to each step of a computation",
            BenchSuite::kOverhead);
  command->footer(examples("bellmetal bench replay\nbellmetal bench overhead --json --device CPU"));
}

}  // namespace bm::cli
