#include "runtime/base/log.h"

#include <cstdio>
#include <optional>

#include "runtime/base/env.h"

namespace bm {
namespace {

std::optional<LogLevel> parse_level(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '9') return std::nullopt;
  return static_cast<LogLevel>(text[0] > '3' ? 3 : text[0] - '0');
}

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kError: return "error";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kInfo: return "info";
    case LogLevel::kTrace: return "trace";
  }
  __builtin_unreachable();
}

}  // namespace

LogLevel log_level(std::string_view spec, std::string_view component) {
  LogLevel all = LogLevel::kWarning;
  std::optional<LogLevel> named;
  while (!spec.empty()) {
    const size_t comma = spec.find(',');
    const std::string_view entry = spec.substr(0, comma);
    spec = comma == spec.npos ? std::string_view() : spec.substr(comma + 1);
    const size_t equals = entry.find('=');
    const std::optional<LogLevel> level =
        parse_level(equals == entry.npos ? entry : entry.substr(equals + 1));
    if (!level) continue;
    if (equals == entry.npos)
      all = *level;
    else if (entry.substr(0, equals) == component)
      named = level;
  }
  return named.value_or(all);
}

bool log_enabled(std::string_view component, LogLevel level) {
  return level <= log_level(settings().log, component);
}

void log_line(std::string_view component, LogLevel level, std::string_view message) {
  const std::string line = fmt::format("[{}] {}: {}\n", component, level_name(level), message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace bm
