#include "tools/bellmetal/sampling_flags.h"

#include <charconv>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

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

CLI::Validator token_count() {
  return CLI::Validator(
      [](const std::string& text) {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool is_number = error == std::errc() && end == text.data() + text.size();
        if (is_number && (value == -1 || (value >= 1 && value <= 1 << 24))) return std::string();
        return fmt::format("'{}' is neither -1 nor a number from 1 to {}", text, 1 << 24);
      },
      "N");
}

void add_truncation_flags(CLI::App& command, SamplingOptions& o) {
  command.add_option("--top-k", o.top_k, "Choose among the K most likely tokens; 0: all")
      ->check(CLI::Range(0U, 1U << 24))
      ->capture_default_str();
  command.add_option("--top-p", o.top_p, "Choose among the likeliest tokens that reach P; 1: all")
      ->check(number_between(0, 1))
      ->capture_default_str();
  command
      .add_option("--min-p", o.min_p, "Drop tokens less likely than P times the likeliest; 0: none")
      ->check(number_between(0, 1))
      ->capture_default_str();
  command
      .add_option("--typical,--typical-p", o.typical_p,
                  "Choose among the most typical tokens that reach P; 1: all")
      ->check(number_between(0, 1))
      ->capture_default_str();
  command
      .add_option("--top-nsigma,--top-n-sigma", o.top_n_sigma,
                  "Keep logits within N standard deviations of the highest; 0: all")
      ->check(number_between(0, 100))
      ->capture_default_str();
  command
      .add_option("--xtc-probability", o.xtc_probability,
                  "How often the likeliest tokens are left out but for the last; 0: never")
      ->check(number_between(0, 1))
      ->capture_default_str();
  command
      .add_option("--xtc-threshold", o.xtc_threshold,
                  "The probability from which on XTC leaves out; above 0.5: none")
      ->check(number_between(0, 1))
      ->capture_default_str();
  command
      .add_option("--mirostat", o.mirostat,
                  "1 or 2: steer the surprise, in place of all these; 0: off")
      ->check(CLI::Range(0U, 2U))
      ->capture_default_str();
  command.add_option("--mirostat-ent", o.mirostat_tau, "Surprise that Mirostat aims at, bits")
      ->check(number_between(0, 100))
      ->capture_default_str();
  command.add_option("--mirostat-lr", o.mirostat_eta, "How fast Mirostat learns")
      ->check(number_between(0, 1))
      ->capture_default_str();
}

void add_dry_flags(CLI::App& command, SamplingOptions& o) {
  command
      .add_option("--dry-multiplier", o.dry_multiplier,
                  "Above 0: what goes on with a repetition of tokens is less likely (DRY)")
      ->check(number_between(0, 100))
      ->capture_default_str();
  command
      .add_option("--dry-base", o.dry_base, "How much the penalty grows with each repeated token")
      ->check(number_between(1, 100))
      ->capture_default_str();
  command
      .add_option("--dry-allowed-length", o.dry_allowed_length,
                  "Repetitions of fewer tokens cost nothing")
      ->check(CLI::Range(0U, 1U << 20))
      ->capture_default_str();
  command
      .add_option("--dry-penalty-last-n", o.dry_last_n,
                  "Tokens that DRY looks back on; 0: off; -1: all")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 24))
      ->capture_default_str();
  command
      .add_option("--dry-sequence-breaker", o.dry_breakers,
                  "No repetition goes across TEXT, in place of the usual ones; repeatable; none")
      ->allow_extra_args(false);
}

void add_penalty_flags(CLI::App& command, SamplingOptions& o) {
  command
      .add_option("--repeat-penalty", o.repeat_penalty,
                  "Above 1: tokens of the last --repeat-last-n are less likely")
      ->check(number_between(0, 100))
      ->capture_default_str();
  command.add_option("--repeat-last-n", o.repeat_window, "Tokens that penalties look back on")
      ->check(CLI::Range(0U, 1U << 24))
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", o.frequency_penalty,
                  "Subtracted for each time that a token was used")
      ->check(number_between(-100, 100))
      ->capture_default_str();
  command
      .add_option("--presence-penalty", o.presence_penalty, "Subtracted from tokens that were used")
      ->check(number_between(-100, 100))
      ->capture_default_str();
  command
      .add_option("-l,--logit-bias", o.logit_bias,
                  "TOKEN+BIAS or TOKEN-BIAS, as 42+1.5 or 42-inf (never); repeatable")
      ->allow_extra_args(false);
}

void add_output_flags(CLI::App& command, SamplingOptions& o) {
  command
      .add_option("-n,--max-tokens,--n-predict,--predict", o.max_tokens,
                  "Stop after N tokens; -1: when the context is full")
      ->check(token_count())
      ->capture_default_str();
  command.add_option("--stop,-r,--reverse-prompt", o.stop, "Stop before TEXT; repeatable")
      ->allow_extra_args(false);
  CLI::Option* grammar =
      command.add_option("--grammar", o.grammar, "Write only what this GBNF grammar allows");
  CLI::Option* grammar_file =
      command.add_option("--grammar-file", o.grammar_file, "The same from a file");
  CLI::Option* schema = command.add_option("-j,--json-schema", o.json_schema,
                                           "Write JSON that this JSON schema allows");
  CLI::Option* schema_file =
      command.add_option("--json-schema-file", o.json_schema_file, "The same from a file");
  const std::vector<CLI::Option*> all = {grammar, grammar_file, schema, schema_file};
  for (CLI::Option* one : all)
    for (CLI::Option* other : all)
      if (one != other) one->excludes(other);
  command
      .add_option("--logprobs", o.logprobs,
                  "With --json: logarithms of the probabilities of each token and the N likeliest")
      ->check(CLI::Range(0U, 1000U));
}

}  // namespace

void add_model_flags(CLI::App& command, ModelOptions& o) {
  command
      .add_option("-c,--ctx-size", o.context,
                  "Tokens that prompt and text may have together; 0: the model's, at most 4096")
      ->check(CLI::Range(0U, 1U << 24))
      ->capture_default_str();
  command
      .add_option("--cache-type", o.cache_type,
                  "Numbers of keys and values, whose memory grows with use; int8: half that of f16")
      ->check(CLI::IsMember({"f16", "int8", "q8_0", "f32"}))
      ->capture_default_str();
  command.add_option(
      "--device", o.device,
      "Device as in DEV, for example CPU; several (AMD:0,AMD:1) divide the model by layers");
  command.add_option("-t,--threads", o.threads, "Threads of the CPU device; 0: all cores")
      ->check(CLI::Range(0U, 4096U))
      ->capture_default_str();
  command.add_option("--bundle", o.bundle, "Kernels made by `bellmetal bake` for this model");
  command.add_flag("--keep-weights", o.keep_weights,
                   "Hot restart: weights stay in the card's memory; DEV=AMD:PCI alone");
}

void add_sampling_flags(CLI::App& command, SamplingOptions& o) {
  command
      .add_option("--temperature,--temp", o.temperature,
                  "0: always the most likely token; higher: wilder")
      ->check(number_between(0, 100))
      ->capture_default_str();
  command
      .add_option("--dynatemp-range", o.dynatemp_range,
                  "The temperature goes up and down by R with the entropy; 0: it does not")
      ->check(number_between(0, 100))
      ->capture_default_str();
  command.add_option("--dynatemp-exp", o.dynatemp_exponent, "How the temperature follows")
      ->check(number_between(0, 100))
      ->capture_default_str();
  add_truncation_flags(command, o);
  add_penalty_flags(command, o);
  add_dry_flags(command, o);
  for (CLI::Option* option : command.get_options())
    if (!option->get_lnames().empty())
      option->each(
          [&o, option](const std::string&) { o.given.insert(option->get_lnames().front()); });
  command.add_option("-s,--seed", o.seed, "Seed of the choices; the same seed gives the same text")
      ->check(whole_number());
  add_output_flags(command, o);
}

}  // namespace bm::cli
