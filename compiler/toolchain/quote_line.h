#pragma once
// Logs of compilers with the line of the source that they point at. Private to this folder.

#include <string>
#include <string_view>

#include <fmt/format.h>

namespace bm::compiler {

/// `log` and below it line `number` of `source`, counted from 1; `log` alone if there is no such
/// line.
inline std::string quote_line(const std::string& log, int number, std::string_view source) {
  size_t begin = 0;
  for (int n = 1; n < number && begin != std::string_view::npos; ++n) {
    begin = source.find('\n', begin);
    if (begin != std::string_view::npos) ++begin;
  }
  if (number < 1 || begin == std::string_view::npos) return log;
  return fmt::format("{}\nsource line {}: {}", log, number,
                     source.substr(begin, source.find('\n', begin) - begin));
}

}  // namespace bm::compiler
