#include "serve/completion.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <random>

#include "models/unicode.h"
#include "serve/constraint.h"
#include "serve/request_fields.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

/// How long a connection waits before it asks whether anybody is there.
constexpr std::chrono::milliseconds kAskEvery{20};

std::string dump(const Json& json) {
  // Pieces of characters are no UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string as_event(const Json& json) { return "data: " + dump(json) + "\n\n"; }

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::string_view reason_name(Finish finish, const std::optional<ChatParser>& parser) {
  if (finish == Finish::kStop && parser && parser->call_count() > 0) return "tool_calls";
  return finish == Finish::kLength ? "length" : "stop";
}

ApiError error_of(const Generation& generation) {
  if (generation.error()) return api_error(*generation.error());
  return {.status = 503,
          .message = "the server has stopped",
          .type = "server_error",
          .param = "",
          .code = "stopped"};
}

bool is_failure(Finish finish) { return finish != Finish::kStop && finish != Finish::kLength; }

}  // namespace

ApiError api_error(const Error& error) {
  ApiError out{.message = error.message};
  switch (error.code) {
    case Code::kInvalidArgument:
      out.code =
          error.message.find("context") == std::string::npos ? "" : "context_length_exceeded";
      return out;
    case Code::kCancelled:
      out.status = 503;
      out.code = "stopping";
      break;
    case Code::kTimeout:
      out.status = 408;
      out.code = "timeout";
      break;
    default:
      out.status = 500;
      out.code = std::string(code_name(error.code));
      break;
  }
  out.type = "server_error";
  return out;
}

ApiError submit_error(const Error& error) {
  if (error.code == Code::kOutOfMemory)
    return {.status = 429,
            .message = error.message,
            .type = "rate_limit_error",
            .param = "",
            .code = "queue_full"};
  ApiError out = api_error(error);
  if (error.code == Code::kDeviceLost) out.status = 503;
  return out;
}

std::optional<ApiError> outside_vocabulary(std::span<const int32_t> tokens,
                                           const models::Tokenizer& tokenizer,
                                           std::string_view param) {
  for (const int32_t t : tokens)
    if (t < 0 || static_cast<size_t>(t) >= tokenizer.size())
      return ApiError{
          .message = fmt::format("token {} is outside the vocabulary of {}", t, tokenizer.size()),
          .param = std::string(param)};
  return std::nullopt;
}

namespace {

/// A token as the names of completions' logprobs, which are no bytes: OpenAI's form for what is no
/// UTF-8 by itself.
std::string bytes_name(std::string_view bytes) {
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return out;
}

double mean_logprob(const std::vector<ChosenToken>& tokens) {
  double sum = 0;
  for (const ChosenToken& t : tokens) sum += t.logprob;
  return tokens.empty() ? 0 : sum / static_cast<double>(tokens.size());
}

/// FNV-1a over the tokens.
std::string prefix_hash_of(const std::vector<int32_t>& tokens) {
  constexpr size_t kPage = models::LlamaBatch::kPageLength;
  if (tokens.size() < kPage) return {};
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t t : std::span(tokens).first(kPage))
    for (int byte = 0; byte < 4; ++byte)
      hash = (hash ^ (static_cast<uint32_t>(t) >> 8 * byte & 255)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

}  // namespace

Completion::Completion(HostedModel& model, GenerationRequest request, std::string id)
    : model_(model),
      request_(std::move(request)),
      id_((request_.is_chat ? "chatcmpl-" : "cmpl-") + id),
      created_(std::time(nullptr)) {
  if (request_.is_message) messages_.emplace(std::move(id), model_.name());
  if (!request_.is_response) return;
  nlohmann::ordered_json fields = std::move(request_.response_fields);
  // What was not asked for is answered as it is done.
  const models::SamplerOptions used = sampling(0);
  const auto shown = [](float value) { return std::stod(fmt::format("{}", value)); };
  if (fields["temperature"].is_null()) fields["temperature"] = shown(used.temperature);
  if (fields["top_p"].is_null()) fields["top_p"] = shown(used.top_p);
  writer_.emplace(std::move(id), created_, model_.name(), std::move(fields));
}

Completion::~Completion() {
  for (const Choice& c : choices_)
    if (!c.is_finished) model_.scheduler().cancel(c.id);
}

ApiResult<std::vector<std::vector<int32_t>>> Completion::prompts() {
  if (request_.is_chat) {
    auto chat = model_.encode_chat(request_);
    if (!chat) return tl::unexpected<ApiError>(std::move(chat.error()));
    is_reasoning_ = chat->is_reasoning;
    return std::vector<std::vector<int32_t>>{std::move(chat->tokens)};
  }
  if (request_.native && request_.native->infill) {
    auto tokens = infill_prompt(*request_.native->infill);
    if (!tokens) return tl::unexpected<ApiError>(std::move(tokens.error()));
    return std::vector<std::vector<int32_t>>{std::move(*tokens)};
  }
  if (request_.native) return native_prompts();
  const bool has_gap = !request_.suffix.empty();
  std::vector<std::vector<int32_t>> out = request_.token_lists;
  // Who writes a whole prompt writes control tokens too, as with vLLM and llama-server.
  models::EncodeOptions options{.parse_special = true};
  if (has_gap) options = {.add_bos = false, .add_eos = false};
  for (const std::string& text : request_.texts) {
    auto tokens = model_.tokenizer().encode(text, options);
    if (!tokens) return tl::unexpected<ApiError>(api_error(tokens.error()));
    out.push_back(std::move(*tokens));
  }
  if (has_gap) {
    const auto behind = model_.tokenizer().encode(request_.suffix, options);
    if (!behind) return tl::unexpected<ApiError>(api_error(behind.error()));
    for (std::vector<int32_t>& tokens : out) {
      auto whole = model_.tokenizer().around_gap(tokens, *behind);
      if (!whole)
        return tl::unexpected<ApiError>(ApiError{
            .message = whole.error().message, .param = "suffix", .code = "unsupported_parameter"});
      tokens = std::move(*whole);
    }
  }
  for (const std::vector<int32_t>& tokens : out)
    if (auto error = outside_vocabulary(tokens, model_.tokenizer(), "prompt"))
      return tl::unexpected<ApiError>(std::move(*error));
  return out;
}

ApiResult<std::vector<std::vector<int32_t>>> Completion::native_prompts() const {
  std::vector<std::vector<int32_t>> out;
  for (const std::vector<PromptPart>& parts : request_.native->prompts) {
    std::vector<int32_t>& tokens = out.emplace_back();
    for (const PromptPart& part : parts) {
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
      if (!part.tokens.empty()) continue;
      models::EncodeOptions options{.parse_special = true};
      if (&part != &parts.front()) options.add_bos = options.add_eos = false;
      const auto own = model_.tokenizer().encode(part.text, options);
      if (!own) return tl::unexpected<ApiError>(api_error(own.error()));
      tokens.insert(tokens.end(), own->begin(), own->end());
    }
    if (auto error = outside_vocabulary(tokens, model_.tokenizer(), "prompt"))
      return tl::unexpected<ApiError>(std::move(*error));
  }
  return out;
}

/// Tokens of biases that name texts.
std::optional<ApiError> Completion::bias_texts() {
  for (const auto& [text, bias] : request_.text_bias) {
    const auto tokens = model_.tokenizer().encode(text, {.add_bos = false, .add_eos = false});
    if (!tokens) return api_error(tokens.error());
    for (const int32_t token : *tokens) request_.logit_bias.push_back({token, bias});
  }
  return std::nullopt;
}

ApiResult<std::vector<int32_t>> Completion::infill_prompt(const InfillPrompt& infill) const {
  const models::Tokenizer& tokenizer = model_.tokenizer();
  const auto failed = [](const Error& error) { return tl::unexpected<ApiError>(api_error(error)); };
  const auto encode = [&](const std::string& text) {
    return tokenizer.encode(text, {.add_bos = false, .add_eos = false});
  };
  auto before = encode(infill.prefix), behind = encode(infill.suffix), begun = encode(infill.begun);
  for (const auto* tokens : {&before, &behind, &begun})
    if (!*tokens) return failed(tokens->error());
  std::vector<models::Tokenizer::File> files;
  for (const InfillPrompt::File& file : infill.extra) files.push_back({file.name, file.text});
  auto extra = tokenizer.before_gap(files);
  if (!extra) return failed(extra.error());
  // Three parts of what stands before the gap and one of what stands behind it, in a batch of
  // llama-server; other files have the rest of the context, but for room for an answer. That no
  // part depends on how long the others are, nor on the answer, keeps what is cached of use.
  constexpr size_t kBatch = 2048, kAnswer = 512;
  const size_t whole = model_.context() - std::min<size_t>(kAnswer, model_.context() / 8),
               batch = std::min(kBatch, whole - whole / 4), quarter = batch / 4;
  const size_t room = quarter - std::min(quarter, 2 + begun->size());
  if (before->size() > 3 * quarter)
    before->erase(before->begin(), before->end() - static_cast<ptrdiff_t>(3 * quarter));
  behind->resize(std::min(behind->size(), room));
  if (const size_t rest = whole - batch; extra->size() > rest)
    extra->erase(extra->begin(), extra->end() - static_cast<ptrdiff_t>(rest));
  before->insert(before->end(), begun->begin(), begun->end());
  const auto gap = tokenizer.around_gap(*before, *behind);
  if (!gap)
    return tl::unexpected<ApiError>(
        ApiError{.status = 501, .message = gap.error().message, .code = "unsupported_parameter"});
  extra->insert(extra->end(), gap->begin(), gap->end());
  return std::move(*extra);
}

ApiResult<std::unique_ptr<Completion>> Completion::start(HostedModel& model,
                                                         GenerationRequest request,
                                                         std::string id) {
  const Clock::time_point now = Clock::now();
  std::unique_ptr<Completion> c(new Completion(model, std::move(request), std::move(id)));
  const GenerationRequest& r = c->request_;
  auto prompts = c->prompts();
  if (!prompts) return tl::unexpected<ApiError>(std::move(prompts.error()));
  c->prefix_hash_ = prefix_hash_of(prompts->front());
  const auto grammar = c->grammar();
  if (!grammar) return tl::unexpected<ApiError>(grammar.error());
  if (auto error = c->bias_texts()) return tl::unexpected<ApiError>(std::move(*error));
  for (const models::LogitBias& b : r.logit_bias)
    if (auto error = outside_vocabulary({&b.token, 1}, model.tokenizer(), "logit_bias"))
      return tl::unexpected<ApiError>(std::move(*error));
  c->has_tools_ = r.is_chat && r.parses_calls && !r.tools.is_null() && !r.tools.empty() &&
                  r.tool_choice != ToolChoice::kNone;
  if (r.has_raw_reasoning && model.chat_format().calls == CallSyntax::kHarmony)
    return tl::unexpected<ApiError>(
        ApiError{.message = "this model writes in channels, of which 'reasoning_format' \"none\" "
                            "would leave the markers alone: ask for \"auto\"",
                 .param = "reasoning_format",
                 .code = "unsupported_parameter"});
  const uint64_t seed = r.seed ? *r.seed : random_seed();
  for (size_t at = 0; at < prompts->size(); ++at) {
    const std::vector<int32_t>& prompt = (*prompts)[at];
    c->prompt_tokens_ += prompt.size();
    if (r.has_echo && !prompt.empty()) c->echoes_.push_back(c->echo_of(at, prompt));
    for (uint32_t i = 0; i < std::max(r.n, r.best_of); ++i) {
      Job job;
      job.prompt = prompt;
      const size_t room =
          prompt.size() <= model.context() ? model.context() - prompt.size() + 1 : 1;
      job.ignores_end = r.ignores_end;
      job.min_tokens = r.min_tokens;
      job.max_tokens = r.max_tokens.value_or(static_cast<uint32_t>(room));
      // Each choice draws from a stream of its own.
      job.sampling = c->sampling(seed + i);
      job.penalizes_prompt = r.penalizes_prompt;
      job.top_logprobs = r.top_logprobs;
      job.has_drawn_probabilities = r.has_native_logprobs && r.has_drawn_probabilities;
      job.scores_prompt = r.has_echo && r.top_logprobs;
      if (r.best_of > r.n && !job.top_logprobs) job.top_logprobs = 0;
      job.priority = r.priority;
      if (r.timeout_s)
        job.deadline = now + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(*r.timeout_s));
      if (*grammar) {
        job.grammar = *grammar;
        job.vocabulary = model.vocabulary();
        if (c->is_reasoning_) job.grammar_after = model.chat_format().think_close;
      }
      Choice choice;
      choice.prompt = at;
      choice.prompt_tokens = prompt.size();
      if (r.native) choice.prompt_text = model.tokenizer().decode(prompt, {.render_special = true});
      models::SamplerOptions& sampling = job.sampling;
      if (sampling.has_step(models::SamplerStep::kInfill))
        sampling.infill =
            std::make_shared<const models::InfillVocabulary>(model.infill_vocabulary());
      LineLimits lines;
      lines = {.indent = r.indent, .time = std::chrono::milliseconds(std::max(r.predict_ms, 0))};
      if (r.has_echo && !prompt.empty()) choice.characters = c->echoes_[at].characters;
      choice.generation = std::make_shared<Generation>(
          model.tokenizer(), r.stop, r.is_chat && model.has_control_markers(c->has_tools_),
          r.min_tokens, lines, r.has_progress && r.is_stream);
      if (r.is_chat) choice.parser = c->chat_parser();
      job.listener = choice.generation;
      const auto submitted = model.scheduler().submit(std::move(job));
      if (!submitted) return tl::unexpected<ApiError>(submit_error(submitted.error()));
      choice.id = *submitted;
      c->choices_.push_back(std::move(choice));
    }
  }
  return c;
}

ApiResult<std::shared_ptr<const models::Grammar>> Completion::grammar() const {
  const auto gbnf = grammar_of_request(request_, model_.chat_format());
  if (!gbnf) return tl::unexpected<ApiError>(gbnf.error());
  if (gbnf->empty()) return nullptr;
  auto parsed = models::Grammar::parse(*gbnf);
  if (!parsed)
    return tl::unexpected<ApiError>(ApiError{.message = parsed.error().message,
                                             .param = !request_.grammar.empty() ? "grammar"
                                                      : !request_.schema.is_null()
                                                          ? request_.schema_param
                                                          : "tools",
                                             .code = "invalid_value"});
  return std::make_shared<const models::Grammar>(std::move(*parsed));
}

models::SamplerOptions Completion::sampling(uint64_t seed) const {
  const GenerationRequest& r = request_;
  const models::SamplerDefaults& file = model_.sampler_defaults();
  const auto first = [](const auto& asked, const auto& recommended, auto otherwise) {
    return asked.value_or(recommended.value_or(otherwise));
  };
  // llama-server's own defaults where it is asked in its own form.
  const bool is_native = r.native.has_value();
  models::SamplerOptions out{
      .temperature = first(r.temperature, file.temperature, is_native ? 0.8F : 1.0F),
      .dynatemp_range = r.dynatemp_range,
      .dynatemp_exponent = r.dynatemp_exponent,
      .top_n_sigma = r.top_n_sigma,
      .top_k = first(r.top_k, file.top_k, is_native ? 40U : 0U),
      .top_p = first(r.top_p, file.top_p, is_native ? 0.95F : 1.0F),
      .min_p = first(r.min_p, file.min_p, is_native ? 0.05F : 0.0F),
      .typical_p = r.typical_p,
      .xtc_probability = first(r.xtc_probability, file.xtc_probability, 0.0F),
      .xtc_threshold = first(r.xtc_threshold, file.xtc_threshold, 0.1F),
      .dry = r.dry,
      .repeat_penalty = first(r.repetition_penalty, file.repeat_penalty, 1.0F),
      .repeat_window = r.repeat_window.value_or(
          file.repeat_window.value_or(r.penalizes_prompt ? 64 : UINT32_MAX)),
      .frequency_penalty = r.frequency_penalty,
      .presence_penalty = r.presence_penalty,
      .mirostat_tau = first(r.mirostat_tau, file.mirostat_tau, 5.0F),
      .mirostat_eta = first(r.mirostat_eta, file.mirostat_eta, 0.1F),
      .logit_bias = r.logit_bias,
      .min_keep = r.min_keep,
      .seed = seed};
  if (out.dry.multiplier > 0)
    out.dry.breakers = std::make_shared<const models::DryBreakers>(
        r.dry_breakers, [&text = model_.tokenizer()](int32_t token) { return text.piece(token); });
  // In place of these, unless one of them is asked for; who asks for it gets it in any case.
  if (r.mirostat)
    out.mirostat = static_cast<models::Mirostat>(*r.mirostat);
  else if (file.mirostat && !r.top_k && !r.top_p && !r.min_p && !r.steps)
    out.mirostat = *file.mirostat;
  if (out.mirostat != models::Mirostat::kOff) return out;
  out.order = r.steps;
  if (is_native && !out.order) out.order = llama_steps();
  return out;
}

Completion::Echo Completion::echo_of(size_t prompt, const std::vector<int32_t>& tokens) const {
  const std::string plain = model_.tokenizer().decode(tokens);
  if (request_.texts.empty()) return {.text = plain, .first_token = tokens[0]};
  const std::string& text = request_.texts[prompt];
  // Tokenizers that put a space before the first word.
  return {.text = text, .first_token = tokens[0], .characters = plain == " " + text ? -1 : 0};
}

void Completion::add_echo(const Choice& choice, Piece* piece) const {
  const Echo& echo = echoes_[choice.prompt];
  piece->text.insert(0, echo.text);
  if (!request_.top_logprobs) return;
  std::vector<ChosenToken> all{{.id = echo.first_token, .logprob = std::nan(""), .top = {}}};
  std::ranges::move(piece->prompt, std::back_inserter(all));
  std::ranges::move(piece->tokens, std::back_inserter(all));
  piece->tokens = std::move(all);
}

std::vector<size_t> Completion::best_choices() const {
  std::vector<size_t> out(choices_.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = i;
  if (request_.best_of <= request_.n) return out;
  // Source: OpenAI's API reference, "Completions", best_of: the highest log probability per token.
  std::vector<double> means;
  for (const Choice& c : choices_) means.push_back(mean_logprob(c.tokens));
  std::ranges::stable_sort(out, [&](size_t a, size_t b) {
    const size_t pa = choices_[a].prompt, pb = choices_[b].prompt;
    return pa != pb ? pa < pb : means[a] > means[b];
  });
  size_t at = 0;
  std::erase_if(out, [&](size_t) { return at++ % request_.best_of >= request_.n; });
  return out;
}

ChatPieces Completion::parse(Choice& choice, const Piece& piece) const {
  ChatPieces out = choice.parser->push(piece.text);
  if (!piece.is_finished) return out;
  ChatPieces last = choice.parser->finish();
  out.reasoning += last.reasoning;
  out.content += last.content;
  std::ranges::move(last.calls, std::back_inserter(out.calls));
  return out;
}

std::string Completion::call_id(size_t choice, size_t call) const {
  return fmt::format("call_{}_{}_{}", std::string_view(id_).substr(id_.find('-') + 1), choice,
                     call);
}

Json Completion::message(size_t index, const Choice& c) const {
  Json out{{"role", "assistant"},
           {"content", c.text.empty() && !c.calls.empty() ? Json() : Json(c.text)},
           {"refusal", nullptr}};
  if (!c.reasoning.empty()) out["reasoning_content"] = c.reasoning;
  if (c.calls.empty()) return out;
  Json& calls = out["tool_calls"] = Json::array();
  for (const CallPiece& call : c.calls)
    calls.push_back({{"id", call_id(index, call.index)},
                     {"type", "function"},
                     {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return out;
}

Json Completion::head(std::string_view object) const {
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_.name()},
          {"system_fingerprint", "bellmetal-" BM_VERSION}};
}

Json Completion::logprobs(const std::vector<ChosenToken>& tokens, int64_t* characters) const {
  if (!request_.top_logprobs) return nullptr;
  if (request_.has_native_logprobs) return {{"content", native_probabilities(tokens)}};
  const auto text = [&](int32_t id) { return model_.tokenizer().piece(id); };
  if (!request_.is_chat) {
    Json out{{"tokens", Json::array()},
             {"token_logprobs", Json::array()},
             {"top_logprobs", Json::array()},
             {"text_offset", Json::array()}};
    for (const ChosenToken& t : tokens) {
      const std::string bytes = text(t.id);
      const auto is_inside = [](char c) { return (c & 0xC0) == 0x80; };  // a character of UTF-8
      // Of the character that the token begins with, or goes on with.
      out["text_offset"].push_back(std::max<int64_t>(
          *characters - (*characters > 0 && !bytes.empty() && is_inside(bytes[0]) ? 1 : 0), 0));
      // Control tokens are no part of the text.
      if (!model_.tokenizer().is_special(t.id))
        *characters += std::ranges::count_if(bytes, std::not_fn(is_inside));
      std::string chosen = models::is_valid_utf8(bytes) ? bytes : bytes_name(bytes);
      if (std::isnan(t.logprob)) {  // the first token of an echo
        out["tokens"].push_back(std::move(chosen));
        out["token_logprobs"].push_back(nullptr);
        out["top_logprobs"].push_back(nullptr);
        continue;
      }
      out["token_logprobs"].push_back(t.logprob);
      Json top = Json::object();
      // Two tokens may have one text (a letter, and its byte): both are told.
      for (const auto& [id, logprob] : t.top) {
        const std::string own = text(id);
        std::string name = id == t.id ? chosen : models::is_valid_utf8(own) ? own : bytes_name(own);
        if (id != t.id && (name == chosen || top.contains(name))) name = bytes_name(own);
        if (id != t.id && (name == chosen || top.contains(name)))
          name = fmt::format("token_id:{}", id);
        top[name] = logprob;
      }
      // The chosen token is always among them, as one more where it is not of the likeliest.
      if (!top.contains(chosen)) top[chosen] = t.logprob;
      out["tokens"].push_back(std::move(chosen));
      out["top_logprobs"].push_back(std::move(top));
    }
    return out;
  }
  const auto entry = [&](int32_t id, double logprob) {
    const std::string bytes = text(id);
    return Json{{"id", id},
                {"token", bytes},
                {"logprob", logprob},
                {"bytes", std::vector<uint8_t>(bytes.begin(), bytes.end())}};
  };
  Json content = Json::array();
  for (const ChosenToken& t : tokens) {
    Json one = entry(t.id, t.logprob);
    one["top_logprobs"] = Json::array();
    for (const auto& [id, logprob] : t.top) one["top_logprobs"].push_back(entry(id, logprob));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Usage Completion::usage() const {
  Usage out{.prompt_tokens = prompt_tokens_};
  for (const Choice& c : choices_) {
    if (!c.is_finished) {
      out.finish = "abort";
      continue;
    }
    out.completion_tokens += c.generation->token_count();
    out.cached_tokens += c.generation->timings().cached_tokens;
    const Finish finish = c.generation->finish();
    if (out.finish.empty() || is_failure(finish))
      out.finish = kFinishNames[static_cast<size_t>(finish)];
  }
  if (!choices_.empty() && choices_[0].is_finished) out.timings = choices_[0].generation->timings();
  return out;
}

Json Completion::usage_so_far() const {
  size_t tokens = 0;
  for (const Choice& c : choices_) tokens += c.generation->tokens_so_far();
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", tokens},
          {"total_tokens", prompt_tokens_ + tokens}};
}

Json Completion::usage_json() const {
  const Usage u = usage();
  Json out{{"prompt_tokens", u.prompt_tokens},
           {"completion_tokens", u.completion_tokens},
           {"total_tokens", u.prompt_tokens + u.completion_tokens},
           // Of all choices: each looks its prompt up.
           {"prompt_tokens_details", {{"cached_tokens", u.cached_tokens}}}};
  return out;
}

ChatParser Completion::chat_parser() const {
  ChatFormat format = model_.chat_format();
  if (request_.has_raw_reasoning) format.think_open = format.think_close = "";
  return {std::move(format), has_tools_, is_reasoning_ && !request_.has_raw_reasoning};
}

size_t Completion::reasoning_tokens(const Choice& choice) const {
  models::StreamDecoder decoder(model_.tokenizer(), model_.has_control_markers(has_tools_));
  ChatParser parser = chat_parser();
  size_t out = 0;
  for (const ChosenToken& t : choice.tokens) {
    const bool was_reasoning = parser.is_reasoning();
    parser.push(decoder.push(t.id));
    if (was_reasoning || parser.is_reasoning()) ++out;
  }
  return out;
}

Json Completion::response_usage() const {
  const Usage u = usage();
  return {{"input_tokens", u.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", u.cached_tokens}}},
          {"output_tokens", u.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens(choices_[0])}}},
          {"total_tokens", u.prompt_tokens + u.completion_tokens}};
}

std::string Completion::finish_message() {
  const Choice& c = choices_[0];
  const Usage u = usage();
  const std::string& stopped_by = c.generation->stopped_by();
  const std::string_view reason = c.generation->finish() == Finish::kLength ? "max_tokens"
                                  : c.parser->call_count() > 0              ? "tool_use"
                                  : !stopped_by.empty()                     ? "stop_sequence"
                                                                            : "end_turn";
  return messages_->finish(reason, stopped_by,
                           {{"cache_read_input_tokens", u.cached_tokens},
                            {"input_tokens", u.prompt_tokens - u.cached_tokens},
                            {"output_tokens", u.completion_tokens}});
}

std::string Completion::write(Choice& choice, const Piece& piece) {
  const ChatPieces pieces = parse(choice, piece);
  const Json probabilities = logprobs(piece.tokens, &choice.characters);
  if (messages_) return messages_->push(pieces);
  choice.tokens.insert(choice.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  return writer_->push(pieces, probabilities.is_null() ? Json() : probabilities["content"]);
}

ApiResult<std::string> Completion::wait(const IsWanted& is_wanted) {
  for (Choice& c : choices_)
    while (!c.is_finished) {
      if (auto piece = c.generation->next(Clock::now() + kAskEvery)) {
        c.is_finished = piece->is_finished;
        if (writer_ || messages_) {
          write(c, *piece);
          continue;
        }
        if (c.parser) {
          ChatPieces pieces = parse(c, *piece);
          c.text += pieces.content;
          c.reasoning += pieces.reasoning;
          for (CallPiece& call : pieces.calls) {
            if (!call.name.empty())
              c.calls.push_back(std::move(call));
            else
              c.calls.back().arguments += call.arguments;
          }
        } else {
          c.text += piece->text;
        }
        std::ranges::move(piece->prompt, std::back_inserter(c.echoed));
        std::ranges::move(piece->tokens, std::back_inserter(c.tokens));
      } else if (!is_wanted()) {
        return tl::unexpected<ApiError>(ApiError{.status = 499, .message = "the client is gone"});
      }
    }
  for (const Choice& c : choices_)
    if (is_failure(c.generation->finish()))
      return tl::unexpected<ApiError>(error_of(*c.generation));
  if (messages_) {
    last_events();
    is_over_ = true;
    return dump(messages_->message());
  }
  if (writer_) {
    last_events();
    is_over_ = true;
    return dump(writer_->response());
  }
  if (request_.native) {
    is_over_ = true;
    Json list = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i)
      list.push_back(native_answer(i, choices_[i], std::move(choices_[i].text)));
    return dump(list.size() == 1 ? list[0] : list);
  }
  Json list = Json::array();
  for (const size_t at : best_choices()) {
    Choice& c = choices_[at];
    if (request_.has_echo) {
      Piece whole{.text = std::move(c.text),
                  .prompt = std::move(c.echoed),
                  .tokens = std::move(c.tokens),
                  .progress = {}};
      add_echo(c, &whole);
      c.text = std::move(whole.text);
      c.tokens = std::move(whole.tokens);
    }
    const size_t i = list.size();
    Json one{{"index", i}};
    if (request_.is_chat)
      one["message"] = message(i, c);
    else
      one["text"] = c.text;
    one["logprobs"] = logprobs(c.tokens, &c.characters);
    one["finish_reason"] = reason_name(c.generation->finish(), c.parser);
    list.push_back(std::move(one));
  }
  Json out = head(request_.is_chat ? "chat.completion" : "text_completion");
  out["choices"] = std::move(list);
  out["usage"] = usage_json();
  out["timings"] = timings_json(choices_[0]);
  is_over_ = true;
  return dump(out);
}

std::string Completion::event(size_t index, Choice& choice, Piece piece) {
  std::string out;
  if (writer_ || messages_) {
    out = write(choice, piece);
    if (piece.is_finished && is_failure(choice.generation->finish()))
      out += writer_ ? writer_->fail(error_of(*choice.generation))
                     : messages_->fail(error_of(*choice.generation));
    return out;
  }
  if (request_.native) return native_event(index, choice, piece);
  if (request_.has_echo && !std::exchange(choice.has_begun, true)) add_echo(choice, &piece);
  Json extra = Json::object();  // of every event
  if (request_.has_timings_so_far) extra["timings"] = timings_so_far(choice);
  const auto add = [&](Json what, const std::vector<ChosenToken>& tokens, const Json& finish) {
    Json one{{"index", index}};
    one.update(what);
    one["logprobs"] = tokens.empty() ? Json() : logprobs(tokens, &choice.characters);
    one["finish_reason"] = finish;
    Json json = head(request_.is_chat ? "chat.completion.chunk" : "text_completion");
    json["choices"] = Json::array({std::move(one)});
    if (request_.has_stream_usage)
      json["usage"] = request_.has_usage_so_far ? usage_so_far() : Json();
    json.update(extra);
    if (!finish.is_null() && !request_.has_stream_usage) json["timings"] = timings_json(choice);
    out += as_event(json);
  };
  if (request_.is_chat && !std::exchange(choice.has_begun, true))
    add({{"delta", {{"role", "assistant"}, {"content", ""}}}}, {}, nullptr);
  for (const PromptProgress& p : piece.progress) {
    extra["prompt_progress"] = progress_json(p);
    add(request_.is_chat ? Json{{"delta", Json::object()}} : Json{{"text", ""}}, {}, nullptr);
    extra.erase("prompt_progress");
  }
  if (request_.is_chat) {
    ChatPieces pieces = parse(choice, piece);
    const bool has_tokens = request_.top_logprobs && !piece.tokens.empty();
    if (!pieces.is_empty() || has_tokens) {
      Json delta = Json::object();
      if (!pieces.reasoning.empty()) delta["reasoning_content"] = pieces.reasoning;
      if (!pieces.content.empty() || pieces.is_empty()) delta["content"] = pieces.content;
      for (const CallPiece& call : pieces.calls) {
        Json one{{"index", call.index}};
        if (!call.name.empty()) {
          one["id"] = call_id(index, call.index);
          one["type"] = "function";
          one["function"]["name"] = call.name;
        }
        one["function"]["arguments"] = call.arguments;
        delta["tool_calls"].push_back(std::move(one));
      }
      add({{"delta", std::move(delta)}}, piece.tokens, nullptr);
    }
  } else if (!piece.text.empty() || (request_.top_logprobs && !piece.tokens.empty())) {
    add({{"text", piece.text}}, piece.tokens, nullptr);
  }
  if (!piece.is_finished) return out;
  if (is_failure(choice.generation->finish()))
    return out + "data: " + error_body(error_of(*choice.generation)) + "\n\n";
  const Json reason = reason_name(choice.generation->finish(), choice.parser);
  if (request_.is_chat)
    add({{"delta", Json::object()}}, {}, reason);
  else
    add({{"text", ""}}, {}, reason);
  return out;
}

std::string Completion::native_event(size_t index, Choice& choice, const Piece& piece) const {
  std::string out;
  const auto add = [&](const std::string& text, const std::vector<ChosenToken>& chosen,
                       const PromptProgress* progress) {
    Json tokens = Json::array();
    for (const ChosenToken& token : chosen) tokens.push_back(token.id);
    Json json{{"index", index},
              {"content", text},
              {"tokens", std::move(tokens)},
              {"stop", false},
              {"id_slot", -1},
              {"tokens_predicted", choice.generation->tokens_so_far()},
              {"tokens_evaluated", choice.prompt_tokens}};
    if (request_.has_native_logprobs && !chosen.empty())
      json["completion_probabilities"] = native_probabilities(chosen);
    if (request_.has_timings_so_far) json["timings"] = timings_so_far(choice);
    if (progress) json["prompt_progress"] = progress_json(*progress);
    out += as_event(json);
  };
  for (const PromptProgress& p : piece.progress) add("", {}, &p);
  if (!piece.text.empty() || !piece.tokens.empty()) add(piece.text, piece.tokens, nullptr);
  if (!piece.is_finished) return out;
  if (is_failure(choice.generation->finish()))
    return out + "data: " + error_body(error_of(*choice.generation)) + "\n\n";
  return out + as_event(native_answer(index, choice, ""));
}

std::string Completion::last_events() {
  if (request_.native) return {};
  if (messages_) return finish_message();
  if (writer_)
    return writer_->finish(choices_[0].generation->finish() == Finish::kLength, response_usage());
  std::string out;
  if (request_.has_stream_usage) {
    Json json = head(request_.is_chat ? "chat.completion.chunk" : "text_completion");
    json["choices"] = Json::array();
    json["usage"] = usage_json();
    json["timings"] = timings_json(choices_[0]);
    out = as_event(json);
  }
  return out + "data: [DONE]\n\n";
}

std::optional<std::string> Completion::next_events(const IsWanted& is_wanted) {
  if (is_over_) return "";
  if (writer_ && !std::exchange(has_begun_, true)) return writer_->begin();
  if (messages_ && !std::exchange(has_begun_, true)) return messages_->begin(prompt_tokens_);
  for (;;) {
    std::string out;
    Choice* first = nullptr;
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& c = choices_[i];
      if (c.is_finished) continue;
      if (auto piece = c.generation->next(Clock::now())) {
        c.is_finished = piece->is_finished;
        out += event(i, c, std::move(*piece));
        // The error is the last event, whatever becomes of the other choices.
        if (c.is_finished && is_failure(c.generation->finish())) {
          is_over_ = true;
          return out;
        }
      }
      if (!c.is_finished && !first) first = &c;
    }
    if (!first) {
      is_over_ = true;
      return out + last_events();
    }
    if (!out.empty()) return out;
    if (first->generation->wait(Clock::now() + kAskEvery)) continue;
    if (!is_wanted()) return std::nullopt;
  }
}

}  // namespace bm::serve
