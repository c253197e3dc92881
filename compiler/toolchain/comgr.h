#pragma once
// AMD's code object manager (comgr), which compiles HIP in this process. Loaded when it is first
// needed, never required.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/targets/target.h"
#include "runtime/base/result.h"

namespace bm::compiler {

/// "3.0". Errors: kNotFound naming the places looked at and the package.
Result<std::string> comgr_version();

/// HIP C++ → relocatable code object for target.cpu. Thread: any, one at a time.
/// Errors: kNotFound (no library), kUnsupported (a release we do not know), kCompile with its log
/// and the source line.
Result<std::vector<std::byte>> comgr_compile(std::string_view source, const TargetInfo& target);

}  // namespace bm::compiler
