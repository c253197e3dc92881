#pragma once
// PTX to cubin by running ptxas: where there is a CUDA toolkit without nvJitLink.

#include <cstddef>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::compiler {

/// `target`: "sm_90a". Errors: kNotFound naming the places looked at; kCompile with its log;
/// kTimeout after 60 s.
Result<std::vector<std::byte>> ptxas_assemble(std::string_view ptx, std::string_view target);

}  // namespace bm::compiler
