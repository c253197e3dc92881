// Replay is a data operation: no system call. Counted, not assumed.
// A program of its own: the counted child is a fork, and devices do not survive one.
#include <gtest/gtest.h>

#include "tensor/jit.h"
#include "tests/unit/drivers/syscall_counter.h"

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

TEST(Replay, MakesNoSystemCall) {
  struct State {
    Jit<Tensor (*)(const Tensor&, const Tensor&)> step{chain};
    std::vector<Tensor> x = inputs();
  };
  const auto count = test::count_syscalls(
      [] {
        auto s = std::make_unique<State>();
        for (size_t i = 0; i < 4; ++i) s->step(s->x[i], s->x[(i + 1) % 4]);
        return s;
      },
      [](std::unique_ptr<State>& s) {
        for (size_t i = 0; i < 400; ++i) s->step(s->x[i % 4], s->x[(i + 1) % 4]);
        return 0;
      });
  if (!count.supported) GTEST_SKIP() << count.problem;
  EXPECT_EQ(count.exit_code, 0);
  EXPECT_EQ(count.numbers, std::vector<uint64_t>{});
}

}  // namespace
}  // namespace bm
