#include "models/chat/json.h"

#include <algorithm>
#include <cmath>

#include "models/chat/interpreter.h"
#include "models/chat/text.h"

namespace bm::models::jinja {
namespace {

constexpr int kMaxLevels = 100;
constexpr size_t kMaxBytes = 64 << 20;

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return float_text(value);
}

void new_line(std::string& out, const JsonStyle& style, int level) {
  if (!style.has_lines) return;
  out += '\n';
  for (int i = 0; i < level; ++i) out += style.indent;
}

std::string scalar_text(const Value& value, bool is_ascii_only) {
  switch (value.kind) {
    case Kind::kNone: return "null";
    case Kind::kBool: return value.boolean ? "true" : "false";
    case Kind::kInt: return fmt::format("{}", value.integer);
    case Kind::kFloat: return number_text(value.number);
    default: return json_quoted(value.text(), is_ascii_only);
  }
}

Status append_dict(Interpreter& in, std::string& out, const Dict& dict, const JsonStyle& style,
                   int level) {
  std::vector<std::pair<Value, Value>> entries = dict.entries;
  if (style.is_sorted) {
    const bool all_text =
        std::ranges::all_of(entries, [](const auto& entry) { return entry.first.is_string(); });
    const bool all_numbers =
        std::ranges::all_of(entries, [](const auto& entry) { return entry.first.is_numeric(); });
    if (!all_text && !all_numbers && entries.size() > 1)
      return in.error("keys of several types cannot be sorted");
    std::ranges::stable_sort(entries, [&](const auto& a, const auto& b) {
      return all_text ? a.first.text() < b.first.text() : a.first.as_double() < b.first.as_double();
    });
  }
  out += '{';
  bool is_first = true;
  for (const auto& [key, value] : entries) {
    if (!std::exchange(is_first, false)) out += style.item_separator;
    new_line(out, style, level + 1);
    const std::string text = scalar_text(key, style.is_ascii_only);
    out += key.is_string() ? text : '"' + text + '"';
    out += style.key_separator;
    BM_TRY(append_json(in, out, value, style, level + 1));
  }
  if (!entries.empty()) new_line(out, style, level);
  out += '}';
  return {};
}

}  // namespace

Status append_json(Interpreter& in, std::string& out, const Value& value, const JsonStyle& style,
                   int level) {
  BM_TRY(in.spend(1));
  if (level > kMaxLevels || out.size() > kMaxBytes)
    return in.error("this value is too large for tojson");
  if (value.is_none() || value.is_numeric() || value.is_string()) {
    out += scalar_text(value, style.is_ascii_only);
    return value.is_string() ? in.spend(value.text().size() / 16) : Status();
  }
  if (value.is_dict()) return append_dict(in, out, *value.dict, style, level);
  const bool is_list = value.is_sequence() && (value.sequence->type == SequenceType::kList ||
                                               value.sequence->type == SequenceType::kTuple);
  if (!is_list) return in.error("JSON has no values of type {}", type_name(value));
  const auto& items = value.sequence->items;
  out += '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i != 0) out += style.item_separator;
    new_line(out, style, level + 1);
    BM_TRY(append_json(in, out, items[i], style, level + 1));
  }
  if (!items.empty()) new_line(out, style, level);
  out += ']';
  return {};
}

}  // namespace bm::models::jinja
