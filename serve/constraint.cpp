#include "serve/constraint.h"

#include "models/grammar/json_schema.h"
#include "models/grammar/regex_grammar.h"

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

tl::unexpected<ApiError> refuse_value(std::string_view param, std::string message) {
  return tl::unexpected<ApiError>(ApiError{
      .message = std::move(message), .param = std::string(param), .code = "invalid_value"});
}

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

/// How a call of one tool is written, around its arguments.
struct CallText {
  std::string before, after;
};
CallText call_text(CallSyntax syntax, const std::string& name) {
  const std::string quoted = Json(name).dump();
  switch (syntax) {
    case CallSyntax::kHermes:
      return {"<tool_call>\n{\"name\": " + quoted + ", \"arguments\": ", "}\n</tool_call>"};
    case CallSyntax::kMistral:
    case CallSyntax::kGranite: return {"{\"name\": " + quoted + ", \"arguments\": ", "}"};
    case CallSyntax::kDeepSeek:
      return {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name + "\n```json\n",
              "\n```<｜tool▁call▁end｜>"};
    case CallSyntax::kHarmony:
      return {"<|channel|>commentary to=functions." + name + " <|constrain|>json<|message|>", ""};
    case CallSyntax::kLlama: return {"{\"name\": " + quoted + ", \"parameters\": ", "}"};
  }
  __builtin_unreachable();
}

/// What stands before the first call, between two and after the last.
struct CallsText {
  std::string before, between, after;
};
CallsText calls_text(CallSyntax syntax) {
  switch (syntax) {
    case CallSyntax::kHermes: return {"", "\n", ""};
    case CallSyntax::kMistral: return {"[TOOL_CALLS][", ", ", "]"};
    case CallSyntax::kGranite: return {"<|tool_call|>[", ", ", "]"};
    case CallSyntax::kDeepSeek: return {"<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"};
    case CallSyntax::kHarmony: return {"", "<|call|><|start|>assistant", ""};
    case CallSyntax::kLlama: return {"", "; ", ""};
  }
  __builtin_unreachable();
}

ApiResult<std::string> schema_grammar(const Json& schema, const std::string& param) {
  auto gbnf = models::grammar_of_json_schema(schema.dump());
  if (!gbnf) return refuse_value(param, gbnf.error().message);
  return std::move(*gbnf);
}

ApiResult<std::string> grammar_of_calls(const GenerationRequest& r, const ChatFormat& format) {
  std::string rules, any;
  for (size_t i = 0; i < r.tools.size(); ++i) {
    const Json& function = r.tools[i]["function"];
    const std::string name = function["name"].get<std::string>();
    if (!r.tool_name.empty() && name != r.tool_name) continue;
    const auto schema = function.find("parameters");
    const Json anything = {{"type", "object"}};
    const auto arguments =
        schema_grammar(schema == function.end() || schema->is_null() ? anything : *schema,
                       fmt::format("tools[{}].{}parameters", i, r.is_response ? "" : "function."));
    if (!arguments) return arguments;
    const std::string prefix = fmt::format("t{}-", i);
    rules += with_rule_prefix(*arguments, prefix);
    const CallText text = call_text(format.calls, name);
    rules += fmt::format("call{} ::= {} {}root {}\n", i, models::gbnf_literal(text.before), prefix,
                         models::gbnf_literal(text.after));
    any += fmt::format("{}call{}", any.empty() ? "" : " | ", i);
  }
  if (any.empty())
    return refuse_value("tool_choice", fmt::format("there is no tool \"{}\"", r.tool_name));
  const CallsText text = calls_text(format.calls);
  const std::string more =
      r.has_parallel_calls ? fmt::format("({} call)*", models::gbnf_literal(text.between)) : "";
  return fmt::format("root ::= {} call {} {}\ncall ::= {}\n{}", models::gbnf_literal(text.before),
                     more, models::gbnf_literal(text.after), any, rules);
}

}  // namespace

std::string with_rule_prefix(std::string_view gbnf, std::string_view prefix) {
  std::string out;
  char closes = 0;  // the end of a literal or a class
  for (size_t i = 0; i < gbnf.size(); ++i) {
    const char c = gbnf[i];
    if (closes != 0) {
      out += c;
      if (c == '\\' && i + 1 < gbnf.size())
        out += gbnf[++i];
      else if (c == closes)
        closes = 0;
    } else if (c == '"' || c == '[') {
      closes = c == '"' ? '"' : ']';
      out += c;
    } else if (c == '{') {  // the numbers of a repetition
      const size_t end = std::min(gbnf.find('}', i), gbnf.size() - 1);
      out += gbnf.substr(i, end + 1 - i);
      i = end;
    } else if (is_name_char(c)) {
      size_t end = i;
      while (end < gbnf.size() && is_name_char(gbnf[end])) ++end;
      out += prefix;
      out += gbnf.substr(i, end - i);
      i = end - 1;
    } else {
      out += c;
    }
  }
  return out;
}

ApiResult<std::string> grammar_of_request(const GenerationRequest& r, const ChatFormat& format) {
  if (r.tool_choice == ToolChoice::kRequired || r.tool_choice == ToolChoice::kNamed) {
    return grammar_of_calls(r, format);
  }
  if (!r.grammar.empty()) return r.grammar;
  if (r.schema.is_null()) return std::string();
  auto gbnf = schema_grammar(r.schema, r.schema_param);
  // The last channel is the answer.
  if (gbnf && r.is_chat && format.calls == CallSyntax::kHarmony)
    return "root ::= \"<|channel|>final<|message|>\" s-root\n" + with_rule_prefix(*gbnf, "s-");
  return gbnf;
}

}  // namespace bm::serve
