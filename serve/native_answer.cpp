// Answers in llama-server's own form, and what of it stands in answers in OpenAI's.
//
// Source of names and meaning: llama.cpp, tools/server/README.md, and the answers of llama-server
// (build 11669), field by field.

#include "models/unicode.h"
#include "serve/completion.h"
#include "serve/request_fields.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

Json native_timings(const Timings& t, size_t prompt_tokens, size_t predicted) {
  const auto per = [](double amount, double of) { return of > 0 ? amount / of : 0.0; };
  const size_t cached = t.cached_tokens,
               computed = prompt_tokens - std::min<size_t>(cached, prompt_tokens);
  // The first token comes with the prompt.
  const auto steps = static_cast<double>(predicted > 0 ? predicted - 1 : 0);
  return {{"cache_n", cached},
          {"prompt_n", computed},
          {"prompt_ms", t.prompt * 1e3},
          {"prompt_per_token_ms", per(t.prompt * 1e3, static_cast<double>(computed))},
          {"prompt_per_second", per(static_cast<double>(computed), t.prompt)},
          {"predicted_n", predicted},
          {"predicted_ms", t.decode * 1e3},
          {"predicted_per_token_ms", per(t.decode * 1e3, steps)},
          {"predicted_per_second", per(steps, t.decode)}};
}

}  // namespace

Json progress_json(const PromptProgress& progress) {
  return {{"total", progress.total},
          {"cache", progress.cached},
          {"processed", progress.processed},
          {"time_ms", static_cast<int64_t>(progress.seconds * 1e3)}};
}

Json Completion::timings_json(const Choice& choice) const {
  const Timings& t = choice.generation->timings();
  const size_t tokens = choice.generation->token_count();
  Json out = native_timings(t, choice.prompt_tokens, tokens);
  if (!request_.has_timings) return out;
  out["queue_ms"] = t.queue * 1e3;
  out["decode_ms"] = t.decode * 1e3;
  if (tokens > 1 && t.decode > 0)
    out["decode_tokens_per_second"] = static_cast<double>(tokens - 1) / t.decode;
  return out;
}

Json Completion::timings_so_far(const Choice& choice) const {
  const size_t tokens = choice.generation->tokens_so_far();
  return native_timings(choice.generation->timings_so_far(), choice.prompt_tokens, tokens);
}

Json Completion::native_probabilities(const std::vector<ChosenToken>& tokens) const {
  const bool is_drawn = request_.has_drawn_probabilities;
  const models::Tokenizer& tokenizer = model_.tokenizer();
  const auto entry = [&](int32_t id, double value) {
    const std::string bytes = tokenizer.is_special(id) ? "" : tokenizer.piece(id);
    return Json{{"id", id},
                {"token", models::is_valid_utf8(bytes) ? bytes : ""},
                {"bytes", std::vector<uint8_t>(bytes.begin(), bytes.end())},
                {is_drawn ? "prob" : "logprob", value}};
  };
  Json out = Json::array();
  for (const ChosenToken& t : tokens) {
    Json one = entry(t.id, t.logprob);
    Json& top = one[is_drawn ? "top_probs" : "top_logprobs"] = Json::array();
    for (const auto& [id, value] : t.top) top.push_back(entry(id, value));
    out.push_back(std::move(one));
  }
  return out;
}

Json Completion::generation_settings() const {
  const models::SamplerOptions used = sampling(request_.seed.value_or(0));
  Json biases = Json::array(), samplers = Json::array();
  for (const models::LogitBias& b : used.logit_bias)
    biases.push_back({{"bias", std::isinf(b.bias) ? Json() : Json(b.bias)}, {"token", b.token}});
  for (const models::SamplerStep step : used.order.value_or(llama_steps()))
    samplers.push_back(step_name(step));
  const Json most = request_.max_tokens ? Json(*request_.max_tokens) : Json(-1);
  const auto count_or_all = [](uint32_t count) {
    return count == UINT32_MAX ? Json(-1) : Json(count);
  };
  return {{"seed", request_.seed ? Json(*request_.seed) : Json(UINT32_MAX)},
          {"temperature", used.temperature},
          {"dynatemp_range", used.dynatemp_range},
          {"dynatemp_exponent", used.dynatemp_exponent},
          {"top_k", used.top_k},
          {"top_p", used.top_p},
          {"min_p", used.min_p},
          {"top_n_sigma", used.top_n_sigma > 0 ? used.top_n_sigma : -1.0F},
          {"xtc_probability", used.xtc_probability},
          {"xtc_threshold", used.xtc_threshold},
          {"typical_p", used.typical_p},
          {"repeat_last_n", count_or_all(used.repeat_window)},
          {"repeat_penalty", used.repeat_penalty},
          {"presence_penalty", used.presence_penalty},
          {"frequency_penalty", used.frequency_penalty},
          {"dry_multiplier", used.dry.multiplier},
          {"dry_base", used.dry.base},
          {"dry_allowed_length", used.dry.allowed_length},
          {"dry_penalty_last_n", count_or_all(used.dry.last_n)},
          {"dry_sequence_breakers", request_.dry_breakers},
          {"mirostat", static_cast<int>(used.mirostat)},
          {"mirostat_tau", used.mirostat_tau},
          {"mirostat_eta", used.mirostat_eta},
          {"stop", request_.stop},
          {"max_tokens", most},
          {"n_predict", most},
          {"n_keep", 0},
          {"n_discard", 0},
          {"ignore_eos", request_.ignores_end},
          {"stream", request_.is_stream},
          {"logit_bias", std::move(biases)},
          {"n_probs", request_.has_native_logprobs ? request_.top_logprobs.value_or(0) : 0},
          {"min_keep", used.min_keep},
          {"grammar", request_.grammar},
          {"samplers", std::move(samplers)},
          {"timings_per_token", request_.has_timings_so_far},
          {"post_sampling_probs", request_.has_drawn_probabilities},
          {"lora", Json::array()}};
}

Json Completion::default_settings(HostedModel& model) {
  constexpr std::string_view kNothing = R"({"prompt":""})";
  const Completion plain(model, std::move(*parse_native_completion(kNothing)), "");
  return plain.generation_settings();
}

Json Completion::native_answer(size_t index, const Choice& c, std::string content) const {
  const NativeForm& native = *request_.native;
  const Generation& g = *c.generation;
  const size_t predicted = g.token_count();
  Json tokens = Json::array();
  if (native.has_tokens && !request_.is_stream)
    for (const ChosenToken& token : c.tokens) tokens.push_back(token.id);
  const bool is_word = !g.stopped_by().empty();
  const bool is_limit = g.finish() == Finish::kLength || g.lines().is_stopped();
  Json out{{"index", index},
           {"content", std::move(content)},
           {"tokens", std::move(tokens)},
           {"id_slot", -1},
           {"stop", true},
           {"model", model_.name()},
           {"tokens_predicted", predicted},
           {"tokens_evaluated", c.prompt_tokens},
           {"generation_settings", generation_settings()},
           {"prompt", c.prompt_text},
           {"has_new_line", g.lines().has_new_line()},
           {"truncated", false},
           {"stop_type", is_word    ? "word"
                         : is_limit ? "limit"
                                    : "eos"},
           {"stopping_word", g.stopped_by()},
           // What is in the cache now: the last token has not been computed.
           {"tokens_cached", c.prompt_tokens + predicted - (predicted > 0 ? 1 : 0)},
           {"timings", timings_json(c)}};
  if (request_.has_native_logprobs && !request_.is_stream)
    out["completion_probabilities"] = native_probabilities(c.tokens);
  if (native.response_fields.empty()) return out;
  Json chosen = Json::object();
  for (const std::string& name : native.response_fields) {
    const size_t slash = name.find('/');
    const auto member = out.find(name.substr(0, slash));
    if (member == out.end()) continue;
    if (slash == std::string::npos)
      chosen[name] = *member;
    else if (member->is_object() && member->contains(name.substr(slash + 1)))
      chosen[name] = (*member)[name.substr(slash + 1)];
  }
  return chosen;
}

}  // namespace bm::serve
