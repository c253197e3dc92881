#include "models/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include <nlohmann/json.hpp>

#include "models/grammar/number_grammar.h"
#include "models/grammar/regex_grammar.h"

namespace bm::models {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSchemaBytes = 1 << 20, kMaxGrammarBytes = 1 << 20;
constexpr int kMaxDepth = 64;
constexpr int64_t kMaxCount = 100'000;  // of items and characters

/// Rules that every schema may use.
constexpr std::string_view kCommonRules = R"(ws ::= | " " | "\n" [ \t]{0,20}
char ::= [^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" ([0-9a-cefA-CEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))
string ::= "\"" char* "\""
integer ::= "-"? ("0" | [1-9] [0-9]{0,15})
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?
boolean ::= "true" | "false"
null ::= "null"
value ::= object | array | string | number | boolean | null
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)* ws)? "}"
array ::= "[" ws (value ("," ws value)* ws)? "]"
date ::= year "-" month-day | leap-year "-02-29"
year ::= "000" [1-9] | "00" [1-9] [0-9] | "0" [1-9] [0-9]{2} | [1-9] [0-9]{3}
leap-year ::= [0-9]{2} ("0" [48] | [2468] [048] | [13579] [26]) | ("0" [48] | [2468] [048] | [13579] [26]) "00"
month-day ::= ("0" [13578] | "1" [02]) "-" (day30 | "31") | ("0" [469] | "11") "-" day30 | "02-" day28
day28 ::= "0" [1-9] | "1" [0-9] | "2" [0-8]
day30 ::= day28 | "29" | "30"
time ::= hour ":" minute ":" minute ("." [0-9]{1,6})? ("Z" | [-+] hour ":" minute)
hour ::= [01] [0-9] | "2" [0-3]
minute ::= [0-5] [0-9]
uuid ::= hex4 hex4 "-" hex4 "-" hex4 "-" hex4 "-" hex4 hex4 hex4
hex4 ::= [0-9a-fA-F]{4}
)";

/// Say something and allow nothing less.
constexpr std::string_view kAnnotations[] = {
    "title",       "description",     "default",          "examples",     "$comment",
    "$schema",     "deprecated",      "readOnly",         "writeOnly",    "$defs",
    "definitions", "contentEncoding", "contentMediaType", "discriminator"};

constexpr std::string_view kObject[] = {
    "properties",    "required",      "additionalProperties", "patternProperties",
    "propertyNames", "minProperties", "maxProperties"};
constexpr std::string_view kArray[] = {"items", "prefixItems", "minItems", "maxItems"};
constexpr std::string_view kString[] = {"minLength", "maxLength", "pattern", "format"};
constexpr std::string_view kNumber[] = {"minimum", "maximum", "exclusiveMinimum",
                                        "exclusiveMaximum", "multipleOf"};
constexpr std::string_view kCombining[] = {"type",  "enum",  "const", "anyOf",
                                           "oneOf", "allOf", "$ref"};

/// A format as a regular expression that allows nothing else, with the lengths of its shortest and
/// longest text.
struct Format {
  std::string name, regex;
  double least = 0, most = 0;
};
/// Source: JSON Schema Validation 2020-12, 7.3; RFC 5321 4.1.2 (mailboxes, without quoted ones),
/// RFC 1123 2.1 (hosts), RFC 2673 3.2 (IPv4), RFC 4291 2.2 (IPv6), RFC 3986 (URIs with a host,
/// without escapes), RFC 3339 appendix A (durations).
const std::vector<Format>& formats() {
  static const std::vector<Format> all = [] {
    const std::string label = "[A-Za-z0-9]([A-Za-z0-9-]{0,29}[A-Za-z0-9])?";
    const std::string host = label + "(\\." + label + "){0,4}";
    const std::string octet = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    const std::string atom = "[A-Za-z0-9_+-]{1,20}";
    const std::string n = "[0-9]{1,4}", hex = "[0-9a-f]{1,4}";
    const std::string seconds = n + "S", minutes = n + "M(" + seconds + ")?";
    const std::string time = "T(" + n + "H(" + minutes + ")?|" + minutes + "|" + seconds + ")";
    const std::string days = n + "D", months = n + "M(" + days + ")?";
    const std::string date = "(" + n + "Y(" + months + ")?|" + months + "|" + days + ")";
    return std::vector<Format>{
        {"email", atom + "(\\." + atom + "){0,2}@" + label + "(\\." + label + "){1,4}", 5, 222},
        {"hostname", host, 1, 159},
        {"ipv4", octet + "(\\." + octet + "){3}", 7, 15},
        {"ipv6",
         "(" + hex + ":){7}" + hex + "|(" + hex + ":){1,3}(:" + hex + "){1,4}|::(" + hex +
             ":){0,5}" + hex + "|::",
         2, 39},
        {"uri",
         "(https?|ftp)://" + host +
             "(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~-]{0,40}){0,10}(\\?[A-Za-z0-9._~=&-]{0,100})?"
             "(#[A-Za-z0-9._~-]{0,40})?",
         7, 900},
        {"duration", "P(" + n + "W|" + date + "(" + time + ")?|" + time + ")", 3, 40}};
  }();
  return all;
}
/// Those that have rules of their own, and those of the standard that are not there. What is none
/// of them (path, password, int32) says nothing that could be checked: annotations.
constexpr std::string_view kOwnFormats[] = {"date", "time", "date-time", "uuid"};
constexpr std::string_view kOtherFormats[] = {
    "idn-email",    "idn-hostname", "uri-reference",         "iri",  "iri-reference",
    "uri-template", "json-pointer", "relative-json-pointer", "regex"};

template <size_t N>
bool is_one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}
template <size_t N>
bool has_one_of(const std::string_view (&names)[N], const Json& schema) {
  return std::ranges::any_of(names, [&](std::string_view n) { return schema.contains(n); });
}

bool has_item(const Json& list, const Json& value) {
  return std::any_of(list.begin(), list.end(), [&](const Json& item) { return item == value; });
}

std::string shown(std::string_view text) { return fmt::format("\"{}\"", text.substr(0, 100)); }

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// "integer", "number", "string", …
std::string type_of(const Json& value) {
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  return value.type_name();
}

/// Where in the document, as a JSON pointer; for messages.
struct Place {
  std::string pointer;
  int depth = 0;
  Place below(std::string_view name) const {
    return {pointer + "/" + std::string(name), depth + 1};
  }
};

tl::unexpected<Error> error(const Place& at, std::string_view what,
                            Code code = Code::kInvalidArgument) {
  return fail(code, "JSON schema, at {}: {}",
              at.pointer.empty() ? std::string("the top") : "#" + at.pointer, what);
}
tl::unexpected<Error> unsupported(const Place& at, std::string_view what) {
  return error(at, fmt::format("{} is not supported", what), Code::kUnsupported);
}

class Compiler {
 public:
  explicit Compiler(const Json& document) : document_(document) {}

  Result<std::string> compile() {
    const std::string root = BM_TRY(visit(document_, {}));
    std::string out = "root ::= ws " + root + "\n" + std::string(kCommonRules);
    for (const std::string& rule : rules_) out += rule + "\n";
    return out;
  }

 private:
  /// GBNF of what `schema` allows: a name, or something in parentheses.
  Result<std::string> visit(const Json& schema, const Place& at) {
    if (at.depth > kMaxDepth) return error(at, fmt::format("more than {} levels", kMaxDepth));
    if (size_ > kMaxGrammarBytes) return error(at, "the grammar gets too large");
    if (schema.is_boolean())
      return schema.get<bool>() ? Result<std::string>("value") : error(at, "false allows nothing");
    if (!schema.is_object()) return error(at, "a schema is an object or a boolean");
    BM_TRY(check_keywords(schema, at));
    if (schema.contains("$ref")) return visit_reference(schema, at);
    if (schema.contains("allOf")) return visit_all(schema, at);
    if (schema.contains("anyOf")) return visit_any(schema, "anyOf", at);
    if (schema.contains("oneOf")) return visit_any(schema, "oneOf", at);
    if (schema.contains("const") || schema.contains("enum")) return visit_constants(schema, at);
    return visit_typed(schema, at);
  }

  static Status check_keywords(const Json& schema, const Place& at) {
    for (const auto& [name, value] : schema.items()) {
      const bool is_known = is_one_of(kAnnotations, name) || is_one_of(kObject, name) ||
                            is_one_of(kArray, name) || is_one_of(kString, name) ||
                            is_one_of(kNumber, name) || is_one_of(kCombining, name);
      if (is_known) continue;
      if (name == "uniqueItems" && value == false) continue;
      return unsupported(at, shown(name));
    }
    return {};
  }

  std::string add_rule(std::string_view prefix, const std::string& body) {
    std::string name = fmt::format("{}-{}", prefix, ++num_rules_);
    set_rule(name, body);
    return name;
  }
  void set_rule(const std::string& name, const std::string& body) {
    rules_.push_back(name + " ::= " + body);
    size_ += rules_.back().size();
  }

  // --- references ---

  Result<const Json*> resolve(const Json& reference, const Place& at) const {
    if (!reference.is_string()) return error(at, "\"$ref\" is a string");
    const auto& text = reference.get_ref<const std::string&>();
    if (!text.starts_with('#'))
      return unsupported(at, "\"$ref\" " + shown(text) + " to another document");
    const std::string pointer = text.substr(1);
    if (!pointer.empty() && pointer[0] != '/') return unsupported(at, "\"$ref\" " + shown(text));
    if (pointer.find('%') != std::string::npos)
      return unsupported(at, "\"$ref\" " + shown(text) + " with percent signs");
    const Json* found = &document_;
    for (size_t pos = 0; pos < pointer.size();) {
      const size_t end = std::min(pointer.find('/', pos + 1), pointer.size());
      std::string name;
      for (size_t i = pos + 1; i < end; ++i) {
        const bool is_escape = pointer[i] == '~' && i + 1 < end;
        if (is_escape) ++i;
        name += is_escape ? (pointer[i] == '1' ? '/' : '~') : pointer[i];
      }
      pos = end;
      const Json* next = nullptr;
      if (found->is_object() && found->contains(name)) next = &(*found)[name];
      if (found->is_array() && !name.empty() && name.size() < 7 &&
          std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; }) &&
          std::stoul(name) < found->size())
        next = &(*found)[std::stoul(name)];
      if (next == nullptr) return error(at, "\"$ref\" " + shown(text) + " leads nowhere");
      found = next;
    }
    return found;
  }

  Result<std::string> visit_reference(const Json& schema, const Place& at) {
    const Json* const target = BM_TRY(resolve(schema["$ref"], at));
    Json rest = without(schema, "$ref");
    if (!is_bare(rest)) {
      const Json merged = BM_TRY(merge(rest, *target, at));
      return visit(merged, {at.pointer, at.depth + 1});
    }
    const auto known = references_.find(target);
    if (known != references_.end()) return known->second;
    const std::string name = fmt::format("ref-{}", ++num_rules_);
    references_[target] = name;
    const std::string body =
        BM_TRY(visit(*target, {schema["$ref"].get<std::string>().substr(1), at.depth + 1}));
    set_rule(name, body);
    return name;
  }

  // --- allOf, anyOf, oneOf ---

  static Json without(const Json& schema, std::string_view name) {
    Json out = Json::object();
    for (const auto& [key, value] : schema.items())
      if (key != name) out[key] = value;
    return out;
  }
  /// Nothing but annotations.
  static bool is_bare(const Json& schema) {
    return std::ranges::all_of(schema.items(),
                               [](const auto& i) { return is_one_of(kAnnotations, i.key()); });
  }

  static Result<Json> merge_types(const Json& a, const Json& b, const Place& at) {
    const auto list = [](const Json& t) { return t.is_array() ? t : Json::array({t}); };
    Json both = Json::array();
    for (const Json& x : list(a))
      for (const Json& y : list(b)) {
        const Json* common = nullptr;
        if (x == y || (x == "integer" && y == "number"))
          common = &x;
        else if (x == "number" && y == "integer")
          common = &y;
        if (common != nullptr && !has_item(both, *common)) both.push_back(*common);
      }
    if (both.empty()) return error(at, "two types that exclude each other");
    return both.size() == 1 ? both[0] : both;
  }

  /// One schema for both. What has no simple intersection is refused.
  Result<Json> merge(const Json& first, const Json& second, const Place& at) {
    if (at.depth > kMaxDepth || ++num_merges_ > 10'000) return error(at, "too much to merge");
    if (second.is_boolean() || first.is_boolean()) {
      const Json& other = second.is_boolean() ? first : second;
      const Json& constant = second.is_boolean() ? second : first;
      return constant == true ? Result<Json>(other) : error(at, "false allows nothing");
    }
    if (!first.is_object() || !second.is_object())
      return error(at, "a schema is an object or a boolean");
    BM_TRY(check_keywords(second, at.below("…")));
    if (second.contains("$ref")) {
      const Json* const target = BM_TRY(resolve(second["$ref"], at));
      const Json rest = without(second, "$ref");
      const Place below{at.pointer, at.depth + 1};
      const Json merged = BM_TRY(merge(first, *target, below));
      return is_bare(rest) ? Result<Json>(merged) : merge(merged, rest, below);
    }
    Json out = first;
    for (const auto& [name, value] : second.items()) {
      if (is_one_of(kAnnotations, name)) continue;
      if (!out.contains(name) || out[name] == value) {
        out[name] = value;
      } else if (name == "type") {
        out[name] = BM_TRY(merge_types(out[name], value, at));
      } else if (name == "properties") {
        BM_TRY(merge_properties(out[name], value, at));
      } else if (name == "required") {
        for (const Json& r : value)
          if (!has_item(out[name], r)) out[name].push_back(r);
      } else if (name == "minimum" || name == "exclusiveMinimum" || name == "minLength" ||
                 name == "minItems" || name == "minProperties") {
        if (value > out[name]) out[name] = value;
      } else if (name == "maximum" || name == "exclusiveMaximum" || name == "maxLength" ||
                 name == "maxItems" || name == "maxProperties") {
        if (value < out[name]) out[name] = value;
      } else if (name == "multipleOf") {
        const int64_t a = BM_TRY(step_of(first, at)), b = BM_TRY(step_of(second, at));
        out[name] = std::lcm(a, b);
      } else if (name == "enum" && value.is_array() && out[name].is_array()) {
        Json both = Json::array();
        for (const Json& one : out[name])
          if (has_item(value, one)) both.push_back(one);
        if (both.empty()) return error(at, "two lists of constants without a common one");
        out[name] = std::move(both);
      } else if (name == "items" || name == "additionalProperties") {
        const Json& own = out[name];
        out[name] = own == false || value == false
                        ? Json(false)
                        : BM_TRY(merge(own, value, {at.pointer, at.depth + 1}));
      } else {
        return unsupported(at, shown(name) + " in two schemas that hold together");
      }
    }
    BM_TRY(check_closed(first, second, at));
    return out;
  }

  Status merge_properties(Json& into, const Json& more, const Place& at) {
    if (!into.is_object() || !more.is_object()) return error(at, "\"properties\" is an object");
    for (const auto& [key, schema] : more.items())
      into[key] = into.contains(key) ? BM_TRY(merge(into[key], schema, at.below(key))) : schema;
    return {};
  }

  /// additionalProperties of one schema speaks of the other's properties, too.
  static Status check_closed(const Json& a, const Json& b, const Place& at) {
    const auto speaks = [](const Json& x, const Json& y) {
      if (!x.contains("additionalProperties") || x["additionalProperties"] == true) return false;
      if (y.contains("patternProperties") &&
          (!x.contains("patternProperties") || x["patternProperties"] != y["patternProperties"]))
        return true;
      const Json none = Json::object();
      const Json& own = x.contains("properties") ? x["properties"] : none;
      const Json& others = y.contains("properties") ? y["properties"] : none;
      return std::ranges::any_of(others.items(),
                                 [&](const auto& i) { return !own.contains(i.key()); });
    };
    if (!speaks(a, b) && !speaks(b, a)) return {};
    return unsupported(at, "\"additionalProperties\" beside properties of another schema");
  }

  Result<std::string> visit_all(const Json& schema, const Place& at) {
    const Json& parts = schema["allOf"];
    if (!parts.is_array() || parts.empty()) return error(at, "\"allOf\" is a list of schemas");
    Json merged = without(schema, "allOf");
    for (const Json& part : parts) merged = BM_TRY(merge(merged, part, {at.pointer, at.depth + 1}));
    return visit(merged, {at.pointer, at.depth + 1});
  }

  Result<std::string> visit_any(const Json& schema, const std::string& keyword, const Place& at) {
    const Json& branches = schema[keyword];
    if (!branches.is_array() || branches.empty())
      return error(at, fmt::format("\"{}\" is a list of schemas", keyword));
    const Json rest = without(schema, keyword);
    std::vector<Json> merged;
    std::string out;
    for (size_t i = 0; i < branches.size(); ++i) {
      const Place below = at.below(keyword).below(std::to_string(i));
      // A bare reference stays one: it may be recursive.
      merged.push_back(is_bare(rest) ? branches[i] : BM_TRY(merge(rest, branches[i], below)));
      out += (out.empty() ? "" : " | ") + BM_TRY(visit(merged.back(), below));
    }
    if (keyword == "oneOf") {
      for (size_t i = 0; i < merged.size(); ++i)
        for (size_t k = 0; k < i; ++k)
          if (!BM_TRY(exclude_each_other(merged[k], merged[i], at)))
            return unsupported(
                at, fmt::format("\"oneOf\" whose branches {} and {} may both hold (\"anyOf\" is)",
                                k, i));
    }
    return add_rule("any", out);
  }

  /// The values that `schema` is limited to, or the types; what is not known is "anything".
  struct Kinds {
    bool is_anything = false;
    bool is_typed = false;  // otherwise the grammar writes `types`, but others are valid, too
    std::set<std::string> types;
    std::set<std::string> values;  // dumped; empty: all of the types
  };
  static Kinds kinds_of(const Json& schema) {
    Kinds out;
    out.is_anything = true;
    if (!schema.is_object()) return out;
    out.is_typed = schema.contains("type") || schema.contains("const") || schema.contains("enum");
    if (schema.contains("const") || schema.contains("enum")) {
      out.is_anything = false;
      const Json list = schema.contains("const") ? Json::array({schema["const"]}) : schema["enum"];
      for (const Json& v : list) {
        out.types.insert(type_of(v));
        out.values.insert(dump(v));
      }
      return out;
    }
    Json type = Json();
    if (schema.contains("type"))
      type = schema["type"];
    else if (has_one_of(kObject, schema))
      type = "object";
    else if (has_one_of(kArray, schema))
      type = "array";
    else if (has_one_of(kString, schema))
      type = "string";
    else
      return out;
    out.is_anything = false;
    for (const Json& t : type.is_array() ? type : Json::array({type}))
      if (t.is_string()) out.types.insert(t.get<std::string>());
    return out;
  }

  Result<bool> exclude_each_other(const Json& a, const Json& b, const Place& at) {
    const Json* x = &a;
    const Json* y = &b;
    for (const Json** one : {&x, &y})
      for (int i = 0; i < kMaxDepth && (*one)->is_object() && (*one)->contains("$ref"); ++i)
        *one = BM_TRY(resolve((**one)["$ref"], at));
    const Kinds kx = kinds_of(*x), ky = kinds_of(*y);
    if (kx.is_anything || ky.is_anything) return false;
    const auto meets = [](const std::set<std::string>& s, const std::set<std::string>& t) {
      return std::ranges::any_of(s, [&](const std::string& v) { return t.contains(v); });
    };
    const auto is_numeric = [](const Kinds& k) {
      return k.types.contains("number") || k.types.contains("integer");
    };
    // 1.0 is an integer and equals 1.
    if (!meets(kx.types, ky.types) && !(is_numeric(kx) && is_numeric(ky)))
      return kx.is_typed && ky.is_typed;
    if (!kx.values.empty() && !ky.values.empty() && !is_numeric(kx))
      return !meets(kx.values, ky.values);
    // Objects told apart by a property that both must have.
    if (kx.types != std::set<std::string>{"object"} || ky.types != kx.types) return false;
    if (!x->contains("properties") || !y->contains("properties")) return false;
    const auto requires_name = [](const Json& s, const std::string& name) {
      return s.contains("required") && has_item(s["required"], name);
    };
    for (const auto& [name, schema] : (*x)["properties"].items()) {
      if (!(*y)["properties"].contains(name)) continue;
      if (!requires_name(*x, name) || !requires_name(*y, name)) continue;
      const Kinds kp = kinds_of(schema), kq = kinds_of((*y)["properties"][name]);
      if (!kp.values.empty() && !kq.values.empty() && !is_numeric(kp) &&
          !meets(kp.values, kq.values))
        return true;
    }
    return false;
  }

  // --- constants ---

  Result<std::string> visit_constants(const Json& schema, const Place& at) {
    for (const auto& [name, value] : schema.items())
      if (!is_one_of(kAnnotations, name) && name != "const" && name != "enum" && name != "type")
        return unsupported(at, shown(name) + " beside constants");
    if (schema.contains("const") && schema.contains("enum") &&
        !(schema["enum"].is_array() && has_item(schema["enum"], schema["const"])))
      return error(at, "\"const\" is none of \"enum\"");
    const Json list = schema.contains("const") ? Json::array({schema["const"]}) : schema["enum"];
    if (!list.is_array() || list.empty()) return error(at, "\"enum\" is a list of values");
    std::string out;
    for (const Json& value : list) {
      if (schema.contains("type")) {
        const Json types =
            schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
        const std::string type = type_of(value);
        const bool fits = std::ranges::any_of(types, [&](const Json& t) {
          return t == type || (t == "number" && type == "integer");
        });
        if (!fits) continue;
      }
      if (value.is_number_float() && !std::isfinite(value.get<double>()))
        return unsupported(at, "a constant beyond the range of numbers");
      out += (out.empty() ? "" : " | ") + gbnf_literal(dump(value));
    }
    if (out.empty()) return error(at, "no value of \"enum\" has the type");
    return add_rule("constant", out);
  }

  // --- types ---

  Result<std::string> visit_typed(const Json& schema, const Place& at) {
    Json type;
    if (schema.contains("type")) {
      type = schema["type"];
    } else {
      const int kinds = has_one_of(kObject, schema) + has_one_of(kArray, schema) +
                        has_one_of(kString, schema) + has_one_of(kNumber, schema);
      if (kinds == 0) return std::string("value");
      if (kinds > 1)
        return error(at, "keywords of several types: \"type\" must say which is meant");
      if (has_one_of(kObject, schema))
        type = "object";
      else if (has_one_of(kArray, schema))
        type = "array";
      else if (has_one_of(kString, schema))
        type = "string";
      else
        type = "number";
    }
    if (!type.is_array()) type = Json::array({type});
    if (type.empty()) return error(at, "\"type\" is empty");
    std::string out;
    for (const Json& one : type) {
      if (!one.is_string()) return error(at, "\"type\" is a name or a list of names");
      out += (out.empty() ? "" : " | ") +
             BM_TRY(visit_type(one.get_ref<const std::string&>(), schema, at));
    }
    return type.size() == 1 ? out : add_rule("types", out);
  }

  Result<std::string> visit_type(const std::string& type, const Json& schema, const Place& at) {
    if (type == "null" || type == "boolean") return type;
    if (type == "object") return visit_object(schema, at);
    if (type == "array") return visit_array(schema, at);
    if (type == "string") return visit_string(schema, at);
    if (type == "integer") return visit_integer(schema, at);
    if (type == "number") return visit_number(schema, at);
    return error(at, fmt::format("there is no type {}", shown(type)));
  }

  /// Without formats that say nothing, and bounds that every text of the format keeps: pydantic has
  /// them beside "uri".
  static Json without_idle_keywords(Json schema) {
    if (!schema.contains("format") || !schema["format"].is_string()) return schema;
    const std::string name = schema["format"].get<std::string>();
    if (!is_one_of(kOwnFormats, name) && !is_one_of(kOtherFormats, name)) {
      const auto known = std::ranges::find(formats(), name, &Format::name);
      const auto number = [&](const char* bound, double otherwise) {
        return schema.contains(bound) && schema[bound].is_number() ? schema[bound].get<double>()
                                                                   : otherwise;
      };
      if (known == formats().end()) {
        schema.erase("format");
      } else {
        if (number("minLength", 0) <= known->least) schema.erase("minLength");
        if (number("maxLength", 1e9) >= known->most) schema.erase("maxLength");
      }
    }
    return schema;
  }

  /// A count, or `fallback` where there is none.
  static Result<int64_t> count_of(const Json& schema, std::string_view name, int64_t fallback,
                                  const Place& at) {
    if (!schema.contains(name)) return fallback;
    const Json& value = schema[std::string(name)];
    const bool is_whole =
        value.is_number_integer() || (value.is_number_float() && value.get<double>() < 1e9 &&
                                      std::floor(value.get<double>()) == value.get<double>());
    if (!is_whole || value < 0) return error(at, fmt::format("\"{}\" is no count", name));
    if (value > kMaxCount) return unsupported(at, fmt::format("\"{}\" above {}", name, kMaxCount));
    return value.get<int64_t>();
  }

  static std::string repeat(int64_t least, int64_t most) {
    if (most < 0) return fmt::format("{{{},}}", least);
    return fmt::format("{{{},{}}}", least, most);
  }

  Result<std::string> visit_string(const Json& whole, const Place& at) {
    const Json schema = without_idle_keywords(whole);
    const bool has_length = schema.contains("minLength") || schema.contains("maxLength");
    if (has_length + schema.contains("pattern") + schema.contains("format") > 1)
      return unsupported(at, "two of length, \"pattern\" and \"format\" for one string");
    if (schema.contains("pattern")) {
      if (!schema["pattern"].is_string()) return error(at, "\"pattern\" is a string");
      auto body = grammar_of_regex(schema["pattern"].get_ref<const std::string&>());
      if (!body) return error(at, body.error().message, body.error().code);
      return add_rule("pattern", "\"\\\"\" " + *body + " \"\\\"\"");
    }
    if (schema.contains("format")) {
      const Json& format = schema["format"];
      if (format == "date" || format == "time" || format == "uuid")
        return add_rule("format", "\"\\\"\" " + format.get<std::string>() + " \"\\\"\"");
      if (format == "date-time") return add_rule("format", "\"\\\"\" date \"T\" time \"\\\"\"");
      for (const Format& known : formats())
        if (format == known.name)
          return add_rule(
              "format",
              "\"\\\"\" " + BM_TRY(grammar_of_regex("^(" + known.regex + ")$")) + " \"\\\"\"");
      return unsupported(at, "\"format\" " + dump(format));
    }
    if (!has_length) return std::string("string");
    const int64_t least = BM_TRY(count_of(schema, "minLength", 0, at));
    const int64_t most = BM_TRY(count_of(schema, "maxLength", -1, at));
    if (most >= 0 && most < least) return error(at, "\"maxLength\" is less than \"minLength\"");
    return add_rule("text", "\"\\\"\" char" + repeat(least, most) + " \"\\\"\"");
  }

  /// A bound rounded to what integers there are on the allowed side.
  static Result<std::optional<int64_t>> bound_of(const Json& schema, std::string_view name,
                                                 bool is_lower, bool is_exclusive,
                                                 const Place& at) {
    if (!schema.contains(name)) return std::optional<int64_t>();
    const Json& value = schema[std::string(name)];
    if (!value.is_number()) return error(at, fmt::format("\"{}\" is no number", name));
    const auto number = value.get<double>();
    if (!(std::abs(number) < 9e15)) return unsupported(at, fmt::format("\"{}\" beyond 9e15", name));
    auto whole = static_cast<int64_t>(is_lower ? std::ceil(number) : std::floor(number));
    if (is_exclusive && static_cast<double>(whole) == number) whole += is_lower ? 1 : -1;
    return std::optional<int64_t>(whole);
  }

  /// A whole multipleOf.
  static Result<int64_t> step_of(const Json& schema, const Place& at) {
    const Json& value = schema["multipleOf"];
    if (!value.is_number() || !(value.get<double>() > 0))
      return error(at, "\"multipleOf\" is no number above 0");
    const auto step = value.get<double>();
    if (std::floor(step) != step || step > 1e12)
      return unsupported(at, "\"multipleOf\" that is not whole or above 10¹²");
    return static_cast<int64_t>(step);
  }

  Result<std::string> visit_integer(const Json& schema, const Place& at) {
    std::optional<int64_t> least = BM_TRY(bound_of(schema, "minimum", true, false, at));
    std::optional<int64_t> most = BM_TRY(bound_of(schema, "maximum", false, false, at));
    const auto above = BM_TRY(bound_of(schema, "exclusiveMinimum", true, true, at));
    const auto under = BM_TRY(bound_of(schema, "exclusiveMaximum", false, true, at));
    if (above) least = least ? std::max(*least, *above) : *above;
    if (under) most = most ? std::min(*most, *under) : *under;
    const int64_t step = schema.contains("multipleOf") ? BM_TRY(step_of(schema, at)) : 1;
    if (step > 1) {
      const auto multiples = gbnf_multiples(
          step, least, most, [&](const std::string& body) { return add_rule("digits", body); });
      if (!multiples) return unsupported(at, "\"multipleOf\" of so many digits between the bounds");
      if (multiples->empty()) return error(at, "no multiple lies between the bounds");
      return add_rule("multiples", *multiples);
    }
    if (!least && !most) return std::string("integer");
    if (least && most && *most < *least) return error(at, "no integer lies between the bounds");
    return add_rule("integers", gbnf_integers(least, most));
  }

  Result<std::string> visit_number(const Json& schema, const Place& at) {
    if (schema.contains("multipleOf")) return visit_integer(schema, at);
    for (const char* name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
      if (schema.contains(name) &&
          (std::string_view(name).starts_with("exclusive") ||
           (schema[name].is_number() &&
            std::floor(schema[name].get<double>()) != schema[name].get<double>())))
        return visit_decimals(schema, at);
    const auto least = BM_TRY(bound_of(schema, "minimum", true, false, at));
    const auto most = BM_TRY(bound_of(schema, "maximum", false, false, at));
    if (!least && !most) return std::string("number");
    if (least && most && *most < *least) return error(at, "no number lies between the bounds");
    // Whole part and fraction: below the far end of each sign, or that end itself.
    constexpr const char* kFraction = " (\".\" [0-9]{1,16})?";
    std::vector<std::string> choices;
    const auto add = [&](std::string_view sign, int64_t near, std::optional<int64_t> far) {
      if (!far || *far > near)
        choices.push_back(fmt::format(
            "{}{}{}", sign, gbnf_integers(near, far ? std::optional(*far - 1) : far), kFraction));
      if (far) choices.push_back(fmt::format("{}\"{}\"", sign, *far));
    };
    if (!most || *most >= 0) add("", std::max<int64_t>(least.value_or(0), 0), most);
    if (!least || *least < 0)
      add("\"-\" ", most && *most < 0 ? -*most : 0, least ? std::optional(-*least) : std::nullopt);
    std::string out;
    for (const std::string& c : choices) out += (out.empty() ? "" : " | ") + c;
    return add_rule("numbers", out);
  }

  /// A bound with its sign apart, and which of two that are given is the tighter one.
  struct SignedBound {
    double value = 0;
    DecimalBound magnitude;
  };
  static Result<std::optional<SignedBound>> decimal_bound(const Json& schema, bool is_lower,
                                                          const Place& at) {
    std::optional<SignedBound> out;
    for (const bool is_exclusive : {false, true}) {
      const std::string name =
          std::string(is_exclusive ? "exclusiveM" : "m") + (is_lower ? "inimum" : "aximum");
      if (!schema.contains(name)) continue;
      if (!schema[name].is_number()) return error(at, fmt::format("\"{}\" is no number", name));
      const auto value = schema[name].get<double>();
      // The shortest text of the same double, without an exponent.
      const std::string text = fmt::format("{:.6f}", std::abs(value));
      if (!(std::abs(value) < 1e6) || std::stod(text) != std::abs(value))
        return unsupported(at, fmt::format("\"{}\" of \"number\" with more than 6 digits before or "
                                           "behind the point",
                                           name));
      SignedBound bound{value,
                        {.whole = std::stoll(text.substr(0, text.find('.'))),
                         .digits = text.substr(text.find('.') + 1),
                         .is_exclusive = is_exclusive}};
      std::string& digits = bound.magnitude.digits;
      digits.erase(digits.find_last_not_of('0') + 1);
      if (!out || (is_lower ? value >= out->value : value <= out->value)) out = bound;
    }
    return out;
  }

  /// Bounds of numbers that are exclusive or not whole: below 10⁶, so that decimals next to them
  /// are other doubles.
  Result<std::string> visit_decimals(const Json& schema, const Place& at) {
    const auto least = BM_TRY(decimal_bound(schema, true, at));
    const auto most = BM_TRY(decimal_bound(schema, false, at));
    const DecimalBound zero;
    const auto magnitude = [](const std::optional<SignedBound>& bound) {
      return bound ? std::optional(bound->magnitude) : std::nullopt;
    };
    std::string out;
    const auto add = [&](std::string_view sign, const std::string& numbers) {
      if (!numbers.empty())
        out += (out.empty() ? "" : " | ") + std::string(sign) + "(" + numbers + ")";
    };
    if (!most || most->value >= 0)
      add("", gbnf_decimals(least && least->value >= 0 ? least->magnitude : zero, magnitude(most)));
    // −0 is 0, which is left to the numbers without a sign.
    DecimalBound above_zero = zero;
    above_zero.is_exclusive = true;
    if (!least || least->value < 0)
      add("\"-\" ",
          gbnf_decimals(most && most->value < 0 ? most->magnitude : above_zero, magnitude(least)));
    if (out.empty()) return error(at, "no number lies between the bounds");
    return add_rule("decimals", out);
  }

  Result<std::string> visit_array(const Json& schema, const Place& at) {
    const int64_t least = BM_TRY(count_of(schema, "minItems", 0, at));
    int64_t most = BM_TRY(count_of(schema, "maxItems", -1, at));
    std::vector<std::string> first;
    if (schema.contains("prefixItems")) {
      const Json& items = schema["prefixItems"];
      if (!items.is_array()) return error(at, "\"prefixItems\" is a list of schemas");
      for (size_t i = 0; i < items.size(); ++i)
        first.push_back(BM_TRY(visit(items[i], at.below("prefixItems").below(std::to_string(i)))));
    }
    const auto num_first = static_cast<int64_t>(first.size());
    std::string rest = "value";
    if (schema.contains("items")) {
      if (schema["items"].is_array())
        return unsupported(at, "\"items\" as a list (it is called \"prefixItems\" now)");
      if (schema["items"] == false)
        most = most < 0 ? num_first : std::min(most, num_first);
      else
        rest = BM_TRY(visit(schema["items"], at.below("items")));
    }
    if (most >= 0 && most < least) return error(at, "no array has so many and so few items");
    return add_rule("array", fmt::format("\"[\" ws {} \"]\"", items_of(first, rest, least, most)));
  }

  /// Up to the end of the list, from item i on; items that may be missing in parentheses.
  static std::string items_of(const std::vector<std::string>& first, const std::string& rest,
                              int64_t least, int64_t most) {
    const auto num_first = static_cast<int64_t>(first.size());
    std::string out, closing;
    for (int64_t i = 0; i < num_first && (most < 0 || i < most); ++i) {
      if (i >= least) {
        out += "(";
        closing += ")?";
      }
      out += (i > 0 ? "\",\" ws " : "") + first[static_cast<size_t>(i)] + " ";
    }
    if (most < 0 || most > num_first) {
      // The rest: its first item stands without a comma when nothing is before it.
      const int64_t more_least = std::max<int64_t>(least - num_first, 0);
      const int64_t more_most = most < 0 ? -1 : most - num_first;
      if (num_first > 0) {
        out += fmt::format("(\",\" ws {}){} ", rest, repeat(more_least, more_most));
      } else {
        out += fmt::format(
            "({} (\",\" ws {}){}){} ", rest, rest,
            repeat(std::max<int64_t>(more_least - 1, 0), more_most < 0 ? -1 : more_most - 1),
            more_least == 0 ? "?" : "");
      }
    }
    return out + closing + " ws";
  }

  Result<std::string> visit_object(const Json& schema, const Place& at) {
    std::vector<Member> members;
    std::set<std::string> names, missing;
    if (schema.contains("required")) {
      if (!schema["required"].is_array()) return error(at, "\"required\" is a list of names");
      for (const Json& name : schema["required"]) {
        if (!name.is_string()) return error(at, "\"required\" is a list of names");
        missing.insert(name.get<std::string>());
      }
    }
    const Json none = Json::object();
    const Json& properties = schema.contains("properties") ? schema["properties"] : none;
    if (!properties.is_object()) return error(at, "\"properties\" is an object");
    const auto member = [](const std::string& name, const std::string& value) {
      return gbnf_literal(dump(Json(name)) + ":") + " ws " + value;
    };
    for (const auto& [name, property] : properties.items()) {
      const bool is_required = missing.erase(name) > 0;
      names.insert(name);
      if (property == false && !is_required) continue;
      members.push_back(
          {member(name, BM_TRY(visit(property, at.below("properties").below(name)))), is_required});
    }
    const int64_t least = BM_TRY(count_of(schema, "minProperties", 0, at));
    const int64_t most = BM_TRY(count_of(schema, "maxProperties", -1, at));
    const Json additional = schema.value(
        "additionalProperties", Json(schema.contains("properties") ? Json(false) : Json(true)));
    if (properties.empty() && missing.empty() && (additional == true || additional == none) &&
        !schema.contains("patternProperties") && !binds_names(schema) && least == 0 && most < 0)
      return std::string("object");
    const std::string others = BM_TRY(other_members(schema, names, missing, at));
    for (const std::string& name : missing) {
      if (schema.contains("patternProperties") || binds_names(schema))
        return unsupported(at, fmt::format("{}, required and none of \"properties\", beside "
                                           "\"patternProperties\" or \"propertyNames\"",
                                           shown(name)));
      if (others.empty())
        return error(at, fmt::format("{} is required and not allowed", shown(name)));
      const bool is_free = !schema.contains("additionalProperties");
      members.push_back({member(name, is_free ? std::string("value")
                                              : BM_TRY(visit(schema["additionalProperties"],
                                                             at.below("additionalProperties")))),
                         true});
    }
    if (members.empty() && others.empty() && least == 0) return std::string("(\"{\" ws \"}\")");
    return visit_members(members, others, least, most, at);
  }

  struct Member {
    std::string gbnf;
    bool is_required;
  };

  /// From the end: what may follow when c properties have been written, and when none has; nothing
  /// where there is no way to the end. c stops at the number that nothing more depends on.
  Result<std::string> visit_members(const std::vector<Member>& members, const std::string& others,
                                    int64_t least, int64_t most, const Place& at) {
    if (most >= 0 && most < least) return error(at, "no object has so many and so few properties");
    const int64_t cap = most >= 0 ? most : least;
    if (static_cast<int64_t>(members.size() + 1) * (cap + 1) > 20'000)
      return unsupported(at, "\"minProperties\" or \"maxProperties\" so large");
    using Way = std::optional<std::string>;
    bool could_repeat = false;  // names that are free may be equal
    const auto end_way = [&](int64_t count, bool is_first) -> Way {
      const int64_t need = std::max<int64_t>(least - count, 0);
      const int64_t room = most < 0 ? -1 : most - count;
      if (need == 0 && (others.empty() || room == 0)) return "\"\"";
      if (others.empty()) return std::nullopt;
      if (need > 1) {
        could_repeat = true;
        return std::nullopt;
      }
      if (!is_first)
        return add_rule("members", fmt::format("(\",\" ws {}){}", others, repeat(need, room)));
      const std::string more = add_rule(
          "members",
          fmt::format("{} (\",\" ws {}){}", others, others, repeat(0, room < 0 ? -1 : room - 1)));
      return add_rule("members", fmt::format("({}){}", more, need == 0 ? "?" : ""));
    };
    std::vector<Way> after;
    for (int64_t c = 0; c <= cap; ++c) after.push_back(end_way(c, false));
    Way first = end_way(0, true);
    for (auto m = members.rbegin(); m != members.rend(); ++m) {
      const std::string here = add_rule("member", m->gbnf);
      const auto next = [&](int64_t count) -> Way {
        if (count == cap && most >= 0) return std::nullopt;
        return after[static_cast<size_t>(std::min(count + 1, cap))];
      };
      const auto choose = [&](const Way& taken, const Way& left, std::string_view comma) -> Way {
        if (!taken && (m->is_required || !left)) return std::nullopt;
        if (!taken) return left;
        std::string way = fmt::format("{}{} {}", comma, here, *taken);
        if (!m->is_required && left && left == taken && !comma.empty())
          way = fmt::format("({}{})? {}", comma, here, *taken);
        else if (!m->is_required && left)
          way += " | " + *left;
        return add_rule("members", way);
      };
      first = choose(next(0), first, "");
      std::vector<Way> now;
      for (int64_t c = 0; c <= cap; ++c)
        now.push_back(choose(next(c), after[static_cast<size_t>(c)], "\",\" ws "));
      after = std::move(now);
    }
    if (!first && could_repeat)
      return unsupported(at, "\"minProperties\" above the number of \"properties\" and one more");
    if (!first) return error(at, "no object has so many and so few properties");
    return add_rule("object", fmt::format("\"{{\" ws {} ws \"}}\"", *first));
  }

  /// What "propertyNames" says beyond that names are texts, which zod writes.
  static bool binds_names(const Json& schema) {
    if (!schema.contains("propertyNames")) return false;
    const Json& names = schema["propertyNames"];
    return names != true && names != Json::object() && names != Json{{"type", "string"}};
  }

  /// A property that is none of `names`, as a rule; empty: there may be none.
  Result<std::string> other_members(const Json& schema, const std::set<std::string>& names,
                                    const std::set<std::string>& missing, const Place& at) {
    std::set<std::string> taken = names;
    taken.insert(missing.begin(), missing.end());
    if (schema.contains("patternProperties") && !schema["patternProperties"].empty()) {
      if (binds_names(schema))
        return unsupported(at, "\"propertyNames\" beside \"patternProperties\"");
      return pattern_members(schema["patternProperties"], taken, at);
    }
    const bool is_free = !schema.contains("properties") && !schema.contains("additionalProperties");
    std::string value;
    if (schema.contains("additionalProperties") && schema["additionalProperties"] != false)
      value = BM_TRY(visit(schema["additionalProperties"], at.below("additionalProperties")));
    else if (is_free)
      value = "value";
    if (!binds_names(schema)) {
      if (value.empty()) return std::string();
      return add_rule("other", other_name(taken) + " \":\" ws " + value);
    }
    if (!taken.empty())
      return unsupported(at, "\"propertyNames\" beside \"properties\" or \"required\"");
    if (value.empty()) return std::string();
    const Json text = BM_TRY(merge(Json{{"type", "string"}}, schema["propertyNames"], at));
    return add_rule("other", BM_TRY(visit(text, at.below("propertyNames"))) + " \":\" ws " + value);
  }

  /// The text that every match of a pattern begins with; empty: none that is known.
  static std::string literal_start(const std::string& pattern) {
    std::string out;
    if (!pattern.starts_with('^') || pattern.find('|') != std::string::npos) return out;
    for (size_t i = 1; i < pattern.size(); ++i) {
      if (std::string_view("$.[]()*+?{}\\").find(pattern[i]) != std::string_view::npos) {
        // Of what is repeated there may be none.
        const bool may_be_none = pattern[i] == '*' || pattern[i] == '?' || pattern[i] == '{';
        if (may_be_none) {
          while (!out.empty() && (out.back() & 0xC0) == 0x80) out.pop_back();
          if (!out.empty()) out.pop_back();
        }
        break;
      }
      out += pattern[i];
    }
    return out;
  }

  /// Names of patterns: of different schemas only where no name can match two of them, and none
  /// that "properties" has.
  Result<std::string> pattern_members(const Json& patterns, const std::set<std::string>& taken,
                                      const Place& at) {
    if (!patterns.is_object()) return error(at, "\"patternProperties\" is an object");
    std::vector<std::string> starts;
    std::vector<const Json*> schemas;
    std::string out;
    for (const auto& [pattern, schema] : patterns.items()) {
      const Place below = at.below("patternProperties").below(pattern);
      const std::string start = literal_start(pattern);
      for (const std::string& name : taken)
        if (start.empty() || name.starts_with(start))
          return unsupported(below, "a pattern that the property " + shown(name) + " might match");
      for (size_t i = 0; i < starts.size(); ++i)
        if (*schemas[i] != schema && (start.starts_with(starts[i]) || starts[i].starts_with(start)))
          return unsupported(below, "a pattern that a name of another might match");
      starts.push_back(start);
      schemas.push_back(&schema);
      if (schema == false) continue;
      auto name = grammar_of_regex(pattern);
      if (!name) return error(below, name.error().message, name.error().code);
      out += fmt::format("{}\"\\\"\" {} \"\\\":\" ws {}", out.empty() ? "" : " | ", *name,
                         BM_TRY(visit(schema, below)));
    }
    return out.empty() ? out : add_rule("other", out);
  }

  /// A name in quotes that is none of `names`, written without escapes.
  static std::string other_name(const std::set<std::string>& names) {
    return "\"\\\"\" " + other_text({names.begin(), names.end()}, 0) + " \"\\\"\"";
  }
  /// Of `names`, sorted, which agree in their first `depth` bytes: any text but they, from there.
  static std::string other_text(const std::vector<std::string>& names, size_t depth) {
    constexpr std::string_view kRest = R"([^"\\\x00-\x1f]*)";
    bool is_taken = false;  // a name ends here
    std::map<unsigned char, std::vector<std::string>> next;
    for (const std::string& name : names) {
      if (name.size() == depth)
        is_taken = true;
      else
        next[static_cast<unsigned char>(name[depth])].push_back(name);
    }
    if (next.empty() && !is_taken) return std::string(kRest);
    std::string excluded = R"(^"\\\x00-\x1f)", out;
    for (const auto& [byte, below] : next) {
      // Where names go on with anything but ASCII, all that begins alike is left out.
      if (byte >= 0x80) {
        excluded += R"(\U00000080-\U0010ffff)";
        break;
      }
      if (byte < 0x20 || byte == '"' || byte == '\\') continue;  // would be written with an escape
      excluded += fmt::format("\\x{:02x}", byte);
      out += fmt::format("{} {} | ", gbnf_literal(std::string(1, static_cast<char>(byte))),
                         other_text(below, depth + 1));
    }
    out += fmt::format("[{}] {}", excluded, kRest);
    return is_taken ? "(" + out + ")" : "(" + out + ")?";
  }

  const Json& document_;
  std::vector<std::string> rules_;
  std::map<const Json*, std::string> references_;
  size_t num_rules_ = 0, num_merges_ = 0, size_ = 0;
};

}  // namespace

Result<std::string> grammar_of_json_schema(std::string_view schema) {
  if (schema.size() > kMaxSchemaBytes)
    return fail(Code::kInvalidArgument, "JSON schema: {} bytes (at most {} allowed)", schema.size(),
                kMaxSchemaBytes);
  Json document = Json::parse(schema, nullptr, false);
  if (document.is_discarded()) return fail(Code::kInvalidArgument, "JSON schema: this is no JSON");
  // Of the whole document: references within it are what they are without.
  if (document.is_object()) document.erase("$id");
  return Compiler(document).compile();
}

}  // namespace bm::models
