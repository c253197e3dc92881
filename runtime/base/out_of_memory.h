#pragma once
// Exhausted memory as an error of the call, and its message where there is no memory for one.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string_view>
#include <utility>

#include "runtime/base/result.h"

namespace bm {

/// Told by a program's operator new when it fails; messages of this thread then name the size.
void note_failed_allocation(uint64_t bytes) noexcept;
/// Of the last failure noted on this thread; 0: none was.
uint64_t failed_allocation_bytes() noexcept;

/// kOutOfMemory, "out of memory: <what>, <bytes> bytes"; where nobody noted the size, what the
/// process holds instead. Needs no memory: without any the message is "out of memory".
Error out_of_memory(std::string_view what) noexcept;

/// What the exception being handled means as an error of `what`: std::bad_alloc, sizes beyond every
/// memory (std::length_error), threads that cannot be started (std::system_error). Any other is
/// thrown on. Only inside a catch block.
Error error_of_exception(std::string_view what);

/// Result of `f`, a function that gives Result<T>; exhausted memory in it is the error of `what`.
template <class F>
auto guard_memory(std::string_view what, F&& f) -> decltype(f()) {
  try {
    return std::forward<F>(f)();
  } catch (const std::exception&) {
    return tl::unexpected<Error>(error_of_exception(what));
  }
}

/// Writes "bellmetal: out of memory: <what>, <bytes> bytes" to stderr and ends the process with
/// code 1: no destructors, no core. For code that cannot be unwound. Allocates nothing.
[[noreturn]] void end_out_of_memory(std::string_view what) noexcept;

/// While one lives, operator new that fails on this thread calls end_out_of_memory(what) instead of
/// throwing: around calls of libraries with C interfaces whose insides are C++ that exceptions
/// leave with locks held. They nest; the inner one speaks.
class EndsOutOfMemory {
 public:
  /// `what`: a literal.
  explicit EndsOutOfMemory(const char* what) noexcept;
  ~EndsOutOfMemory();
  EndsOutOfMemory(const EndsOutOfMemory&) = delete;
  EndsOutOfMemory& operator=(const EndsOutOfMemory&) = delete;

 private:
  const char* const outer_;
};

}  // namespace bm
