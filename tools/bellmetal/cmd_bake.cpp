#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

void add_bake(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("bake", "Compile all kernels of a model ahead of time, into a file");
  auto options = std::make_shared<BakeOptions>();
  BakeOptions& o = *options;
  command->add_option("MODEL", o.model, "A GGUF file")->required();
  command
      ->add_option(
          "--arch", o.arch,
          "What to compile for: native, a processor such as znver4 or "
          "sapphirerapids,avx512bf16, or a GPU such as sm_90 (PTX:sm_90: by that renderer; "
          "gfx1100,84: one of 84 compute units)")
      ->capture_default_str();
  command->add_option("--output,-o", o.output, "The file; default: MODEL.bundle");
  command->add_option("--threads", o.threads, "Threads of the compiler; 0: all cores")
      ->check(CLI::Range(0U, 4096U))
      ->capture_default_str();
  command->add_flag("--json", o.json, "Print one JSON object");
  command->footer(
      examples("bellmetal bake models/bundled/licence.gguf\n"
               "bellmetal bake model.gguf --arch x86-64-v3 -o model-v3.bundle\n"
               "bellmetal generate model.gguf \"Once\" --bundle model-v3.bundle"));
  command->callback([&run, options] { run = [options] { return run_bake(*options); }; });
}

}  // namespace bm::cli
