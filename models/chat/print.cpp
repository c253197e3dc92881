// str() and repr() of Python, and its formatting with %.

#include <cmath>
#include <cstdio>

#include "models/chat/interpreter.h"
#include "models/chat/text.h"
#include "models/unicode.h"

namespace bm::models::jinja {
namespace {
constexpr int kMaxFieldWidth = 1000;
}

Result<std::string> Interpreter::text(const Value& value) {
  std::string out;
  BM_TRY(append_text(out, value));
  return out;
}

Status Interpreter::append_text(std::string& out, const Value& value) {
  if (value.is_undefined()) return {};
  if (!value.is_string()) return append_repr(out, value);
  out += value.text();
  return spend(1 + value.text().size() / 16);
}

Status Interpreter::append_repr(std::string& out, const Value& value) {
  const Level level(*this);
  if (level.is_too_deep()) return error("this value is nested too deeply to be printed");
  if (out.size() > limits_.output_bytes) return error("this value is too long to be printed");
  BM_TRY(spend(1));
  const auto pairs = [&](const Dict& dict) -> Status {
    out += '{';
    bool is_first = true;
    for (const auto& [key, item] : dict.entries) {
      if (!std::exchange(is_first, false)) out += ", ";
      BM_TRY(append_repr(out, key));
      out += ": ";
      BM_TRY(append_repr(out, item));
    }
    out += '}';
    return {};
  };
  switch (value.kind) {
    case Kind::kUndefined: out += "Undefined"; return {};
    case Kind::kNone: out += "None"; return {};
    case Kind::kBool: out += value.boolean ? "True" : "False"; return {};
    case Kind::kInt: out += fmt::format("{}", value.integer); return {};
    case Kind::kFloat: out += float_text(value.number); return {};
    case Kind::kString: out += quoted(value.text()); return spend(value.text().size() / 16);
    case Kind::kDict: return pairs(*value.dict);
    case Kind::kNamespace:
      out += "<Namespace ";
      BM_TRY(pairs(*value.dict));
      out += '>';
      return {};
    case Kind::kSequence: break;
    case Kind::kFunction:
    case Kind::kMacro:
    case Kind::kLoop: return unsupported("a value of type {} cannot be printed", type_name(value));
  }
  const Sequence& sequence = *value.sequence;
  if (sequence.type == SequenceType::kGenerator)
    return unsupported("what a filter gives cannot be printed before |list has made a list of it");
  if (sequence.type == SequenceType::kRange) {
    out += sequence.step == 1
               ? fmt::format("range({}, {})", sequence.start, sequence.stop)
               : fmt::format("range({}, {}, {})", sequence.start, sequence.stop, sequence.step);
    return {};
  }
  const bool is_tuple = sequence.type == SequenceType::kTuple;
  const bool is_view = !is_tuple && sequence.type != SequenceType::kList;
  if (is_view) out += fmt::format("{}(", type_name(value));
  out += is_tuple ? '(' : '[';
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (i != 0) out += ", ";
    BM_TRY(append_repr(out, sequence.items[i]));
  }
  if (is_tuple && sequence.items.size() == 1) out += ',';
  out += is_tuple ? ')' : ']';
  if (is_view) out += ')';
  return {};
}

Result<Value> Interpreter::format_percent(std::string_view format, const Value& values) {
  const bool is_tuple = values.is_sequence() && values.sequence->type == SequenceType::kTuple;
  size_t used = 0;
  bool has_names = false;
  const auto next = [&]() -> Result<Value> {
    if (!is_tuple && used == 0) {
      ++used;
      return values;
    }
    if (!is_tuple || used >= values.sequence->items.size())
      return error("% has too few values for {}", quote_name(format));
    return values.sequence->items[used++];
  };
  const auto pad = [](std::string text, int width, bool is_left) {
    const int64_t missing = width - count_code_points(text);
    if (missing <= 0) return text;
    return is_left ? text + std::string(static_cast<size_t>(missing), ' ')
                   : std::string(static_cast<size_t>(missing), ' ') + text;
  };
  std::string out;
  for (size_t pos = 0; pos < format.size();) {
    if (format[pos] != '%') {
      out += format[pos++];
      continue;
    }
    ++pos;
    const auto at = [&] { return pos < format.size() ? format[pos] : '\0'; };
    std::optional<Value> named;
    if (at() == '(') {
      const size_t end = format.find(')', pos);
      if (end == std::string_view::npos || !values.is_dict())
        return error("% has no names for {}", quote_name(format));
      const Value* const value = values.dict->find(format.substr(pos + 1, end - pos - 1));
      if (value == nullptr) return error("% has no value for a name of {}", quote_name(format));
      named = *value;
      has_names = true;
      pos = end + 1;
    }
    std::string flags = "%";
    bool is_left = false;
    for (; std::string_view("-+ #0").find(at()) != std::string_view::npos && at() != '\0'; ++pos) {
      flags += at();
      is_left |= at() == '-';
    }
    const auto count = [&](int fallback) -> Result<int> {
      int value = fallback;
      for (; at() >= '0' && at() <= '9'; ++pos) {
        value = (value < 0 ? 0 : value) * 10 + (at() - '0');
        if (value > kMaxFieldWidth) return error("a field of % is at most {} wide", kMaxFieldWidth);
      }
      return value;
    };
    const int width = BM_TRY(count(0));
    int precision = -1;
    if (at() == '.') {
      ++pos;
      precision = BM_TRY(count(0));
    }
    const char type = at();
    ++pos;
    if (type == '%') {
      out += '%';
      continue;
    }
    if (type == '\0') return error("{} ends within a field of %", quote_name(format));
    const Value value = named ? *named : BM_TRY(next());
    char buffer[2 * kMaxFieldWidth + 400];
    int written = 0;
    switch (type) {
      case 's':
      case 'r': {
        std::string shown;
        BM_TRY(type == 's' ? append_text(shown, value) : append_repr(shown, value));
        if (precision >= 0) shown.resize(byte_offset(shown, precision));
        out += pad(std::move(shown), width, is_left);
        continue;
      }
      case 'd':
      case 'i':
      case 'x':
      case 'X':
      case 'o': {
        if (!value.is_numeric() || (value.kind == Kind::kFloat && type != 'd' && type != 'i'))
          return error("%{} needs a number, not {}", type, type_name(value));
        if (value.kind == Kind::kFloat && !(std::abs(value.number) < 9e18))
          return error("%{} needs a number that fits into 64 bits", type);
        const int64_t number =
            value.kind == Kind::kFloat ? static_cast<int64_t>(value.number) : value.as_int();
        if (type != 'd' && type != 'i' && number < 0)
          return unsupported("%{} of a negative number", type);
        const std::string full = flags + "*.*l" + type;
        written = std::snprintf(buffer, sizeof(buffer), full.c_str(), width, precision, number);
        break;
      }
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G': {
        if (!value.is_numeric()) return error("%{} needs a number, not {}", type, type_name(value));
        const std::string full = flags + "*.*" + type;
        written = std::snprintf(buffer, sizeof(buffer), full.c_str(), width, precision,
                                value.as_double());
        break;
      }
      default: return unsupported("% with {}", quote_name(std::string_view(&type, 1)));
    }
    out.append(buffer,
               static_cast<size_t>(std::clamp(written, 0, static_cast<int>(sizeof(buffer)) - 1)));
    BM_TRY(spend(1));
  }
  const bool all_used = is_tuple
                            ? used == values.sequence->items.size()
                            : used > 0 || has_names || values.is_dict() || values.is_sequence();
  if (!all_used) return error("% has more values than {} takes", quote_name(format));
  return string(std::move(out));
}

}  // namespace bm::models::jinja
