#pragma once
// Random kernels in the forms that tensors hand them over in: an operand packed beforehand,
// constants and offsets taken out.

#include "compiler/compile.h"
#include "tests/unit/compiler/random_kernel.h"

namespace bm::test {

/// Packs an operand with a kernel of its own and runs what is left of `k` on `buffers`, by param.
/// false: `k` has no operand to pack.
Result<bool> run_packed(const hal::Arch& arch, std::string_view renderer, const RandomKernel& k,
                        std::vector<std::vector<std::byte>>* buffers,
                        compiler::CompileOptions options);

/// Runs what share_kernel makes of `k`, with what was taken out handed over at launch. false:
/// nothing was.
Result<bool> run_shared(const hal::Arch& arch, std::string_view renderer, const RandomKernel& k,
                        std::vector<std::vector<std::byte>>* buffers,
                        compiler::CompileOptions options);

}  // namespace bm::test
