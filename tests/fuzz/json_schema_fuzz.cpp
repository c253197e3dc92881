// JSON schemas: any text is refused or becomes a grammar, whose texts are JSON; left recursion and
// too many states are the only reasons not to take our own grammar. An input that begins with a
// byte below 9 is a list of choices, so that mutations are schemas, too.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "models/grammar/grammar_matcher.h"
#include "models/grammar/json_schema.h"

namespace {

using Json = nlohmann::ordered_json;

/// Makes a schema of bytes; without any more it is {}.
class SchemaOfBytes {
 public:
  SchemaOfBytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  Json schema(int depth) {
    Json out = Json::object();
    for (int n = next() % 4; n > 0 && depth < 6; --n) add(out, depth);
    return out;
  }

 private:
  int next() { return at_ < size_ ? data_[at_++] : 0; }
  std::string name() {
    static constexpr const char* kNames[] = {"a", "ab", "b", "\"", "é", "", "$ref", "\\"};
    return kNames[next() % 8];
  }
  Json value() {
    switch (next() % 7) {
      case 0: return next() - 100;
      case 1: return name();
      case 2: return nullptr;
      case 3: return next() % 2 == 0;
      case 4: return (next() - 100) / 4.0;
      case 5: return Json::array({name()});
      default: return Json::object({{name(), 1}});
    }
  }
  Json list(int depth) {
    Json out = Json::array();
    for (int n = 1 + next() % 3; n > 0; --n) out.push_back(schema(depth + 1));
    return out;
  }
  void add(Json& out, int depth) {
    static constexpr const char* kTypes[] = {"object",  "array",  "string",
                                             "integer", "number", "null"};
    static constexpr const char* kPatterns[] = {"^a+$",    "b|c", "[^x]{2,3}", "\\\\?\\d",
                                                "(a|b)*$", ".",   "^(",        "\\s\\S"};
    static constexpr const char* kFormats[] = {"date", "time", "date-time", "uuid", "email"};
    static constexpr const char* kReferences[] = {"#", "#/$defs/a", "#/properties/a", "#/items",
                                                  "x"};
    switch (next() % 24) {
      case 0:
      case 1:
      case 2: out["type"] = kTypes[next() % 6]; break;
      case 3: out["type"] = Json::array({kTypes[next() % 6], kTypes[next() % 6]}); break;
      case 4:
      case 5:
        for (int n = next() % 4; n > 0; --n) out["properties"][name()] = schema(depth + 1);
        break;
      case 6: out["required"] = Json::array({name(), name()}); break;
      case 7:
        out["additionalProperties"] = next() % 2 == 0 ? Json(next() % 3 == 0) : schema(depth + 1);
        break;
      case 8: out["items"] = schema(depth + 1); break;
      case 9: out["prefixItems"] = list(depth); break;
      case 10: out["minItems"] = next() % 5; break;
      case 11: out["maxItems"] = next() % 7; break;
      case 12: out["minLength"] = next() % 5; break;
      case 13: out["maxLength"] = next() % 9; break;
      case 14: out["minimum"] = value(); break;
      case 15: out["maximum"] = next() - 60; break;
      case 16: out["exclusiveMinimum"] = next() - 200; break;
      case 17: out["pattern"] = kPatterns[next() % 8]; break;
      case 18: out["format"] = kFormats[next() % 5]; break;
      case 19: out["enum"] = Json::array({value(), value()}); break;
      case 20: out["const"] = value(); break;
      case 21: out[next() % 2 == 0 ? "anyOf" : "oneOf"] = list(depth); break;
      case 22: out["allOf"] = list(depth); break;
      default:
        out["$ref"] = kReferences[next() % 5];
        if (depth == 0) out["$defs"]["a"] = schema(depth + 1);
    }
  }

  const uint8_t* data_;
  size_t size_, at_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bm::models;
  if (size > 4096) return 0;
  const std::string schema = size > 0 && data[0] < 9
                                 ? SchemaOfBytes(data + 1, size - 1).schema(0).dump()
                                 : std::string(reinterpret_cast<const char*>(data), size);
  const auto gbnf = grammar_of_json_schema(schema);
  if (!gbnf) {
    if (gbnf.error().message.empty()) std::abort();
    return 0;
  }
  if (gbnf->size() > 50'000) return 0;  // slow rather than wrong
  auto grammar = Grammar::parse(*gbnf);
  if (!grammar) {
    const std::string& why = grammar.error().message;
    const bool is_known = why.find("left recursion") != std::string::npos ||
                          why.find("states") != std::string::npos ||
                          why.find("repetitions") != std::string::npos;
    if (!is_known) std::abort();
    return 0;
  }
  if (grammar->size() > 20'000) return 0;
  static const auto kWords = [] {
    std::vector<std::string> pieces;
    for (int b = 0; b < 256; ++b) pieces.emplace_back(1, static_cast<char>(b));
    return std::make_shared<const GrammarVocabulary>(pieces, std::vector<int32_t>{});
  }();
  GrammarMatcher matcher(std::make_shared<const Grammar>(std::move(*grammar)), kWords);
  std::string text;
  uint64_t random = size + 1;
  while (text.size() < 60 && !matcher.is_finished()) {
    const auto mask = matcher.allowed();
    if (!mask) return 0;
    random = random * 6364136223846793005u + 1442695040888963407u;
    size_t token = (random >> 40) % 256;
    if (matcher.can_end() && token % 4 == 0) break;
    // Quotes and brackets (" } ]) first: texts come to their end.
    for (const size_t c : {0x22u, 0x7du, 0x5du})
      if (token % 3 == 0 && ((*mask)[c / 64] >> (c % 64) & 1) != 0) token = c;
    while (((*mask)[token / 64] >> (token % 64) & 1) == 0) token = (token + 1) % 256;
    if (!matcher.accept(static_cast<int32_t>(token))) std::abort();
    text += static_cast<char>(token);
  }
  if (matcher.can_end() && !nlohmann::json::accept(text)) std::abort();
  return 0;
}
