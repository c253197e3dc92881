#pragma once
// Machine code of NVIDIA's cards as text.

#include <cstddef>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace bm::compiler {

/// PTX text as it is; a cubin by running nvdisasm or cuobjdump of a CUDA toolkit (CUDA_PATH,
/// /usr/local/cuda, PATH). Errors: kNotFound (neither is installed) naming the remedy; kTimeout.
Result<std::string> cuda_disassemble(std::span<const std::byte> image);

}  // namespace bm::compiler
