#pragma once
// What a random kernel should give, and whether it did.

#include <gtest/gtest.h>

#include "tests/unit/compiler/random_kernel.h"

namespace bm::test {

/// Contents of all buffers after the interpreter has run the kernel.
Result<std::vector<std::vector<std::byte>>> reference(const RandomKernel& k);

/// To the last bit, but for the sign of zeros in kernels with maxima over loops, or within
/// k.tolerance of the largest value of the buffer; any NaN is any other.
testing::AssertionResult same(const RandomKernel& k, const std::vector<std::vector<std::byte>>& got,
                              const std::vector<std::vector<std::byte>>& want);

}  // namespace bm::test
