#pragma once
// What the register commands of both vendors read on the command line.

#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::cli {

/// "0x1234" or "4660".
std::optional<uint64_t> parse_number(std::string_view text);
/// The same in 32 bits. Errors: kInvalidArgument.
Result<uint32_t> parse_word(std::string_view text);
/// '*' stands for anything; letters of either case.
bool matches(std::string_view pattern, std::string_view text);

}  // namespace bm::cli
