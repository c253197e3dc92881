// Requests in llama-server's own form: /completion and /infill.
//
// Source of names and defaults: llama.cpp, tools/server/README.md; the requests of llama.vim and
// llama.vscode.

#include "serve/request_fields.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;
using models::SamplerStep;

constexpr struct {
  const char* name;
  char letter;
  SamplerStep step;
} kSteps[] = {{"penalties", 'e', SamplerStep::kPenalties},
              {"dry", 'd', SamplerStep::kDry},
              {"top_n_sigma", 's', SamplerStep::kTopNSigma},
              {"top_k", 'k', SamplerStep::kTopK},
              {"typ_p", 'y', SamplerStep::kTypical},
              {"typical_p", 'y', SamplerStep::kTypical},
              {"top_p", 'p', SamplerStep::kTopP},
              {"min_p", 'm', SamplerStep::kMinP},
              {"xtc", 'x', SamplerStep::kXtc},
              {"temperature", 't', SamplerStep::kTemperature},
              {"infill", 'i', SamplerStep::kInfill}};
constexpr size_t kMostSteps = 32, kMostFiles = 1024, kMostFields = 128;

/// A list of names, or a text of letters.
void take_steps(Fields& f, GenerationRequest* r) {
  const Json* samplers = f.find("samplers");
  if (!samplers) return;
  const auto wrong = [&] {
    f.wrong("samplers",
            fmt::format("a list of at most {} of \"penalties\", \"dry\", \"top_n_sigma\", "
                        "\"top_k\", \"typ_p\", \"top_p\", \"min_p\", \"xtc\", \"temperature\" and "
                        "\"infill\", or their letters",
                        kMostSteps));
  };
  std::vector<SamplerStep> steps;
  const auto add = [&](const auto& is_it) {
    const auto* at = std::ranges::find_if(kSteps, is_it);
    if (at == std::end(kSteps)) return false;
    steps.push_back(at->step);
    return true;
  };
  if (samplers->is_string()) {
    for (const char c : samplers->get_ref<const std::string&>())
      if (!add([&](const auto& s) { return s.letter == c; })) return wrong();
  } else if (samplers->is_array()) {
    for (const Json& one : *samplers)
      if (!one.is_string() || !add([&](const auto& s) { return one == s.name; })) return wrong();
  } else {
    return wrong();
  }
  if (steps.size() > kMostSteps) return wrong();
  r->native->steps = std::move(steps);
}

void take_limits(Fields& f, GenerationRequest* r) {
  NativeForm& native = *r->native;
  // −1: as many as there is room for; −2 is llama-server's old name for it.
  std::optional<int32_t> predict;
  for (const char* name : {"max_tokens", "n_predict"}) f.integer(name, -2, 1 << 30, &predict);
  if (predict && *predict >= 0) r->max_tokens = static_cast<uint32_t>(*predict);
  f.integer("n_indent", 0, 1 << 20, &native.indent);
  f.integer("t_max_predict_ms", -1, 1 << 30, &native.predict_ms);
  // llama-server does nothing with it either.
  int32_t prompt_ms = 0;
  f.integer("t_max_prompt_ms", -1, 1 << 30, &prompt_ms);
  f.integer("n_cmpl", 1, 128, &r->n);
  f.number("repeat_penalty", 0.01, 100, &r->repetition_penalty);
  std::optional<int32_t> window;
  f.integer("repeat_last_n", -1, 1 << 30, &window);
  if (window) native.repeat_window = *window < 0 ? UINT32_MAX : static_cast<uint32_t>(*window);
}

/// What is asked for of the answer: "timings/prompt_n" is a member of a member.
void take_response_fields(Fields& f, GenerationRequest* r) {
  const Json* fields = f.find("response_fields");
  if (!fields) return;
  const auto is_text = [](const Json& j) { return j.is_string(); };
  if (!fields->is_array() || fields->size() > kMostFields || !std::ranges::all_of(*fields, is_text))
    return f.wrong("response_fields", fmt::format("a list of at most {} texts", kMostFields));
  r->native->response_fields = fields->get<std::vector<std::string>>();
}

void take_native(Fields& f, const RequestLimits& limits, const Json& body, GenerationRequest* r) {
  f.text("model", &r->model);
  f.flag("stream", &r->is_stream);
  take_sampling(f, limits, r);
  if (body.value("seed", Json()) == -1) r->seed.reset();  // drawn
  take_steps(f, r);
  take_limits(f, r);
  take_response_fields(f, r);
  f.flag("return_tokens", &r->native->has_tokens);
  if (const Json* schema = f.find("json_schema")) {
    r->schema_param = "json_schema";
    if (schema->is_object())
      r->schema = *schema;
    else
      f.wrong("json_schema", "a JSON schema");
  }
  if (!r->grammar.empty() && !r->schema.is_null())
    f.wrong("grammar", "absent beside 'json_schema'");
  const bool is_bound = !r->grammar.empty() || !r->schema.is_null();
  if (is_bound && r->native->steps &&
      std::ranges::find(*r->native->steps, SamplerStep::kInfill) != r->native->steps->end())
    f.wrong("samplers", "without \"infill\" beside 'grammar' and 'json_schema'");
  // The prefix cache gives the same bits, whatever is asked for.
  bool is_cached = true;
  f.flag("cache_prompt", &is_cached);
  f.ignore(
      {"id_slot", "n_keep", "n_discard", "n_cache_reuse", "mirostat_tau", "mirostat_eta", "user"});
  for (const char* name : {"mirostat", "n_probs", "min_keep"}) f.neutral(name, 0);
  for (const char* name : {"timings_per_token", "post_sampling_probs", "return_progress"})
    f.neutral(name, false);
  f.neutral("lora", Json::array());
}

/// Chunks of other files.
void take_extra(Fields& f, GenerationRequest* r) {
  const Json* extra = f.find("input_extra");
  if (!extra) return;
  const auto wrong = [&] {
    f.wrong(
        "input_extra",
        fmt::format("a list of at most {} objects {{\"filename\": …, \"text\": …}}", kMostFiles));
  };
  if (!extra->is_array() || extra->size() > kMostFiles) return wrong();
  for (const Json& one : *extra) {
    const Json text = one.is_object() ? one.value("text", Json()) : Json(),
               name = one.is_object() ? one.value("filename", Json("tmp")) : Json();
    if (!text.is_string() || !name.is_string()) return wrong();
    r->native->infill->extra.push_back({name.get<std::string>(), text.get<std::string>()});
  }
}

}  // namespace

ApiResult<GenerationRequest> parse_native_completion(std::string_view body,
                                                     const RequestLimits& limits) {
  const auto json = parse_body(body, limits);
  if (!json) return tl::unexpected<ApiError>(json.error());
  GenerationRequest r;
  r.native.emplace();
  Fields f(*json);
  take_native(f, limits, *json, &r);
  take_texts(f, "prompt", limits.prompts, &r.texts, &r.token_lists);
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  r.best_of = r.n;
  if (r.n * (r.texts.size() + r.token_lists.size()) > limits.choices)
    return refuse("n_cmpl",
                  fmt::format("'n_cmpl' times the prompts is more than {}", limits.choices));
  return r;
}

ApiResult<GenerationRequest> parse_infill(std::string_view body, const RequestLimits& limits) {
  const auto json = parse_body(body, limits);
  if (!json) return tl::unexpected<ApiError>(json.error());
  GenerationRequest r;
  InfillPrompt& infill = r.native.emplace().infill.emplace();
  Fields f(*json);
  take_native(f, limits, *json, &r);
  for (const auto& [name, to] :
       {std::pair{"input_prefix", &infill.prefix}, std::pair{"input_suffix", &infill.suffix}}) {
    if (!f.find(name)) return refuse(name, fmt::format("'{}' is missing", name));
    f.text(name, to);
  }
  f.text("prompt", &infill.begun);
  take_extra(f, &r);
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  r.best_of = r.n;
  return r;
}

}  // namespace bm::serve
