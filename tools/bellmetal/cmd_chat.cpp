#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/sampling_flags.h"

namespace bm::cli {

void add_chat(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("chat", "Talk to a language model");
  auto options = std::make_shared<ChatOptions>();
  ChatOptions& o = *options;
  // A conversation wants some variety; these are what llama.cpp starts with.
  o.sampling.temperature = 0.8f;
  o.sampling.top_k = 40;
  o.sampling.top_p = 0.95f;
  o.sampling.min_p = 0.05f;
  o.sampling.max_tokens = -1;
  command->add_option("MODEL,-m,--model", o.model.path, "A GGUF file")->required();
  command->add_option("--system,--system-prompt", o.system, "What the model is told first");
  command->add_option("--chat-template,--chat-template-file", o.template_file,
                      "A file with the chat template (Jinja), in place of the model's");
  command->add_option("--chat-template-kwargs", o.variables,
                      "Variables of the template, a JSON object: '{\"enable_thinking\": false}'");
  command->add_flag("--whole-input", o.is_whole_input,
                    "All of stdin is one message; without, every line is one");
  add_sampling_flags(*command, o.sampling);
  add_model_flags(*command, o.model);
  command->add_flag("--json", o.model.json, "Print one JSON object per answer, each on a line");
  command->footer(
      examples("bellmetal chat model.gguf\n"
               "bellmetal chat model.gguf --system \"You are brief.\" --temp 0.5\n"
               "bellmetal chat model.gguf --whole-input < letter.txt > answer.txt\n"
               "bellmetal chat model.gguf --json-schema '{\"type\": \"object\"}' < questions.txt"));
  command->callback([&run, options] { run = [options] { return run_chat(*options); }; });
}

}  // namespace bm::cli
