#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "models/gguf.h"
#include "models/llama_kept_weights.h"
#include "models/llama_session.h"
#include "models/sampler.h"
#include "models/tokenizer.h"
#include "runtime/base/env.h"
#include "runtime/base/trust.h"
#include "runtime/device.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/progress.h"

namespace bm::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What one run produced and how long its parts took.
struct Generated {
  std::vector<int32_t> tokens;
  std::string text;
  size_t prompt_tokens = 0;
  double prefill_s = 0, first_token_s = 0, decode_s = 0;
  std::string device, finish_reason = "length";
  bool keeps_weights = false;
  uint64_t attached_bytes = 0, uploaded_bytes = 0;  ///< of weights, where they are kept
};

double rate(size_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

class Generator {
 public:
  explicit Generator(const GenerateOptions& options) : options_(options) {}

  /// Opens file, tokenizer, device and weights. Errors of the file get kBadFile, others their own
  /// code.
  int prepare() {
    auto file = models::GgufFile::open(options_.model);
    if (!file) return report_file(file.error());
    file_ = std::make_shared<const models::GgufFile>(std::move(*file));
    auto tokenizer = models::Tokenizer::from_gguf(*file_);
    if (!tokenizer) return report_file(tokenizer.error());
    tokenizer_ = std::move(*tokenizer);
    auto device =
        options_.device.empty() ? runtime::default_device() : runtime::open_device(options_.device);
    if (!device) return report(device.error(), options_.json);
    result.device = (*device)->name();
    if (const std::string& r = (*device)->renderer(); !r.empty()) result.device += ":" + r;
    models::Llama::LoadOptions load;
    load.device = options_.device;
    load.keep_weights = options_.keep_weights || settings().keep_weights;
    if (load.keep_weights)
      if (const Status can = models::can_keep_weights(**device); !can)
        return report(can.error(), options_.json);
    std::optional<Progress> progress;
    load.progress = [&](uint64_t done, uint64_t total) {
      if (!progress) progress.emplace("loading " + options_.model, total);
      progress->update(done);
    };
    auto model = models::Llama::load(file_, load);
    progress.reset();
    if (!model)
      return model.error().code == Code::kOutOfMemory ? report(model.error(), options_.json)
                                                      : report_file(model.error());
    result.keeps_weights = load.keep_weights;
    result.attached_bytes = (*model)->attached_bytes();
    result.uploaded_bytes = (*model)->uploaded_bytes();
    if (tokenizer_->size() > (*model)->config().vocab_size)
      return report_file(Error{Code::kCorrupt,
                               fmt::format("the tokenizer has {} tokens, token_embd.weight only {}",
                                           tokenizer_->size(), (*model)->config().vocab_size)});
    try {
      session_ = std::make_unique<models::LlamaSession>(*model);
    } catch (const Exception& e) {
      return report(e.error(), options_.json);
    }
    return kOk;
  }

  Status run(Clock::time_point start) {
    const std::vector<int32_t> prompt = BM_TRY(tokenizer_->encode(options_.prompt));
    if (prompt.empty())
      return fail(Code::kInvalidArgument, "the prompt is empty and the model adds no first token");
    result.prompt_tokens = prompt.size();
    models::Sampler sampler =
        BM_TRY(models::Sampler::create({.temperature = options_.temperature,
                                        .top_k = options_.top_k,
                                        .top_p = options_.top_p,
                                        .min_p = options_.min_p,
                                        .seed = options_.seed.value_or(settings().seed)}));
    models::StreamDecoder decoder(*tokenizer_);
    emit_prompt();
    const Clock::time_point prefill = Clock::now();
    BM_TRY(session_->feed(prompt));
    result.prefill_s = seconds_since(prefill);
    Clock::time_point decode_start;
    while (result.tokens.size() < options_.max_tokens) {
      BM_TRY(check_logits());
      const int32_t token = BM_TRY(sampler.sample(usable_logits()));
      if (result.tokens.empty()) {
        result.first_token_s = seconds_since(start);
        decode_start = Clock::now();
      }
      if (tokenizer_->is_end_of_generation(token)) {
        result.finish_reason = "stop";
        break;
      }
      result.tokens.push_back(token);
      BM_TRY(emit(decoder.push(token)));
      result.decode_s = seconds_since(decode_start);
      if (is_interrupted()) {
        result.finish_reason = "interrupted";
        break;
      }
      if (result.tokens.size() == options_.max_tokens) break;
      if (session_->room() == 0) {
        result.finish_reason = "context_full";
        break;
      }
      BM_TRY(session_->feed({&token, 1}));
    }
    return emit(decoder.finish());
  }

  int print() const {
    const double decode_rate =
        rate(result.tokens.empty() ? 0 : result.tokens.size() - 1, result.decode_s);
    const double prefill_rate = rate(result.prompt_tokens, result.prefill_s);
    if (options_.json) {
      nlohmann::ordered_json json = {{"text", result.text},
                                     {"tokens", result.tokens},
                                     {"prompt_tokens", result.prompt_tokens},
                                     {"prefill_tokens_per_s", prefill_rate},
                                     {"decode_tokens_per_s", decode_rate},
                                     {"time_to_first_token_ms", result.first_token_s * 1e3},
                                     {"device", result.device},
                                     {"finish_reason", result.finish_reason}};
      if (result.keeps_weights)
        json["weights"] = {{"attached_bytes", result.attached_bytes},
                           {"uploaded_bytes", result.uploaded_bytes}};
      print_json(json);
    } else {
      end_text();
      print_error(fmt::format(
          "\n{}prefill {:.1f} tokens/s ({} tokens), decode {:.1f} tokens/s ({} tokens), first "
          "token after {:.0f} ms, {}{}\n",
          result.finish_reason == "context_full" ? "context full; " : "", prefill_rate,
          result.prompt_tokens, decode_rate, result.tokens.size(), result.first_token_s * 1e3,
          result.device,
          result.keeps_weights
              ? fmt::format("; weights: {} attached, {} uploaded",
                            human_bytes(result.attached_bytes), human_bytes(result.uploaded_bytes))
              : std::string()));
    }
    return result.finish_reason == "interrupted" ? kInterrupted : kOk;
  }

  Generated result;

  /// The last line of the text ends; on a terminal and in a file.
  void end_text() const {
    if (!options_.json && !result.text.empty() && !result.text.ends_with('\n'))
      std::fputc('\n', stdout);
    std::fflush(stdout);
  }

 private:
  const GenerateOptions& options_;
  std::shared_ptr<const models::GgufFile> file_;
  std::unique_ptr<models::Tokenizer> tokenizer_;
  std::unique_ptr<models::LlamaSession> session_;

  int report_file(const Error& error) const {
    return cli::report_file(error, options_.model, options_.json);
  }

  /// Numbers that no choice can be made among are the file's fault before they are ours.
  Status check_logits() const {
    const std::span<const float> logits = usable_logits();
    for (size_t i = 0; i < logits.size(); ++i)
      if (!std::isfinite(logits[i]))
        return fail(Code::kCorrupt,
                    "{}: the model gives {} (logit {} of token {}): its weights are damaged or too "
                    "large; --device REF shows whether the device is at fault",
                    options_.model, std::isnan(logits[i]) ? "NaN" : "infinity", i,
                    result.prompt_tokens + result.tokens.size());
    return {};
  }

  /// Rows of the embedding table beyond the vocabulary are padding and never chosen.
  std::span<const float> usable_logits() const {
    return session_->logits().first(tokenizer_->size());
  }

  /// On stderr: what goes down a pipe is the model's text alone.
  void emit_prompt() const {
    if (!options_.json) print_error(styled(options_.prompt, Style::kBold, has_color(stderr)));
  }

  Status emit(const std::string& piece) {
    result.text += piece;
    if (options_.json || piece.empty()) return {};
    errno = 0;
    const size_t written = std::fwrite(piece.data(), 1, piece.size(), stdout);
    if (std::fflush(stdout) == 0 && written == piece.size()) return {};
    return fail(Code::kIo, "the text cannot be written to stdout: {}", errno_text(errno));
  }
};

}  // namespace

int run_generate(const GenerateOptions& options) {
  const Clock::time_point start = Clock::now();
  std::optional<ScopedSetting> threads;
  if (options.threads > 0) threads.emplace("BM_THREADS", std::to_string(options.threads));
  std::optional<ScopedSetting> bundle;
  if (!options.bundle.empty()) {
    const auto path = absolute_path(options.bundle);
    if (!path) return report(path.error(), options.json);
    bundle.emplace("BM_BUNDLE", *path);
  }
  InterruptScope interrupt;
  Generator generator(options);
  if (const int code = generator.prepare(); code != kOk) return code;
  if (auto status = generator.run(start); !status) {
    generator.end_text();
    return report(status.error(), options.json);
  }
  return generator.print();
}

}  // namespace bm::cli
