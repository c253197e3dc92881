#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

void add_selftest(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("selftest", "Run small known computations and compare their results");
  auto options = std::make_shared<SelftestOptions>();
  command->add_option("--device", options->devices,
                      "Device as in DEV; may be repeated; without it, the default one");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      examples("bellmetal selftest\nbellmetal selftest --device CPU --json\n"
               "bellmetal selftest --device NV --device NV:1"));
  command->callback([&run, options] { run = [options] { return run_selftest(*options); }; });
}

}  // namespace bm::cli
