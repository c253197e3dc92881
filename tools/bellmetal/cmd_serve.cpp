#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {
namespace {

/// BM_SERVE_API_KEY_FILE for --api-key-file.
std::string variable_of(std::string option) {
  option.erase(0, option.find_first_not_of('-'));
  for (char& c : option) c = c == '-' ? '_' : static_cast<char>(c - 'a' + 'A');
  return "BM_SERVE_" + option;
}

}  // namespace

void add_serve(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("serve", "Answer HTTP requests in OpenAI's form");
  auto options = std::make_shared<ServeOptions>();
  ServeOptions& o = *options;
  const auto option = [&](const char* name, auto& into, const char* text) {
    return command->add_option(name, into, text)->envname(variable_of(name))->capture_default_str();
  };
  const auto flag = [&](const char* name, bool& into, const char* text) {
    return command->add_flag(name, into, text)->envname(variable_of(name));
  };
  command->add_option("MODEL", o.models, "GGUF files, or NAME=FILE")
      ->envname("BM_SERVE_MODEL")
      ->required();
  option("--listen", o.listen, "ADDRESS:PORT; port 0 takes any that is free");
  option("--api-key-file", o.api_key_file, "A file whose first line clients must send");
  flag("--allow-anyone", o.allows_anyone, "Listen beyond this machine without an API key");
  option("--cors-origin", o.cors_origins,
         "Web pages of this origin (https://chat.example.org; *: any) may ask; repeatable")
      ->delimiter(',')
      ->allow_extra_args(false);
  option("--sequences", o.sequences, "Requests computed together")->check(CLI::Range(1U, 64U));
  option("--ctx", o.context, "Positions of a request; 0: the model's, at most 4096")
      ->check(CLI::Range(0U, 1U << 24));
  option("--cache-memory", o.cache_mib, "MiB for keys and values; 0: --ctx for all --sequences")
      ->check(CLI::Range(0U, 1U << 30));
  option("--cache-type", o.cache_type, "Numbers in the cache; int8: half the memory of f16")
      ->check(CLI::IsMember({"f16", "int8", "q8_0", "f32"}));
  flag("--no-prefix-cache", o.has_no_prefix_cache, "Compute every prompt whole");
  option("--draft-tokens", o.draft_tokens,
         "Tokens guessed from the text so far and checked in one step; 0: none")
      ->check(CLI::Range(0U, 63U));
  option("--draft-model", o.draft_model,
         "A small GGUF file with the same vocabulary that guesses; 4 tokens unless told otherwise");
  option("--prompt-piece", o.prompt_piece,
         "Tokens of a prompt in a step: fewer for shorter gaps in the answers of others")
      ->check(CLI::IsMember({4U, 8U, 16U, 32U, 64U}));
  option("--queue", o.queue, "Requests that may wait; more are refused with 429")
      ->check(CLI::Range(0U, 1U << 20));
  option("--max-body", o.body_mib, "MiB a request may have")->check(CLI::Range(1U, 1024U));
  option("--max-connections", o.connections, "Connections at a time")
      ->check(CLI::Range(1U, 10000U));
  option("--idle-seconds", o.idle_seconds, "A silent connection is closed after so long")
      ->check(CLI::Range(1U, 3600U));
  option("--drain-seconds", o.drain_seconds, "Time for running requests after SIGTERM")
      ->check(CLI::Range(0U, 86400U));
  option("--idle-unload", o.idle_unload_seconds,
         "Seconds without requests after which a model's memory is given back; 0: never")
      ->check(CLI::Range(0U, 1U << 24));
  option("--chat-template", o.chat_template, "A file with a chat template for all models");
  flag("--no-access-log", o.has_no_access_log, "Do not log requests on stderr");
  option("--device", o.device,
         "Device as in DEV, for example CPU; several (AMD:0,AMD:1) divide the models by layers");
  option("--threads", o.threads, "Threads of the CPU device; 0: all cores")
      ->check(CLI::Range(0U, 4096U));
  flag("--json", o.json, "Print errors as JSON; the log is JSON anyway");
  command->footer(examples(
      "bellmetal serve model.gguf\n"
      "bellmetal serve small=a.gguf large=b.gguf --listen 0.0.0.0:8080 --api-key-file key\n"
      "curl -s http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' "
      "-d '{\"prompt\": \"Once upon a time\"}'"));
  command->callback([&run, options] {
    if (!options->draft_model.empty() && options->draft_tokens == 0) options->draft_tokens = 4;
    run = [options] { return run_serve(*options); };
  });
}

}  // namespace bm::cli
