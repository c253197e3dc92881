#pragma once
// Runs compiled kernels on the first OpenCL device, where there is one.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compiler/ir/kernel.h"
#include "runtime/hal/device.h"

namespace bm::test {

/// The device tests share, opened once. Errors: why there is none.
Result<hal::Device*> cl_device();
/// "" or the reason to skip.
std::string why_no_cl();

/// Runs a compiled kernel once; `buffers` (by param) are copied there and back.
Status run_on_cl(const hal::CodeObject& code, std::span<std::vector<std::byte>> buffers,
                 std::span<const int64_t> vars);

}  // namespace bm::test
