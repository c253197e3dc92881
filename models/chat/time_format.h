#pragma once
// strftime in the C locale: dates in prompts do not depend on the machine's language.

#include <ctime>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::models::jinja {

/// Errors: kUnsupported naming a directive that is not known.
Result<std::string> format_time(std::string_view format, const std::tm& time);

}  // namespace bm::models::jinja
