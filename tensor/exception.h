#pragma once
// The tensor surface throws: operators must return tensors.

#include <exception>

#include "runtime/base/out_of_memory.h"
#include "runtime/base/result.h"

namespace bm {

class Exception : public std::exception {
 public:
  explicit Exception(Error error) : error_(std::move(error)) {}
  const char* what() const noexcept override { return error_.message.c_str(); }
  Code code() const noexcept { return error_.code; }
  const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};

/// Value of a Result at the tensor surface, or Exception with its error.
template <class T>
T unwrap(Result<T>&& result) {
  if (!result) throw Exception(std::move(result.error()));
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

/// Calls `f` for an entry of the tensor surface: exhausted memory and threads that cannot be had
/// are an Exception of `what`; any other exception passes.
template <class F>
decltype(auto) guard_call(std::string_view what, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Exception&) {
    throw;
  } catch (const std::exception&) {
    throw Exception(error_of_exception(what));
  }
}

template <class... Args>
[[noreturn]] void raise(Code code, fmt::format_string<Args...> format, Args&&... args) {
  throw Exception(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

}  // namespace bm
