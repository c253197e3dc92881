#pragma once
// Whether the compile cache's directory can be trusted with code we will run.

#include <string>

#include "runtime/base/result.h"

namespace bm::compiler {

/// Makes `path` (and parents, mode 0700) and checks that nobody else can write to it or put another
/// folder in its place: what lies there is machine code. Result: its path without symbolic links.
/// Errors: kInvalidArgument (relative); those of trusted_folder; kIo and friends from mkdir.
Result<std::string> prepare_cache_directory(const std::string& path);

/// The same for a database in such a folder and the files SQLite keeps beside it; one that is
/// missing is made, mode 0600. Errors: those of open_trusted, kNotFound excepted.
Status check_cache_file(const std::string& path);

}  // namespace bm::compiler
