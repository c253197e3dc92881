#pragma once
// The functions, filters, tests and methods that chat templates may call: one row each.

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "models/chat/value.h"
#include "runtime/base/result.h"

namespace bm::models::jinja {

class Interpreter;

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

/// Arguments in the order of a row's parameters; null where none was given.
struct BoundArguments {
  std::array<const Value*, 5> values{};
  const Arguments* all = nullptr;
  const Value* operator[](size_t index) const { return values[index]; }
  /// The argument, unless it is missing or none.
  const Value* given(size_t index) const {
    return values[index] != nullptr && !values[index]->is_none() ? values[index] : nullptr;
  }
};

struct FunctionRow {
  std::string_view name;
  /// Names by which arguments may be given; "" for one that is positional only.
  std::vector<std::string_view> parameters;
  size_t required = 0;
  /// `self` is what stands before the bar, before `is` or before the dot.
  Result<Value> (*function)(Interpreter&, const Value& self, const BoundArguments&) = nullptr;
  bool is_variadic = false;  ///< takes BoundArguments::all as it is
};

/// Null when there is none. Rows live as long as the program.
const FunctionRow* find_filter(std::string_view name);
const FunctionRow* find_test(std::string_view name);
const FunctionRow* find_global(std::string_view name);
const FunctionRow* find_method(const Value& self, std::string_view name);

using FunctionTable = std::vector<FunctionRow>;
const FunctionTable& text_filters();
const FunctionTable& sequence_filters();
const FunctionTable& value_filters();
const FunctionTable& tests();
const FunctionTable& globals();
const FunctionTable& string_methods();
const FunctionTable& other_methods();

}  // namespace bm::models::jinja
