// Requests in llama-server's own form: /completion and /infill.
//
// Source of names and defaults: llama.cpp, tools/server/README.md; the requests of llama.vim and
// llama.vscode.

#include "serve/request_fields.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostFiles = 1024, kMostFields = 128;

/// What is asked for of the answer: "timings/prompt_n" is a member of a member.
void take_response_fields(Fields& f, GenerationRequest* r) {
  const Json* fields = f.find("response_fields");
  if (!fields) return;
  const auto is_text = [](const Json& j) { return j.is_string(); };
  if (!fields->is_array() || fields->size() > kMostFields || !std::ranges::all_of(*fields, is_text))
    return f.wrong("response_fields", fmt::format("a list of at most {} texts", kMostFields));
  r->native->response_fields = fields->get<std::vector<std::string>>();
}

void take_native(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  f.text("model", &r->model);
  f.flag("stream", &r->is_stream);
  take_sampling(f, limits, r);
  take_predict(f, {"max_tokens", "max_completion_tokens"}, 0, r);
  for (const char* name : {"n", "n_cmpl"}) f.integer(name, 1, limits.choices, &r->n);
  take_response_fields(f, r);
  f.flag("return_tokens", &r->native->has_tokens);
  // llama-server's second name for n_probs, which goes first.
  uint32_t count = 0;
  f.integer("logprobs", 0, limits.native_logprobs, &count);
  if (count > 0 && !r->top_logprobs) {
    r->top_logprobs = count;
    r->has_native_logprobs = true;
  }
  f.ignore({"stream_options"});
  ignore_strangers(f);
}

/// A text or a list of tokens, or a list of both; and {"prompt_string": text}.
std::optional<std::vector<PromptPart>> parts_of(const Json& prompt) {
  const auto is_token = [](const Json& j) {
    return j.is_number_integer() && j.get<double>() >= 0 && j.get<double>() < 1e9;
  };
  std::vector<PromptPart> out;
  if (prompt.is_object()) {
    const Json text = prompt.value("prompt_string", Json()),
               data = prompt.value("multimodal_data", Json::array());
    if (!text.is_string() || !data.is_array() || !data.empty()) return std::nullopt;
    out.push_back({.text = text.get<std::string>(), .tokens = {}});
    return out;
  }
  if (prompt.is_string()) {
    out.push_back({.text = prompt.get<std::string>(), .tokens = {}});
    return out;
  }
  if (!prompt.is_array() || prompt.empty()) return std::nullopt;
  for (const Json& one : prompt) {
    if (one.is_string()) {
      out.push_back({.text = one.get<std::string>(), .tokens = {}});
    } else if (is_token(one)) {
      if (out.empty() || out.back().tokens.empty()) out.emplace_back();
      out.back().tokens.push_back(one.get<int32_t>());
    } else {
      return std::nullopt;
    }
  }
  return out;
}

/// One prompt or several. A list is one where it has a token and no list in it.
void take_prompts(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  const auto wrong = [&] {
    f.wrong("prompt",
            fmt::format("a text, a list of tokens and texts, or a list of at most {} of either; "
                        "this server reads no images",
                        limits.prompts));
  };
  const Json* prompt = f.find("prompt");
  if (!prompt) return wrong();
  std::vector<std::vector<PromptPart>>& out = r->native->prompts;
  const auto is_number = [](const Json& j) { return j.is_number(); };
  if (!prompt->is_array() || std::ranges::any_of(*prompt, is_number)) {
    auto parts = parts_of(*prompt);
    if (!parts) return wrong();
    out.push_back(std::move(*parts));
    return;
  }
  if (prompt->empty() || prompt->size() > limits.prompts) return wrong();
  for (const Json& one : *prompt) {
    auto parts = parts_of(one);
    if (!parts) return wrong();
    out.push_back(std::move(*parts));
  }
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
  take_native(f, limits, &r);
  take_prompts(f, limits, &r);
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  r.best_of = r.n;
  if (r.n * r.native->prompts.size() > limits.choices)
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
  take_native(f, limits, &r);
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
