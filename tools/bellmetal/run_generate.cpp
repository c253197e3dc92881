#include <unistd.h>

#include <cstdio>

#include <nlohmann/json.hpp>

#include "runtime/base/env.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/split_model.h"
#include "tools/bellmetal/text_model.h"

namespace bm::cli {
namespace {

/// The last line of the text ends; on a terminal and in a file.
void end_text(const std::string& text, bool as_json) {
  if (!as_json && !text.empty() && !text.ends_with('\n')) std::fputc('\n', stdout);
  std::fflush(stdout);
}

int print(const Answer& answer, const TextModel& model, const GenerateOptions& options) {
  if (options.model.json) {
    nlohmann::ordered_json json = {{"text", answer.text},
                                   {"tokens", answer.tokens},
                                   {"prompt_tokens", answer.prefilled},
                                   {"prefill_tokens_per_s", answer.prefill_rate()},
                                   {"decode_tokens_per_s", answer.decode_rate()},
                                   {"time_to_first_token_ms", answer.first_token_s * 1e3},
                                   {"device", model.device()},
                                   {"finish_reason", answer.finish_reason}};
    if (const auto& weights = model.weights())
      json["weights"] = {{"attached_bytes", weights->attached},
                         {"uploaded_bytes", weights->uploaded}};
    if (options.sampling.logprobs) json["logprobs"] = json_of(answer.logprobs, model.tokenizer());
    print_json(json);
  } else {
    end_text(answer.text, false);
    print_error(fmt::format(
        "\n{}prefill {:.1f} tokens/s ({} tokens), decode {:.1f} tokens/s ({} tokens), first "
        "token after {:.0f} ms, {}{}\n",
        answer.finish_reason == "context_full" ? "context full; " : "", answer.prefill_rate(),
        answer.prefilled, answer.decode_rate(), answer.tokens.size(), answer.first_token_s * 1e3,
        model.device(),
        model.weights() ? fmt::format("; weights: {} attached, {} uploaded",
                                      human_bytes(model.weights()->attached),
                                      human_bytes(model.weights()->uploaded))
                        : std::string()));
  }
  return answer.finish_reason == "interrupted" ? kInterrupted : kOk;
}

/// The prompt of the options: as given, from stdin, or from a file, whose last newline goes.
Result<std::string> prompt_of(const GenerateOptions& options) {
  const bool is_file = !options.prompt_file.empty();
  if (!is_file && options.prompt != "-") return options.prompt;
  std::string text = BM_TRY(read_text(is_file ? options.prompt_file : "-"));
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

int generate(const GenerateOptions& options, SplitModel* split) {
  const bool as_json = options.model.json;
  auto start = std::chrono::steady_clock::now();
  const auto prompt = prompt_of(options);
  if (is_interrupted()) return kInterrupted;
  if (!prompt)
    return options.prompt_file.empty() ? report(prompt.error(), as_json)
                                       : report_file(prompt.error(), options.prompt_file, as_json);
  auto plan = plan_sampling(options.sampling);
  if (!plan) return report(plan.error(), as_json);
  TextModel model;
  if (const int code = model.open(options.model, split ? split->next_stage() : nullptr);
      code != kOk)
    return code;
  if (split)
    if (const Status loaded = split->wait_loaded(); !loaded)
      return report_file(loaded.error(), options.model.path, as_json);
  if (const Status known = finish_plan(options.sampling, model, &*plan); !known)
    return report(known.error(), as_json);
  Answerer answerer(model, options.sampling, *plan);
  const auto tokens = model.tokenizer().encode(*prompt);
  if (!tokens) return report(tokens.error(), as_json);
  if (tokens->empty())
    return report(
        Error{Code::kInvalidArgument, "the prompt is empty and the model adds no first token"},
        as_json);
  // On stderr: what goes down a pipe is the model's text alone.
  if (!as_json) print_error(styled(*prompt, Style::kBold, has_color(stderr)));
  std::string shown;
  const auto answer = answerer.answer(*tokens, start, [&](const std::string& piece) {
    shown += piece;
    return as_json ? Status() : write_text(piece);
  });
  if (!answer) {
    end_text(shown, as_json);
    // Behind the prompt. A file has one line of what went wrong, with it.
    if (!as_json && shown.empty() && ::isatty(STDERR_FILENO) != 0) print_error("\n");
    return report(answer.error(), as_json);
  }
  return print(*answer, model, options);
}

/// One of the processes that mpirun started.
int run_rank(GenerateOptions options) {
  const bool as_json = options.model.json;
  if (!MpiWorld::is_launched())
    return report(Error{Code::kInvalidArgument,
                        "--split layers is for the processes of mpirun: mpirun -n 2 bellmetal "
                        "generate … --split layers"},
                  kUsage, as_json);
  // Slow is what a device may be 20 times in a row: loading, or a piece of a prompt.
  auto world = MpiWorld::join(std::chrono::milliseconds(uint64_t{settings().wait_timeout_ms} * 20));
  if (!world) return report(world.error(), kUnavailable, as_json);
  if ((*world)->rank() > 0) return run_stage(**world, options.model);
  options.model.stages = (*world)->size();
  SplitModel split(**world);
  return generate(options, &split);
}

}  // namespace

int run_generate(const GenerateOptions& options) {
  const auto model_settings = ModelSettings::apply(options.model);
  if (!model_settings)
    return report_file(model_settings.error(), options.model.bundle, options.model.json);
  InterruptScope interrupt;
  return options.is_split ? run_rank(options) : generate(options, nullptr);
}

}  // namespace bm::cli
