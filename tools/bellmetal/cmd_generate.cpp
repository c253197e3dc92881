#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/sampling_flags.h"

namespace bm::cli {
namespace {

/// What stands on the command line: model and prompt have places and options.
struct Given {
  GenerateOptions options;
  std::string model, prompt;        // -m, -p
  std::vector<std::string> places;  // MODEL PROMPT, less what has an option
  CLI::Option *model_option = nullptr, *prompt_option = nullptr, *file_option = nullptr;
};

GenerateOptions resolve(const Given& given) {
  GenerateOptions o = given.options;
  std::vector<std::string> places = given.places;
  const auto take = [&](const char* name) {
    if (places.empty()) throw CLI::RequiredError(name);
    std::string value = places.front();
    places.erase(places.begin());
    return value;
  };
  o.model.path = given.model_option->count() > 0 ? given.model : take("MODEL");
  if (given.prompt_option->count() > 0) {
    o.prompt = given.prompt;
  } else if (given.file_option->count() == 0) {
    o.prompt = take("PROMPT");
  }
  if (!places.empty())
    throw CLI::ValidationError("PROMPT", "\"" + places.front() + "\" is one prompt too many");
  return o;
}

}  // namespace

void add_generate(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a language model");
  auto given = std::make_shared<Given>();
  command
      ->add_option("MODEL PROMPT", given->places,
                   "A GGUF file, and the text to continue (-: stdin)")
      ->expected(0, 2)
      ->type_name("");
  given->model_option = command->add_option("-m,--model", given->model, "The GGUF file");
  given->prompt_option = command->add_option("-p,--prompt", given->prompt, "The text to continue");
  given->file_option = command
                           ->add_option("-f,--file", given->options.prompt_file,
                                        "The text to continue lies in this file (-: stdin)")
                           ->excludes(given->prompt_option);
  add_sampling_flags(*command, given->options.sampling);
  add_model_flags(*command, given->options.model);
  command
      ->add_option_function<std::string>(
          "--split", [given](const std::string&) { given->options.is_split = true; },
          "layers: divide the model over the processes that mpirun (Open MPI) started")
      ->check(CLI::IsMember({"layers"}))
      ->type_name("MODE");
  command->add_flag("--json", given->options.model.json,
                    "Print one JSON object with text and speed at the end");
  command->footer(
      examples("bellmetal generate models/bundled/licence.gguf \"Permission is hereby granted\"\n"
               "bellmetal generate model.gguf \"Once upon a time\" --temperature 0.8 --seed 7\n"
               "bellmetal generate -m model.gguf -f prompt.txt -n 200 --temp 0.7 --top-k 40\n"
               "bellmetal generate model.gguf - --stop '###' < prompt.txt\n"
               "bellmetal generate model.gguf \"1, 2, 3,\" --max-tokens 20 --json\n"
               "bellmetal generate model.gguf \"1, 2, 3,\" --device AMD:0,AMD:1\n"
               "mpirun -n 2 bellmetal generate model.gguf \"1, 2, 3,\" --split layers"));
  command->callback([&run, given] { run = [o = resolve(*given)] { return run_generate(o); }; });
}

}  // namespace bm::cli
