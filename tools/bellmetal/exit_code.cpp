#include "tools/bellmetal/exit_code.h"

namespace bm::cli {

ExitCode exit_code(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return kUsage;
    case Code::kNotFound:
    case Code::kUnsupported:
    case Code::kPermission: return kUnavailable;
    case Code::kCorrupt: return kBadFile;
    case Code::kTimeout:
    case Code::kDeviceLost:
    case Code::kDeviceFault: return kDeviceFailed;
    case Code::kCancelled: return kInterrupted;
    case Code::kOutOfMemory:
    case Code::kIo:
    case Code::kCompile:
    case Code::kInternal: return kFailure;
  }
  return kFailure;
}

ExitCode file_exit_code(Code code) {
  switch (code) {
    case Code::kNotFound:
    case Code::kPermission:
    case Code::kIo:
    case Code::kCorrupt: return kBadFile;
    case Code::kInvalidArgument:
    case Code::kUnsupported:
    case Code::kOutOfMemory:
    case Code::kTimeout:
    case Code::kDeviceLost:
    case Code::kDeviceFault:
    case Code::kCompile:
    case Code::kCancelled:
    case Code::kInternal: return exit_code(code);
  }
  return kFailure;
}

const char* exit_code_help() {
  return "Exit codes:\n"
         "  0    done\n"
         "  1    failed: the work could not be done or gave a wrong result\n"
         "  2    usage: unknown command or option, value out of range\n"
         "  3    unavailable: a device, or something else that is needed, is not there\n"
         "  4    bad file: missing, unreadable, malformed or not writable\n"
         "  5    device failed: fault, hang or gone\n"
         "  130  interrupted by Ctrl-C\n";
}

}  // namespace bm::cli
