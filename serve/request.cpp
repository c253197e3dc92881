#include "serve/request.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

tl::unexpected<ApiError> refuse(std::string_view param, std::string message,
                                std::string code = "") {
  return tl::unexpected<ApiError>(ApiError{
      .message = std::move(message), .param = std::string(param), .code = std::move(code)});
}

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

/// Fields of an object, each taken once; what nobody took is unknown. The first error is kept.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  /// nullptr when it is absent or null.
  const Json* find(const char* name) {
    taken_.push_back(name);
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  void text(const char* name, std::string* out) {
    if (const Json* j = find(name)) {
      if (!j->is_string()) return wrong(name, "a string");
      *out = j->get<std::string>();
    }
  }

  void flag(const char* name, bool* out) {
    if (const Json* j = find(name)) {
      if (!j->is_boolean()) return wrong(name, "true or false");
      *out = j->get<bool>();
    }
  }

  template <class T>
  void number(const char* name, double low, double high, T* out) {
    if (const Json* j = find(name)) {
      const double value = j->is_number() ? j->get<double>() : std::nan("");
      if (!(value >= low && value <= high))
        return wrong(name, fmt::format("a number from {} to {}", low, high));
      *out = static_cast<float>(value);
    }
  }

  template <class T>
  void integer(const char* name, int64_t low, int64_t high, T* out) {
    if (const Json* j = find(name)) {
      const bool fits =
          j->is_number_integer() &&
          (!j->is_number_unsigned() ||
           j->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) &&
          j->get<int64_t>() >= low && j->get<int64_t>() <= high;
      if (!fits) return wrong(name, fmt::format("a whole number from {} to {}", low, high));
      if constexpr (requires { typename T::value_type; })
        *out = static_cast<typename T::value_type>(j->get<int64_t>());
      else
        *out = static_cast<T>(j->get<int64_t>());
    }
  }

  void wrong(std::string_view name, const std::string& wanted) {
    if (!error_)
      error_ = refuse(name, fmt::format("'{}' must be {}", name, wanted), "invalid_value").value();
  }

  /// Fields that change nothing at `neutral` and cannot be had otherwise.
  void neutral(const char* name, const Json& neutral) {
    const Json* j = find(name);
    if (!j || *j == neutral || error_) return;
    if (j->is_number() && neutral.is_number() && j->get<double>() == neutral.get<double>()) return;
    if ((j->is_object() || j->is_array()) && j->empty()) return;
    error_ =
        refuse(name, fmt::format("'{}' is not supported", name), "unsupported_parameter").value();
  }

  /// Fields that are known and cannot be had: absent or null alone.
  void unsupported(std::initializer_list<const char*> names) {
    for (const char* name : names) neutral(name, Json());
  }

  void ignore(std::initializer_list<const char*> names) {
    taken_.insert(taken_.end(), names.begin(), names.end());
  }

  std::optional<ApiError> finish() {
    if (error_) return error_;
    for (const auto& [name, value] : object_.items())
      if (std::ranges::find(taken_, name) == taken_.end())
        return refuse(name, fmt::format("unrecognized request argument: '{}'", name),
                      "unknown_parameter")
            .value();
    return std::nullopt;
  }

 private:
  const Json& object_;
  std::vector<std::string_view> taken_;
  std::optional<ApiError> error_;
};

void take_stop(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  const Json* stop = f.find("stop");
  if (!stop) return;
  const auto add = [&](const Json& j) {
    if (!j.is_string() || j.get_ref<const std::string&>().empty() ||
        j.get_ref<const std::string&>().size() > limits.stop_bytes)
      return f.wrong("stop", fmt::format("texts of 1 to {} bytes", limits.stop_bytes));
    r->stop.push_back(j.get<std::string>());
  };
  if (!stop->is_array()) return add(*stop);
  if (stop->size() > limits.stops)
    return f.wrong("stop", fmt::format("at most {} texts", limits.stops));
  for (const Json& j : *stop) add(j);
}

/// {"token id": bias}; as with OpenAI, 100 and −100 are as good as always and never.
void take_biases(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  const Json* biases = f.find("logit_bias");
  if (!biases) return;
  const auto wrong = [&] {
    f.wrong("logit_bias", fmt::format("an object of at most {} token ids with numbers from -100 "
                                      "to 100",
                                      limits.biases));
  };
  if (!biases->is_object() || biases->size() > limits.biases) return wrong();
  for (const auto& [token, bias] : biases->items()) {
    const bool is_id = !token.empty() && token.size() < 10 &&
                       std::ranges::all_of(token, [](char c) { return c >= '0' && c <= '9'; });
    const double value = bias.is_number() ? bias.get<double>() : std::nan("");
    if (!is_id || !(value >= -100 && value <= 100)) return wrong();
    r->logit_bias.push_back({std::stoi(token), static_cast<float>(value)});
  }
}

void take_response_format(Fields& f, GenerationRequest* r) {
  const Json* format = f.find("response_format");
  if (!format) return;
  const auto type = format->is_object() ? format->value("type", Json()) : Json();
  if (type == "text") return;
  if (type == "json_object") {
    r->schema = Json{{"type", "object"}};
    return;
  }
  // The schema is a member of a member; vLLM and llama-server take it a level higher, too.
  if (type != "json_schema") {
    return f.wrong("response_format",
                   "{\"type\": …} with \"text\", \"json_object\" or \"json_schema\"");
  }
  const auto holder = format->find("json_schema");
  const Json* schema = nullptr;
  if (holder != format->end() && holder->is_object() && holder->contains("schema"))
    schema = &(*holder)["schema"];
  else if (format->contains("schema"))
    schema = &(*format)["schema"];
  if (!schema || !schema->is_object())
    return f.wrong("response_format.json_schema.schema", "a JSON schema");
  r->schema = *schema;
}

/// {"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}: the others are as if they
/// were not there.
void take_allowed_tools(Fields& f, const Json& choice, GenerationRequest* r) {
  const auto wrong = [&] {
    f.wrong("tool_choice.allowed_tools",
            "{\"mode\": …, \"tools\": […]} with \"auto\" or \"required\" and functions of 'tools'");
  };
  // OpenAI's other interface (Responses) has the members a level higher.
  const auto inner = choice.find("allowed_tools");
  const Json& allowed = inner == choice.end() ? choice : *inner;
  if (!allowed.is_object()) return wrong();
  const Json mode = allowed.value("mode", Json("auto")), names = allowed.value("tools", Json());
  if ((mode != "auto" && mode != "required") || !names.is_array() || names.empty()) return wrong();
  Json kept = Json::array();
  std::vector<std::string> wanted;
  for (const Json& one : names) {
    if (!one.is_object()) return wrong();
    const auto function = one.find("function");
    const Json name = function != one.end() && function->is_object()
                          ? function->value("name", Json())
                          : one.value("name", Json());
    if (!name.is_string()) return wrong();
    wanted.push_back(name.get<std::string>());
  }
  const auto name_of = [](const Json& tool) { return tool["function"]["name"].get<std::string>(); };
  for (const std::string& name : wanted)
    if (r->tools.is_null() || std::ranges::find(r->tools, name, name_of) == r->tools.end())
      return wrong();
  for (const Json& tool : r->tools)
    if (std::ranges::find(wanted, name_of(tool)) != wanted.end()) kept.push_back(tool);
  r->tools = std::move(kept);
  if (mode == "required") r->tool_choice = ToolChoice::kRequired;
}

/// tools, tool_choice and parallel_tool_calls.
void take_tools(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  if (const Json* tools = f.find("tools")) {
    if (!tools->is_array() || tools->size() > limits.tools)
      return f.wrong("tools", fmt::format("a list of at most {}", limits.tools));
    for (size_t i = 0; i < tools->size(); ++i) {
      const Json& tool = (*tools)[i];
      const auto function = tool.is_object() ? tool.find("function") : tool.end();
      const bool is_function = tool.is_object() &&
                               tool.value("type", Json("function")) == "function" &&
                               function != tool.end() && function->is_object();
      const Json name = is_function ? function->value("name", Json()) : Json();
      if (!name.is_string() || name.get_ref<const std::string&>().empty() ||
          !std::ranges::all_of(name.get_ref<const std::string&>(), [](char c) {
            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                   c == '_' || c == '-' || c == '.';
          }))
        return f.wrong(fmt::format("tools[{}]", i),
                       "a function with a name of letters, digits, _, - and .");
    }
    r->tools = *tools;
  }
  f.flag("parallel_tool_calls", &r->has_parallel_calls);
  const Json* choice = f.find("tool_choice");
  if (!choice || *choice == "auto") return;
  if (choice->is_object() && choice->value("type", Json()) == "allowed_tools")
    return take_allowed_tools(f, *choice, r);
  if (*choice == "none") {
    r->tool_choice = ToolChoice::kNone;
    return;
  }
  const auto function = choice->is_object() ? choice->find("function") : choice->end();
  const bool is_named = choice->is_object() && function != choice->end() && function->is_object() &&
                        function->value("name", Json()).is_string();
  if (*choice != "required" && !is_named)
    return f.wrong("tool_choice", "\"none\", \"auto\", \"required\" or a function of 'tools'");
  if (r->tools.is_null() || r->tools.empty())
    return f.wrong("tool_choice", "absent without 'tools'");
  r->tool_choice = is_named ? ToolChoice::kNamed : ToolChoice::kRequired;
  if (is_named) {
    r->tool_name = (*function)["name"].get<std::string>();
    r->has_parallel_calls = false;
  }
}

/// A variable of the template, as vLLM has it; "none" also says so to templates that know whether,
/// not how much. What chat_template_kwargs say goes first.
void take_effort(Fields& f, GenerationRequest* r) {
  const Json* effort = f.find("reasoning_effort");
  if (!effort) return;
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium",
                                           "high", "xhigh",   "max"};
  if (!effort->is_string() ||
      std::ranges::find(kEfforts, effort->get_ref<const std::string&>()) == std::end(kEfforts))
    return f.wrong("reasoning_effort",
                   R"("none", "minimal", "low", "medium", "high", "xhigh" or "max")");
  Json variables{{"reasoning_effort", *effort}};
  if (*effort == "none") variables["enable_thinking"] = false;
  if (!r->template_variables.is_null()) variables.update(r->template_variables);
  r->template_variables = std::move(variables);
}

/// What chats and completions share.
void take_common(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  f.text("model", &r->model);
  f.integer("n", 1, limits.choices, &r->n);
  f.flag("stream", &r->is_stream);
  f.number("temperature", 0, 2, &r->temperature);
  f.number("top_p", 0, 1, &r->top_p);
  if (r->top_p == 0.0F) r->top_p = std::numeric_limits<float>::min();
  f.number("min_p", 0, 1, &r->min_p);
  std::optional<int32_t> top_k;
  f.integer("top_k", -1, std::numeric_limits<int32_t>::max(), &top_k);
  if (top_k) r->top_k = static_cast<uint32_t>(std::max(*top_k, 0));
  if (const Json* seed = f.find("seed")) {
    if (seed->is_number_unsigned())
      r->seed = seed->get<uint64_t>();
    else if (seed->is_number_integer())
      r->seed = static_cast<uint64_t>(seed->get<int64_t>());
    else
      f.wrong("seed", "a whole number");
  }
  take_stop(f, limits, r);
  f.integer("priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
            &r->priority);
  double timeout = 0;
  f.number("timeout", 0.001, 1e6, &timeout);
  if (timeout > 0) r->timeout_s = timeout;
  f.flag("return_timings", &r->has_timings);
  f.flag("ignore_eos", &r->ignores_end);
  f.integer("min_tokens", 0, 1 << 30, &r->min_tokens);
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
  f.number("presence_penalty", -2, 2, &r->presence_penalty);
  f.number("frequency_penalty", -2, 2, &r->frequency_penalty);
  f.number("repetition_penalty", 0.01, 100, &r->repetition_penalty);
  take_biases(f, limits, r);
  f.text("grammar", &r->grammar);
  take_response_format(f, r);
  // Said of who asks or where, not of what is generated.
  f.ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
            "prompt_cache_retention"});
}

void take_limit(Fields& f, const char* name, uint32_t least, std::optional<uint32_t>* out) {
  constexpr uint32_t kNone = UINT32_MAX;
  uint32_t value = kNone;
  f.integer(name, least, 1 << 30, &value);
  if (value != kNone) *out = value;
}

void check_least(Fields& f, const GenerationRequest& r) {
  if (r.max_tokens && r.min_tokens > *r.max_tokens) f.wrong("min_tokens", "at most 'max_tokens'");
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

/// Texts or lists of tokens, one or several.
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

}  // namespace

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
  take_limit(f, "max_tokens", 1, &r.max_tokens);
  take_limit(f, "max_completion_tokens", 1, &r.max_tokens);
  check_least(f, r);
  bool has_logprobs = false;
  f.flag("logprobs", &has_logprobs);
  uint32_t top = 0;
  f.integer("top_logprobs", 0, limits.top_logprobs, &top);
  if (top > 0 && !has_logprobs) f.wrong("top_logprobs", "absent unless 'logprobs' is true");
  if (has_logprobs) r.top_logprobs = top;
  take_tools(f, limits, &r);
  if (const Json* variables = f.find("chat_template_kwargs")) {
    if (variables->is_object())
      r.template_variables = *variables;
    else
      f.wrong("chat_template_kwargs", "an object");
  }
  take_effort(f, &r);
  if (!r.grammar.empty() && !r.schema.is_null())
    f.wrong("grammar", "absent beside 'response_format'");
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
  take_limit(f, "max_tokens", 0, &r.max_tokens);
  check_least(f, r);
  if (f.find("logprobs")) {
    uint32_t top = 0;
    f.integer("logprobs", 0, limits.top_logprobs, &top);
    r.top_logprobs = top;
  }
  r.best_of = r.n;
  f.integer("best_of", r.n, limits.choices, &r.best_of);
  if (r.best_of > r.n && r.is_stream)
    f.wrong("best_of", "n in a stream: which choices are the best is known at their end");
  f.flag("echo", &r.has_echo);
  f.neutral("suffix", "");
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  if (r.best_of * (r.texts.size() + r.token_lists.size()) > limits.choices)
    return refuse(r.best_of > r.n ? "best_of" : "n",
                  fmt::format("'{}' times the prompts is more than {}",
                              r.best_of > r.n ? "best_of" : "n", limits.choices));
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
  f.ignore({"user"});
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  return r;
}

ApiResult<TokenizeRequest> parse_tokenize(std::string_view body) {
  const auto json = parse_body(body);
  if (!json) return tl::unexpected<ApiError>(json.error());
  TokenizeRequest r;
  Fields f(*json);
  f.text("model", &r.model);
  // llama-server's name, and vLLM's.
  f.text("content", &r.text);
  f.text("prompt", &r.text);
  f.flag("add_special", &r.add_special);
  f.flag("add_special_tokens", &r.add_special);
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
