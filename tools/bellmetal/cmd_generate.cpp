#include <charconv>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {
namespace {

/// CLI::Range lets NaN through.
CLI::Validator number_between(double low, double high) {
  const std::string what = fmt::format("{}..{}", low, high);
  return CLI::Validator(
      [low, high, what](const std::string& text) {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        if (is_number && value >= low && value <= high) return std::string();
        return fmt::format("'{}' is not a number in {}", text, what);
      },
      what);
}

/// The parser takes -1 for 2^64 - 1.
CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) {
        uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size()) return std::string();
        return fmt::format("'{}' is not a whole number from 0 to {}", text, UINT64_MAX);
      },
      "UINT");
}

}  // namespace

void add_generate(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a language model");
  auto options = std::make_shared<GenerateOptions>();
  GenerateOptions& o = *options;
  command->add_option("MODEL", o.model, "A GGUF file")->required();
  command->add_option("PROMPT", o.prompt, "The text to continue")->required();
  command
      ->add_option("--temperature", o.temperature,
                   "0: always the most likely token; higher: wilder")
      ->check(number_between(0, 100))
      ->capture_default_str();
  command->add_option("--top-k", o.top_k, "Choose among the K most likely tokens; 0: all")
      ->capture_default_str();
  command->add_option("--top-p", o.top_p, "Choose among the likeliest tokens that reach P; 1: all")
      ->check(number_between(0, 1))
      ->capture_default_str();
  command
      ->add_option("--min-p", o.min_p,
                   "Drop tokens less likely than P times the likeliest; 0: none")
      ->check(number_between(0, 1))
      ->capture_default_str();
  command->add_option("--max-tokens", o.max_tokens, "Stop after N tokens")
      ->check(CLI::Range(1U, 1U << 24))
      ->capture_default_str();
  command->add_option("--seed", o.seed, "Seed of the choices; the same seed gives the same text")
      ->check(whole_number());
  command->add_option("--device", o.device, "Device as in DEV, for example CPU");
  command->add_option("--threads", o.threads, "Threads of the CPU device; 0: all cores")
      ->check(CLI::Range(0U, 4096U))
      ->capture_default_str();
  command->add_option("--bundle", o.bundle, "Kernels made by `bellmetal bake` for this model");
  command->add_flag("--keep-weights", o.keep_weights,
                    "Hot restart: weights stay in the card's memory; DEV=AMD:PCI alone");
  command->add_flag("--json", o.json, "Print one JSON object with text and speed at the end");
  command->footer(
      examples("bellmetal generate models/bundled/licence.gguf \"Permission is hereby granted\"\n"
               "bellmetal generate model.gguf \"Once upon a time\" --temperature 0.8 --seed 7\n"
               "bellmetal generate model.gguf \"1, 2, 3,\" --max-tokens 20 --json"));
  command->callback([&run, options] { run = [options] { return run_generate(*options); }; });
}

}  // namespace bm::cli
