#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

void add_tokenize(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("tokenize", "Show the tokens of a text, or the text of tokens");
  auto options = std::make_shared<TokenizeOptions>();
  TokenizeOptions& o = *options;
  command->add_option("MODEL", o.model, "A GGUF file; its weights are not read")->required();
  CLI::Option* text = command->add_option("TEXT", o.text, "The text");
  CLI::Option* file = command->add_option("--file,-f", o.file, "Take the text from FILE; -: stdin");
  CLI::Option* decode =
      command->add_option("--decode", o.decode, "Token ids, with commas: print their text");
  text->excludes(file)->excludes(decode);
  file->excludes(decode);
  CLI::Option* ids = command->add_flag("--ids", o.is_ids_only, "Print the ids alone, in one line");
  command->add_flag("!--no-bos", o.has_ends, "Without the tokens that begin and end every text");
  command->add_flag("--parse-special", o.parse_special,
                    "Text of control tokens, such as <|im_end|>, becomes these tokens");
  ids->excludes(decode);
  command->add_flag("--json", o.json, "Print one JSON object");
  command->footer(
      examples("bellmetal tokenize models/bundled/licence.gguf \"Permission is hereby granted\"\n"
               "bellmetal tokenize model.gguf -f prompt.txt --ids\n"
               "bellmetal tokenize model.gguf --decode 9906,1917"));
  command->callback([&run, options] { run = [options] { return run_tokenize(*options); }; });
}

}  // namespace bm::cli
