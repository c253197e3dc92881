#pragma once
// The suite's kernels as PTX, which the modelled NVIDIA GPUs execute.

#include <string_view>
#include <vector>

#include "runtime/hal/device.h"
#include "runtime/hal/program.h"
#include "tests/cts/cts.h"

namespace bm::cts {

Result<hal::CodeObject> ptx_kernel(std::string_view name, const hal::Device& device);

/// What no machine can do whose programs are text.
std::vector<Exemption> ptx_exemptions();

}  // namespace bm::cts
