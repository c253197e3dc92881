// Filters of single values, tests, and the functions that need no value before them.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "models/chat/interpreter.h"
#include "models/chat/json.h"
#include "models/chat/text.h"
#include "models/chat/time_format.h"

namespace bm::models::jinja {
namespace {

using Bound = BoundArguments;
using In = Interpreter;

constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox has it

/// Digits as Python's int() and float() take them: white space around, underscores between digits.
std::optional<std::string> number_text(std::string_view text) {
  text.remove_prefix(leading_space(text));
  text.remove_suffix(trailing_space(text));
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_alnum = [&](size_t at) {
      return at < text.size() && ((text[at] >= '0' && text[at] <= '9') ||
                                  ((text[at] | 0x20) >= 'a' && (text[at] | 0x20) <= 'z'));
    };
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    if (i == 0 || !is_alnum(i - 1) || !is_alnum(i + 1)) return std::nullopt;
  }
  return out;
}

std::optional<int64_t> parse_int(std::string_view source, int base) {
  const auto text = number_text(source);
  if (!text || text->empty()) return std::nullopt;
  std::string_view digits = *text;
  const bool is_negative = digits[0] == '-';
  if (digits[0] == '-' || digits[0] == '+') digits.remove_prefix(1);
  const auto has_prefix = [&](char letter) {
    return digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) == letter;
  };
  const std::pair<char, int> prefixes[] = {{'x', 16}, {'o', 8}, {'b', 2}};
  for (const auto& [letter, of] : prefixes) {
    if (!has_prefix(letter) || (base != of && base != 0)) continue;
    base = of;
    digits.remove_prefix(2);
    break;
  }
  if (base == 0) base = 10;
  int64_t value = 0;
  if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return is_negative ? -value : value;
}

std::optional<double> parse_float(std::string_view source) {
  const auto text = number_text(source);
  if (!text || text->empty()) return std::nullopt;
  std::string_view digits = *text;
  if (digits[0] == '+') digits.remove_prefix(1);
  if (digits.empty() || digits[0] == '+') return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

Result<Value> filter_default(In&, const Value& self, const Bound& args) {
  static const String kEmpty("");
  const bool is_by_truth = args[1] != nullptr && is_truthy(*args[1]);
  if (!self.is_undefined() && (!is_by_truth || is_truthy(self))) return self;
  return args[0] != nullptr ? *args[0] : Value::of(&kEmpty);
}

Result<Value> filter_int(In& in, const Value& self, const Bound& args) {
  const Value fallback = args[0] != nullptr ? *args[0] : Value::of(int64_t{0});
  if (self.is_undefined())
    return in.integer(self, "").map([](int64_t value) { return Value::of(value); });
  if (self.is_integral()) return Value::of(self.as_int());
  double number = 0;
  if (self.is_string()) {
    const int64_t base = args[1] != nullptr ? BM_TRY(in.integer(*args[1], "base")) : 10;
    if (base != 0 && (base < 2 || base > 36)) return in.error("a base is 0 or from 2 to 36");
    if (const auto value = parse_int(self.text(), static_cast<int>(base))) return Value::of(*value);
    const auto parsed = parse_float(self.text());
    if (!parsed) return fallback;
    number = *parsed;
  } else if (self.kind == Kind::kFloat) {
    number = self.number;
  } else {
    return fallback;
  }
  if (!std::isfinite(number)) return fallback;
  if (std::abs(number) > 9.2e18) return in.unsupported("{} is beyond 64 bits", number);
  return Value::of(static_cast<int64_t>(number));
}

Result<Value> filter_float(In& in, const Value& self, const Bound& args) {
  if (self.is_undefined())
    return in.integer(self, "").map([](int64_t value) { return Value::of(value); });
  if (self.is_numeric()) return Value::of(self.as_double());
  if (self.is_string())
    if (const auto value = parse_float(self.text())) return Value::of(*value);
  return args[0] != nullptr ? *args[0] : Value::of(0.0);
}

Result<Value> filter_abs(In& in, const Value& self, const Bound&) {
  if (self.kind == Kind::kFloat) return Value::of(std::abs(self.number));
  const int64_t value = BM_TRY(in.integer(self, "what abs is taken of"));
  if (value == INT64_MIN) return in.unsupported("abs({}) is beyond 64 bits", value);
  return Value::of(value < 0 ? -value : value);
}

Result<Value> filter_round(In& in, const Value& self, const Bound& args) {
  const int64_t digits = args[0] != nullptr ? BM_TRY(in.integer(*args[0], "precision")) : 0;
  const std::string_view method =
      args[1] != nullptr ? BM_TRY(in.string_of(*args[1], "method")) : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    return in.error("method is common, ceil or floor");
  if (digits < 0 || digits > 300) return in.unsupported("round to {} digits", digits);
  if (!self.is_numeric()) {
    BM_TRY(in.integer(self, "what is rounded"));
  }
  if (method == "common") {
    if (self.is_integral()) return Value::of(self.as_int());
    if (!std::isfinite(self.number)) return self;
    char buffer[800];
    const int length =
        std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(digits), self.number);
    double value = 0;
    std::from_chars(buffer, buffer + length, value);
    return Value::of(value);
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = self.as_double() * scale;
  if (!std::isfinite(scaled)) return in.error("{} cannot be rounded", self.as_double());
  return Value::of((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Result<Value> filter_string(In& in, const Value& self, const Bound&) {
  if (self.is_string()) return self;
  return in.string(BM_TRY(in.text(self)));
}

Result<Value> filter_tojson(In& in, const Value& self, const Bound& args) {
  JsonStyle style;
  style.is_ascii_only = args[0] != nullptr && is_truthy(*args[0]);
  if (const Value* const indent = args.given(1)) {
    style.has_lines = true;
    style.item_separator = ",";
    if (indent->is_string()) {
      style.indent = indent->text();
    } else {
      const int64_t width = BM_TRY(in.integer(*indent, "indent"));
      if (width > 100) return in.error("indent is at most 100");
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (const Value* const separators = args.given(2)) {
    const std::vector<Value> both = BM_TRY(in.items(*separators));
    if (both.size() != 2) return in.error("separators are two: of items and of keys");
    style.item_separator = BM_TRY(in.string_of(both[0], "a separator"));
    style.key_separator = BM_TRY(in.string_of(both[1], "a separator"));
  }
  style.is_sorted = args[3] != nullptr && is_truthy(*args[3]);
  std::string out;
  BM_TRY(append_json(in, out, self, style, 0));
  return in.string(std::move(out));
}

Result<Value> filter_attr(In& in, const Value& self, const Bound& args) {
  const std::string_view name = BM_TRY(in.string_of(*args[0], "name"));
  if (self.is_dict()) {
    if (const FunctionRow* const row = find_method(self, name))
      return in.heap().function(row, self);
    return in.undefined(fmt::format("dict has no attribute {}", name));
  }
  return in.attribute(self, name);
}

Result<Value> truth(bool value) { return Value::of(value); }

template <Kind kind>
Result<Value> test_kind(In&, const Value& self, const Bound&) {
  return truth(self.kind == kind);
}
template <bool wanted>
Result<Value> test_bool(In&, const Value& self, const Bound&) {
  return truth(self.kind == Kind::kBool && self.boolean == wanted);
}
template <bool wanted>
Result<Value> test_undefined(In&, const Value& self, const Bound&) {
  return truth(self.is_undefined() == wanted);
}
template <int64_t wanted>
Result<Value> test_parity(In& in, const Value& self, const Bound&) {
  const Value rest = BM_TRY(in.modulo(self, Value::of(int64_t{2})));
  return truth(rest.is_numeric() && rest.as_double() == wanted);
}
template <TextClass what>
Result<Value> test_case(In& in, const Value& self, const Bound&) {
  return truth(is_all(BM_TRY(in.text(self)), what));
}
Result<Value> test_callable(In&, const Value& self, const Bound&) {
  return truth(self.kind == Kind::kFunction || self.kind == Kind::kMacro || self.is_undefined());
}
Result<Value> test_number(In&, const Value& self, const Bound&) { return truth(self.is_numeric()); }
Result<Value> test_iterable(In&, const Value& self, const Bound&) {
  return truth(self.is_undefined() || self.is_string() || self.is_sequence() || self.is_dict() ||
               self.kind == Kind::kLoop);
}
Result<Value> test_sequence(In&, const Value& self, const Bound&) {
  const bool is_indexed = self.is_sequence() && (self.sequence->type == SequenceType::kList ||
                                                 self.sequence->type == SequenceType::kTuple ||
                                                 self.sequence->type == SequenceType::kRange);
  return truth(is_indexed || self.is_undefined() || self.is_string() || self.is_dict());
}
Result<Value> test_divisible(In& in, const Value& self, const Bound& args) {
  const Value rest = BM_TRY(in.modulo(self, *args[0]));
  return truth(rest.is_numeric() && rest.as_double() == 0);
}
Result<Value> test_equal(In& in, const Value& self, const Bound& args) {
  return truth(equals(self, *args[0], in.budget()));
}
Result<Value> test_not_equal(In& in, const Value& self, const Bound& args) {
  return truth(!equals(self, *args[0], in.budget()));
}
Result<Value> test_less(In& in, const Value& self, const Bound& args) {
  return truth(BM_TRY(in.less(self, *args[0])));
}
Result<Value> test_greater(In& in, const Value& self, const Bound& args) {
  return truth(BM_TRY(in.less(*args[0], self)));
}
Result<Value> test_less_equal(In& in, const Value& self, const Bound& args) {
  return truth(BM_TRY(in.less(self, *args[0])) || equals(self, *args[0], in.budget()));
}
Result<Value> test_greater_equal(In& in, const Value& self, const Bound& args) {
  return truth(BM_TRY(in.less(*args[0], self)) || equals(self, *args[0], in.budget()));
}
Result<Value> test_in(In& in, const Value& self, const Bound& args) {
  return truth(BM_TRY(in.contains(*args[0], self)));
}
Result<Value> test_same(In& in, const Value& self, const Bound& args) {
  const Value& other = *args[0];
  if (self.kind != other.kind) return truth(false);
  if (self.is_sequence()) return truth(self.sequence == other.sequence);
  if (self.is_dict()) return truth(self.dict == other.dict);
  return truth(equals(self, other, in.budget()));
}
template <bool is_filter>
Result<Value> test_known(In& in, const Value& self, const Bound&) {
  const std::string_view name = BM_TRY(in.string_of(self, "a name"));
  return truth((is_filter ? find_filter(name) : find_test(name)) != nullptr);
}

Result<Value> global_range(In& in, const Value&, const Bound& args) {
  int64_t start = 0;
  int64_t stop = BM_TRY(in.integer(*args[0], "a bound of range"));
  if (args[1] != nullptr) {
    start = stop;
    stop = BM_TRY(in.integer(*args[1], "a bound of range"));
  }
  const int64_t step = args[2] != nullptr ? BM_TRY(in.integer(*args[2], "the step of range")) : 1;
  if (step == 0) return in.error("the step of range is 0");
  const double count = std::ceil((static_cast<double>(stop) - static_cast<double>(start)) /
                                 static_cast<double>(step));
  if (count > kMaxRange) return in.error("a range has at most {} numbers", kMaxRange);
  std::vector<Value> out;
  int64_t value = start;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i, value += step)
    out.push_back(Value::of(value));
  const Value range = BM_TRY(in.list(std::move(out), SequenceType::kRange));
  range.sequence->start = start;
  range.sequence->stop = stop;
  range.sequence->step = step;
  return range;
}

Status copy_into(In& in, Dict& out, const Bound& args) {
  if (args.all->positional.size() > 1)
    return in.error("at most one argument without a name is allowed");
  for (const Value& source : args.all->positional) {
    if (source.is_dict()) {
      for (const auto& [key, value] : source.dict->entries) out.set(key, value);
      continue;
    }
    for (const Value& pair : BM_TRY(in.items(source))) {
      const std::vector<Value> both = BM_TRY(in.items(pair));
      if (both.size() != 2 || !is_hashable(both[0]))
        return in.error("pairs of key and value are needed");
      out.set(both[0], both[1]);
    }
  }
  for (const auto& [name, value] : args.all->named)
    out.set(BM_TRY(in.string(std::string(name))), value);
  in.heap().charge(out.entries.size() * 4 * sizeof(Value));
  return in.spend(1 + out.entries.size());
}
Result<Value> global_namespace(In& in, const Value&, const Bound& args) {
  const Value out = in.heap().name_space();
  BM_TRY(copy_into(in, *out.dict, args));
  return out;
}
Result<Value> global_dict(In& in, const Value&, const Bound& args) {
  const Value out = in.heap().dict();
  BM_TRY(copy_into(in, *out.dict, args));
  return out;
}
Result<Value> global_raise(In& in, const Value&, const Bound& args) {
  return in.error("the template refuses these messages: {}", BM_TRY(in.text(*args[0])));
}
Result<Value> global_strftime(In& in, const Value&, const Bound& args) {
  auto text = format_time(BM_TRY(in.string_of(*args[0], "format")), in.now());
  if (!text) return in.unsupported("strftime_now: {}", text.error().message);
  return in.string(std::move(*text));
}

}  // namespace

const FunctionTable& value_filters() {
  static const FunctionTable table = {
      {"default", {"default_value", "boolean"}, 0, filter_default},
      {"d", {"default_value", "boolean"}, 0, filter_default},
      {"int", {"default", "base"}, 0, filter_int},
      {"float", {"default"}, 0, filter_float},
      {"abs", {}, 0, filter_abs},
      {"round", {"precision", "method"}, 0, filter_round},
      {"string", {}, 0, filter_string},
      {"safe", {}, 0, filter_string},
      {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, filter_tojson},
      {"attr", {"name"}, 1, filter_attr},
  };
  return table;
}

const FunctionTable& tests() {
  static const FunctionTable table = {
      {"defined", {}, 0, test_undefined<false>},
      {"undefined", {}, 0, test_undefined<true>},
      {"none", {}, 0, test_kind<Kind::kNone>},
      {"boolean", {}, 0, test_kind<Kind::kBool>},
      {"integer", {}, 0, test_kind<Kind::kInt>},
      {"float", {}, 0, test_kind<Kind::kFloat>},
      {"string", {}, 0, test_kind<Kind::kString>},
      {"mapping", {}, 0, test_kind<Kind::kDict>},
      {"true", {}, 0, test_bool<true>},
      {"false", {}, 0, test_bool<false>},
      {"number", {}, 0, test_number},
      {"iterable", {}, 0, test_iterable},
      {"sequence", {}, 0, test_sequence},
      {"callable", {}, 0, test_callable},
      {"odd", {}, 0, test_parity<1>},
      {"even", {}, 0, test_parity<0>},
      {"lower", {}, 0, test_case<TextClass::kLower>},
      {"upper", {}, 0, test_case<TextClass::kUpper>},
      {"divisibleby", {"num"}, 1, test_divisible},
      {"eq", {""}, 1, test_equal},
      {"equalto", {""}, 1, test_equal},
      {"==", {""}, 1, test_equal},
      {"ne", {""}, 1, test_not_equal},
      {"!=", {""}, 1, test_not_equal},
      {"lt", {""}, 1, test_less},
      {"lessthan", {""}, 1, test_less},
      {"<", {""}, 1, test_less},
      {"le", {""}, 1, test_less_equal},
      {"<=", {""}, 1, test_less_equal},
      {"gt", {""}, 1, test_greater},
      {"greaterthan", {""}, 1, test_greater},
      {">", {""}, 1, test_greater},
      {"ge", {""}, 1, test_greater_equal},
      {">=", {""}, 1, test_greater_equal},
      {"in", {"seq"}, 1, test_in},
      {"sameas", {"other"}, 1, test_same},
      {"filter", {}, 0, test_known<true>},
      {"test", {}, 0, test_known<false>},
  };
  return table;
}

const FunctionTable& globals() {
  static const FunctionTable table = {
      {"range", {"", "", ""}, 1, global_range},
      {"namespace", {}, 0, global_namespace, true},
      {"dict", {}, 0, global_dict, true},
      {"raise_exception", {"message"}, 1, global_raise},
      {"strftime_now", {"format"}, 1, global_strftime},
  };
  return table;
}

}  // namespace bm::models::jinja
