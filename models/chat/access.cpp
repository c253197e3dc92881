// Attributes, items, slices and iteration: how values are taken apart.

#include <algorithm>

#include "models/chat/interpreter.h"
#include "models/chat/text.h"

namespace bm::models::jinja {
namespace {

bool is_indexable(const Sequence& sequence) {
  return sequence.type == SequenceType::kList || sequence.type == SequenceType::kTuple ||
         sequence.type == SequenceType::kRange;
}

/// Index from the end, too; -1 when it is outside.
int64_t wrap(int64_t index, int64_t length) {
  if (index < 0) index += length;
  return index >= 0 && index < length ? index : -1;
}

}  // namespace

Result<int64_t> Interpreter::length(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined: return 0;
    case Kind::kString: return value.string->length;
    case Kind::kDict: return static_cast<int64_t>(value.dict->entries.size());
    case Kind::kSequence:
      if (value.sequence->type != SequenceType::kGenerator)
        return static_cast<int64_t>(value.sequence->items.size());
      break;
    case Kind::kLoop: return static_cast<int64_t>(value.loop->items->items.size());
    default: break;
  }
  return error("a value of type {} has no length", type_name(value));
}

Result<std::vector<Value>> Interpreter::items(const Value& value) {
  std::vector<Value> out;
  switch (value.kind) {
    case Kind::kUndefined: return out;
    case Kind::kString: {
      const std::string_view text = value.text();
      for (size_t pos = 0; pos < text.size();) {
        const size_t end = pos + byte_offset(text.substr(pos), 1);
        out.push_back(BM_TRY(string(std::string(text.substr(pos, end - pos)))));
        pos = end;
      }
      return out;
    }
    case Kind::kSequence: {
      Sequence& sequence = *value.sequence;
      const auto begin = sequence.items.begin() + static_cast<std::ptrdiff_t>(sequence.next);
      out.assign(begin, sequence.items.end());
      if (sequence.type == SequenceType::kGenerator) sequence.next = sequence.items.size();
      break;
    }
    case Kind::kDict:
      for (const auto& [key, item] : value.dict->entries) out.push_back(key);
      break;
    default: return error("a value of type {} cannot be iterated", type_name(value));
  }
  BM_TRY(spend(out.size()));
  return out;
}

Result<int64_t> Interpreter::integer(const Value& value, std::string_view what) {
  if (value.is_undefined()) return undefined_error(value);
  if (!value.is_integral()) return error("{} must be an integer, not {}", what, type_name(value));
  return value.as_int();
}

Result<std::string_view> Interpreter::string_of(const Value& value, std::string_view what) {
  if (value.is_undefined()) return undefined_error(value);
  if (!value.is_string()) return error("{} must be a string, not {}", what, type_name(value));
  return value.text();
}

Result<Value> Interpreter::loop_attribute(Loop& loop, std::string_view name) {
  const auto& all = loop.items->items;
  const auto index = static_cast<int64_t>(loop.index);
  const auto count = static_cast<int64_t>(all.size());
  if (name == "index") return Value::of(index + 1);
  if (name == "index0") return Value::of(index);
  if (name == "revindex") return Value::of(count - index);
  if (name == "revindex0") return Value::of(count - index - 1);
  if (name == "first") return Value::of(index == 0);
  if (name == "last") return Value::of(index + 1 == count);
  if (name == "length") return Value::of(count);
  if (name == "depth") return Value::of(int64_t{1});
  if (name == "depth0") return Value::of(int64_t{0});
  if (name == "previtem")
    return index > 0 ? all[loop.index - 1] : undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < count ? all[loop.index + 1] : undefined("there is no next item");
  Value self = Value::of(Kind::kLoop);
  self.loop = &loop;
  if (const FunctionRow* const row = find_method(self, name)) return heap_.function(row, self);
  return undefined(fmt::format("loop has no attribute {}", quote_name(name)));
}

Result<Value> Interpreter::attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) return undefined_error(object);
  if (object.kind == Kind::kLoop) return loop_attribute(*object.loop, name);
  if (const FunctionRow* const row = find_method(object, name)) return heap_.function(row, object);
  if (object.is_dict() || object.kind == Kind::kNamespace)
    if (const Value* const value = object.dict->find(name)) return *value;
  if (object.kind == Kind::kMacro && name == "name") return string(object.macro->definition->name);
  return undefined(fmt::format("{} has no attribute {}", type_name(object), quote_name(name)));
}

Result<Value> Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) return undefined_error(object);
  if (object.is_dict()) {
    if (const Value* const value = object.dict->find(key)) return *value;
  } else if (key.is_integral() && object.is_sequence() && is_indexable(*object.sequence)) {
    const auto& all = object.sequence->items;
    const int64_t index = wrap(key.as_int(), static_cast<int64_t>(all.size()));
    if (index >= 0) return all[static_cast<size_t>(index)];
  } else if (key.is_integral() && object.is_string()) {
    const int64_t index = wrap(key.as_int(), object.string->length);
    if (index >= 0) {
      const std::string_view text = object.text();
      BM_TRY(spend(object.string->is_ascii() ? 1 : 1 + static_cast<uint64_t>(index) / 16));
      const size_t begin =
          object.string->is_ascii() ? static_cast<size_t>(index) : byte_offset(text, index);
      return string(std::string(text.substr(begin, byte_offset(text.substr(begin), 1))));
    }
  }
  if (key.is_string()) {
    if (object.is_dict() || object.is_sequence() || object.is_string()) {
      if (const FunctionRow* const row = find_method(object, key.text()))
        return heap_.function(row, object);
    } else {
      return attribute(object, key.text());
    }
  }
  std::string shown;
  BM_TRY(append_repr(shown, key));
  return undefined(fmt::format("{} has no item {}", type_name(object), quote_name(shown)));
}

Result<Value> Interpreter::path(const Value& object, const Value& attribute_path,
                                const Value* fallback) {
  if (attribute_path.is_integral()) {
    const Value value = BM_TRY(item(object, attribute_path));
    return value.is_undefined() && fallback != nullptr ? *fallback : value;
  }
  const std::string_view all = BM_TRY(string_of(attribute_path, "attribute"));
  Value value = object;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find('.', begin), all.size());
    const std::string_view part = all.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.size() < 10 &&
                           part.find_first_not_of("0123456789") == std::string_view::npos;
    const Value key = is_number ? Value::of(int64_t{std::stoi(std::string(part))})
                                : BM_TRY(string(std::string(part)));
    value = BM_TRY(item(value, key));
    if (value.is_undefined() && fallback != nullptr) value = *fallback;
    begin = end + 1;
  }
  return value;
}

Result<Value> Interpreter::evaluate_slice(const Expression& expression) {
  const Value object = BM_TRY(evaluate(*expression.children[0]));
  std::array<std::optional<int64_t>, 3> bounds;
  for (size_t i = 0; i < 3; ++i) {
    if (!expression.children[i + 1]) continue;
    const Value bound = BM_TRY(evaluate(*expression.children[i + 1]));
    if (!bound.is_none()) bounds[i] = BM_TRY(integer(bound, "a bound of a slice"));
  }
  at_ = expression.at;
  if (object.is_undefined()) return undefined_error(object);
  const bool is_text = object.is_string();
  if (!is_text && !(object.is_sequence() && is_indexable(*object.sequence)))
    return error("a value of type {} cannot be sliced", type_name(object));
  const int64_t count =
      is_text ? object.string->length : static_cast<int64_t>(object.sequence->items.size());
  const int64_t step = bounds[2].value_or(1);
  if (step == 0) return error("the step of a slice is 0");
  const auto clip = [&](int64_t bound) {
    if (bound < 0) bound += count;
    return step > 0 ? std::clamp(bound, int64_t{0}, count)
                    : std::clamp(bound, int64_t{-1}, count - 1);
  };
  const int64_t start = bounds[0] ? clip(*bounds[0]) : step > 0 ? 0 : count - 1;
  const int64_t stop = bounds[1] ? clip(*bounds[1]) : step > 0 ? count : -1;
  BM_TRY(spend(1 + static_cast<uint64_t>(count) / 16));
  if (is_text && step == 1) {
    if (start >= stop) return string("");
    const std::string_view text = object.text();
    const bool is_ascii = object.string->is_ascii();
    const size_t begin = is_ascii ? static_cast<size_t>(start) : byte_offset(text, start);
    const std::string_view rest = text.substr(begin);
    return string(std::string(rest.substr(
        0, is_ascii ? static_cast<size_t>(stop - start) : byte_offset(rest, stop - start))));
  }
  std::vector<int64_t> picked;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    picked.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  BM_TRY(spend(picked.size()));
  if (is_text) {
    const std::vector<char32_t> points = code_points(object.text());
    std::vector<char32_t> out;
    for (const int64_t i : picked) out.push_back(points[static_cast<size_t>(i)]);
    return string(from_code_points(out));
  }
  std::vector<Value> out;
  for (const int64_t i : picked) out.push_back(object.sequence->items[static_cast<size_t>(i)]);
  const Sequence& source = *object.sequence;
  const Value value = BM_TRY(list(std::move(out), source.type));
  if (source.type == SequenceType::kRange) {
    value.sequence->start = source.start + start * source.step;
    value.sequence->stop = source.start + stop * source.step;
    value.sequence->step = source.step * step;
  }
  return value;
}

}  // namespace bm::models::jinja
