#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/explain.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

void add_explain(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      "explain", "Show kernels stage by stage, beside the limits of the machine");
  auto options = std::make_shared<ExplainOptions>();
  command
      ->add_option("SUBJECT", options->subject,
                   "An expression, \"softmax(f32[128, 1024])\", or a GGUF file: the kernels of its "
                   "prompt and decode steps")
      ->required();
  command->add_option("--kernel", options->kernel, "Only kernels whose name holds this");
  command->add_option("--stage", options->stages, "What to show of each; several with commas")
      ->delimiter(',')
      ->check(CLI::IsMember(explain_stages()));
  command->add_option("--device", options->device, "Device as in DEV, for example CPU:CLANG");
  command->add_flag("!--no-measure", options->is_measured, "Do not run anything");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      examples("bellmetal explain 'f32[512, 512] @ f32[512, 512]'\n"
               "bellmetal explain 'softmax(f32[128, 1024])' --stage schedule,assembly\n"
               "bellmetal explain model.gguf --kernel r_ --json"));
  command->callback([&run, options] { run = [options] { return run_explain(*options); }; });
}

}  // namespace bm::cli
