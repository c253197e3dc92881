#pragma once
// PTX → cubin in this process by nvJitLink, loaded when first needed.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::compiler {

/// "13.0". Errors: kNotFound naming the places looked at and what to install.
Result<std::string> nvjitlink_version();

/// `target`: "sm_90". Thread: any. Errors: kNotFound; kCompile with the linker's log and the source
/// line it names.
Result<std::vector<std::byte>> nvjitlink_assemble(std::string_view ptx, std::string_view target);

}  // namespace bm::compiler
