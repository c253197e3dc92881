// Replay is a data operation: no system call. Counted, not assumed.
// A program of its own: the counted child is a fork, and devices do not survive one.
#include <gtest/gtest.h>

#include "tests/unit/drivers/syscall_counter.h"
#include "tests/unit/jit/long_chain.h"

namespace bm {
namespace {

TEST(Replay, MakesNoSystemCall) {
  struct State {
    Jit<Tensor (*)(const Tensor&, const Tensor&)> step{test::long_chain};
    std::vector<Tensor> x = test::chain_inputs();
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
