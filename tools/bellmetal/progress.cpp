#include "tools/bellmetal/progress.h"

#include <algorithm>
#include <cstdio>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

constexpr int kBarColumns = 24;
constexpr std::chrono::milliseconds kDrawInterval{100};
// Work that is over at once should not flash a line.
constexpr std::chrono::milliseconds kFirstDraw{300};

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

std::string progress_line(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
                          double seconds, int width) {
  const double rate = seconds > 0 ? static_cast<double>(done_bytes) / seconds : 0;
  std::string line = what;
  if (total_bytes > 0) {
    done_bytes = std::min(done_bytes, total_bytes);
    const double part = static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
    const auto filled = static_cast<size_t>(part * kBarColumns);
    line += fmt::format(" [{:<{}}] {:3.0f} %", std::string(filled, '#'), kBarColumns, part * 100);
    line += fmt::format("  {} of {}", human_bytes(done_bytes), human_bytes(total_bytes));
  } else {
    line += fmt::format("  {}", human_bytes(done_bytes));
  }
  if (rate > 0) line += fmt::format("  {}/s", human_bytes(static_cast<uint64_t>(rate)));
  if (rate > 0 && total_bytes > 0) {
    const double left = static_cast<double>(total_bytes - done_bytes) / rate;
    line += fmt::format("  {} left", human_duration(left));
  }
  if (line.size() > static_cast<size_t>(std::max(width, 1))) {
    line.resize(static_cast<size_t>(std::max(width, 1)));
  }
  return line;
}

Progress::Progress(std::string what, uint64_t total_bytes)
    : what_(std::move(what)),
      total_bytes_(total_bytes),
      is_terminal_(::isatty(STDERR_FILENO) != 0),
      next_draw_(start_ + kFirstDraw) {}

Progress::~Progress() {
  if (has_drawn_) print_error("\r\x1b[K");
}

void Progress::update(uint64_t done_bytes) {
  if (!is_terminal_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kDrawInterval;
  has_drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  // One column stays free: a full line would wrap on some terminals.
  const int width = terminal_columns() - 1;
  print_error("\r\x1b[K" + progress_line(what_, done_bytes, total_bytes_, seconds, width));
}

}  // namespace bm::cli
