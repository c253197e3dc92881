#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "runtime/device.h"
#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using runtime::DeviceListing;

int print_devices_json(const std::vector<DeviceListing>& devices) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const DeviceListing& d : devices) {
    nlohmann::ordered_json row = {{"name", d.name},
                                  {"driver", d.driver},
                                  {"description", d.description},
                                  {"usable", d.is_usable},
                                  {"renderer", d.renderer},
                                  {"arch", d.arch},
                                  {"memory_bytes", d.memory_total}};
    if (!d.problem.empty()) row["problem"] = d.problem;
    rows.push_back(std::move(row));
  }
  print_json({{"devices", std::move(rows)}});
  return kOk;
}

int run_devices(bool as_json) {
  const std::vector<DeviceListing> devices = runtime::list_devices();
  if (as_json) return print_devices_json(devices);
  const bool color = has_color(stdout);
  Table table({{"NAME"}, {"RENDERER"}, {"ARCH"}, {"MEMORY", Table::Align::kRight}, {"WHAT"}});
  for (const DeviceListing& d : devices) {
    const std::string memory = d.memory_total > 0 ? human_bytes(d.memory_total) : "-";
    // Styled last cells do not disturb the columns: nothing is aligned after them.
    const std::string what =
        d.is_usable ? d.description
                    : styled(fmt::format("not usable: {}", d.problem), Style::kYellow, color);
    table.add({d.name, d.renderer.empty() ? "-" : d.renderer, d.arch.empty() ? "-" : d.arch, memory,
               what});
  }
  fmt::print("{}", table.text());
  return kOk;
}

}  // namespace

void add_devices(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      "devices", "List the devices this build knows: usable, or what is missing");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  command->footer(examples("bellmetal devices\nbellmetal devices --json"));
  command->callback([&run, json] { run = [json] { return run_devices(*json); }; });
}

}  // namespace bm::cli
