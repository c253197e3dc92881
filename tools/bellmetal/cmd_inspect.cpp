#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

void add_inspect(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("inspect", "Show what is in a model file, and the memory it needs");
  auto options = std::make_shared<InspectOptions>();
  command
      ->add_option("FILE", options->file,
                   "A GGUF or safetensors file, or the index of several safetensors files")
      ->required();
  command->add_flag("!--no-tensors", options->has_tensors, "Without the list of tensors");
  command
      ->add_option("--device", options->device,
                   "Whose memory to count, as in DEV; several divide the model. NULL:PTX::sm_90: a "
                   "card that is not here")
      ->capture_default_str();
  command
      ->add_option("-c,--ctx-size", options->context,
                   "Tokens that keys and values are counted for; 0: the model's, at most 4096")
      ->check(CLI::Range(0U, 1U << 24))
      ->capture_default_str();
  command->add_option("--cache-type", options->cache_type, "Numbers of keys and values")
      ->check(CLI::IsMember({"f16", "int8", "q8_0", "f32"}))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      examples("bellmetal inspect models/bundled/licence.gguf\n"
               "bellmetal inspect model.gguf --no-tensors\n"
               "bellmetal inspect model.gguf --device AMD:0,AMD:1 --ctx-size 32768\n"
               "bellmetal inspect model.safetensors.index.json --json"));
  command->callback([&run, options] { run = [options] { return run_inspect(*options); }; });
}

}  // namespace bm::cli
