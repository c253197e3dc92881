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

/// Seconds since boot at the start of a line "<4>[  123.456789] …", in nanoseconds; -1: none.
int64_t timestamp_of(std::string_view line) {
  const size_t open = line.find('['), close = line.find(']');
  if (open == line.npos || close == line.npos || open > close) return -1;
  std::string_view text = line.substr(open + 1, close - open - 1);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  int64_t seconds = 0, micros = 0;
  const char* const end = text.data() + text.size();
  const auto whole = std::from_chars(text.data(), end, seconds);
  if (whole.ec != std::errc() || whole.ptr == end || *whole.ptr != '.') return -1;
  if (std::from_chars(whole.ptr + 1, end, micros).ec != std::errc()) return -1;
  return seconds * 1'000'000'000 + micros * 1000;
}

/// "type 1" of a line about a wave's error; the numbers are the hardware's.
std::string wave_error(std::string_view line) {
  constexpr std::string_view kKey = ", type ";
  const size_t at = line.find(kKey);
  const char type =
      at == line.npos || at + kKey.size() >= line.size() ? '?' : line[at + kKey.size()];
  switch (type) {
    case '0': return "uncorrectable memory error in a wave";
    case '1': return "illegal instruction in a wave: is the code made for this GPU?";
    case '2':
      return "memory violation in a wave: an address out of LDS or scratch, or not aligned for its "
             "access";
    case '3': return "memory error in a wave";
    default: return "error in a wave";
  }
}

}  // namespace

std::string errors_in_words(std::string_view kernel_log, int64_t since_ns) {
  constexpr int kMostErrors = 3;
  std::string text;
  for (int found = 0; !kernel_log.empty() && found < kMostErrors;) {
    while (kernel_log.ends_with('\n')) kernel_log.remove_suffix(1);
    const size_t begin = kernel_log.rfind('\n') + 1;  // npos + 1: the first line
    const std::string_view line = kernel_log.substr(begin);
    kernel_log = kernel_log.substr(0, begin);
    const int64_t timestamp = timestamp_of(line);
    if (timestamp >= 0 && timestamp < since_ns) break;
    if (timestamp < 0) continue;
    std::string words;
    if (line.find("sq_intr: error") != line.npos) words = wave_error(line);
    const size_t at = line.find("amdgpu") == line.npos ? line.npos : line.find("page fault (");
    if (at != line.npos) words = std::string(line.substr(at));
    if (words.empty() || text.find(words) != text.npos) continue;
    text += (text.empty() ? "" : "; ") + words;
    ++found;
  }
  return text;
}

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
