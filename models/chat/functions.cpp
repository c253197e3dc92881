#include "models/chat/functions.h"

#include <algorithm>

#include "models/chat/interpreter.h"

namespace bm::models::jinja {
namespace {

const FunctionRow* find_in(const FunctionTable& table, std::string_view name) {
  const auto row = std::ranges::find(table, name, &FunctionRow::name);
  return row == table.end() ? nullptr : &*row;
}

}  // namespace

const FunctionRow* find_filter(std::string_view name) {
  for (const FunctionTable* const table : {&text_filters(), &sequence_filters(), &value_filters()})
    if (const FunctionRow* const row = find_in(*table, name)) return row;
  return nullptr;
}

const FunctionRow* find_test(std::string_view name) { return find_in(tests(), name); }
const FunctionRow* find_global(std::string_view name) { return find_in(globals(), name); }

const FunctionRow* find_method(const Value& self, std::string_view name) {
  if (self.is_string()) return find_in(string_methods(), name);
  // Rows of other types are named "dict.items": their names say whom they belong to.
  std::string_view type;
  if (self.is_dict()) type = "dict.";
  if (self.kind == Kind::kLoop) type = "loop.";
  if (self.is_sequence() &&
      (self.sequence->type == SequenceType::kList || self.sequence->type == SequenceType::kTuple ||
       self.sequence->type == SequenceType::kRange))
    type = "list.";
  if (type.empty()) return nullptr;
  for (const FunctionRow& row : other_methods())
    if (row.name.starts_with(type) && row.name.substr(type.size()) == name) return &row;
  return nullptr;
}

}  // namespace bm::models::jinja
