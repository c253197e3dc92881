// Replay is a data operation: no allocation. Counted, not assumed.
#include <gtest/gtest.h>

#include "tensor/jit.h"
#include "tests/unit/drivers/allocation_counter.h"

namespace bm {
namespace {

Tensor chain(const Tensor& x, const Tensor& y) {
  Tensor t = x;
  for (int i = 0; i < 100; ++i) t = (t + y).contiguous();
  return t;
}

std::vector<Tensor> inputs() {
  std::vector<Tensor> list;
  for (int i = 0; i < 4; ++i)
    list.push_back(Tensor::from(std::vector<float>(16, static_cast<float>(i)), {16}));
  return list;
}

TEST(Replay, AllocatesNothing) {
  Jit step(chain);
  const auto x = inputs();
  for (size_t i = 0; i < 4; ++i) step(x[i], x[(i + 1) % 4]);
  const uint64_t before = test::allocations_of_this_thread();
  for (size_t i = 0; i < 400; ++i) step(x[i % 4], x[(i + 1) % 4]);
  EXPECT_EQ(test::allocations_of_this_thread(), before);
  EXPECT_EQ(step(x[1], x[2]).data<float>()[0], 201);
}

}  // namespace
}  // namespace bm
