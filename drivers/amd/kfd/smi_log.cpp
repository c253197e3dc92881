#include "drivers/amd/kfd/smi_log.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace bm::amd::kfd {
namespace {

/// A hexadecimal number that `text` begins with, taken off it.
std::optional<uint64_t> take_number(std::string_view& text) {
  uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (problem != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

std::string_view after(std::string_view text, char separator) {
  return text.starts_with(separator) ? text.substr(1) : text;
}

std::string fault_text(std::string_view rest) {
  const auto process = take_number(rest);
  return process ? fmt::format("VM fault of process {} ({})", *process, after(rest, ':'))
                 : "VM fault";
}

std::string reset_text(std::string_view rest, std::string_view what) {
  const auto number = take_number(rest);
  const std::string_view cause = after(rest, ' ');
  return fmt::format("GPU reset {} {}{}{}", number.value_or(0), what, cause.empty() ? "" : ": ",
                     cause);
}

std::string throttle_text(std::string_view rest) {
  const auto reasons = take_number(rest);
  return fmt::format("the GPU is too hot or draws too much (reasons {:#x})", reasons.value_or(0));
}

std::string line_text(std::string_view line) {
  std::string_view rest = line;
  const auto number = take_number(rest);
  rest = after(rest, ' ');
  switch (number.value_or(0)) {
    case 1: return fault_text(rest);
    case 2: return throttle_text(rest);
    case 3: return reset_text(rest, "begins");
    case 4: return reset_text(rest, "is over");
    default: return std::string(line);
  }
}

}  // namespace

std::string log_in_words(std::string_view lines) {
  std::string text;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    std::string line = line_text(lines.substr(0, end));
    std::erase_if(line, [](char c) { return c < ' '; });
    if (!line.empty()) text += (text.empty() ? "" : "; ") + line;
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return text;
}

}  // namespace bm::amd::kfd
