#pragma once
// Reference interpreter of KernelIr: loops literally, scalars through ir::fold. The oracle of
// tests; slow by design.

#include <cstddef>
#include <span>
#include <vector>

#include "compiler/ir/kernel.h"

namespace bm::compiler {

/// Runs `kernel` on raw buffers, one per param, `vars` in order.
/// Errors: kInvalidArgument (counts), kInternal naming an access outside its buffer.
Status evaluate(const ir::KernelIr& kernel, std::span<const std::span<std::byte>> buffers,
                std::span<const int64_t> vars);

}  // namespace bm::compiler
