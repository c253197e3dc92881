#include "tools/bellmetal/text_model.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "compiler/bundle.h"
#include "models/grammar/json_schema.h"
#include "models/llama_kept_weights.h"
#include "models/sampler_defaults.h"
#include "models/stop_strings.h"
#include "runtime/base/env.h"
#include "runtime/base/trust.h"
#include "runtime/device.h"
#include "runtime/device_list.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/progress.h"

namespace bm::cli {
namespace {

constexpr size_t kMaxTextBytes = 64u << 20;
constexpr size_t kPrefillPiece = 128;  // tokens between two looks at Ctrl-C

/// "42+1.5", "42-inf".
Result<models::LogitBias> parse_logit_bias(const std::string& text) {
  models::LogitBias out;
  const char* const end = text.data() + text.size();
  const auto [sign, error] = std::from_chars(text.data(), end, out.token);
  const bool has_token = error == std::errc() && out.token >= 0 && sign != end;
  if (has_token && (*sign == '+' || *sign == '-')) {
    const auto [rest, wrong] = std::from_chars(sign + (*sign == '+' ? 1 : 0), end, out.bias);
    if (wrong == std::errc() && rest == end && sign[1] != '-') return out;
  }
  return fail(Code::kInvalidArgument,
              "logit bias \"{}\" is not TOKEN+BIAS or TOKEN-BIAS, such as 42+1.5 or 42-inf", text);
}

Result<models::SamplerOptions> sampler_options(const SamplingOptions& o) {
  models::SamplerOptions out{
      .temperature = o.temperature,
      .dynatemp_range = o.dynatemp_range,
      .dynatemp_exponent = o.dynatemp_exponent,
      .top_n_sigma = o.top_n_sigma,
      .top_k = o.top_k,
      .top_p = o.top_p,
      .min_p = o.min_p,
      .typical_p = o.typical_p,
      .xtc_probability = o.xtc_probability,
      .xtc_threshold = o.xtc_threshold,
      .dry = {.multiplier = o.dry_multiplier,
              .base = o.dry_base,
              .allowed_length = o.dry_allowed_length,
              .last_n = o.dry_last_n < 0 ? UINT32_MAX : static_cast<uint32_t>(o.dry_last_n)},
      .repeat_penalty = o.repeat_penalty,
      .repeat_window = o.repeat_window,
      .frequency_penalty = o.frequency_penalty,
      .presence_penalty = o.presence_penalty,
      .mirostat = static_cast<models::Mirostat>(o.mirostat),
      .mirostat_tau = o.mirostat_tau,
      .mirostat_eta = o.mirostat_eta,
      .seed = o.seed.value_or(settings().seed)};
  for (const std::string& text : o.logit_bias)
    out.logit_bias.push_back(BM_TRY(parse_logit_bias(text)));
  return out;
}

/// The grammar that the options ask for, as GBNF; empty: none.
Result<std::string> grammar_text(const SamplingOptions& o) {
  if (!o.grammar.empty()) return o.grammar;
  if (!o.grammar_file.empty()) return read_text(o.grammar_file);
  std::string schema = o.json_schema;
  if (!o.json_schema_file.empty()) schema = BM_TRY(read_text(o.json_schema_file));
  if (schema.empty()) return std::string();
  return models::grammar_of_json_schema(schema);
}

}  // namespace

DType cache_dtype(const std::string& name) {
  if (name == "int8" || name == "q8_0") return DType::kI8;
  return name == "f32" ? DType::kF32 : DType::kF16;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double rate(size_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

struct ModelSettings::Impl {
  std::optional<ScopedSetting> threads, bundle;
};

ModelSettings::ModelSettings() : impl_(std::make_unique<Impl>()) {}
ModelSettings::ModelSettings(ModelSettings&&) noexcept = default;
ModelSettings::~ModelSettings() = default;

Result<ModelSettings> ModelSettings::apply(const ModelOptions& options) {
  ModelSettings out;
  if (options.threads > 0)
    out.impl_->threads.emplace("BM_THREADS", std::to_string(options.threads));
  BM_TRY(compiler::check_bundle_files(options.bundle.empty() ? settings().bundle : options.bundle));
  if (!options.bundle.empty())
    out.impl_->bundle.emplace("BM_BUNDLE", BM_TRY(absolute_path(options.bundle)));
  return out;
}

int TextModel::open(const ModelOptions& options, models::LlamaSession::NextStage next) {
  options_ = options;
  const auto report_file = [&](const Error& error) {
    return cli::report_file(error, options_.path, options_.json);
  };
  auto file = models::GgufFile::open(options_.path);
  if (!file) return report_file(file.error());
  file_ = std::make_shared<const models::GgufFile>(std::move(*file));
  auto tokenizer = models::Tokenizer::from_gguf(*file_);
  if (!tokenizer) return report_file(tokenizer.error());
  tokenizer_ = std::move(*tokenizer);
  // Before it is loaded, whose errors are the file's.
  if (const auto config = models::LlamaConfig::from_gguf(*file_);
      config && options_.context > config->context_length)
    return report(
        Error{Code::kInvalidArgument,
              fmt::format("{}: --ctx-size {} exceeds the {} positions the model was made for",
                          options_.path, options_.context, config->context_length)},
        options_.json);
  runtime::Device* first = nullptr;
  for (const std::string& name : runtime::device_list(options_.device)) {
    auto device = name.empty() ? runtime::default_device() : runtime::open_device(name);
    if (!device) return report(device.error(), options_.json);
    if (!first) first = *device;
    device_ += (device_.empty() ? "" : ",") + (*device)->name();
    if (const std::string& r = (*device)->renderer(); !r.empty()) device_ += ":" + r;
  }
  models::Llama::LoadOptions load;
  load.device = options_.device;
  load.stages = options_.stages;
  load.context = options_.context;
  load.keep_weights = options_.keep_weights || settings().keep_weights;
  if (load.keep_weights)
    if (const Status can = models::can_keep_weights(*first); !can)
      return report(can.error(), options_.json);
  std::optional<Progress> progress;
  load.progress = [&](uint64_t done, uint64_t total) {
    if (!progress) progress.emplace("loading " + options_.path, total);
    progress->update(done);
  };
  auto model = models::Llama::load(file_, load);
  progress.reset();
  if (!model)
    return model.error().code == Code::kOutOfMemory ? report(model.error(), options_.json)
                                                    : report_file(model.error());
  if (load.keep_weights)
    weights_ = KeptWeights{(*model)->attached_bytes(), (*model)->uploaded_bytes()};
  if (tokenizer_->size() > (*model)->config().vocab_size)
    return report_file(
        Error{Code::kCorrupt, fmt::format("the tokenizer has {} tokens, token_embd.weight only {}",
                                          tokenizer_->size(), (*model)->config().vocab_size)});
  try {
    session_ = std::make_unique<models::LlamaSession>(
        *model, models::LlamaSession::Options{.cache_type = cache_dtype(options_.cache_type),
                                              .next = std::move(next)});
  } catch (const Exception& e) {
    return report(e.error(), options_.json);
  }
  return kOk;
}

Result<std::span<const float>> TextModel::logits() const {
  const std::span<const float> logits = session_->logits().first(tokenizer_->size());
  // Numbers that no choice can be made among are the file's fault before they are ours.
  for (size_t i = 0; i < logits.size(); ++i)
    if (!std::isfinite(logits[i]))
      return fail(Code::kCorrupt,
                  "{}: the model gives {} (logit {} of token {}): its weights are damaged or too "
                  "large; --device REF shows whether the device is at fault",
                  options_.path, std::isnan(logits[i]) ? "NaN" : "infinity", i,
                  session_->position());
  return logits;
}

Result<SamplingPlan> plan_sampling(const SamplingOptions& options) {
  SamplingPlan plan{.sampler = BM_TRY(sampler_options(options)), .grammar = nullptr};
  BM_TRY(models::Sampler::create(plan.sampler));
  const std::string grammar = BM_TRY(grammar_text(options));
  if (!grammar.empty())
    plan.grammar = std::make_shared<const models::Grammar>(BM_TRY(models::Grammar::parse(grammar)));
  return plan;
}

Status finish_plan(const SamplingOptions& options, const TextModel& model, SamplingPlan* plan) {
  models::SamplerOptions& s = plan->sampler;
  const size_t size = model.tokenizer().size();
  for (const models::LogitBias& b : s.logit_bias)
    if (static_cast<size_t>(b.token) >= size)
      return fail(Code::kInvalidArgument, "--logit-bias: token {} is outside the vocabulary of {}",
                  b.token, size);
  const models::SamplerDefaults file = models::sampler_defaults(model.file());
  const auto take = [&](const char* name, const auto& recommended, auto* into) {
    if (recommended && !options.given.contains(name)) *into = *recommended;
  };
  take("temperature", file.temperature, &s.temperature);
  take("top-k", file.top_k, &s.top_k);
  take("top-p", file.top_p, &s.top_p);
  take("min-p", file.min_p, &s.min_p);
  take("xtc-probability", file.xtc_probability, &s.xtc_probability);
  take("xtc-threshold", file.xtc_threshold, &s.xtc_threshold);
  take("repeat-penalty", file.repeat_penalty, &s.repeat_penalty);
  take("repeat-last-n", file.repeat_window, &s.repeat_window);
  take("mirostat-ent", file.mirostat_tau, &s.mirostat_tau);
  take("mirostat-lr", file.mirostat_eta, &s.mirostat_eta);
  if (s.dry.multiplier > 0) {
    std::vector<std::string> breakers = options.dry_breakers;
    if (breakers.empty()) breakers = models::default_dry_breakers();
    if (breakers == std::vector<std::string>{"none"}) breakers.clear();
    s.dry.breakers = std::make_shared<const models::DryBreakers>(
        std::move(breakers),
        [&text = model.tokenizer()](int32_t token) { return text.piece(token); });
  }
  // In place of these, unless one of them is asked for.
  const auto is_given = [&](const char* name) { return options.given.contains(name); };
  if (std::ranges::none_of(std::initializer_list<const char*>{"top-k", "top-p", "min-p", "typical"},
                           is_given))
    take("mirostat", file.mirostat, &s.mirostat);
  return {};
}

Answerer::Answerer(TextModel& model, const SamplingOptions& options, const SamplingPlan& plan)
    : model_(&model), options_(&options), sampler_(plan.sampler) {
  if (plan.grammar)
    grammar_ = std::make_unique<models::GrammarMatcher>(
        plan.grammar, std::make_shared<const models::GrammarVocabulary>(
                          models::GrammarVocabulary::of(model.tokenizer())));
}

Status Answerer::prefill(std::span<const int32_t> prompt, Answer& answer) {
  models::LlamaSession& session = model_->session();
  // The error that names numbers.
  if (!session.has_encoder() && prompt.size() > session.room()) return session.feed(prompt);
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  // The prompt is encoded as a whole, and another text is begun.
  if (session.has_encoder()) {
    BM_TRY(session.encode(prompt));
    BM_TRY(session.feed({&session.start_token(), 1}));
    answer.prefilled = prompt.size();
    prompt = {};
  }
  while (!prompt.empty()) {
    const auto piece = prompt.first(std::min(prompt.size(), kPrefillPiece));
    BM_TRY(session.feed(piece));
    for (const int32_t token : piece) sampler_.accept(token);
    answer.prefilled += piece.size();
    prompt = prompt.subspan(piece.size());
    if (is_interrupted() && !prompt.empty()) {
      answer.finish_reason = "interrupted";
      break;
    }
  }
  answer.is_prompt_done = prompt.empty();
  answer.prefill_s = seconds_since(start);
  return {};
}

Result<int32_t> Answerer::choose(Answer& answer) {
  const std::span<const float> logits = BM_TRY(model_->logits());
  models::TokenMask mask;
  if (grammar_) {
    const std::span<const uint64_t> allowed = BM_TRY(grammar_->allowed());
    mask = allowed;
  }
  const int32_t token = BM_TRY(sampler_.sample(logits, mask));
  const bool is_end = model_->tokenizer().is_end_of_generation(token);
  if (grammar_ && !is_end) BM_TRY(grammar_->accept(token));
  if (options_->logprobs && !is_end)
    answer.logprobs.push_back(models::token_logprobs(logits, token, *options_->logprobs));
  return token;
}

Result<Answer> Answerer::answer(std::span<const int32_t> prompt,
                                std::chrono::steady_clock::time_point start,
                                const std::function<Status(const std::string&)>& show) {
  Answer out;
  BM_TRY(prefill(prompt, out));
  if (!out.is_prompt_done) return out;
  if (grammar_) grammar_->reset();
  models::LlamaSession& session = model_->session();
  models::StreamDecoder decoder(model_->tokenizer());
  models::StopStrings stops(options_->stop);
  const size_t limit =
      options_->max_tokens < 0 ? SIZE_MAX : static_cast<size_t>(options_->max_tokens);
  const auto emit = [&](const std::string& piece) -> Status {
    out.text += piece;
    return piece.empty() ? Status() : show(piece);
  };
  std::chrono::steady_clock::time_point decode_start;
  while (out.tokens.size() < limit) {
    if (grammar_ && grammar_->is_finished()) {
      out.finish_reason = "stop";  // nothing could follow, not even by a token for the end
      break;
    }
    const int32_t token = BM_TRY(choose(out));
    if (out.tokens.empty()) {
      out.first_token_s = seconds_since(start);
      decode_start = std::chrono::steady_clock::now();
    }
    if (model_->tokenizer().is_end_of_generation(token)) {
      out.finish_reason = "stop";
      break;
    }
    out.tokens.push_back(token);
    out.not_fed = {token};
    BM_TRY(emit(stops.push(decoder.push(token))));
    out.decode_s = seconds_since(decode_start);
    if (stops.stopped_at()) {
      out.finish_reason = "stop_string";
      return out;
    }
    if (is_interrupted()) {
      out.finish_reason = "interrupted";
      break;
    }
    if (out.tokens.size() == limit) break;
    if (session.room() == 0) {
      out.finish_reason = "context_full";
      break;
    }
    BM_TRY(session.feed({&token, 1}));
    out.not_fed.clear();
  }
  BM_TRY(emit(stops.push(decoder.finish())));
  BM_TRY(emit(stops.finish()));
  return out;
}

nlohmann::ordered_json json_of(const std::vector<models::TokenLogprobs>& logprobs,
                               const models::Tokenizer& tokenizer) {
  const auto one = [&](const models::TokenLogprob& p) {
    return nlohmann::ordered_json{
        {"token", tokenizer.piece(p.id)}, {"id", p.id}, {"logprob", p.logprob}};
  };
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const models::TokenLogprobs& l : logprobs) {
    nlohmann::ordered_json row = one(l.chosen);
    row["top"] = nlohmann::ordered_json::array();
    for (const models::TokenLogprob& p : l.top) row["top"].push_back(one(p));
    out.push_back(std::move(row));
  }
  return out;
}

Result<std::string> read_text(const std::string& path) {
  std::FILE* const file = path == "-" ? stdin : std::fopen(path.c_str(), "rbe");
  if (file == nullptr) return fail(code_from_errno(errno), "{}: {}", path, errno_text(errno));
  std::string out;
  char buffer[1 << 16];
  size_t count = 0;
  errno = 0;
  while (out.size() <= kMaxTextBytes && (count = std::fread(buffer, 1, sizeof buffer, file)) > 0)
    out.append(buffer, count);
  const int reason = std::ferror(file) != 0 ? errno : 0;
  if (file != stdin) std::fclose(file);
  if (is_interrupted()) return fail(Code::kCancelled, "interrupted");
  if (reason != 0) return fail(code_from_errno(reason), "{}: {}", path, errno_text(reason));
  if (out.size() > kMaxTextBytes)
    return fail(Code::kInvalidArgument, "{}: more than {} bytes", path, kMaxTextBytes);
  return out;
}

Status write_text(const std::string& piece) {
  errno = 0;
  const size_t written = std::fwrite(piece.data(), 1, piece.size(), stdout);
  if (std::fflush(stdout) == 0 && written == piece.size()) return {};
  return fail(Code::kIo, "the text cannot be written to stdout: {}", errno_text(errno));
}

}  // namespace bm::cli
