// Tool calls and reasoning as models write them, whole and letter by letter.
#include <gtest/gtest.h>

#include <map>

#include "models/grammar/grammar_matcher.h"
#include "serve/chat_format.h"
#include "serve/constraint.h"

namespace bm::serve {
namespace {

struct Answer {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;  ///< name, arguments
  bool operator==(const Answer&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Answer& a) {
  out << "reasoning [" << a.reasoning << "] content [" << a.content << "]";
  for (const auto& [name, arguments] : a.calls) out << " call " << name << arguments;
  return out;
}

void add(Answer& a, const ChatPieces& pieces) {
  a.reasoning += pieces.reasoning;
  a.content += pieces.content;
  for (const CallPiece& c : pieces.calls) {
    if (c.index == a.calls.size())
      a.calls.emplace_back(c.name, "");
    else
      EXPECT_TRUE(c.name.empty());
    ASSERT_LT(c.index, a.calls.size());
    a.calls[c.index].second += c.arguments;
  }
}

Answer read(const ChatFormat& format, std::string_view text, size_t step,
            bool is_reasoning = false) {
  ChatParser parser(format, true, is_reasoning);
  Answer out;
  for (size_t i = 0; i < text.size(); i += step) add(out, parser.push(text.substr(i, step)));
  add(out, parser.finish());
  EXPECT_EQ(parser.call_count(), out.calls.size());
  return out;
}

void expect_answer(std::string_view chat_template, std::string_view text, const Answer& expected,
                   bool is_reasoning = false) {
  const ChatFormat format = detect_chat_format(chat_template);
  for (const size_t step : {size_t{1}, size_t{3}, text.size() + 1})
    EXPECT_EQ(read(format, text, step, is_reasoning), expected) << "in pieces of " << step;
}

const std::string kArgs = R"({"city": "Bern \"}", "days": [1, {"x": 2}]})";
// Parts of templates that say which model it is.
constexpr std::string_view kQwen = "<tool_call> <think>", kMistral = "[TOOL_CALLS]",
                           kDeepSeek = "<｜tool▁calls▁begin｜><think>",
                           kHarmony = "<|channel|><|message|>", kGranite = "<|tool_call|>",
                           kLlama = "ipython";

TEST(ChatFormat, HermesCallsWithReasoningBefore) {
  expect_answer(
      kQwen,
      "<think>\nhm, </thin\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": " +
          kArgs +
          "}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call>",
      {"hm, </thin", "I look.", {{"f", kArgs}, {"g", "{}"}}});
  expect_answer(kQwen, "so\n</think>\n\nyes", {"so", "yes", {}}, true);
  expect_answer(kQwen, "cut off", {"cut off", "", {}}, true);
  expect_answer(kQwen, " a <b> c\n", {"", " a <b> c\n", {}});
}

TEST(ChatFormat, QwenCoderAndGlmWriteArgumentsAsElements) {
  expect_answer(
      kQwen,
      "<tool_call>\n<function=f>\n<parameter=city>\nBern\n</parameter>\n<parameter=n>\n3\n"
      "</parameter>\n</function>\n</tool_call>",
      {"", "", {{"f", R"({"city":"Bern","n":3})"}}});
  expect_answer(kQwen,
                "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>",
                {"", "", {{"f", R"({"city":"Bern"})"}}});
}

TEST(ChatFormat, MistralCallsAreAListOrOneByOne) {
  expect_answer(kMistral,
                "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": " + kArgs +
                    ", \"id\": \"abc\"}, {\"name\": \"g\", \"arguments\": {}}]",
                {"", "", {{"f", kArgs}, {"g", "{}"}}});
  expect_answer(kMistral, "ok [TOOL_CALLS]f[ARGS]" + kArgs + "[TOOL_CALLS]g[CALL_ID]12[ARGS]{}",
                {"", "ok", {{"f", kArgs}, {"g", "{}"}}});
}

TEST(ChatFormat, OtherSyntaxes) {
  expect_answer(kGranite, "<|tool_call|>[{\"name\": \"f\", \"arguments\": " + kArgs + "}]",
                {"", "", {{"f", kArgs}}});
  expect_answer(kLlama, "{\"name\": \"f\", \"parameters\": " + kArgs + "}",
                {"", "", {{"f", kArgs}}});
  expect_answer(kLlama,
                "<|python_tag|>{\"name\": \"f\", \"parameters\": \"{}\"}; {\"name\": \"g\"}",
                {"", "", {{"f", "{}"}, {"g", "{}"}}});
  expect_answer(
      kDeepSeek,
      "a</think>b<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n" +
          kArgs +
          "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}"
          "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      {"a", "b", {{"f", kArgs}, {"g", "{}"}}}, true);
  expect_answer(kHarmony,
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
                "to=functions.f <|constrain|>json<|message|>" +
                    kArgs,
                {"hm", "", {{"f", kArgs}}});
  expect_answer(kHarmony, "<|channel|>final<|message|>yes<|return|>", {"", "yes", {}});
}

TEST(ChatFormat, WhatIsNoCallIsText) {
  for (const std::string text :
       {"<tool_call>\n{\"name\": 7}\n</tool_call>", "<tool_call>{\"name\": \"f\"", "<tool_call>",
        "<tool_call>\n{\"arguments\": {}}\n</tool_call>"})
    expect_answer(kQwen, text, {"", text, {}});
  for (const std::string text : {"{\"a\": 1}", "{", "{}", "say {\"name\": \"f\"}", "<|python"})
    expect_answer(kLlama, text, {"", text, {}});
  expect_answer(kMistral, "[TOOL_CALLS][7]", {"", "[TOOL_CALLS]7]", {}});
}

TEST(ChatFormat, WithoutToolsNothingIsLookedFor) {
  ChatParser parser(detect_chat_format(kQwen), false, false);
  Answer out;
  add(out, parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"));
  add(out, parser.finish());
  EXPECT_EQ(out.content, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
}

// --- grammars ------------------------------------------------------------------------------------

/// Whether the grammar takes all of the text and may end there.
bool allows(const std::string& gbnf, std::string_view text) {
  auto grammar = models::Grammar::parse(gbnf);
  EXPECT_TRUE(grammar) << grammar.error().message << gbnf;
  std::vector<std::string> bytes;
  for (int i = 0; i < 256; ++i) bytes.emplace_back(1, static_cast<char>(i));
  models::GrammarMatcher matcher(
      std::make_shared<const models::Grammar>(std::move(*grammar)),
      std::make_shared<const models::GrammarVocabulary>(bytes, std::vector<int32_t>{}));
  return matcher.accept_bytes(text) && matcher.can_end();
}

GenerationRequest tool_request(std::string_view choice) {
  auto r = parse_chat(
      R"({"messages":[{"role":"user","content":"?"}],"tools":[{"type":"function","function":{"name":"f",
          "parameters":{"type":"object","properties":{"city":{"$ref":"#/$defs/city"}},"required":["city"],
          "$defs":{"city":{"enum":["Bern","Rom"]}}}}},{"type":"function","function":{"name":"g"}}],
          "tool_choice":)" +
      std::string(choice) + "}");
  if (!r) throw std::runtime_error(r.error().message);
  return std::move(*r);
}

TEST(Constraint, ForcedCallsAreWrittenAsTheModelDoesAndReadBack) {
  const std::map<std::string_view, std::string> texts{
      {kQwen, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>"},
      {kMistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\"}}]"},
      {kGranite, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\"}}]"},
      {kDeepSeek,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
       "{\"city\": \"Bern\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {kHarmony,
       "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"city\": \"Bern\"}"},
      {kLlama, "{\"name\": \"f\", \"parameters\": {\"city\": \"Bern\"}}"}};
  for (const auto& [chat_template, text] : texts) {
    const ChatFormat format = detect_chat_format(chat_template);
    const auto gbnf = grammar_of_request(tool_request(R"("required")"), format);
    ASSERT_TRUE(gbnf) << gbnf.error().message;
    EXPECT_TRUE(allows(*gbnf, text)) << text << "\n" << *gbnf;
    std::string wrong = text;
    wrong.replace(wrong.find("Bern"), 4, "Oslo");
    EXPECT_FALSE(allows(*gbnf, wrong)) << wrong;
    EXPECT_FALSE(allows(*gbnf, "Hello"));
    EXPECT_EQ(read(format, text, 1), (Answer{"", "", {{"f", "{\"city\": \"Bern\"}"}}})) << text;
  }
}

TEST(Constraint, ANamedToolIsTheOnlyOneAndCalledOnce) {
  const ChatFormat format = detect_chat_format(kQwen);
  const std::string call =
      "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"any\": [1]}}\n</tool_call>";
  const auto named =
      grammar_of_request(tool_request(R"({"type":"function","function":{"name":"g"}})"), format);
  ASSERT_TRUE(named);
  EXPECT_TRUE(allows(*named, call));
  EXPECT_FALSE(allows(*named, call + "\n" + call));
  EXPECT_FALSE(allows(
      *named, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Rom\"}}\n</tool_call>"));
  const auto required = grammar_of_request(tool_request(R"("required")"), format);
  ASSERT_TRUE(required);
  EXPECT_TRUE(allows(*required, call + "\n" + call));
  const auto absent =
      grammar_of_request(tool_request(R"({"type":"function","function":{"name":"h"}})"), format);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().param, "tool_choice");
  const auto free = grammar_of_request(tool_request(R"("auto")"), format);
  ASSERT_TRUE(free);
  EXPECT_TRUE(free->empty());
}

TEST(Constraint, ResponseFormats) {
  const auto gbnf_of = [](std::string format) {
    const auto r = parse_chat(R"({"messages":[{"role":"user","content":"?"}],"response_format":)" +
                              format + "}");
    EXPECT_TRUE(r) << r.error().message;
    return grammar_of_request(*r, {}).value();
  };
  EXPECT_TRUE(gbnf_of(R"({"type":"text"})").empty());
  EXPECT_TRUE(allows(gbnf_of(R"({"type":"json_object"})"), R"({"a": [1, {"b": null}]})"));
  EXPECT_FALSE(allows(gbnf_of(R"({"type":"json_object"})"), "[]"));
  const std::string schema = gbnf_of(
      R"({"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object",
          "properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}}})");
  EXPECT_TRUE(allows(schema, R"({"a": 7})"));
  EXPECT_FALSE(allows(schema, R"({"a": "7"})"));
  const auto refused = parse_chat(
      R"({"messages":[{"role":"user","content":"?"}],"response_format":{"type":"json_schema","json_schema":{"schema":
          {"not":{}}}}})");
  ASSERT_TRUE(refused);
  const auto gbnf = grammar_of_request(*refused, {});
  ASSERT_FALSE(gbnf);
  EXPECT_NE(gbnf.error().message.find("not"), std::string::npos);
}

}  // namespace
}  // namespace bm::serve
