#pragma once
// JSON text of values, with the spaces of Python's json.dumps: models were trained on these.

#include <string>

#include "models/chat/value.h"
#include "runtime/base/result.h"

namespace bm::models::jinja {

class Interpreter;

struct JsonStyle {
  bool is_ascii_only = false;
  bool is_sorted = false;
  bool has_lines = false;  ///< each item on a line of its own, after `indent` per level
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

/// Errors: kInvalidArgument naming a type that JSON does not have.
Status append_json(Interpreter& in, std::string& out, const Value& value, const JsonStyle& style,
                   int level);

}  // namespace bm::models::jinja
