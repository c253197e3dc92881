#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

void add_inspect(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("inspect", "Show what is in a model file: metadata, tensors, sizes");
  auto options = std::make_shared<InspectOptions>();
  command
      ->add_option("FILE", options->file,
                   "A GGUF or safetensors file, or the index of several safetensors files")
      ->required();
  command->add_flag("!--no-tensors", options->has_tensors, "Without the list of tensors");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      examples("bellmetal inspect models/bundled/licence.gguf\n"
               "bellmetal inspect model.gguf --no-tensors\n"
               "bellmetal inspect model.safetensors.index.json --json"));
  command->callback([&run, options] { run = [options] { return run_inspect(*options); }; });
}

}  // namespace bm::cli
