#include "models/chat/chat_template.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "models/chat/interpreter.h"
#include "models/unicode.h"

namespace bm::models {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Interpreter;
using jinja::Value;

constexpr int kMaxJsonDepth = 100;

Result<Value> to_string(Interpreter& in, const std::string& text) {
  if (!is_valid_utf8(text))
    return fail(Code::kInvalidArgument, "{} is not UTF-8", quote_name(text));
  return in.string(text);
}

Result<Value> to_value(Interpreter& in, const Json& json, int depth) {
  if (depth > kMaxJsonDepth)
    return fail(Code::kInvalidArgument, "JSON deeper than {} levels", kMaxJsonDepth);
  switch (json.type()) {
    case Json::value_t::null: return Value::none();
    case Json::value_t::boolean: return Value::of(json.get<bool>());
    case Json::value_t::number_integer: return Value::of(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > INT64_MAX) return fail(Code::kInvalidArgument, "{} is beyond 63 bits", number);
      return Value::of(static_cast<int64_t>(number));
    }
    case Json::value_t::number_float: return Value::of(json.get<double>());
    case Json::value_t::string: return to_string(in, json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) items.push_back(BM_TRY(to_value(in, item, depth + 1)));
      return in.list(std::move(items));
    }
    case Json::value_t::object: {
      const Value out = in.heap().dict();
      for (const auto& [key, item] : json.items()) {
        in.heap().charge(4 * sizeof(Value));
        out.dict->set(BM_TRY(to_string(in, key)), BM_TRY(to_value(in, item, depth + 1)));
      }
      return out;
    }
    case Json::value_t::binary:
    case Json::value_t::discarded: break;
  }
  return fail(Code::kInvalidArgument, "not a JSON value");
}

}  // namespace

struct ChatTemplate::Parsed {
  jinja::Template tree;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Parsed> parsed) : parsed_(std::move(parsed)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view text) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    return fail(Code::kInvalidArgument,
                "the chat template is empty: no message would reach the model; --chat-template "
                "FILE gives another");
  auto tree = jinja::parse_template(text);
  if (!tree) return tl::unexpected(std::move(tree.error()).within("chat template"));
  return ChatTemplate(std::make_unique<Parsed>(Parsed{std::move(*tree)}));
}

bool ChatTemplate::reads(std::string_view name) const {
  return std::ranges::binary_search(parsed_->tree.names, name);
}

Result<std::string> ChatTemplate::render(const ChatInput& input, const ChatLimits& limits) const {
  Interpreter in(
      {.steps = limits.steps, .heap_bytes = limits.heap_bytes, .output_bytes = limits.output_bytes},
      input.now);
  const auto define = [&](std::string_view name, const Json* json) -> Status {
    auto value = json != nullptr ? to_value(in, *json, 0) : Result<Value>(Value::none());
    if (!value) return tl::unexpected(std::move(value.error()).within(name));
    in.define(name, *value);
    return {};
  };
  BM_TRY(define("messages", input.messages));
  BM_TRY(define("tools", input.tools));
  BM_TRY(define("documents", input.documents));
  in.define("add_generation_prompt", Value::of(input.add_generation_prompt));
  if (input.bos_token) in.define("bos_token", BM_TRY(to_string(in, *input.bos_token)));
  if (input.eos_token) in.define("eos_token", BM_TRY(to_string(in, *input.eos_token)));
  if (input.variables != nullptr) {
    if (!input.variables->is_object())
      return fail(Code::kInvalidArgument, "variables of a chat template are an object, not {}",
                  input.variables->type_name());
    for (auto it = input.variables->begin(); it != input.variables->end(); ++it)
      BM_TRY(define(it.key(), &it.value()));
  }
  auto out = in.run(parsed_->tree);
  if (!out) return tl::unexpected(std::move(out.error()).within("chat template"));
  return out;
}

}  // namespace bm::models
