#pragma once
// Result<T>, Status, Error: how every layer below the tensor surface reports failure.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <tl/expected.hpp>

namespace bm {

/// Kind of failure; stable names (`code_name`) appear in `--json` output.
enum class Code : uint8_t {
  kInvalidArgument,  ///< the caller's mistake: shape, dtype, string, option
  kNotFound,         ///< named thing does not exist (device, file, kernel)
  kUnsupported,      ///< cannot be done here; also the fallback signal of graph builders
  kOutOfMemory,      ///< message holds requested, used, cached and cap
  kTimeout,          ///< bounded wait expired
  kDeviceLost,       ///< sticky: only reopening the device clears it
  kDeviceFault,      ///< memory fault or exception on the device
  kIo,               ///< operating system refused a file or device operation
  kPermission,       ///< EACCES/EPERM; message says which node, group or rule
  kCorrupt,          ///< file or message is malformed; message holds the offset
  kCompile,          ///< a kernel did not compile; message holds the log
  kCancelled,        ///< stopped on request (Ctrl-C)
  kInternal,         ///< a promise of ours was broken but could be contained
};

/// "invalid_argument", "not_found", …
std::string_view code_name(Code code);
/// Whether it says that a device failed or stands still: kTimeout, kDeviceLost, kDeviceFault.
bool is_device_error(Code code);

struct Error {
  Code code = Code::kInternal;
  std::string message;

  /// Same error with `context` in front: "context: message".
  Error within(std::string_view context) && {
    message.insert(0, ": ");
    message.insert(0, context);
    return std::move(*this);
  }
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

/// Makes an error from a fmt format string: `return fail(Code::kIo, "read {}: {}", path, why);`
template <class... Args>
[[nodiscard]] tl::unexpected<Error> fail(Code code, fmt::format_string<Args...> format,
                                         Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

/// kPermission, kNotFound, kOutOfMemory or kIo for an errno value.
Code code_from_errno(int error_number);
/// Text of an errno value (thread-safe).
std::string errno_text(int error_number);

namespace detail {
template <class T>
T take(Result<T>& result) {
  return std::move(*result);
}
inline void take(Result<void>&) {}
}  // namespace detail

}  // namespace bm

/// Value of a Result expression, or return of its error to our caller.
/// `auto x = BM_TRY(open(path));`  `BM_TRY(write(x));`
#define BM_TRY(...)                                                            \
  __extension__({                                                              \
    auto bm_try_result_ = (__VA_ARGS__);                                       \
    if (!bm_try_result_) [[unlikely]]                                          \
      return ::tl::unexpected<::bm::Error>(std::move(bm_try_result_.error())); \
    ::bm::detail::take(bm_try_result_);                                        \
  })
