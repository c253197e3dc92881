#pragma once
// JSONL writer of nvsnoop: no allocation, no lock held across calls of the program, usable in a
// signal handler.

#include <cstddef>
#include <cstdint>

namespace nvsnoop {

/// Opens the file that NVSNOOP_OUT names ("%p": process id; default nvsnoop.%p.jsonl).
void open_log();

/// One line. Values are appended as they come; the destructor writes the line with one write(2).
class Line {
 public:
  explicit Line(const char* call);
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  Line& number(const char* key, uint64_t value);
  Line& hex(const char* key, uint64_t value);
  Line& text(const char* key, const char* value);
  /// `count` bytes as hex digits; longer ones are cut at what a line holds.
  Line& bytes(const char* key, const void* data, size_t count);

 private:
  void key(const char* name);
  void put(char c);
  void put(const char* s);
  char* buffer_;
  size_t used_ = 0;
};

/// Copies what can be read of [source, source + count); returns the bytes copied. For ordinary
/// memory.
size_t read_memory(void* target, const void* source, size_t count);

}  // namespace nvsnoop
