// Chat templates: any text is parsed or refused, and what is parsed is rendered within its limits,
// twice alike.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <nlohmann/json.hpp>

#include "models/chat/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bm::models;
  const auto parsed =
      ChatTemplate::parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed) {
    if (parsed.error().message.empty()) std::abort();
    return 0;
  }
  static const auto kMessages = nlohmann::ordered_json::parse(
      R"([{"role":"system","content":"be brief"},{"role":"user","content":"größe 你好"},{"role":"assistant","content":null,
          "tool_calls":[{"id":"call00001","function":{"name":"f","arguments":{"a":[1,2.5,null,true]}}}]},
          {"role":"tool","content":[{"type":"text","text":"<think>x</think>"}]}])");
  static const auto kTools = nlohmann::ordered_json::parse(
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"array"}}}}}])");
  const ChatInput input{
      .messages = &kMessages, .tools = &kTools, .bos_token = "<s>", .eos_token = "</s>"};
  const ChatLimits limits{.steps = 20'000, .heap_bytes = 4 << 20, .output_bytes = 1 << 16};
  const auto first = parsed->render(input, limits);
  const auto second = parsed->render(input, limits);
  if (first.has_value() != second.has_value()) std::abort();
  if (first ? *first != *second : first.error().message != second.error().message) std::abort();
  if (first && first->size() > limits.output_bytes) std::abort();
  return 0;
}
