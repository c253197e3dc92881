#include "runtime/base/result.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/base/check.h"

namespace bm {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kNotFound: return "not_found";
    case Code::kUnsupported: return "unsupported";
    case Code::kOutOfMemory: return "out_of_memory";
    case Code::kTimeout: return "timeout";
    case Code::kDeviceLost: return "device_lost";
    case Code::kDeviceFault: return "device_fault";
    case Code::kIo: return "io";
    case Code::kPermission: return "permission";
    case Code::kCorrupt: return "corrupt";
    case Code::kCompile: return "compile";
    case Code::kCancelled: return "cancelled";
    case Code::kInternal: return "internal";
  }
  return "internal";
}

bool is_device_error(Code code) {
  return code == Code::kTimeout || code == Code::kDeviceLost || code == Code::kDeviceFault;
}

Code code_from_errno(int error_number) {
  switch (error_number) {
    case EACCES:
    case EPERM: return Code::kPermission;
    case ENOENT:
    case ENODEV:
    case ENXIO: return Code::kNotFound;
    case ENOMEM: return Code::kOutOfMemory;
    default: return Code::kIo;
  }
}

std::string errno_text(int error_number) {
  char buffer[128];
  // GNU strerror_r: may return a static string instead of filling the buffer.
  return strerror_r(error_number, buffer, sizeof buffer);
}

void check_failed(const char* what, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what);
  std::abort();
}

}  // namespace bm
