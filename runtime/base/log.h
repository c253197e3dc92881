#pragma once
// Component logs on stderr: BM_LOG=amd=3,runtime=1. None on submit, replay or signal paths.

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace bm {

enum class LogLevel : uint8_t { kError, kWarning, kInfo, kTrace };

/// Highest level a BM_LOG text enables for `component`. Without an entry: kWarning. A bare number
/// sets every component; a named entry wins over it; malformed entries are skipped.
LogLevel log_level(std::string_view spec, std::string_view component);

/// Whether `component` prints `level` under this thread's settings.
bool log_enabled(std::string_view component, LogLevel level);

/// Writes one line "[component] level: message" in a single write.
void log_line(std::string_view component, LogLevel level, std::string_view message);

/// `log("amd", LogLevel::kInfo, "ring {} has {} dwords", i, n);` formats only when enabled.
template <class... Args>
void log(std::string_view component, LogLevel level, fmt::format_string<Args...> format,
         Args&&... args) {
  if (log_enabled(component, level))
    log_line(component, level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace bm
