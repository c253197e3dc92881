#pragma once
// How commands speak: results on stdout, everything else on stderr, errors in one form.

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/base/result.h"
#include "tools/bellmetal/exit_code.h"

namespace bm::cli {

/// One JSON object (or array) and a newline on stdout. Text that is not UTF-8 is replaced, not
/// refused.
void print_json(const nlohmann::ordered_json& value);

/// {"code", "message"}.
nlohmann::ordered_json json_of(const Error& error);
/// "bellmetal: message" on stderr, or {"error": {"code", "message"}} on stdout. Returns `exit`.
int report(const Error& error, ExitCode exit, bool as_json);
/// The same with exit_code(error.code).
int report(const Error& error, bool as_json);

/// The same for an error met with the file `path`, which the message names: file_exit_code(), and
/// kBadFile for whatever else is wrong with it (a folder, a device). A device that failed meanwhile
/// is no matter of the file: report().
int report_file(const Error& error, const std::string& path, bool as_json);

/// `text` on stderr; that it could not be written is nobody's error.
void print_error(std::string_view text);

/// To be called before anything is opened: a standard stream that is closed becomes one that
/// cannot be written, so that no file opened later takes its number and gets what is printed.
void keep_standard_streams();
/// To be called last: the exit code of a program that would end with `code`. Output that was not
/// written is said on stderr and makes kOk a kFailure.
int finish_output(int code);

/// Whether `stream` is a terminal that takes colors: not with NO_COLOR or TERM=dumb.
bool has_color(std::FILE* stream);

enum class Style { kBold, kDim, kRed, kGreen, kYellow };
/// `text` in a style, or unchanged when `enabled` is false.
std::string styled(std::string_view text, Style style, bool enabled);

/// Columns aligned by their widest cell. Widths count code points, not bytes; cells are single
/// lines.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Missing cells are empty; more cells than columns is a broken promise.
  void add(std::vector<std::string> cells);
  /// Every line ends with a newline and has no trailing spaces.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// "1.5 GiB", "12 KiB", "17 B".
std::string human_bytes(uint64_t bytes);
/// "0:07", "12:34", "3:00:00".
std::string human_duration(double seconds);

}  // namespace bm::cli
