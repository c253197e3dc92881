// What a stream of Anthropic's "Messages" tells, put together again by whoever reads it.
#include "serve/message_writer.h"

#include <gtest/gtest.h>

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

/// The message that a client has after the events of `text`, by its own account.
Json read_message(std::string_view text) {
  Json message, inputs = Json::object();
  while (!text.empty()) {
    const size_t end = text.find("\n\n");
    const std::string_view block = text.substr(0, end);
    const size_t line = block.find('\n');
    const Json e = Json::parse(block.substr(line + 7));  // "\ndata: "
    EXPECT_EQ("event: " + e["type"].get<std::string>(), block.substr(0, line));
    text.remove_prefix(end + 2);
    if (e["type"] == "message_start") message = e["message"];
    if (e["type"] == "content_block_start") {
      EXPECT_EQ(e["index"], message["content"].size());
      message["content"].push_back(e["content_block"]);
    }
    if (e["type"] == "content_block_delta") {
      EXPECT_EQ(e["index"], message["content"].size() - 1);
      Json& content = message["content"].back();
      const Json& delta = e["delta"];
      if (delta["type"] == "input_json_delta") {
        std::string& input = inputs.emplace(e["index"].dump(), "").first->get_ref<std::string&>();
        input += delta["partial_json"].get<std::string>();
        content["input"] = Json::parse(input, nullptr, false);
      } else {
        const auto name = delta["type"] == "text_delta" ? "text" : "thinking";
        content[name].get_ref<std::string&>() += delta[name].get<std::string>();
      }
    }
    if (e["type"] == "message_delta") {
      message.update(e["delta"]);
      message["usage"] = e["usage"];
    }
  }
  return message;
}

TEST(MessageWriter, AStreamIsTheMessageInPieces) {
  MessageWriter writer("1", "m");
  std::string events = writer.begin(7);
  events += writer.push({.reasoning = "h", .content = {}, .calls = {}});
  events += writer.push({.reasoning = "m", .content = "so", .calls = {}});
  events += writer.push({.reasoning = {}, .content = " be", .calls = {{0, "f", ""}}});
  events += writer.push({.reasoning = {}, .content = {}, .calls = {{0, "", R"({"x":)"}}});
  events += writer.push({.reasoning = {}, .content = {}, .calls = {{0, "", "1}"}, {1, "g", "{}"}}});
  events += writer.finish("tool_use", "", {{"input_tokens", 7}, {"output_tokens", 3}});
  const Json whole = writer.message();
  EXPECT_EQ(read_message(events), whole);
  EXPECT_EQ(whole["content"].dump(),
            R"([{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"so be"},)"
            R"({"type":"tool_use","id":"toolu_1_0","name":"f","input":{"x":1}},)"
            R"({"type":"tool_use","id":"toolu_1_1","name":"g","input":{}}])");
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_TRUE(whole["stop_sequence"].is_null());
}

TEST(MessageWriter, AStopTextAndAnErrorAreTold) {
  MessageWriter writer("2", "m");
  writer.begin(1);
  writer.finish("stop_sequence", "END", Json::object());
  EXPECT_EQ(writer.message()["stop_sequence"], "END");
  EXPECT_TRUE(writer.message()["content"].empty());
  EXPECT_TRUE(
      writer.fail({.message = "lost"}).starts_with("event: error\ndata: {\"type\":\"error\""));
}

}  // namespace
}  // namespace bm::serve
