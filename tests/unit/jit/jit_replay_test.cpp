// Replay is a data operation: no allocation. Counted, not assumed.
#include <gtest/gtest.h>

#include "tests/unit/drivers/allocation_counter.h"
#include "tests/unit/jit/long_chain.h"

namespace bm {
namespace {

TEST(Replay, AllocatesNothing) {
  Jit step(test::long_chain);
  const auto x = test::chain_inputs();
  for (size_t i = 0; i < 4; ++i) step(x[i], x[(i + 1) % 4]);
  const uint64_t before = test::allocations_of_this_thread();
  for (size_t i = 0; i < 400; ++i) step(x[i % 4], x[(i + 1) % 4]);
  EXPECT_EQ(test::allocations_of_this_thread(), before);
  EXPECT_EQ(step(x[1], x[2]).data<float>()[0], 201);
}

}  // namespace
}  // namespace bm
