#pragma once
// Exit codes of the program, the same for every command. docs/cli.md repeats this table.

#include "runtime/base/result.h"

namespace bm::cli {

enum ExitCode : int {
  kOk = 0,
  kFailure = 1,        ///< the work itself failed: does not compile, wrong result, out of memory
  kUsage = 2,          ///< unknown command or option, value out of range
  kUnavailable = 3,    ///< the device, or what the command needs, is not there or may not be used
  kBadFile = 4,        ///< a file is missing, unreadable, malformed or not writable
  kDeviceFailed = 5,   ///< the device stopped: fault, hang, gone
  kInterrupted = 130,  ///< Ctrl-C
};

/// Exit code of an error whose subject is not a file. Not found means the device here.
ExitCode exit_code(Code code);
/// Exit code of an error met while opening, reading or writing a file the user named.
ExitCode file_exit_code(Code code);

/// The table as `bellmetal --help` prints it.
const char* exit_code_help();

}  // namespace bm::cli
