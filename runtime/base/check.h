#pragma once
// Broken promises of our own abort with a message; bad input is an Error instead (result.h).

namespace bm {
/// Prints "file:line: check failed: what" to stderr and aborts.
[[noreturn]] void check_failed(const char* what, const char* file, int line);
}  // namespace bm

#define BM_CHECK(condition)                               \
  do {                                                    \
    if (!(condition)) [[unlikely]]                        \
      ::bm::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
