#pragma once
// Lines that a user types at a terminal, with editing and a history (libedit).

#include <memory>
#include <string>

namespace bm::cli {

/// Speaks on stderr: stdout is the answers' alone. What is typed is kept for the life of the object
/// and written nowhere. One at a time.
class LineEditor {
 public:
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Event {
    kLine,         ///< Enter
    kEnd,          ///< Ctrl-D on an empty line, or the terminal is gone
    kInterrupted,  ///< Ctrl-C, with the InterruptScope of the caller
  };
  /// Waits for a line; `line` comes without its newline.
  Event read(const std::string& prompt, std::string& line);
  /// Puts an entry into the history; it may have several lines.
  void remember(const std::string& entry);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bm::cli
