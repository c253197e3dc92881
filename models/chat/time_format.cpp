#include "models/chat/time_format.h"

#include <array>

namespace bm::models::jinja {
namespace {

constexpr std::array<std::string_view, 12> kMonths = {
    "January", "February", "March",     "April",   "May",      "June",
    "July",    "August",   "September", "October", "November", "December"};
constexpr std::array<std::string_view, 7> kDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                   "Thursday", "Friday", "Saturday"};

template <size_t n>
std::string_view name_of(const std::array<std::string_view, n>& names, int index) {
  return index >= 0 && static_cast<size_t>(index) < n ? names[static_cast<size_t>(index)] : "?";
}

/// `value` in `width` places; `flag` is glibc's: '-' without padding, '_' with spaces, '0' with
/// zeros.
std::string padded(int value, int width, char flag, char fill = '0') {
  if (flag == '-') return fmt::format("{}", value);
  if (flag == '_' || (fill == ' ' && flag != '0')) return fmt::format("{:{}}", value, width);
  return fmt::format("{:0{}}", value, width);
}

}  // namespace

Result<std::string> format_time(std::string_view format, const std::tm& time) {
  std::string out;
  for (size_t pos = 0; pos < format.size(); ++pos) {
    if (format[pos] != '%' || pos + 1 == format.size()) {
      out += format[pos];
      continue;
    }
    char directive = format[++pos];
    char flag = '\0';
    if ((directive == '-' || directive == '_' || directive == '0') && pos + 1 < format.size()) {
      flag = directive;
      directive = format[++pos];
    }
    const int hour = time.tm_hour % 12 == 0 ? 12 : time.tm_hour % 12;
    const auto combined = [&](std::string_view parts) -> Status {
      out += BM_TRY(format_time(parts, time));
      return {};
    };
    switch (directive) {
      case 'Y': out += fmt::format("{}", time.tm_year + 1900); break;
      case 'C': out += padded((time.tm_year + 1900) / 100, 2, flag); break;
      case 'y': out += padded(time.tm_year % 100, 2, flag); break;
      case 'm': out += padded(time.tm_mon + 1, 2, flag); break;
      case 'd': out += padded(time.tm_mday, 2, flag); break;
      case 'e': out += padded(time.tm_mday, 2, flag, ' '); break;
      case 'H': out += padded(time.tm_hour, 2, flag); break;
      case 'I': out += padded(hour, 2, flag); break;
      case 'k': out += padded(time.tm_hour, 2, flag, ' '); break;
      case 'l': out += padded(hour, 2, flag, ' '); break;
      case 'M': out += padded(time.tm_min, 2, flag); break;
      case 'S': out += padded(time.tm_sec, 2, flag); break;
      case 'j': out += padded(time.tm_yday + 1, 3, flag); break;
      case 'u': out += padded(time.tm_wday == 0 ? 7 : time.tm_wday, 1, flag); break;
      case 'w': out += padded(time.tm_wday, 1, flag); break;
      case 'p': out += time.tm_hour < 12 ? "AM" : "PM"; break;
      case 'f': out += "000000"; break;
      case 'B': out += name_of(kMonths, time.tm_mon); break;
      case 'b':
      case 'h': out += name_of(kMonths, time.tm_mon).substr(0, 3); break;
      case 'A': out += name_of(kDays, time.tm_wday); break;
      case 'a': out += name_of(kDays, time.tm_wday).substr(0, 3); break;
      case 'F': BM_TRY(combined("%Y-%m-%d")); break;
      case 'T':
      case 'X': BM_TRY(combined("%H:%M:%S")); break;
      case 'R': BM_TRY(combined("%H:%M")); break;
      case 'D':
      case 'x': BM_TRY(combined("%m/%d/%y")); break;
      case 'c': BM_TRY(combined("%a %b %e %H:%M:%S %Y")); break;
      // A local time without a zone has neither offset nor name, as in Python.
      case 'z':
      case 'Z': break;
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case '%': out += '%'; break;
      default:
        return fail(Code::kUnsupported, "a date has no part %{:.1}",
                    std::string_view(&format[pos], 1));
    }
  }
  return out;
}

}  // namespace bm::models::jinja
