// Chat templates by hand-written cases; tests/oracle/chat_templates.py compares with jinja2 at
// large.

#include "models/chat/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace bm::models {
namespace {

using Json = nlohmann::ordered_json;

Result<std::string> render(std::string_view text, const Json& messages = Json::array(),
                           const ChatLimits& limits = {}) {
  const auto parsed = ChatTemplate::parse(text);
  if (!parsed) return tl::unexpected(parsed.error());
  ChatInput input{.messages = &messages, .bos_token = "<s>", .eos_token = "</s>"};
  input.now.tm_year = 125;
  input.now.tm_mon = 2;
  input.now.tm_mday = 7;
  return parsed->render(input, limits);
}
std::string text_of(std::string_view text, const Json& messages = Json::array()) {
  const auto result = render(text, messages);
  return result ? *result : "error: " + result.error().message;
}
std::string error_of(std::string_view text, const ChatLimits& limits = {}) {
  const auto result = render(text, Json::array(), limits);
  return result ? "no error: " + *result : result.error().message;
}

TEST(ChatTemplate, RendersAConversation) {
  const Json messages =
      Json::parse(R"([{"role":"user","content":" hi "},{"role":"assistant","content":"yo"}])");
  EXPECT_EQ(text_of("{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim "
                    "}}{{ eos_token }}"
                    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
                    messages),
            "<s><user>hi</s><assistant>yo</s><assistant>");
}

TEST(ChatTemplate, AnEmptyOneIsRefused) {
  for (const char* text : {"", " ", "\n\t \r\n"}) {
    const auto parsed = ChatTemplate::parse(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, Code::kInvalidArgument);
    EXPECT_NE(parsed.error().message.find("--chat-template"), std::string::npos);
  }
}

TEST(ChatTemplate, BlocksTakeTheirLineWithThem) {
  EXPECT_EQ(text_of("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(text_of("a\n  {%- if true -%}\n  b\n  {%- endif %}\nc"), "abc");
  EXPECT_EQ(text_of("  {{ 1 }}\n{# no #}\n{%+ if true %}\nx{% endif +%}\ny"), "  1\nx\ny");
  EXPECT_EQ(text_of("{% raw %}{{ x }}{% endraw %}\r\nz\r\n"), "{{ x }}z");
}

TEST(ChatTemplate, AssignmentsInLoopsStayThere) {
  EXPECT_EQ(
      text_of("{% set x = 0 %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{% endfor %}{{ x }}"),
      "000");
  EXPECT_EQ(text_of("{% set n = namespace(x=0) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% "
                    "endfor %}{{ n.x }}"),
            "3");
}

TEST(ChatTemplate, LoopsKnowWhereTheyAre) {
  EXPECT_EQ(text_of("{% for i in 'abc' if i != 'b' %}{{ loop.index }}{{ i }}{{ loop.last }}{{ "
                    "loop.nextitem }};{% endfor %}"),
            "1aFalsec;2cTrue;");
  EXPECT_EQ(text_of("{% for i in [] %}x{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(text_of("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{% if i == 1 %}{% "
                    "continue %}{% endif %}{{ i }}{% endfor %}"),
            "02");
}

TEST(ChatTemplate, ElseRunsWhenNoIterationCameToItsEnd) {
  EXPECT_EQ(text_of("{% for i in [1, 2] %}{% continue %}{% else %}else{% endfor %}"), "else");
}

TEST(ChatTemplate, MacrosTakeDefaultsNamesAndCallers) {
  EXPECT_EQ(text_of("{% macro m(a, b='B') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro "
                    "%}{{ m(1) }}{{ m(1, 2, 3, k=4) }}"),
            "1B(){}12(3,){'k': 4}");
  EXPECT_EQ(
      text_of(
          "{% macro m() %}[{{ caller('x') }}]{% endmacro %}{% call(v) m() %}{{ v }}!{% endcall %}"),
      "[x!]");
}

TEST(ChatTemplate, NumbersAndTextLookAsInPython) {
  EXPECT_EQ(
      text_of(
          "{{ [1.0, 1e16, 0.1 + 0.2, -7 // 2, -7 % 3, 2 ** -1, true, none, 'it\\'s', \"\\n\"] }}"),
      R"([1.0, 1e+16, 0.30000000000000004, -4, 2, 0.5, True, None, "it's", '\n'])");
  EXPECT_EQ(text_of("{{ 'größe'[::-1] }} {{ 'straße'|upper }} {{ 'ΑΣ'|lower }} {{ '你好'[1] }} {{ "
                    "'你好'|length }}"),
            "eßörg STRASSE ας 好 2");
}

TEST(ChatTemplate, JsonHasPythonsSpacesAndOrder) {
  const Json messages = Json::parse(R"([{"z":1,"a":[true,null,"é"],"e":{},"l":[]}])");
  EXPECT_EQ(text_of("{{ messages[0]|tojson }}", messages),
            R"({"z": 1, "a": [true, null, "é"], "e": {}, "l": []})");
  EXPECT_EQ(text_of("{{ messages[0]|tojson(indent=2) }}", messages),
            "{\n  \"z\": 1,\n  \"a\": [\n    true,\n    null,\n    \"é\"\n  ],\n  \"e\": {},\n  "
            "\"l\": []\n}");
  EXPECT_EQ(text_of("{{ {'b': 'é', 'a': 1.5}|tojson(ensure_ascii=true, sort_keys=true, "
                    "separators=(',', ':')) }}"),
            R"({"a":1.5,"b":"\u00e9"})");
}

TEST(ChatTemplate, WhatFiltersGiveIsReadOnce) {
  EXPECT_EQ(text_of("{% set g = [1, 2]|map('string') %}{{ g|list }}{{ g|list }}"), "['1', '2'][]");
}

TEST(ChatTemplate, FiltersOfItemsTakeWhatIsFalseForEmpty) {
  EXPECT_EQ(text_of("{{ none|map(attribute='x')|list }}{{ 0|selectattr('x')|list }}"), "[][]");
  EXPECT_EQ(error_of("{{ 1|map('upper')|list }}"),
            "chat template: row 1, column 6: a value of type int cannot be iterated");
}

TEST(ChatTemplate, OnlyTextAndListsAreSliced) {
  EXPECT_EQ(text_of("{{ 'abc'[:2] }}{{ [1, 2, 3][::2] }}{{ none.x }}"), "ab[1, 3]");
  EXPECT_EQ(error_of("{{ none[1:] }}"),
            "chat template: row 1, column 8: a value of type NoneType cannot be sliced");
}

TEST(ChatTemplate, UndefinedPrintsNothingAndHasNoAttributes) {
  EXPECT_EQ(text_of("[{{ nothing }}{{ {}.x }}{{ nothing is defined }}{{ nothing|default('d') }}]"),
            "[Falsed]");
  EXPECT_EQ(error_of("\n  {{ nothing.x }}"),
            "chat template: row 2, column 14: \"nothing\" is undefined");
}

TEST(ChatTemplate, DatesAreThoseOfTheCaller) {
  EXPECT_EQ(text_of("{{ strftime_now('%d %b %Y, %-d') }}"), "07 Mar 2025, 7");
}

TEST(ChatTemplate, ErrorsNameRowAndColumn) {
  EXPECT_EQ(error_of("a\n{{ 1 + }}"),
            "chat template: row 2, column 8: an expression expected, not }}");
  EXPECT_EQ(error_of("{% if x %}"),
            "chat template: row 1, column 11: the template ends here, but elif or else or endif is "
            "missing");
  EXPECT_EQ(error_of("{{ raise_exception('no ' ~ 1) }}"),
            "chat template: row 1, column 4: the template refuses these messages: no 1");
  EXPECT_EQ(error_of("{{ ‘x’ }}"), "chat template: row 1, column 4: unexpected character \"‘\"");
  EXPECT_EQ(error_of("{{ 1 / 0 }}"), "chat template: row 1, column 6: division by zero");
}

TEST(ChatTemplate, WhatIsNotKnownIsRefusedByName) {
  EXPECT_EQ(ChatTemplate::parse("{{ x|frobnicate }}").error().code, Code::kUnsupported);
  EXPECT_EQ(error_of("{{ x|frobnicate }}"),
            "chat template: row 1, column 6: the filter \"frobnicate\" is not supported");
  EXPECT_EQ(error_of("{% include 'f' %}"),
            "chat template: row 1, column 4: the tag include is not supported in chat templates");
  EXPECT_EQ(render("{{ 2 ** 64 }}").error().code, Code::kUnsupported);
}

TEST(ChatTemplate, NothingIsReachedThroughAttributes) {
  EXPECT_EQ(text_of("[{{ ''.__class__ }}{{ messages.append }}{{ {}.update }}]"), "[]");
  EXPECT_NE(error_of("{{ ''.__class__.__mro__ }}").find("no attribute"), std::string::npos);
  EXPECT_NE(error_of("{% set l = [1] %}{{ l.append(2) }}").find("no attribute"), std::string::npos);
}

TEST(ChatTemplate, WorkMemoryOutputAndDepthAreBounded) {
  EXPECT_NE(
      error_of("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
               {.steps = 100'000})
          .find("steps"),
      std::string::npos);
  EXPECT_NE(error_of("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s "
                     "%}{% endfor %}")
                .find("more than"),
            std::string::npos);
  EXPECT_NE(error_of("{{ 'x' * 999999999999 }}").find("too long"), std::string::npos);
  EXPECT_NE(
      error_of("{% for i in range(99999) %}{{ 'x' * 999 }}{% endfor %}", {.output_bytes = 1000})
          .find("prints more"),
      std::string::npos);
  EXPECT_NE(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("deeply"),
            std::string::npos);
  EXPECT_NE(error_of("{{ " + std::string(50'000, '(') + "1" + std::string(50'000, ')') + " }}")
                .find("deeply"),
            std::string::npos);
  EXPECT_NE(error_of("{% set n = namespace() %}{% set n.a = [n] %}{{ n }}").find("deeply"),
            std::string::npos);
}

TEST(ChatTemplate, SharedListsAreComparedWithinTheBudget) {
  const std::string grow =
      "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% "
      "set n.b = [n.b, n.b] %}{% endfor %}";
  EXPECT_NE(error_of(grow + "{{ n.a == n.b }}").find("steps"), std::string::npos);
}

TEST(ChatTemplate, SaysWhichVariablesItReads) {
  const auto parsed = ChatTemplate::parse("{% if tools %}{{ enable_thinking }}{% endif %}");
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(parsed->reads("tools"));
  EXPECT_TRUE(parsed->reads("enable_thinking"));
  EXPECT_FALSE(parsed->reads("documents"));
}

TEST(ChatTemplate, RefusesTextThatIsNotUtf8) {
  EXPECT_FALSE(ChatTemplate::parse("\xff{{ x }}"));
  EXPECT_FALSE(render("{{ messages }}", Json::array({std::string("\xc3")})));
}

}  // namespace
}  // namespace bm::models
