#pragma once
// Regular expressions of JSON schemas (ECMA-262 with the u flag) as GBNF for a JSON string.
//
// Known: characters, ., classes, \d \w \s and their opposites, escapes (\n \r \t \f \v \0 \xHH
// \uHHHH and of punctuation), groups, |, * + ? {m,n}, also lazy; ^ at the beginning and $ at the
// end of the expression or of its alternatives, where without them anything may stand. Refused:
// assertions elsewhere, references, \b, \p, names of groups.

#include <string>
#include <string_view>
#include <vector>

#include "models/grammar/gbnf.h"
#include "runtime/base/result.h"

namespace bm::models {

/// GBNF of what stands between the quotes of a JSON string that matches `pattern`. Uses the rule
/// `char` of json_schema.cpp: any character of a string.
/// Errors: kInvalidArgument, kUnsupported, naming the column.
Result<std::string> grammar_of_regex(std::string_view pattern);

/// A GBNF literal: "…" with escapes.
std::string gbnf_literal(std::string_view text);
/// GBNF of one character of `ranges` as it is written in a JSON string.
std::string gbnf_json_char(const std::vector<CodeRange>& ranges);

}  // namespace bm::models
