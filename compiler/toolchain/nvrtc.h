#pragma once
// CUDA C → cubin or PTX in this process by NVRTC, loaded when first needed.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::compiler {

/// "13.0". Errors: kNotFound naming the places looked at and what to install.
Result<std::string> nvrtc_version();

/// Compiles for `target` ("sm_90"): machine code, or with `wants_ptx` PTX text for that target
/// ending in NUL. `ptx`: receives the text the machine code was made from. Thread: any.
/// Errors: kNotFound; kUnsupported (this NVRTC does not know the target); kCompile with the log and
/// the source line it names.
Result<std::vector<std::byte>> nvrtc_compile(std::string_view source, std::string_view target,
                                             bool wants_ptx, std::string* ptx = nullptr);

/// `log` with the line of `source` that its first "NAME(12)" or "line 12" points at.
std::string with_source_line(const std::string& log, std::string_view source);

}  // namespace bm::compiler
