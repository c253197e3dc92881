#include "models/chat/value.h"

#include <cmath>
#include <functional>

#include "models/chat/text.h"

namespace bm::models::jinja {
namespace {

constexpr size_t kFewEntries = 8;  // of a dict that is searched without an index

/// Whether a float is an integer that int64_t holds.
bool is_whole(double value) {
  return value >= -9.2e18 && value <= 9.2e18 && value == std::floor(value);
}

bool numbers_equal(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
  if (a.kind == Kind::kFloat && b.kind == Kind::kFloat) return a.number == b.number;
  const double number = a.kind == Kind::kFloat ? a.number : b.number;
  const int64_t integer = a.kind == Kind::kFloat ? b.as_int() : a.as_int();
  return is_whole(number) && static_cast<int64_t>(number) == integer;
}

bool scalars_equal(const Value& a, const Value& b) {
  if (a.is_numeric() && b.is_numeric()) return numbers_equal(a, b);
  if (a.kind != b.kind) return false;
  if (a.is_string()) return a.string->text == b.string->text;
  return a.is_none() || a.is_undefined();
}

/// Lists equal lists only, tuples tuples, and views and generators themselves.
bool may_be_equal(const Sequence& a, const Sequence& b) {
  return a.type == b.type && a.type != SequenceType::kGenerator &&
         a.type != SequenceType::kValues && a.items.size() == b.items.size();
}

}  // namespace

std::string_view Value::text() const { return string->text; }

String::String(std::string bytes) : text(std::move(bytes)), length(count_code_points(text)) {}

bool is_hashable(const Value& value) {
  return value.is_none() || value.is_numeric() || value.is_string();
}

size_t hash_of(const Value& value) {
  switch (value.kind) {
    case Kind::kBool:
    case Kind::kInt: return std::hash<int64_t>{}(value.as_int());
    case Kind::kFloat:
      return is_whole(value.number) ? std::hash<int64_t>{}(static_cast<int64_t>(value.number))
                                    : std::hash<double>{}(value.number);
    case Kind::kString: return std::hash<std::string_view>{}(value.text());
    default: return 0;
  }
}

bool equals(const Value& a, const Value& b, Budget& budget, int depth) {
  if (depth == 0 || !budget.spend(1)) return false;
  if (a.is_sequence() && b.is_sequence()) {
    if (a.sequence == b.sequence) return true;
    if (!may_be_equal(*a.sequence, *b.sequence)) return false;
    for (size_t i = 0; i < a.sequence->items.size(); ++i)
      if (!equals(a.sequence->items[i], b.sequence->items[i], budget, depth - 1)) return false;
    return true;
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict == b.dict) return true;
    if (a.dict->entries.size() != b.dict->entries.size()) return false;
    for (const auto& [key, value] : a.dict->entries) {
      const Value* const other = b.dict->find(key);
      if (other == nullptr || !equals(value, *other, budget, depth - 1)) return false;
    }
    return true;
  }
  if (a.kind != b.kind) return scalars_equal(a, b);
  switch (a.kind) {
    case Kind::kNamespace: return a.dict == b.dict;
    case Kind::kFunction: return a.function->row == b.function->row;
    case Kind::kMacro: return a.macro == b.macro;
    case Kind::kLoop: return a.loop == b.loop;
    default: return scalars_equal(a, b);
  }
}

bool is_truthy(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool: return value.boolean;
    case Kind::kInt: return value.integer != 0;
    case Kind::kFloat: return value.number != 0;
    case Kind::kString: return !value.string->text.empty();
    case Kind::kSequence:
      return value.sequence->type == SequenceType::kGenerator || !value.sequence->items.empty();
    case Kind::kDict: return !value.dict->entries.empty();
    case Kind::kNamespace:
    case Kind::kFunction:
    case Kind::kMacro:
    case Kind::kLoop: return true;
  }
  return true;
}

std::string_view type_name(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kDict: return "dict";
    case Kind::kNamespace: return "Namespace";
    case Kind::kFunction: return "function";
    case Kind::kMacro: return "Macro";
    case Kind::kLoop: return "LoopContext";
    case Kind::kSequence: break;
  }
  switch (value.sequence->type) {
    case SequenceType::kList: return "list";
    case SequenceType::kTuple: return "tuple";
    case SequenceType::kRange: return "range";
    case SequenceType::kKeys: return "dict_keys";
    case SequenceType::kValues: return "dict_values";
    case SequenceType::kItems: return "dict_items";
    case SequenceType::kGenerator: return "generator";
  }
  return "";
}

int64_t Dict::index_of(const Value& key, size_t hash) const {
  if (entries.size() <= kFewEntries) {
    for (size_t i = 0; i < entries.size(); ++i)
      if (scalars_equal(entries[i].first, key)) return static_cast<int64_t>(i);
    return -1;
  }
  const auto [first, last] = index_.equal_range(hash);
  for (auto it = first; it != last; ++it)
    if (scalars_equal(entries[it->second].first, key)) return it->second;
  return -1;
}

const Value* Dict::find(const Value& key) const {
  if (!is_hashable(key)) return nullptr;
  const int64_t index = index_of(key, hash_of(key));
  return index < 0 ? nullptr : &entries[static_cast<size_t>(index)].second;
}

const Value* Dict::find(std::string_view key) const {
  if (entries.size() > kFewEntries) {
    const auto [first, last] = index_.equal_range(std::hash<std::string_view>{}(key));
    for (auto it = first; it != last; ++it) {
      const Value& candidate = entries[it->second].first;
      if (candidate.is_string() && candidate.text() == key) return &entries[it->second].second;
    }
    return nullptr;
  }
  for (const auto& [candidate, value] : entries)
    if (candidate.is_string() && candidate.text() == key) return &value;
  return nullptr;
}

void Dict::set(const Value& key, const Value& value) {
  const size_t hash = hash_of(key);
  const int64_t index = index_of(key, hash);
  if (index >= 0) {
    entries[static_cast<size_t>(index)].second = value;
    return;
  }
  entries.emplace_back(key, value);
  if (entries.size() == kFewEntries + 1) {
    for (size_t i = 0; i < entries.size(); ++i)
      index_.emplace(hash_of(entries[i].first), static_cast<uint32_t>(i));
  } else if (entries.size() > kFewEntries) {
    index_.emplace(hash, static_cast<uint32_t>(entries.size() - 1));
  }
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent)
    for (const auto& [key, value] : scope->variables)
      if (key == name) return &value;
  return nullptr;
}

void Scope::set(std::string_view name, const Value& value) {
  for (auto& [key, old] : variables) {
    if (key != name) continue;
    old = value;
    return;
  }
  variables.emplace_back(name, value);
}

Value Heap::string(std::string text) {
  charge(sizeof(String) + text.size());
  return Value::of(&strings_.emplace_back(std::move(text)));
}

Sequence* Heap::sequence(std::vector<Value> items, SequenceType type) {
  charge(sizeof(Sequence) + items.size() * sizeof(Value));
  Sequence& sequence = sequences_.emplace_back();
  sequence.type = type;
  sequence.items = std::move(items);
  return &sequence;
}

Value Heap::list(std::vector<Value> items, SequenceType type) {
  Value value = Value::of(Kind::kSequence);
  value.sequence = sequence(std::move(items), type);
  return value;
}

Value Heap::dict() {
  charge(sizeof(Dict));
  Value value = Value::of(Kind::kDict);
  value.dict = &dicts_.emplace_back();
  return value;
}

Value Heap::name_space() {
  Value value = dict();
  value.kind = Kind::kNamespace;
  return value;
}

Value Heap::function(const FunctionRow* row, const Value& self) {
  charge(sizeof(Function));
  Value value = Value::of(Kind::kFunction);
  value.function = &functions_.emplace_back(Function{row, self});
  return value;
}

Value Heap::macro(const Macro& macro) {
  charge(sizeof(Macro));
  Value value = Value::of(Kind::kMacro);
  value.macro = &macros_.emplace_back(macro);
  return value;
}

Loop* Heap::loop(Sequence* items) {
  charge(sizeof(Loop));
  return &loops_.emplace_back(Loop{.items = items});
}

Scope* Heap::scope(Scope* parent) {
  charge(sizeof(Scope) + 64);
  return &scopes_.emplace_back(Scope{.parent = parent, .variables = {}});
}

}  // namespace bm::models::jinja
