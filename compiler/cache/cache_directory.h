#pragma once
// Whether the compile cache's directory can be trusted with code we will run.

#include <string>

#include "runtime/base/result.h"

namespace bm::compiler {

/// Makes `path` (and parents, mode 0700) and checks that nobody else can write to it: what lies
/// there is machine code. Errors: kPermission naming owner or mode; kIo and friends from mkdir.
Status prepare_cache_directory(const std::string& path);

}  // namespace bm::compiler
