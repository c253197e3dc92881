// Requests of OpenAI's interface "Responses", read as chats: items become messages.
// Source: OpenAI's API reference, "Responses", "Create a model response".

#include "serve/request_fields.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

/// The texts of a list of parts, or the text; nothing where a part is no text.
std::optional<std::string> text_of_content(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string out;
  for (const Json& part : content) {
    const Json type = part.is_object() ? part.value("type", Json()) : Json();
    if (type != "input_text" && type != "output_text" && type != "refusal") return std::nullopt;
    const Json text = part.value(type == "refusal" ? "refusal" : "text", Json());
    if (!text.is_string()) return std::nullopt;
    out += text.get_ref<const std::string&>();
  }
  return out;
}

/// Items in, messages of a chat out. What an assistant thought, said and called stands in items of
/// their own and is one message to templates.
class Messages {
 public:
  explicit Messages(Fields& f) : fields_(f) {}

  void add(const Json& item, size_t index) {
    at_ = fmt::format("input[{}]", index);
    if (!item.is_object()) return fields_.wrong(at_, "an object");
    const Json type = item.value("type", Json("message"));
    if (type == "message") return add_message(item);
    if (type == "function_call") return add_call(item);
    if (type == "function_call_output") return add_result(item);
    if (type == "reasoning") return add_reasoning(item);
    if (type == "item_reference")
      return fields_.wrong(at_,
                           "the item itself: this server stores none that could be referred to");
    fields_.wrong(at_ + ".type",
                  "\"message\", \"function_call\", \"function_call_output\" or \"reasoning\": this "
                  "server has no hosted tools");
  }

  Json take() { return std::move(list_); }

 private:
  void add_message(const Json& item) {
    const Json role = item.value("role", Json());
    if (role != "user" && role != "assistant" && role != "system" && role != "developer")
      return fields_.wrong(at_ + ".role", R"("user", "assistant", "system" or "developer")");
    const auto text = text_of_content(item.value("content", Json()));
    if (!text)
      return fields_.wrong(at_ + ".content",
                           "a text or parts of the type \"input_text\" or \"output_text\": this "
                           "server reads no other");
    if (role != "assistant") {
      list_.push_back({{"role", role}, {"content", *text}});
      return;
    }
    Json& message = assistant(false);
    message["content"] = *text;
  }

  void add_call(const Json& item) {
    for (const char* name : {"call_id", "name", "arguments"})
      if (!item.value(name, Json()).is_string())
        return fields_.wrong(fmt::format("{}.{}", at_, name), "a string");
    assistant(true)["tool_calls"].push_back(
        {{"id", item["call_id"]},
         {"type", "function"},
         {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}});
  }

  void add_result(const Json& item) {
    if (!item.value("call_id", Json()).is_string())
      return fields_.wrong(at_ + ".call_id", "a string");
    const auto text = text_of_content(item.value("output", Json()));
    if (!text) return fields_.wrong(at_ + ".output", "a text or parts of the type \"input_text\"");
    list_.push_back({{"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", *text}});
  }

  /// What was thought, otherwise its summary, as templates know it.
  void add_reasoning(const Json& item) {
    if (!item.value("encrypted_content", Json()).is_null())
      return fields_.wrong(at_ + ".encrypted_content", "null: this server cannot read it");
    std::string text;
    for (const char* name : {"content", "summary"}) {
      const Json parts = item.value(name, Json());
      if (!text.empty() || !parts.is_array()) continue;
      for (const Json& part : parts) {
        const Json one = part.is_object() ? part.value("text", Json()) : Json();
        if (!one.is_string())
          return fields_.wrong(fmt::format("{}.{}", at_, name), "a list of parts with a text");
        text += one.get_ref<const std::string&>();
      }
    }
    if (!text.empty()) assistant(false)["reasoning_content"] = text;
  }

  /// The assistant's message that goes on with this item, or a new one. `is_call`: text may stand
  /// before it in the same message; otherwise reasoning alone.
  Json& assistant(bool is_call) {
    const bool goes_on =
        !list_.empty() && list_.back()["role"] == "assistant" &&
        (is_call || (list_.back()["content"].is_null() && !list_.back().contains("tool_calls")));
    if (!goes_on) list_.push_back({{"role", "assistant"}, {"content", nullptr}});
    return list_.back();
  }

  Fields& fields_;
  std::string at_;
  Json list_ = Json::array();
};

void take_input(Fields& f, GenerationRequest* r) {
  const Json* input = f.find("input");
  Messages messages(f);
  if (const Json* instructions = f.find("instructions")) {
    if (!instructions->is_string()) return f.wrong("instructions", "a string");
    messages.add({{"role", "system"}, {"content", *instructions}}, 0);
  }
  if (!input || (!input->is_string() && (!input->is_array() || input->empty())))
    return f.wrong("input", "a text or a list of at least one item");
  if (input->is_string())
    messages.add({{"role", "user"}, {"content", *input}}, 0);
  else
    for (size_t i = 0; i < input->size(); ++i) messages.add((*input)[i], i);
  r->messages = messages.take();
}

/// The flat form of functions as chats have it.
void take_flat_tools(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  Json chat = Json::object();
  if (const Json* tools = f.find("tools")) {
    if (!tools->is_array())
      return f.wrong("tools", fmt::format("a list of at most {}", limits.tools));
    Json& list = chat["tools"] = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const Json& tool = (*tools)[i];
      if (!tool.is_object() || tool.value("type", Json()) != "function")
        return f.wrong(fmt::format("tools[{}].type", i),
                       "\"function\": this server has no hosted tools");
      Json function = Json::object();
      for (const char* name : {"name", "description", "parameters", "strict"})
        if (tool.contains(name) && !tool[name].is_null()) function[name] = tool[name];
      list.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  if (const Json* choice = f.find("tool_choice")) {
    const Json type = choice->is_object() ? choice->value("type", Json()) : Json();
    chat["tool_choice"] = *choice;
    if (type == "function")
      chat["tool_choice"] = {{"type", "function"},
                             {"function", {{"name", choice->value("name", Json())}}}};
  }
  if (const Json* parallel = f.find("parallel_tool_calls")) chat["parallel_tool_calls"] = *parallel;
  Fields inner(chat);
  take_tools(inner, limits, r);
  if (auto error = inner.finish()) f.fail(std::move(*error));
}

void take_text(Fields& f, GenerationRequest* r) {
  const Json* text = f.find("text");
  if (!text) return;
  if (!text->is_object()) return f.wrong("text", "an object");
  Fields inner(*text);
  if (const Json* format = inner.find("format")) take_format(f, "text.format", *format, r);
  inner.neutral("verbosity", "medium");
  if (auto error = inner.finish()) {
    error->param = "text." + error->param;
    f.fail(std::move(*error));
  }
}

void take_reasoning(Fields& f, GenerationRequest* r) {
  const Json* reasoning = f.find("reasoning");
  if (!reasoning) return;
  if (!reasoning->is_object()) return f.wrong("reasoning", "an object");
  Fields inner(*reasoning);
  if (const Json* effort = inner.find("effort")) take_effort(f, "reasoning.effort", *effort, r);
  // What a model thinks is answered as it is, and no summary of it made: "auto" leaves that open.
  inner.neutral("summary", "auto");
  inner.neutral("generate_summary", "auto");
  if (auto error = inner.finish()) {
    error->param = "reasoning." + error->param;
    f.fail(std::move(*error));
  }
}

/// include and top_logprobs.
void take_include(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  bool has_logprobs = false;
  if (const Json* include = f.find("include")) {
    if (!include->is_array()) return f.wrong("include", "a list");
    for (const Json& one : *include) {
      if (one == "message.output_text.logprobs") has_logprobs = true;
      // For clients that send reasoning back: it is in the answer as text.
      else if (one != "reasoning.encrypted_content")
        return f.wrong("include",
                       "a list of \"message.output_text.logprobs\" and "
                       "\"reasoning.encrypted_content\"");
    }
  }
  uint32_t top = 0;
  f.integer("top_logprobs", 0, limits.top_logprobs, &top);
  if (top > 0 && !has_logprobs)
    f.wrong("top_logprobs", "absent unless 'include' has \"message.output_text.logprobs\"");
  if (has_logprobs) r->top_logprobs = top;
}

void take_metadata(Fields& f, GenerationRequest* r) {
  const Json* metadata = f.find("metadata");
  if (!metadata) return;
  // Source of the number: OpenAI's API reference.
  if (!metadata->is_object() || metadata->size() > 16 ||
      !std::ranges::all_of(*metadata, [](const Json& value) { return value.is_string(); }))
    return f.wrong("metadata", "an object of at most 16 strings");
  r->response_fields["metadata"] = *metadata;
}

}  // namespace

ApiResult<GenerationRequest> parse_response(std::string_view body, const RequestLimits& limits) {
  const auto json = parse_body(body, limits);
  if (!json) return tl::unexpected<ApiError>(json.error());
  GenerationRequest r;
  r.is_chat = r.is_response = true;
  const auto echo = [&](const char* name, Json otherwise) {
    r.response_fields[name] =
        json->contains(name) && !(*json)[name].is_null() ? (*json)[name] : std::move(otherwise);
  };
  // As the answer repeats them, in OpenAI's order.
  echo("instructions", nullptr);
  echo("max_output_tokens", nullptr);
  r.response_fields["metadata"] = Json::object();
  echo("parallel_tool_calls", true);
  echo("temperature", nullptr);
  echo("tool_choice", "auto");
  echo("tools", Json::array());
  echo("top_p", nullptr);
  echo("top_logprobs", 0);
  echo("user", nullptr);
  Fields f(*json);
  f.text("model", &r.model);
  f.flag("stream", &r.is_stream);
  if (const Json* options = f.find("stream_options");
      options && *options != Json::object() && *options != Json{{"include_obfuscation", false}})
    f.wrong("stream_options", "{\"include_obfuscation\": false}");
  take_input(f, &r);
  take_limit(f, "max_output_tokens", 1, &r.max_tokens);
  take_sampling(f, limits, &r);
  check_least(f, r);
  take_flat_tools(f, limits, &r);
  take_text(f, &r);
  if (const Json* variables = f.find("chat_template_kwargs")) {
    if (variables->is_object())
      r.template_variables = *variables;
    else
      f.wrong("chat_template_kwargs", "an object");
  }
  take_reasoning(f, &r);
  take_include(f, limits, &r);
  take_metadata(f, &r);
  if (!r.grammar.empty() && !r.schema.is_null()) f.wrong("grammar", "absent beside 'text.format'");
  // Nothing is kept that could be asked for later, and nothing goes on without who asked.
  if (const Json* store = f.find("store"); store && *store != false)
    f.wrong("store", "false: this server keeps no answers");
  if (f.find("previous_response_id"))
    f.wrong("previous_response_id",
            "absent, with the items of that response in 'input': this "
            "server keeps no answers");
  f.neutral("background", false);
  f.neutral("truncation", "disabled");
  f.unsupported({"conversation", "prompt", "max_tool_calls", "context_management", "moderation"});
  f.ignore({"user", "service_tier", "safety_identifier", "prompt_cache_key",
            "prompt_cache_retention", "prompt_cache_options"});
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  const Json text = json->value("text", Json());
  r.response_fields["text"] = {
      {"format", text.is_object() && text.contains("format") && !text["format"].is_null()
                     ? text["format"]
                     : Json{{"type", "text"}}},
      {"verbosity", "medium"}};
  const Json reasoning = json->value("reasoning", Json());
  r.response_fields["reasoning"] = {
      {"effort", reasoning.is_object() ? reasoning.value("effort", Json()) : Json()},
      {"summary", nullptr}};
  return r;
}

}  // namespace bm::serve
