#include "tools/bellmetal/output.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "runtime/base/check.h"
#include "runtime/base/env.h"
#include "tools/bellmetal/commands.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;

const char* escape(Style style) {
  switch (style) {
    case Style::kBold: return "\x1b[1m";
    case Style::kDim: return "\x1b[2m";
    case Style::kRed: return "\x1b[31m";
    case Style::kGreen: return "\x1b[32m";
    case Style::kYellow: return "\x1b[33m";
  }
  return "";
}

size_t num_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void append_cell(std::string& line, std::string_view cell, size_t width, Table::Align align) {
  const size_t padding = width - num_code_points(cell);
  if (align == Table::Align::kRight) line.append(padding, ' ');
  line.append(cell);
  if (align == Table::Align::kLeft) line.append(padding, ' ');
}

}  // namespace

void print_json(const Json& value) {
  const std::string text = value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);  // finish_output() knows whether it worked
}

Json json_of(const Error& error) {
  return {{"code", code_name(error.code)}, {"message", error.message}};
}

int report(const Error& error, ExitCode exit, bool as_json) {
  if (as_json) {
    print_json({{"error", json_of(error)}});
  } else {
    const std::string who = styled("bellmetal:", Style::kRed, has_color(stderr));
    print_error(fmt::format("{} {}\n", who, error.message));
  }
  return exit;
}

int report(const Error& error, bool as_json) {
  return report(error, exit_code(error.code), as_json);
}

int report_file(const Error& error, const std::string& path, bool as_json) {
  // The file was fine as far as anybody knows.
  if (is_device_error(error.code)) return report(error, as_json);
  Error named = error;
  if (named.message.find(path) == std::string::npos) named.message = path + ": " + named.message;
  return report(named, error.code == Code::kInvalidArgument ? kBadFile : file_exit_code(error.code),
                as_json);
}

void print_error(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

void keep_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is `stream`; writing to what was opened for reading fails.
    const int opened = ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY, 0);
    BM_CHECK(opened == stream || opened < 0);
  }
}

int finish_output(int code) {
  errno = 0;
  bool is_written = std::fflush(stdout) == 0;
  // Some file systems tell only at the end that there was no room.
  if (const int copy = ::dup(STDOUT_FILENO); is_written && copy >= 0)
    is_written = ::close(copy) == 0;
  const int reason = errno;
  if (is_written && std::ferror(stdout) == 0) return code;
  print_error(fmt::format("bellmetal: the output is not complete: stdout could not be written{}\n",
                          reason != 0 ? ": " + errno_text(reason) : std::string()));
  return code == kOk ? kFailure : code;
}

bool has_color(std::FILE* stream) {
  if (settings().no_color || ::isatty(::fileno(stream)) == 0) return false;
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) != "dumb";
}

std::string styled(std::string_view text, Style style, bool enabled) {
  if (!enabled) return std::string(text);
  return fmt::format("{}{}\x1b[0m", escape(style), text);
}

void Table::add(std::vector<std::string> cells) {
  BM_CHECK(cells.size() <= columns_.size());
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = num_code_points(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, num_code_points(row[c]));
    widths.push_back(width);
  }
  std::string text;
  const auto append_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (c > 0) line.append("  ");
      append_cell(line, cell_of(c), widths[c], columns_[c].align);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  append_line([&](size_t c) -> std::string_view { return columns_[c].title; });
  for (const auto& row : rows_) {
    append_line([&](size_t c) -> std::string_view { return row[c]; });
  }
  return text;
}

std::string examples(std::string_view lines) {
  std::string text = "Examples:\n";
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    text += fmt::format("  {}\n", lines.substr(0, end));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return text;
}

std::string human_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.95 would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 359'999) return "-";
  const auto total = static_cast<int64_t>(std::llround(seconds));
  const int64_t hours = total / 3600, minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

}  // namespace bm::cli
