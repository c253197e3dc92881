// Requests of Anthropic's interface "Messages", read as chats: blocks become messages.
// Source: Anthropic's API reference, "Create a Message", "Count tokens in a Message".

#include "serve/request_fields.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

/// The texts of blocks of the type "text", divided by `between`, or the text; nothing where a block
/// is no text.
std::optional<std::string> text_of_blocks(const Json& content, std::string_view between) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string out;
  for (const Json& block : content) {
    if (!block.is_object() || block.value("type", Json()) != "text") return std::nullopt;
    const Json text = block.value("text", Json());
    if (!text.is_string()) return std::nullopt;
    if (!out.empty()) out += between;
    out += text.get_ref<const std::string&>();
  }
  return out;
}

/// One message of blocks: results of tools are messages of their own, before what is said to them.
void add_blocks(Fields& f, const std::string& at, const Json& role, const Json& blocks,
                Json* list) {
  Json message{{"role", role}, {"content", nullptr}};
  Json calls = Json::array();
  std::string text, thought;
  bool has_text = false;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Json& block = blocks[i];
    const std::string here = fmt::format("{}.content[{}]", at, i);
    const Json type = block.is_object() ? block.value("type", Json()) : Json();
    const auto own = [&](const char* name) { return block.value(name, Json()); };
    if (type == "text" && own("text").is_string()) {
      if (std::exchange(has_text, true)) text += "\n";
      text += own("text").get<std::string>();
    } else if (type == "thinking" && own("thinking").is_string()) {
      thought += own("thinking").get<std::string>();
    } else if (type == "tool_use" && role == "assistant" && own("id").is_string() &&
               own("name").is_string() && own("input").is_object()) {
      calls.push_back({{"id", own("id")},
                       {"type", "function"},
                       {"function", {{"name", own("name")}, {"arguments", own("input").dump()}}}});
    } else if (type == "tool_result" && role == "user" && own("tool_use_id").is_string()) {
      const auto result =
          own("content").is_null() ? std::string() : text_of_blocks(own("content"), "");
      if (!result) return f.wrong(here + ".content", "a text or blocks of the type \"text\"");
      list->push_back(
          {{"role", "tool"}, {"tool_call_id", own("tool_use_id")}, {"content", *result}});
    } else {
      return f.wrong(here,
                     "a whole block of the type \"text\", \"thinking\", \"tool_use\" (of an "
                     "assistant) or \"tool_result\" (of a user): this server reads no other");
    }
  }
  if (has_text) message["content"] = text;
  if (!thought.empty()) message["reasoning_content"] = thought;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  if (message.size() > 2 || has_text) list->push_back(std::move(message));
}

void take_blocks(Fields& f, GenerationRequest* r) {
  Json list = Json::array();
  if (const Json* system = f.find("system")) {
    const auto text = text_of_blocks(*system, "");
    if (!text) return f.wrong("system", "a text or blocks of the type \"text\"");
    list.push_back({{"role", "system"}, {"content", *text}});
  }
  const Json* messages = f.find("messages");
  if (!messages || !messages->is_array() || messages->empty())
    return f.wrong("messages", "a list of at least one message");
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& m = (*messages)[i];
    const std::string at = fmt::format("messages[{}]", i);
    const Json role = m.is_object() ? m.value("role", Json()) : Json();
    if (role != "user" && role != "assistant")
      return f.wrong(at, "an object with the role \"user\" or \"assistant\"");
    const Json content = m.value("content", Json());
    if (content.is_string())
      list.push_back({{"role", role}, {"content", content}});
    else if (content.is_array())
      add_blocks(f, at, role, content, &list);
    else
      return f.wrong(at + ".content", "a text or a list of blocks");
  }
  if (list.empty()) return f.wrong("messages", "a list with something in it");
  r->messages = std::move(list);
}

/// As chats have them.
void take_message_tools(Fields& f, const RequestLimits& limits, GenerationRequest* r) {
  Json chat = Json::object();
  if (const Json* tools = f.find("tools")) {
    if (!tools->is_array())
      return f.wrong("tools", fmt::format("a list of at most {}", limits.tools));
    Json& list = chat["tools"] = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const Json& tool = (*tools)[i];
      const Json type = tool.is_object() ? tool.value("type", Json("custom")) : Json();
      if (type != "custom" && !type.is_null())
        return f.wrong(fmt::format("tools[{}].type", i),
                       "\"custom\": this server has no tools of its own");
      if (!tool.is_object()) return f.wrong(fmt::format("tools[{}]", i), "an object");
      list.push_back({{"type", "function"},
                      {"function",
                       {{"name", tool.value("name", Json())},
                        {"description", tool.value("description", Json(""))},
                        {"parameters", tool.value("input_schema", Json::object())}}}});
    }
  }
  if (const Json* choice = f.find("tool_choice")) {
    const Json type = choice->is_object() ? choice->value("type", Json()) : Json();
    if (type == "auto" || type == "none")
      chat["tool_choice"] = type;
    else if (type == "any")
      chat["tool_choice"] = "required";
    else if (type == "tool")
      chat["tool_choice"] = {{"type", "function"},
                             {"function", {{"name", choice->value("name", Json())}}}};
    else
      return f.wrong("tool_choice", R"({"type": …} with "auto", "any", "tool" or "none")");
    if (choice->value("disable_parallel_tool_use", Json()) == true)
      chat["parallel_tool_calls"] = false;
  }
  Fields inner(chat);
  take_tools(inner, limits, r);
  if (auto error = inner.finish()) f.fail(std::move(*error));
}

void take_thinking(Fields& f, GenerationRequest* r) {
  if (const Json* config = f.find("output_config")) {
    if (!config->is_object()) return f.wrong("output_config", "an object");
    Fields inner(*config);
    if (const Json* effort = inner.find("effort"))
      take_effort(f, "output_config.effort", *effort, r);
    if (const Json* format = inner.find("format"))
      take_format(f, "output_config.format", *format, r);
    if (auto error = inner.finish()) f.fail(std::move(*error));
  }
  const Json* thinking = f.find("thinking");
  if (!thinking) return;
  const Json type = thinking->is_object() ? thinking->value("type", Json()) : Json();
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    return f.wrong("thinking", R"({"type": …} with "enabled", "adaptive" or "disabled")");
  Json variables{{"enable_thinking", type != "disabled"}};
  if (!r->template_variables.is_null()) variables.update(r->template_variables);
  r->template_variables = std::move(variables);
}

}  // namespace

ApiResult<GenerationRequest> parse_message(std::string_view body, const RequestLimits& limits) {
  const auto json = parse_body(body, limits);
  if (!json) return tl::unexpected<ApiError>(json.error());
  GenerationRequest r;
  r.is_chat = r.is_message = true;
  Fields f(*json);
  f.text("model", &r.model);
  f.flag("stream", &r.is_stream);
  take_blocks(f, &r);
  take_sampling(f, limits, &r);
  take_predict(f, {"max_tokens"}, 1, &r);
  check_least(f, r);
  if (const Json* stops = f.find("stop_sequences")) {
    const Json inner{{"stop", *stops}};
    Fields own(inner);
    take_stop(own, limits, &r);
    if (auto error = own.finish()) f.wrong("stop_sequences", "a list of a few short texts");
  }
  take_message_tools(f, limits, &r);
  if (const Json* variables = f.find("chat_template_kwargs")) {
    if (variables->is_object())
      r.template_variables = *variables;
    else
      f.wrong("chat_template_kwargs", "an object");
  }
  take_thinking(f, &r);
  if (r.top_logprobs) f.wrong("n_probs", "absent: messages have no place for probabilities");
  f.unsupported({"container", "mcp_servers"});
  // Of who asks; and what to leave out of the prompt, all of which is kept.
  f.ignore({"metadata", "service_tier", "context_management", "cache_control", "inference_geo",
            "speed"});
  if (auto error = f.finish()) return tl::unexpected<ApiError>(std::move(*error));
  return r;
}

}  // namespace bm::serve
