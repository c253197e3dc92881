#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

int run_version(bool as_json) {
  if (as_json) {
    print_json({{"version", BM_VERSION}, {"compiler", __VERSION__}});
  } else {
    fmt::print("bellmetal {}\n", BM_VERSION);
  }
  return kOk;
}

}  // namespace

void add_version(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("version", "Print the version");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  command->footer(examples("bellmetal version\nbellmetal version --json"));
  command->callback([&run, json] { run = [json] { return run_version(*json); }; });
}

}  // namespace bm::cli
