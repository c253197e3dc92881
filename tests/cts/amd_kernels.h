#pragma once
// The suite's kernels as LLVM compiles them for AMD GPUs.

#include <string_view>

#include "runtime/hal/device.h"
#include "runtime/hal/program.h"

namespace bm::cts {

/// Compiled once a process and chip. Thread-safe.
Result<hal::CodeObject> amd_kernel(std::string_view name, const hal::Device& device);

}  // namespace bm::cts
