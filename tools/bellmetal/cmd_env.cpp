#include <unistd.h>

#include <algorithm>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "runtime/base/env.h"
#include "runtime/target.h"
#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

/// Names of the environment that look like ours and are not: most likely typing mistakes.
std::vector<std::string> unknown_names(const std::vector<EnvValue>& all) {
  std::vector<std::string> unknown;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    // Those of `serve` are its options'.
    if (name.starts_with("BM_") && !name.starts_with("BM_SERVE_") &&
        std::ranges::find(all, name, &EnvValue::name) == all.end())
      unknown.push_back(name);
  }
  std::ranges::sort(unknown);
  return unknown;
}

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
  print_json({{"variables", std::move(variables)}, {"unknown", unknown_names(all)}});
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
  std::vector<std::string_view> known;
  for (const EnvValue& v : all) known.emplace_back(v.name);
  for (const std::string& name : unknown_names(all))
    print_error(fmt::format("bellmetal: {} is none of these{}\n", name,
                            runtime::did_you_mean(name, known)));
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
