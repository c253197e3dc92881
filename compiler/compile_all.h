#pragma once
// Several kernels → code objects, at the price of one start of the compiler.

#include <span>
#include <string_view>
#include <vector>

#include "compiler/ir/kernel.h"
#include "runtime/base/result.h"
#include "runtime/hal/arch.h"
#include "runtime/hal/program.h"

namespace bm::compiler {

/// What compile() gives for each of `kernels`, in their order. Thread: any.
std::vector<Result<hal::CodeObject>> compile_all(std::span<const ir::KernelIr* const> kernels,
                                                 const hal::Arch& arch, std::string_view renderer);

/// How many kernels at a time are worth it; 1: together they cost what they cost alone.
size_t most_together(const hal::Arch& arch, std::string_view renderer);

}  // namespace bm::compiler
