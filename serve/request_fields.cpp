#include "serve/request_fields.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

/// {"token id": bias}; as with OpenAI, 100 and −100 are as good as always and never. llama-server
/// also has [[token or text, bias], …], texts as names, and false for never.
void take_biases(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  const Json* biases = f.find("logit_bias");
  if (!biases) return;
  const auto wrong = [&] {
    f.wrong("logit_bias", fmt::format("an object, or a list of pairs, of at most {} token ids or "
                                      "texts with numbers from -100 to 100, or false",
                                      limits.biases));
  };
  if (!biases->is_structured() || biases->size() > limits.biases) return wrong();
  const auto add = [&](const Json& token, const Json& bias) {
    double value = bias.is_number() ? bias.get<double>() : std::nan("");
    if (bias == false)
      value = -std::numeric_limits<double>::infinity();
    else if (!(value >= -100 && value <= 100))
      return false;
    if (token.is_number_integer()) {
      const double id = token.get<double>();
      if (!(id >= 0 && id < 1e9)) return false;
      r->logit_bias.push_back({token.get<int32_t>(), static_cast<float>(value)});
      return true;
    }
    if (!token.is_string() || token.get_ref<const std::string&>().empty()) return false;
    const std::string& text = token.get_ref<const std::string&>();
    if (std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; }) &&
        biases->is_object()) {
      if (text.size() > 9) return false;
      r->logit_bias.push_back({std::stoi(text), static_cast<float>(value)});
    } else {
      r->text_bias.emplace_back(text, static_cast<float>(value));
    }
    return true;
  };
  if (biases->is_object()) {
    for (const auto& [token, bias] : biases->items())
      if (!add(token, bias)) return wrong();
    return;
  }
  for (const Json& pair : *biases)
    if (!pair.is_array() || pair.size() != 2 || !add(pair[0], pair[1])) return wrong();
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

/// What llama-server has beyond OpenAI's fields.
void take_samplers(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  for (const char* name : {"typ_p", "typical_p"}) f.number(name, 0, 1, &r->typical_p);
  if (r->typical_p == 0.0F) r->typical_p = std::numeric_limits<float>::min();
  f.number("top_n_sigma", -1, 100, &r->top_n_sigma);
  r->top_n_sigma = std::max(r->top_n_sigma, 0.0F);  // off
  f.number("dynatemp_range", 0, 2, &r->dynatemp_range);
  f.number("dynatemp_exponent", 0, 100, &r->dynatemp_exponent);
  f.number("xtc_probability", 0, 1, &r->xtc_probability);
  f.number("xtc_threshold", 0, 1, &r->xtc_threshold);
  f.number("dry_multiplier", 0, 100, &r->dry.multiplier);
  f.number("dry_base", 1, 100, &r->dry.base);
  f.integer("dry_allowed_length", 0, 1 << 20, &r->dry.allowed_length);
  int32_t last_n = r->native ? 64 : -1;  // llama-server's default in its own form
  f.integer("dry_penalty_last_n", -1, 1 << 30, &last_n);
  r->dry.last_n = last_n < 0 ? UINT32_MAX : static_cast<uint32_t>(last_n);
  const Json* breakers = f.find("dry_sequence_breakers");
  if (!breakers) return;
  const auto is_text = [&](const Json& j) {
    return j.is_string() && !j.get_ref<const std::string&>().empty() &&
           j.get_ref<const std::string&>().size() <= limits.breaker_bytes;
  };
  if (!breakers->is_array() || breakers->size() > limits.breakers ||
      !std::ranges::all_of(*breakers, is_text))
    return f.wrong("dry_sequence_breakers",
                   fmt::format("a list of at most {} texts of 1 to {} bytes", limits.breakers,
                               limits.breaker_bytes));
  r->dry_breakers = breakers->get<std::vector<std::string>>();
}

}  // namespace

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

void take_sampling(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  f.number("temperature", 0, r->native ? 100 : 2, &r->temperature);
  f.number("top_p", 0, 1, &r->top_p);
  if (r->top_p == 0.0F) r->top_p = std::numeric_limits<float>::min();
  f.number("min_p", 0, 1, &r->min_p);
  std::optional<int32_t> top_k;
  f.integer("top_k", -1, std::numeric_limits<int32_t>::max(), &top_k);
  if (top_k) r->top_k = static_cast<uint32_t>(std::max(*top_k, 0));
  if (const Json* seed = f.find("seed")) {
    if (seed->is_number_unsigned())
      r->seed = seed->get<uint64_t>();
    else if (*seed == -1)
      r->seed.reset();  // drawn, as llama-server and vLLM have it
    else if (seed->is_number_integer())
      r->seed = static_cast<uint64_t>(seed->get<int64_t>());
    else
      f.wrong("seed", "a whole number");
  }
  take_samplers(f, limits, r);
  take_stop(f, limits, r);
  f.integer("priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
            &r->priority);
  double timeout = 0;
  f.number("timeout", 0.001, 1e6, &timeout);
  if (timeout > 0) r->timeout_s = timeout;
  f.flag("ignore_eos", &r->ignores_end);
  f.integer("min_tokens", 0, 1 << 30, &r->min_tokens);
  f.number("presence_penalty", -2, 2, &r->presence_penalty);
  f.number("frequency_penalty", -2, 2, &r->frequency_penalty);
  f.number("repetition_penalty", 0.01, 100, &r->repetition_penalty);
  take_biases(f, limits, r);
  f.text("grammar", &r->grammar);
  take_llama_fields(f, limits, r);
}

void take_format(Fields& f, const std::string& name, const Json& format, GenerationRequest* r) {
  const auto type = format.is_object() ? format.value("type", Json()) : Json();
  if (type == "text") return;
  if (!r->schema.is_null()) return f.wrong(name, "absent beside 'json_schema'");
  r->schema_param = name;
  // llama-server's "json_object" may have a schema.
  if (type == "json_object" && !format.contains("schema")) {
    r->schema = Json{{"type", "object"}};
    return;
  }
  if (type != "json_schema" && type != "json_object")
    return f.wrong(name, "{\"type\": …} with \"text\", \"json_object\" or \"json_schema\"");
  // Chats have the schema in a member of a member; responses, vLLM and llama-server a level higher.
  const auto holder = format.find("json_schema");
  const Json* schema = nullptr;
  if (holder != format.end() && holder->is_object() && holder->contains("schema"))
    schema = &(*holder)["schema"];
  else if (format.contains("schema"))
    schema = &format["schema"];
  if (!schema || !schema->is_object())
    return f.wrong(name + (r->is_response ? ".schema" : ".json_schema.schema"), "a JSON schema");
  r->schema = *schema;
}

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

void take_effort(Fields& f, const std::string& name, const Json& effort, GenerationRequest* r) {
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium",
                                           "high", "xhigh",   "max"};
  if (!effort.is_string() ||
      std::ranges::find(kEfforts, effort.get_ref<const std::string&>()) == std::end(kEfforts))
    return f.wrong(name, R"("none", "minimal", "low", "medium", "high", "xhigh" or "max")");
  Json variables{{"reasoning_effort", effort}};
  if (effort == "none") variables["enable_thinking"] = false;
  if (!r->template_variables.is_null()) variables.update(r->template_variables);
  r->template_variables = std::move(variables);
}

void take_limit(Fields& f, const char* name, uint32_t least, std::optional<uint32_t>* out) {
  constexpr uint32_t kNone = UINT32_MAX;
  uint32_t value = kNone;
  f.integer(name, least, 1 << 30, &value);
  if (value != kNone) *out = value;
}

void take_predict(Fields& f, std::initializer_list<const char*> names, uint32_t least,
                  GenerationRequest* r) {
  const auto take = [&](const char* name) {
    int32_t value = INT32_MIN;
    f.integer(name, -2, 1 << 30, &value);
    if (value == INT32_MIN) return;
    if (value >= 0 && value < static_cast<int32_t>(least))
      return f.wrong(name, fmt::format("a whole number from {} to {}, or -1", least, 1 << 30));
    // −2 is llama-server's old name for it.
    r->max_tokens.reset();
    if (value >= 0) r->max_tokens = static_cast<uint32_t>(value);
  };
  for (const char* name : names) take(name);
  take("n_predict");
}

void check_least(Fields& f, const GenerationRequest& r) {
  if (r.max_tokens && r.min_tokens > *r.max_tokens) f.wrong("min_tokens", "at most 'max_tokens'");
}

}  // namespace bm::serve
