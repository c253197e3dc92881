#pragma once
// Parses a chat template: the part of Jinja 3.1 that templates of models are written in.

#include <string_view>

#include "models/chat/ast.h"

namespace bm::models::jinja {

struct Template {
  Body body;
  /// Names that are read anywhere and may come from outside.
  std::vector<std::string> names;
};

/// Errors: kInvalidArgument (not a template; row and column), kUnsupported (Jinja that is not part
/// of the subset: the tag, filter or test is named), both naming row and column.
Result<Template> parse_template(std::string_view source);

}  // namespace bm::models::jinja
