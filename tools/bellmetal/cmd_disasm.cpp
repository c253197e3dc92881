#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

void add_disasm(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("disasm", "Print the machine code of a kernel");
  auto options = std::make_shared<DisasmOptions>();
  command->add_option("KERNEL", options->kernel,
                      "Name of a kernel or a part of it; without it, the names there are");
  command->add_option("--device", options->device, "Device as in DEV, for example CPU");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(examples("bellmetal disasm\nbellmetal disasm matmul --device CPU"));
  command->callback([&run, options] { run = [options] { return run_disasm(*options); }; });
}

}  // namespace bm::cli
