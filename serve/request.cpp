#include "serve/request.h"

#include "serve/request_fields.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

/// Nesting is counted before there are values, whose destructors would recurse.
bool is_deeper(std::string_view text, uint32_t limit) {
  uint32_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limit) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

/// What chats and completions share.
void take_common(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  f.text("model", &r->model);
  for (const char* name : {"n_cmpl", "n"}) f.integer(name, 1, limits.choices, &r->n);
  f.flag("stream", &r->is_stream);
  take_sampling(f, limits, r);
  f.flag("return_timings", &r->has_timings);
  if (const Json* options = f.find("stream_options")) {
    if (!options->is_object()) {
      f.wrong("stream_options", "an object");
    } else if (!r->is_stream) {
      f.wrong("stream_options", "absent unless 'stream' is true");
    } else {
      Fields inner(*options);
      inner.flag("include_usage", &r->has_stream_usage);
      inner.flag("continuous_usage_stats", &r->has_usage_so_far);
      r->has_usage_so_far = r->has_usage_so_far && r->has_stream_usage;  // as vLLM has it
      inner.neutral("include_obfuscation", false);
      if (const auto error = inner.finish()) f.wrong("stream_options", "{\"include_usage\": true}");
    }
  }
  if (const Json* format = f.find("response_format")) take_format(f, "response_format", *format, r);
  // Said of who asks or where, not of what is generated.
  f.ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
            "prompt_cache_retention"});
}

/// What a part of a content says; nothing where it is no text. A refusal is what an assistant said.
std::optional<std::string> text_of_part(const Json& part) {
  const Json type = part.is_object() ? part.value("type", Json()) : Json();
  if (type != "text" && type != "refusal") return std::nullopt;
  const auto text = part.find(type.get_ref<const std::string&>());
  if (text == part.end() || !text->is_string()) return std::nullopt;
  return text->get<std::string>();
}

void take_messages(Fields& f, GenerationRequest* r) {
  const Json* messages = f.find("messages");
  if (!messages || !messages->is_array() || messages->empty())
    return f.wrong("messages", "a list of at least one message");
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& m = (*messages)[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!m.is_object() || !m.contains("role") || !m["role"].is_string())
      return f.wrong(name, "an object with a role");
    const auto content = m.find("content");
    const bool has_content = content != m.end() && !content->is_null();
    // Beside calls there need be none.
    if (!has_content && m["role"] == "assistant") continue;
    if (has_content && content->is_string()) continue;
    if (!has_content || !content->is_array())
      return f.wrong(name + ".content", "a text or a list of parts");
    for (const Json& part : *content)
      if (!text_of_part(part))
        return f.wrong(name + ".content",
                       "of parts of the type \"text\": this server reads no other");
  }
  r->messages = *messages;
  // A text in parts is what templates know as a text, and what is absent is null to them.
  for (Json& m : r->messages) {
    const auto content = m.find("content");
    if (content == m.end()) m["content"] = nullptr;
    if (content == m.end() || !content->is_array()) continue;
    std::string whole;
    for (const Json& part : *content) whole += *text_of_part(part);
    *content = whole;
  }
}

/// What llama-server has for chats alone.
void take_llama_chat(Fields& f, GenerationRequest* r) {
  std::string format = "auto";
  f.text("reasoning_format", &format);
  if (format == "none")
    r->has_raw_reasoning = true;
  else if (format != "auto" && format != "deepseek")
    f.wrong("reasoning_format", "\"auto\", \"deepseek\" or \"none\"");
  f.flag("parse_tool_calls", &r->parses_calls);
  std::optional<bool> has_prompt;
  if (const Json* wanted = f.find("add_generation_prompt")) {
    if (!wanted->is_boolean()) return f.wrong("add_generation_prompt", "true or false");
    has_prompt = wanted->get<bool>();
    r->has_generation_prompt = *has_prompt;
  }
  const Json* goes_on = f.find("continue_final_message");
  if (!goes_on) return;
  if (!goes_on->is_boolean()) return f.wrong("continue_final_message", "true or false");
  r->goes_on = goes_on->get<bool>();
  const Json& last = r->messages.is_array() && !r->messages.empty() ? r->messages.back() : Json();
  if (*r->goes_on && (!last.is_object() || last["role"] != "assistant"))
    f.wrong("continue_final_message", "false where the last message is not an assistant's");
  if (*r->goes_on && has_prompt == true)
    f.wrong("add_generation_prompt", "false beside 'continue_final_message'");
}

/// llama-server's fields that belong to its own form of answers.
void take_openai_llama(Fields& f) {
  f.neutral("return_tokens", false);  // /completion has them
  f.ignore({"response_fields"});      // of answers of /completion alone, in llama-server too
}

}  // namespace

void take_texts(Fields& f, const char* name, uint32_t limit, std::vector<std::string>* texts,
                std::vector<std::vector<int32_t>>* token_lists) {
  const Json* prompt = f.find(name);
  const auto is_tokens = [](const Json& j) {
    return j.is_array() && !j.empty() && std::ranges::all_of(j, [](const Json& t) {
             return t.is_number_integer() && t.get<double>() >= 0 && t.get<double>() < 1e9;
           });
  };
  const auto wrong = [&] {
    f.wrong(name,
            fmt::format("a text, a list of tokens, or a list of at most {} of either", limit));
  };
  if (!prompt) return wrong();
  if (prompt->is_string()) {
    texts->push_back(prompt->get<std::string>());
  } else if (is_tokens(*prompt)) {
    token_lists->push_back(prompt->get<std::vector<int32_t>>());
  } else if (prompt->is_array() && !prompt->empty() && prompt->size() <= limit) {
    for (const Json& j : *prompt) {
      if (j.is_string())
        texts->push_back(j.get<std::string>());
      else if (is_tokens(j))
        token_lists->push_back(j.get<std::vector<int32_t>>());
      else
        return wrong();
    }
    if (!texts->empty() && !token_lists->empty()) return wrong();
  } else {
    wrong();
  }
}

std::string error_body(const ApiError& error) {
  const auto or_null = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
  const Json body{{"error",
                   {{"message", error.message},
                    {"type", error.type},
                    {"param", or_null(error.param)},
                    {"code", or_null(error.code)}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiResult<Json> parse_body(std::string_view body, const RequestLimits& limits) {
  if (is_deeper(body, limits.json_depth))
    return refuse(
        "", fmt::format("the JSON of the body is nested deeper than {} levels", limits.json_depth));
  try {
    Json out = Json::parse(body.begin(), body.end());
    if (!out.is_object()) return refuse("", "the body is not a JSON object");
    return out;
  } catch (const Json::exception& e) {
    return refuse("", fmt::format("the body is not JSON: {}", e.what()));
  }
}

ApiResult<GenerationRequest> parse_chat(std::string_view body, const RequestLimits& limits) {
  const auto json = parse_body(body, limits);
  if (!json) return tl::unexpected<ApiError>(json.error());
  GenerationRequest r;
  r.is_chat = true;
  Fields f(*json);
  take_common(f, limits, &r);
  take_messages(f, &r);
  take_predict(f, {"max_tokens", "max_completion_tokens"}, 1, &r);
  check_least(f, r);
  bool has_logprobs = false;
  f.flag("logprobs", &has_logprobs);
  uint32_t top = 0;
  f.integer("top_logprobs", 0, limits.top_logprobs, &top);
  if (top > 0 && !has_logprobs) f.wrong("top_logprobs", "absent unless 'logprobs' is true");
  if (has_logprobs) {
    if (r.has_drawn_probabilities) f.wrong("post_sampling_probs", "absent beside 'logprobs'");
    r.top_logprobs = top;
    r.has_native_logprobs = false;
  }
  take_tools(f, limits, &r);
  if (const Json* variables = f.find("chat_template_kwargs")) {
    if (variables->is_object())
      r.template_variables = *variables;
    else
      f.wrong("chat_template_kwargs", "an object");
  }
  if (const Json* effort = f.find("reasoning_effort"))
    take_effort(f, "reasoning_effort", *effort, &r);
  take_llama_chat(f, &r);
  if (!r.grammar.empty() && !r.schema.is_null())
    f.wrong("grammar", "absent beside 'response_format'");
  take_openai_llama(f);
  f.neutral("modalities", Json::array({"text"}));
  f.neutral("verbosity", "medium");
  // Clients write null for what their users have not set.
  f.unsupported({"audio", "function_call", "functions", "prediction", "web_search_options"});
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  return r;
}

ApiResult<GenerationRequest> parse_completion(std::string_view body, const RequestLimits& limits) {
  const auto json = parse_body(body, limits);
  if (!json) return tl::unexpected<ApiError>(json.error());
  GenerationRequest r;
  Fields f(*json);
  take_common(f, limits, &r);
  take_texts(f, "prompt", limits.prompts, &r.texts, &r.token_lists);
  r.max_tokens = 16;
  take_predict(f, {"max_tokens"}, 0, &r);
  check_least(f, r);
  if (f.find("logprobs")) {
    uint32_t top = 0;
    f.integer("logprobs", 0, limits.top_logprobs, &top);
    if (r.has_drawn_probabilities) f.wrong("post_sampling_probs", "absent beside 'logprobs'");
    r.top_logprobs = top;
    r.has_native_logprobs = false;
  }
  take_openai_llama(f);
  r.best_of = r.n;
  f.integer("best_of", r.n, limits.choices, &r.best_of);
  if (r.best_of > r.n && r.is_stream)
    f.wrong("best_of", "n in a stream: which choices are the best is known at their end");
  f.flag("echo", &r.has_echo);
  f.text("suffix", &r.suffix);
  if (r.has_echo && !r.suffix.empty()) f.wrong("echo", "absent beside 'suffix'");
  if (r.has_native_logprobs && (r.has_echo || r.best_of > r.n))
    f.wrong("n_probs", "absent beside 'echo' and 'best_of': 'logprobs' goes with them");
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  if (r.best_of * (r.texts.size() + r.token_lists.size()) > limits.choices)
    return refuse(r.best_of > r.n ? "best_of" : "n",
                  fmt::format("'{}' times the prompts is more than {}",
                              r.best_of > r.n ? "best_of" : "n", limits.choices));
  return r;
}

ApiResult<RerankRequest> parse_rerank(std::string_view body, const RequestLimits& limits) {
  const auto json = parse_body(body, limits);
  if (!json) return tl::unexpected<ApiError>(json.error());
  RerankRequest r;
  Fields f(*json);
  f.text("model", &r.model);
  if (!f.find("query")) return refuse("query", "'query' is missing");
  f.text("query", &r.query);
  r.is_tei = json->contains("texts") && !json->contains("documents");
  // Text Embeddings Inference's name, which llama-server knows too.
  const char* name = r.is_tei ? "texts" : "documents";
  const Json* documents = f.find(name);
  if (!documents) return refuse("documents", "'documents' is missing");
  const std::string wanted =
      fmt::format("1 to {} texts, or objects with a \"text\"", limits.inputs);
  if (!documents->is_array() || documents->empty() || documents->size() > limits.inputs)
    return refuse(name, fmt::format("'{}' must be {}", name, wanted), "invalid_value");
  for (const Json& one : *documents) {
    const Json text = one.is_object() ? one.value("text", Json()) : one;
    if (!text.is_string())
      return refuse(name, fmt::format("'{}' must be {}", name, wanted), "invalid_value");
    r.documents.push_back(text.get<std::string>());
  }
  take_limit(f, "top_n", 1, &r.top_n);
  f.flag(r.is_tei ? "return_text" : "return_documents", &r.has_documents);
  f.ignore({"user"});
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  return r;
}

ApiResult<EmbeddingRequest> parse_embedding(std::string_view body, const RequestLimits& limits) {
  const auto json = parse_body(body, limits);
  if (!json) return tl::unexpected<ApiError>(json.error());
  EmbeddingRequest r;
  Fields f(*json);
  f.text("model", &r.model);
  take_texts(f, "input", limits.inputs, &r.texts, &r.token_lists);
  std::string format = "float";
  f.text("encoding_format", &format);
  if (format != "float" && format != "base64")
    f.wrong("encoding_format", "\"float\" or \"base64\"");
  r.is_base64 = format == "base64";
  take_limit(f, "dimensions", 1, &r.dimensions);
  if (f.find("prompt_name")) f.text("prompt_name", &r.prompt_name.emplace());
  if (r.prompt_name && !r.token_lists.empty())
    f.wrong("prompt_name", "absent where the input is tokens");
  f.ignore({"user"});
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  return r;
}

ApiResult<GenerationRequest> parse_apply_template(std::string_view body,
                                                  const RequestLimits& limits) {
  return parse_chat(body, limits);
}

ApiResult<EmbeddingRequest> parse_native_embedding(std::string_view body,
                                                   const RequestLimits& limits) {
  const auto json = parse_body(body, limits);
  if (!json) return tl::unexpected<ApiError>(json.error());
  EmbeddingRequest r;
  r.is_native = true;
  Fields f(*json);
  f.text("model", &r.model);
  const char* name = json->contains("content") ? "content" : "input";
  take_texts(f, name, limits.inputs, &r.texts, &r.token_lists);
  f.ignore({"content", "input", "user"});
  f.integer("embd_normalize", -1, 1 << 10, &r.norm);
  std::string format = "float";
  f.text("encoding_format", &format);
  if (format != "float") f.wrong("encoding_format", "\"float\": /v1/embeddings has others");
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  return r;
}

ApiResult<TokenizeRequest> parse_tokenize(std::string_view body) {
  const auto json = parse_body(body);
  if (!json) return tl::unexpected<ApiError>(json.error());
  TokenizeRequest r;
  Fields f(*json);
  f.text("model", &r.model);
  // llama-server's name and defaults, and vLLM's.
  if (f.find("content")) {
    r.add_special = false;
    r.parses_special = true;
  }
  f.text("content", &r.text);
  f.text("prompt", &r.text);
  f.flag("add_special", &r.add_special);
  f.flag("add_special_tokens", &r.add_special);
  f.flag("parse_special", &r.parses_special);
  f.flag("with_pieces", &r.has_pieces);
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  if (!json->contains("content") && !json->contains("prompt"))
    return refuse("prompt", "'prompt' must be a string", "invalid_value");
  return r;
}

ApiResult<DetokenizeRequest> parse_detokenize(std::string_view body) {
  const auto json = parse_body(body);
  if (!json) return tl::unexpected<ApiError>(json.error());
  DetokenizeRequest r;
  Fields f(*json);
  f.text("model", &r.model);
  const Json* tokens = f.find("tokens");
  const bool is_list =
      tokens && tokens->is_array() && std::ranges::all_of(*tokens, [](const Json& t) {
        return t.is_number_integer() && t.get<double>() >= 0 && t.get<double>() < 1e9;
      });
  if (is_list)
    r.tokens = tokens->get<std::vector<int32_t>>();
  else
    f.wrong("tokens", "a list of tokens");
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  return r;
}

}  // namespace bm::serve
