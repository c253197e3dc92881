// What a stream of "Responses" tells, put together again by whoever reads it.
#include "serve/response_writer.h"

#include <gtest/gtest.h>

#include <vector>

namespace bm::serve {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> events_of(std::string_view text) {
  std::vector<Json> out;
  while (!text.empty()) {
    const size_t end = text.find("\n\n");
    const std::string_view block = text.substr(0, end);
    const size_t line = block.find('\n');
    Json event = Json::parse(block.substr(line + 7));  // "\ndata: "
    EXPECT_EQ("event: " + event["type"].get<std::string>(), block.substr(0, line));
    out.push_back(std::move(event));
    text.remove_prefix(end + 2);
  }
  return out;
}

/// The items that a client has after `events`, by its own account of what they mean.
Json read(const std::vector<Json>& events) {
  Json items = Json::array();
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& e = events[i];
    const auto type = e["type"].get<std::string>();
    EXPECT_EQ(e["sequence_number"], i);
    if (type == "response.output_item.added") {
      EXPECT_EQ(e["output_index"], items.size());
      EXPECT_EQ(e["item"]["status"], "in_progress");
      items.push_back(e["item"]);
      continue;
    }
    if (!e.contains("output_index")) continue;
    EXPECT_EQ(e["output_index"], items.size() - 1) << type;
    Json& item = items.back();
    if (type == "response.output_item.done") {
      for (const auto& [name, value] : e["item"].items())
        if (name != "status") EXPECT_EQ(item[name], value) << name;
      item = e["item"];
      continue;
    }
    EXPECT_EQ(e["item_id"], item["id"]) << type;
    if (type == "response.content_part.added") {
      item["content"].push_back(e["part"]);
    } else if (type.ends_with("_text.delta")) {
      Json& part = item["content"][e["content_index"].get<size_t>()];
      part["text"].get_ref<std::string&>() += e["delta"].get<std::string>();
      if (e.contains("logprobs"))
        for (const Json& one : e["logprobs"]) part["logprobs"].push_back(one);
    } else if (type == "response.output_text.done") {
      item["content"][0]["logprobs"] = e["logprobs"];
      EXPECT_EQ(e["text"], item["content"][0]["text"]);
    } else if (type == "response.function_call_arguments.delta") {
      item["arguments"].get_ref<std::string&>() += e["delta"].get<std::string>();
    } else if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(e["arguments"], item["arguments"]);
    }
  }
  return items;
}

ResponseWriter writer() { return {"7", 1000, "m", {{"metadata", Json::object()}}}; }

TEST(ResponseWriter, ItemsFollowOneAnother) {
  ResponseWriter w = writer();
  std::string text = w.begin();
  const auto token = [](const char* name) { return Json::array({{{"token", name}}}); };
  text += w.push({.reasoning = "let me ", .content = {}, .calls = {}}, token("r"));
  text += w.push({.reasoning = "see", .content = "It ", .calls = {}}, token("It"));
  text += w.push({}, token("i"));  // a part of a character
  text += w.push({.reasoning = {}, .content = "is", .calls = {}}, token("s"));
  text += w.push({}, token("late"));
  text += w.push({.reasoning = {}, .content = {}, .calls = {{0, "f", "{\"a\""}}}, Json());
  text +=
      w.push({.reasoning = {}, .content = {}, .calls = {{0, "", ":1}"}, {1, "g", "{}"}}}, Json());
  text += w.finish(false, {{"input_tokens", 3}});
  const auto events = events_of(text);
  EXPECT_EQ(events.front()["type"], "response.created");
  EXPECT_EQ(events[1]["type"], "response.in_progress");
  const Json& last = events.back();
  EXPECT_EQ(last["type"], "response.completed");
  const Json& output = last["response"]["output"];
  EXPECT_EQ(read(events), output);
  ASSERT_EQ(output.size(), 4u);
  EXPECT_EQ(output[0]["content"][0]["text"], "let me see");
  EXPECT_EQ(output[0]["summary"], Json::array());
  EXPECT_EQ(output[1]["content"][0]["text"], "It is");
  // Tokens of the text; those before a call are its marker.
  std::string names;
  for (const Json& one : output[1]["content"][0]["logprobs"])
    names += one["token"].get<std::string>() + " ";
  EXPECT_EQ(names, "It i s ");
  EXPECT_EQ(output[2]["arguments"], "{\"a\":1}");
  EXPECT_EQ(output[3]["name"], "g");
  EXPECT_NE(output[2]["call_id"], output[3]["call_id"]);
  for (const Json& item : output) EXPECT_EQ(item["status"], "completed");
  EXPECT_EQ(w.response()["status"], "completed");
  EXPECT_EQ(w.response()["usage"]["input_tokens"], 3);
}

TEST(ResponseWriter, WhatIsCutShortOrFailsSaysSo) {
  ResponseWriter cut = writer();
  std::string text = cut.begin() + cut.push({.reasoning = {}, .content = "a", .calls = {}}, Json());
  text += cut.finish(true, Json());
  Json last = events_of(text).back();
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(last["response"]["output"][0]["status"], "incomplete");
  EXPECT_TRUE(last["response"]["completed_at"].is_null());
  ResponseWriter failed = writer();
  text = failed.begin() + failed.push({.reasoning = "a", .content = {}, .calls = {}}, Json());
  text += failed.fail({.status = 500, .message = "the device is lost", .type = "server_error"});
  last = events_of(text).back();
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["status"], "failed");
  EXPECT_EQ(last["response"]["error"]["message"], "the device is lost");
  EXPECT_EQ(read(events_of(text)), last["response"]["output"]);
}

}  // namespace
}  // namespace bm::serve
