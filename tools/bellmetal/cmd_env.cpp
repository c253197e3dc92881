#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "runtime/base/env.h"
#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

int print_env_json(const std::vector<EnvValue>& all) {
  nlohmann::ordered_json variables = nlohmann::ordered_json::array();
  for (const EnvValue& v : all) {
    nlohmann::ordered_json row = {{"name", v.name},
                                  {"value", v.value},
                                  {"default", v.fallback},
                                  {"source", v.source},
                                  {"help", v.help}};
    if (!v.problem.empty()) row["problem"] = v.problem;
    variables.push_back(std::move(row));
  }
  print_json({{"variables", std::move(variables)}});
  return kOk;
}

int run_env(bool as_json) {
  const std::vector<EnvValue> all = all_env();
  if (as_json) return print_env_json(all);
  Table table({{"NAME"}, {"VALUE"}, {"FROM"}, {"MEANING"}});
  for (const EnvValue& v : all) {
    const std::string& value = v.source == "default" ? v.fallback : v.value;
    table.add({v.name, value.empty() ? "(empty)" : value, v.source, v.help});
  }
  fmt::print("{}", table.text());
  for (const EnvValue& v : all) {
    if (!v.problem.empty()) print_error(fmt::format("bellmetal: {}: {}\n", v.name, v.problem));
  }
  return kOk;
}

}  // namespace

void add_env(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      "env", "List environment variables, their values and where they come from");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  command->footer(examples("bellmetal env\nDEBUG=2 bellmetal env --json"));
  command->callback([&run, json] { run = [json] { return run_env(*json); }; });
}

}  // namespace bm::cli
