// Which texts the grammars of schemas take; tests/oracle/json_schemas.py has python3-jsonschema
// judge random ones.
#include "models/grammar/json_schema.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "models/grammar/grammar_matcher.h"
#include "models/grammar/number_grammar.h"
#include "models/grammar/regex_grammar.h"

namespace bm::models {
namespace {

std::shared_ptr<const GrammarVocabulary> no_tokens() {
  return std::make_shared<const GrammarVocabulary>(std::vector<std::string>{},
                                                   std::vector<int32_t>{});
}

bool takes_gbnf(std::string_view gbnf, std::string_view text) {
  const auto grammar = Grammar::parse(gbnf);
  EXPECT_TRUE(grammar) << grammar.error().message << "\n" << gbnf;
  if (!grammar) return false;
  GrammarMatcher matcher(std::make_shared<const Grammar>(*grammar), no_tokens());
  return matcher.accept_bytes(text).has_value() && matcher.can_end();
}

bool takes(std::string_view schema, std::string_view text) {
  const auto gbnf = grammar_of_json_schema(schema);
  EXPECT_TRUE(gbnf) << gbnf.error().message;
  return gbnf && takes_gbnf(*gbnf, text);
}

std::string error_of(std::string_view schema) {
  const auto gbnf = grammar_of_json_schema(schema);
  return gbnf ? "no error" : gbnf.error().message;
}

TEST(JsonSchema, EmptyTakesAnyJson) {
  for (const char* text : {"1", "-0.5e10", "\"a\\u0041\\n\"", "[]", "[1, 2,[]]", "{}", "null",
                           "{\"a\":{\"b\": [true]}}", "\n  {\"a\": 1}"})
    EXPECT_TRUE(takes("{}", text)) << text;
  for (const char* text : {"01", "+1", "[1,]", "{a:1}", "\"\n\"", "\"\\ud800\"", "nul", "", "1 2"})
    EXPECT_FALSE(takes("true", text)) << text;
}

TEST(JsonSchema, ObjectsHaveTheirPropertiesInOrder) {
  constexpr auto kSchema = R"({"type":"object","properties":{"a":{"type":"integer"},
      "b":{"type":"string"},"c":{"type":"boolean"}},"required":["b"]})";
  for (const char* text : {R"({"a":1,"b":"x","c":true})", R"({"b":"x"})", R"({"a": 2, "b": "x"})",
                           R"({"b":"","c":false})"})
    EXPECT_TRUE(takes(kSchema, text)) << text;
  for (const char* text : {R"({})", R"({"a":1})", R"({"a":1,"c":true})", R"({"b":1})",
                           R"({"b":"x",})", R"({,"b":"x"})", R"({"b":"x","d":1})"})
    EXPECT_FALSE(takes(kSchema, text)) << text;
}

TEST(JsonSchema, AdditionalPropertiesAreNoneOfTheOthers) {
  constexpr auto kSchema = R"({"properties":{"ab":{"type":"integer"},"a":{"type":"integer"}},
      "additionalProperties":{"type":"string"}})";
  for (const char* text : {R"({})", R"({"ab":1,"x":"y"})", R"({"abc":"y"})", R"({"b":"y","":"z"})"})
    EXPECT_TRUE(takes(kSchema, text)) << text;
  for (const char* text : {R"({"a":"y"})", R"({"x":1})", R"({"ab":1,"ab":"y"})"})
    EXPECT_FALSE(takes(kSchema, text)) << text;
  EXPECT_TRUE(takes(R"({"required":["q"],"additionalProperties":true})", R"({"q":[1],"r":2})"));
  EXPECT_FALSE(takes(R"({"required":["q"],"additionalProperties":true})", R"({"r":2})"));
}

TEST(JsonSchema, ArraysCountTheirItems) {
  constexpr auto kSchema =
      R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},"minItems":1,"maxItems":4})";
  for (const char* text : {"[1]", "[1,\"a\"]", "[1, \"a\", null,null]"})
    EXPECT_TRUE(takes(kSchema, text)) << text;
  for (const char* text : {"[]", "[\"a\"]", "[1,null]", "[1,\"a\",null,null,null]"})
    EXPECT_FALSE(takes(kSchema, text)) << text;
  EXPECT_TRUE(takes(R"({"items":{"const":1},"minItems":2})", "[1,1,1]"));
  EXPECT_FALSE(takes(R"({"items":{"const":1},"minItems":2})", "[1]"));
  EXPECT_TRUE(takes(R"({"items":false,"prefixItems":[{}]})", "[[]]"));
  EXPECT_FALSE(takes(R"({"items":false,"prefixItems":[{}]})", "[1,2]"));
  EXPECT_TRUE(takes(R"({"type":"array","maxItems":0})", "[]"));
  EXPECT_FALSE(takes(R"({"type":"array","maxItems":0})", "[1]"));
}

TEST(JsonSchema, IntegersLieBetweenTheirBounds) {
  for (const auto& [low, high] : std::vector<std::pair<int, int>>{{0, 9},
                                                                  {3, 17},
                                                                  {-5, 5},
                                                                  {-120, -7},
                                                                  {99, 1001},
                                                                  {0, 0},
                                                                  {-1, 0},
                                                                  {10, 10},
                                                                  {7, 23},
                                                                  {-999, 1999}}) {
    const std::string gbnf = "root ::= " + gbnf_integers(low, high);
    const auto grammar = std::make_shared<const Grammar>(Grammar::parse(gbnf).value());
    GrammarMatcher matcher(grammar, no_tokens());
    for (int v = -2'100; v <= 2'100; ++v) {
      matcher.reset();
      const bool is_taken =
          matcher.accept_bytes(std::to_string(v)).has_value() && matcher.can_end();
      ASSERT_EQ(is_taken, low <= v && v <= high) << v << " in " << low << ".." << high;
    }
  }
  const std::string up = "root ::= " + gbnf_integers(1000, std::nullopt);
  EXPECT_TRUE(takes_gbnf(up, "1000"));
  EXPECT_TRUE(takes_gbnf(up, "9999999999999999"));
  EXPECT_FALSE(takes_gbnf(up, "999"));
  const std::string all = "root ::= " + gbnf_integers(INT64_MIN, INT64_MAX);
  EXPECT_TRUE(takes_gbnf(all, "-9223372036854775808"));
  EXPECT_FALSE(takes_gbnf(all, "-9223372036854775809"));
  EXPECT_TRUE(takes(R"({"type":"integer","exclusiveMinimum":2,"maximum":4.5})", "3"));
  EXPECT_FALSE(takes(R"({"type":"integer","exclusiveMinimum":2,"maximum":4.5})", "2"));
  EXPECT_FALSE(takes(R"({"type":"integer","exclusiveMinimum":2,"maximum":4.5})", "5"));
  for (const char* text : {"0", "0.5", "1", "0.9999"})
    EXPECT_TRUE(takes(R"({"type":"number","minimum":0,"maximum":1})", text)) << text;
  for (const char* text : {"-0.5", "1.5", "1e1", "2"})
    EXPECT_FALSE(takes(R"({"type":"number","minimum":0,"maximum":1})", text)) << text;
  EXPECT_TRUE(takes(R"({"type":"number","minimum":-2,"maximum":-1})", "-1.25"));
  EXPECT_FALSE(takes(R"({"type":"number","minimum":-2,"maximum":-1})", "-2.25"));
}

TEST(JsonSchema, PatternsAreThoseOfTheExpression) {
  const auto body = [](std::string_view pattern) {
    return "root ::= " + grammar_of_regex(pattern).value() +
           "\nchar ::= [^\"\\\\\\x00-\\x1f] | \"\\\\\" [\"\\\\nrt]\n";
  };
  EXPECT_TRUE(takes_gbnf(body("^[a-z]+\\d{2,3}$"), "ab123"));
  EXPECT_FALSE(takes_gbnf(body("^[a-z]+\\d{2,3}$"), "ab1"));
  EXPECT_TRUE(takes_gbnf(body("b|^c$"), "abc"));
  EXPECT_FALSE(takes_gbnf(body("b|^c$"), "cc"));
  EXPECT_TRUE(takes_gbnf(body("^(?:x|y)?\\\\\"\\n$"), "y\\\\\\\"\\n"));
  EXPECT_TRUE(takes_gbnf(body("^\\\\?1$"), "1"));
  EXPECT_FALSE(takes_gbnf(body("^\\\\?1$"), "\\1"));
  EXPECT_TRUE(takes_gbnf(body("^[^a\\s]$"), "é"));
  EXPECT_FALSE(takes_gbnf(body("^[^a\\s]$"), " "));
  EXPECT_TRUE(takes_gbnf(body("^\\u00e9.$"), "é水"));
  for (const char* bad :
       {"(?=a)", "a\\b", "\\1", "(a", "a)", "[a", "*", "a{x}", "\\p{L}", "a^", "(a$)b", "\\"})
    EXPECT_FALSE(grammar_of_regex(bad)) << bad;
}

TEST(JsonSchema, StringsOfFormats) {
  EXPECT_TRUE(takes(R"({"format":"date"})", "\"2024-02-29\""));
  EXPECT_TRUE(takes(R"({"format":"date"})", "\"2000-02-29\""));
  for (const char* bad :
       {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"", "\"0000-01-01\""})
    EXPECT_FALSE(takes(R"({"format":"date"})", bad)) << bad;
  EXPECT_TRUE(takes(R"({"format":"date-time"})", "\"2024-12-31T23:59:59.5+01:30\""));
  EXPECT_TRUE(takes(R"({"type":"string","minLength":2,"maxLength":3})", "\"a水\""));
  EXPECT_FALSE(takes(R"({"type":"string","minLength":2,"maxLength":3})", "\"abcd\""));
  EXPECT_FALSE(takes(R"({"type":"string","minLength":2,"maxLength":3})", "\"水\""));
}

TEST(JsonSchema, ReferencesMayRecur) {
  constexpr auto kTree = R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object",
      "properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},
      "required":["v","next"]}}})";
  EXPECT_TRUE(takes(kTree, R"({"v":1,"next":{"v":2,"next":null}})"));
  EXPECT_FALSE(takes(kTree, R"({"v":1,"next":{"v":2}})"));
  EXPECT_TRUE(takes(R"({"properties":{"a":{"$ref":"#"}}})", R"({"a":{"a":{}}})"));
  // A reference to itself and nothing more is left recursion.
  const auto gbnf =
      grammar_of_json_schema(R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}})");
  ASSERT_TRUE(gbnf);
  EXPECT_NE(Grammar::parse(*gbnf).error().message.find("left recursion"), std::string::npos);
}

TEST(JsonSchema, CombinesSchemas) {
  constexpr auto kAll =
      R"({"allOf":[{"properties":{"a":{"type":"integer","minimum":3}},"required":["a"]},
      {"properties":{"b":{"type":"null"},"a":{"maximum":5}},"required":["b"]}],"type":"object"})";
  EXPECT_TRUE(takes(kAll, R"({"a":4,"b":null})"));
  EXPECT_FALSE(takes(kAll, R"({"a":6,"b":null})"));
  EXPECT_FALSE(takes(kAll, R"({"a":4})"));
  constexpr auto kOne =
      R"({"oneOf":[{"type":"object","properties":{"k":{"const":"x"},"n":{"type":"integer"}},"required":["k","n"]},
      {"type":"object","properties":{"k":{"const":"y"}},"required":["k"]},{"type":"null"}]})";
  EXPECT_TRUE(takes(kOne, R"({"k":"x","n":1})"));
  EXPECT_TRUE(takes(kOne, R"({"k":"y"})"));
  EXPECT_TRUE(takes(kOne, "null"));
  EXPECT_FALSE(takes(kOne, R"({"k":"x"})"));
  EXPECT_TRUE(takes(R"({"enum":["a",1,null,{"b":[2]}]})", R"({"b":[2]})"));
  EXPECT_FALSE(takes(R"({"enum":["a",1,null],"type":"string"})", "1"));
}

/// Thousandths as JSON writes them.
std::string decimal(int64_t thousandths) {
  std::string text = fmt::format("{:.3f}", static_cast<double>(std::abs(thousandths)) / 1000);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return (thousandths < 0 ? "-" : "") + text;
}

TEST(JsonSchema, BoundsOfNumbersAreKeptToTheDigit) {
  std::mt19937 random(11);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  size_t inside = 0, outside = 0;
  for (int round = 0; round < 150; ++round) {
    // Of one, two or three digits behind the point.
    const int64_t step = round % 3 == 0 ? 1 : round % 3 == 1 ? 10 : 100;
    const int64_t low = draw(-2500 / step, 2500 / step) * step;
    const int64_t high = low + draw(1, round % 2 == 0 ? 3000 / step : 3) * step;
    const bool has_low = random() % 4 != 0, has_high = !has_low || random() % 4 != 0;
    const bool is_above = random() % 2 == 0, is_below = random() % 2 == 0;
    std::string schema = R"({"type":"number")";
    if (has_low)
      schema += fmt::format(R"(,"{}":{})", is_above ? "exclusiveMinimum" : "minimum", decimal(low));
    if (has_high)
      schema +=
          fmt::format(R"(,"{}":{})", is_below ? "exclusiveMaximum" : "maximum", decimal(high));
    schema += "}";
    const auto gbnf = grammar_of_json_schema(schema);
    ASSERT_TRUE(gbnf) << schema << gbnf.error().message;
    const auto parsed = Grammar::parse(*gbnf);
    ASSERT_TRUE(parsed) << parsed.error().message << "\n" << *gbnf;
    const auto grammar = std::make_shared<const Grammar>(*parsed);
    for (int k = 0; k < 60; ++k) {
      const int64_t value = k < 20   ? low + draw(-30, 30)
                            : k < 40 ? high + draw(-30, 30)
                                     : draw(-6000, 6000);
      const bool fits = (!has_low || value > low || (value == low && !is_above)) &&
                        (!has_high || value < high || (value == high && !is_below));
      GrammarMatcher matcher(grammar, no_tokens());
      const bool is_taken = matcher.accept_bytes(decimal(value)).has_value() && matcher.can_end();
      EXPECT_EQ(is_taken, fits) << schema << " " << decimal(value) << "\n" << *gbnf;
      ++(fits ? inside : outside);
    }
  }
  EXPECT_GT(std::min(inside, outside), 1000u);
  const char* above = R"({"type":"number","exclusiveMinimum":0})";
  for (const char* text : {"0.000001", "1", "0.123456789", "12345.5"})
    EXPECT_TRUE(takes(above, text)) << text;
  for (const char* text : {"0", "0.0", "-0.5", "-0", "00.1", "0."})
    EXPECT_FALSE(takes(above, text)) << text;
  EXPECT_TRUE(takes(R"({"type":"number","minimum":0.5,"maximum":0.5})", "0.50"));
  EXPECT_NE(error_of(R"({"type":"number","minimum":0.5,"exclusiveMaximum":0.5})"), "no error");
}

TEST(JsonSchema, FormatsAreThoseOfTheStandard) {
  const struct {
    const char* name;
    std::vector<std::string> good, bad;
  } rows[] = {
      {"email",
       {"a@b.ch", "first.last+tag@mail.example.org"},
       {"a", "a@b", "@b.ch", "a..b@c.ch", "a@-b.ch", "a b@c.ch"}},
      {"hostname", {"a", "www.example-1.org"}, {"", "-a", "a-", "a..b", "a_b", ".a"}},
      {"ipv4", {"0.0.0.0", "255.249.199.9"}, {"256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"}},
      {"ipv6",
       {"::", "::1", "1:2:3:4:5:6:7:8", "fe80::1:2", "a:b:c::d:e:f:1"},
       {":", "1:2", "1:2:3:4:5:6:7:8:9", "12345::", "g::1", "1::2::3", "1:::2"}},
      {"uri",
       {"https://example.org", "http://a:80/b/c.html?x=1&y=2#z"},
       {"example.org", "http://", "http://a b", "a:b"}},
      {"duration",
       {"P1D", "P2W", "P1Y2M3DT4H5M6S", "PT5M", "P3M"},
       {"P", "PT", "1D", "P1S", "P1W2D", "P1DT"}},
  };
  for (const auto& row : rows) {
    const std::string schema = fmt::format(R"({{"type":"string","format":"{}"}})", row.name);
    for (const std::string& text : row.good)
      EXPECT_TRUE(takes(schema, "\"" + text + "\"")) << row.name << " " << text;
    for (const std::string& text : row.bad)
      EXPECT_FALSE(takes(schema, "\"" + text + "\"")) << row.name << " " << text;
  }
  // What others say beside them: bounds that hold anyway, and names that mean nothing.
  EXPECT_TRUE(
      takes(R"({"type":"string","format":"uri","minLength":1,"maxLength":2083})", "\"ftp://a/b\""));
  EXPECT_TRUE(takes(R"({"type":"string","format":"password","minLength":2})", "\"any\""));
  EXPECT_FALSE(takes(R"({"type":"string","format":"password","minLength":2})", "\"a\""));
  EXPECT_TRUE(takes(R"({"type":"integer","format":"int32"})", "7"));
  EXPECT_TRUE(takes(R"({"propertyNames":{"type":"string"},"additionalProperties":{"type":"null"}})",
                    R"({"a":null})"));
  EXPECT_TRUE(takes(R"({"$id":"x","anyOf":[{"type":"null"}],"discriminator":{}})", "null"));
}

TEST(JsonSchema, MultiplesAreTakenDigitByDigit) {
  for (const int64_t step : {1, 2, 3, 4, 7, 10, 12, 25, 37, 99, 100, 250, 999, 1000})
    for (const auto& [least, most] : std::vector<std::pair<int64_t, int64_t>>{
             {-1200, 2100}, {0, 300}, {1, 1000}, {-77, -1}, {990, 10100}}) {
      const std::string schema = fmt::format(
          R"({{"type":"integer","multipleOf":{},"minimum":{},"maximum":{}}})", step, least, most);
      const auto gbnf = grammar_of_json_schema(schema);
      bool is_any = false;
      for (int64_t n = least; n <= most; ++n) is_any = is_any || n % step == 0;
      ASSERT_EQ(gbnf.has_value(), is_any) << schema;
      if (!gbnf) continue;
      const auto grammar = Grammar::parse(*gbnf);
      ASSERT_TRUE(grammar) << grammar.error().message;
      GrammarMatcher matcher(std::make_shared<const Grammar>(*grammar), no_tokens());
      for (int64_t n = least - 120; n <= most + 120; n += 1 + (n > 200 ? 7 : 0)) {
        matcher.reset();
        const bool is_taken =
            matcher.accept_bytes(std::to_string(n)).has_value() && matcher.can_end();
        EXPECT_EQ(is_taken, n >= least && n <= most && n % step == 0) << schema << " " << n;
      }
    }
  EXPECT_TRUE(takes(R"({"type":"integer","multipleOf":7})", "123456789012340"));
  EXPECT_FALSE(takes(R"({"type":"integer","multipleOf":7})", "123456789012341"));
  EXPECT_FALSE(takes(R"({"type":"integer","multipleOf":7})", "07"));
  EXPECT_FALSE(takes(R"({"type":"integer","multipleOf":7})", "-0"));
  EXPECT_TRUE(takes(R"({"type":"number","multipleOf":5.0,"exclusiveMinimum":2.5})", "5"));
  EXPECT_FALSE(takes(R"({"type":"number","multipleOf":5,"exclusiveMinimum":2.5})", "0"));
  EXPECT_TRUE(takes(R"({"allOf":[{"multipleOf":4},{"multipleOf":6}],"type":"integer"})", "-36"));
  EXPECT_FALSE(takes(R"({"allOf":[{"multipleOf":4},{"multipleOf":6}],"type":"integer"})", "18"));
  // Large ones between narrow bounds are listed.
  EXPECT_TRUE(
      takes(R"({"type":"integer","multipleOf":10007,"minimum":0,"maximum":99999})", "70049"));
  EXPECT_EQ(grammar_of_json_schema(R"({"multipleOf":0})").error().code, Code::kInvalidArgument);
}

TEST(JsonSchema, ObjectsHaveAsManyPropertiesAsAsked) {
  constexpr auto kThree =
      R"({"properties":{"a":{},"b":{},"c":{}},"required":["b"],"minProperties":2,"maxProperties":2})";
  for (const char* text : {R"({"a":1,"b":2})", R"({"b":1,"c":2})"})
    EXPECT_TRUE(takes(kThree, text)) << text;
  for (const char* text : {R"({"b":1})", R"({"a":1,"c":2})", R"({"a":1,"b":2,"c":3})", "{}"})
    EXPECT_FALSE(takes(kThree, text)) << text;
  constexpr auto kFree =
      R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2})";
  EXPECT_TRUE(takes(kFree, R"({"x":1})"));
  EXPECT_TRUE(takes(kFree, R"({"x":1,"y":2})"));
  EXPECT_FALSE(takes(kFree, "{}"));
  EXPECT_FALSE(takes(kFree, R"({"x":1,"y":2,"z":3})"));
  constexpr auto kBoth = R"({"properties":{"a":{}},"additionalProperties":true,"minProperties":2})";
  EXPECT_TRUE(takes(kBoth, R"({"a":1,"x":2})"));
  EXPECT_TRUE(takes(kBoth, R"({"a":1,"x":2,"y":3})"));
  EXPECT_FALSE(takes(kBoth, R"({"x":2,"y":3})"));  // y might be x again
  EXPECT_TRUE(takes(R"({"type":"object","maxProperties":0})", "{}"));
  EXPECT_FALSE(takes(R"({"type":"object","maxProperties":0})", R"({"a":1})"));
  EXPECT_EQ(grammar_of_json_schema(R"({"minProperties":2,"maxProperties":1})").error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(grammar_of_json_schema(R"({"properties":{"a":{}},"minProperties":2})").error().code,
            Code::kInvalidArgument);
}

TEST(JsonSchema, NamesOfPropertiesHavePatterns) {
  constexpr auto kPattern =
      R"({"type":"object","patternProperties":{"^[a-z]{2}$":{"type":"integer"}},"additionalProperties":false})";
  EXPECT_TRUE(takes(kPattern, R"({"de":1,"en":2})"));
  EXPECT_TRUE(takes(kPattern, "{}"));
  for (const char* text : {R"({"deu":1})", R"({"de":"x"})", R"({"d\u0065":1})"})
    EXPECT_FALSE(takes(kPattern, text)) << text;
  constexpr auto kBeside = R"({"properties":{"id":{"type":"null"}},"required":["id"],
      "patternProperties":{"^x-":{"type":"string"},"^n_":{"type":"integer"}}})";
  EXPECT_TRUE(takes(kBeside, R"({"id":null,"x-a":"b","n_1":2})"));
  EXPECT_FALSE(takes(kBeside, R"({"id":null,"x-a":1})"));
  EXPECT_FALSE(takes(kBeside, R"({"id":null,"y":1})"));
  constexpr auto kNames =
      R"({"propertyNames":{"enum":["en","de"]},"additionalProperties":{"type":"string"}})";
  EXPECT_TRUE(takes(kNames, R"({"en":"a"})"));
  EXPECT_FALSE(takes(kNames, R"({"fr":"a"})"));
  EXPECT_TRUE(takes(R"({"propertyNames":{"maxLength":1},"minProperties":1})", R"({"a":[]})"));
  EXPECT_FALSE(takes(R"({"propertyNames":{"maxLength":1},"minProperties":1})", R"({"ab":1})"));
}

TEST(JsonSchema, ConstantsOfTwoSchemasAreTheirCommonOnes) {
  constexpr auto kSchema = R"({"allOf":[{"enum":["a","b","c"]},{"enum":["b","c",1]}],"const":"c"})";
  EXPECT_TRUE(takes(kSchema, "\"c\""));
  EXPECT_FALSE(takes(kSchema, "\"b\""));
  EXPECT_EQ(grammar_of_json_schema(R"({"enum":[1],"const":2})").error().code,
            Code::kInvalidArgument);
  EXPECT_TRUE(
      takes(R"({"allOf":[{"items":{"type":"integer"}},{"items":{"minimum":3}}]})", "[3, 4]"));
  EXPECT_FALSE(takes(R"({"allOf":[{"items":{"type":"integer"}},{"items":{"minimum":3}}]})", "[2]"));
}

TEST(JsonSchema, WhatIsNotSupportedIsRefusedByName) {
  EXPECT_EQ(error_of(R"({"not":{}})"), "JSON schema, at the top: \"not\" is not supported");
  EXPECT_EQ(error_of(R"({"properties":{"a":{"contains":2}}})"),
            "JSON schema, at #/properties/a: \"contains\" is not supported");
  for (const char* keyword : {"if", "uniqueItems", "contains", "dependentRequired",
                              "unevaluatedProperties", "$dynamicRef", "nonsense"}) {
    const std::string message = error_of(fmt::format(R"({{"{}":true}})", keyword));
    EXPECT_NE(message.find(fmt::format("\"{}\" is not supported", keyword)), std::string::npos)
        << message;
  }
  for (const char* schema :
       {R"({"format":"regex"})",
        R"({"format":"ipv4","maxLength":9})",
        R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
        R"({"oneOf":[{},{"type":"null"}]})",
        R"({"oneOf":[{"properties":{}},{"type":"null"}]})",
        R"({"type":"number","exclusiveMinimum":1e6})",
        R"({"type":"number","minimum":1e-7})",
        R"({"propertyNames":{"pattern":"a"},"properties":{"a":{}}})",
        R"({"propertyNames":{"pattern":"a"},"required":["a"]})",
        R"({"patternProperties":{"^x":{}},"properties":{"xy":{}}})",
        R"({"patternProperties":{"x":{}},"properties":{"a":{}}})",
        R"({"patternProperties":{"^é?x":{}},"properties":{"xa":{}}})",
        R"({"patternProperties":{"^a":{},"^ab":{"type":"null"}}})",
        R"({"patternProperties":{"^a":{}},"required":["ab"]})",
        R"({"allOf":[{"patternProperties":{"^a":{}}},{"additionalProperties":false}]})",
        R"({"minProperties":2})",
        R"({"properties":{"a":{}},"additionalProperties":true,"minProperties":3})",
        R"({"type":"integer","multipleOf":0.5})",
        R"({"multipleOf":10007,"minimum":0,"maximum":1000000000})",
        R"({"properties":{"a":{"$id":"b"}}})",
        R"({"pattern":"a","minLength":2})",
        R"({"$ref":"other.json"})",
        R"({"$ref":"#anchor"})",
        R"({"items":[{}]})",
        R"x({"pattern":"(?=a)"})x",
        R"({"enum":[1],"minimum":2})",
        R"({"allOf":[{"additionalProperties":false},{"properties":{"a":{}}}]})",
        R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})"}) {
    const auto gbnf = grammar_of_json_schema(schema);
    ASSERT_FALSE(gbnf) << schema;
    EXPECT_EQ(gbnf.error().code, Code::kUnsupported) << gbnf.error().message;
  }
  for (const char* schema :
       {"[]", "3", "{", "false", R"({"type":"integre"})", R"({"type":[]})", R"({"enum":[]})",
        R"({"$ref":"#/$defs/x"})", R"({"type":"integer","minimum":3,"maximum":2})",
        R"({"minLength":-1})", R"({"minItems":3,"maxItems":2})",
        R"({"required":["a"],"properties":{}})", R"({"properties":{"a":false},"required":["a"]})",
        R"({"minLength":1,"minItems":1})", R"({"allOf":[{"type":"null"},{"type":"string"}]})"}) {
    const auto gbnf = grammar_of_json_schema(schema);
    ASSERT_FALSE(gbnf) << schema;
    EXPECT_EQ(gbnf.error().code, Code::kInvalidArgument) << gbnf.error().message;
  }
  std::string deep = "{}";
  for (int i = 0; i < 100; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_NE(error_of(deep).find("more than 64 levels"), std::string::npos);
}

}  // namespace
}  // namespace bm::models
