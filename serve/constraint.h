#pragma once
// What an answer is bound to: response_format and tool_choice as grammars.

#include <memory>
#include <string>

#include "models/grammar/grammar.h"
#include "serve/chat_format.h"
#include "serve/request.h"

namespace bm::serve {

/// GBNF of what the request allows; empty: anything.
/// Errors: 400 naming what a schema asks for and is not supported, or a tool that is not there.
ApiResult<std::string> grammar_of_request(const GenerationRequest& request,
                                          const ChatFormat& format);

/// `gbnf` with `prefix` before the names of its rules, so that it can stand beside others.
std::string with_rule_prefix(std::string_view gbnf, std::string_view prefix);

}  // namespace bm::serve
