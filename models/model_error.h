#pragma once
// How names out of a model file and amounts of memory are shown in error messages.

#include <cstdint>
#include <string>
#include <string_view>

namespace bm::models {

/// `text` in double quotes, with everything but printable ASCII and whole UTF-8 characters escaped,
/// cut after 80 bytes: names in a hostile file must not reach a terminal or a log as they are.
std::string quote_name(std::string_view text);
/// "12.5 MiB".
std::string mib(uint64_t bytes);

}  // namespace bm::models
