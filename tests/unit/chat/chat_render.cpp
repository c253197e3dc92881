// The chat template interpreter behind a pipe, for tests/oracle/chat_templates.py: one JSON object
// per line in, one out. In: {"template": …, "messages": …, "tools": …, "documents": …,
// "add_generation_prompt": …, "bos_token": …, "eos_token": …, "variables": {…}}. Out: {"text": …}
// or {"error": …}. The clock stands at Friday 2025-03-07 09:05:03.

#include <iostream>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "models/chat/chat_template.h"

namespace {

using Json = nlohmann::ordered_json;

bm::Result<std::string> render(const Json& request) {
  const auto part = [&](const char* name) {
    const auto it = request.find(name);
    return it == request.end() || it->is_null() ? nullptr : &*it;
  };
  const auto text = [&](const char* name) {
    const Json* const value = part(name);
    return value == nullptr ? std::nullopt : std::optional(value->get<std::string>());
  };
  bm::models::ChatInput input{
      .messages = part("messages"),
      .tools = part("tools"),
      .documents = part("documents"),
      .variables = part("variables"),
      .add_generation_prompt = request.value("add_generation_prompt", false),
      .bos_token = text("bos_token"),
      .eos_token = text("eos_token")};
  input.now.tm_year = 125;
  input.now.tm_mon = 2;
  input.now.tm_mday = 7;
  input.now.tm_hour = 9;
  input.now.tm_min = 5;
  input.now.tm_sec = 3;
  input.now.tm_wday = 5;
  input.now.tm_yday = 65;
  const auto parsed =
      bm::models::ChatTemplate::parse(request["template"].get_ref<const std::string&>());
  if (!parsed) return tl::unexpected(parsed.error());
  return parsed->render(input);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto result = render(Json::parse(line));
    Json reply;
    if (result) {
      reply["text"] = *result;
    } else {
      reply["error"] = result.error().message;
      reply["code"] = bm::code_name(result.error().code);
    }
    std::cout << reply.dump() << std::endl;
  }
}
