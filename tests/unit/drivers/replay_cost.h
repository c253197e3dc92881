#pragma once
// What a replay of 100 kernels costs the host, for the drivers of hardware queues alike. A rig has
// replay() and submit(), which say whether they were taken.

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/unit/drivers/instruction_counter.h"
#include "tests/unit/drivers/syscall_counter.h"

namespace bm::test {

/// `make` returns a rig whose lists have grown to their size.
template <class Make>
void expect_no_system_call(const Make& make) {
  const SyscallCount seen = count_syscalls(make, [](auto& rig) {
    bool good = true;
    for (int i = 0; i < 100; ++i) good = good && rig->replay() && rig->submit();
    return good ? 0 : 1;
  });
  if (!seen.supported) GTEST_SKIP() << seen.problem;
  EXPECT_EQ(seen.exit_code, 0);
  EXPECT_EQ(seen.numbers.size(), 0u)
      << "first: " << (seen.numbers.empty() ? 0 : seen.numbers.front());
}

/// Counted one by one, so the number is the same on every run of one build. `most`: of an optimised
/// build.
template <class Make>
void expect_few_instructions(const Make& make, [[maybe_unused]] uint64_t most) {
  const InstructionCount seen = count_instructions(
      [&] {
        auto rig = make();
        for (int i = 0; i < 3; ++i) rig->replay();
        return rig;
      },
      [](auto& rig) { rig->replay(); });
  if (!seen.supported) GTEST_SKIP() << seen.problem;
  testing::Test::RecordProperty("instructions", static_cast<int>(seen.instructions));
  std::printf("replay of 100 kernels, 101 patch sites changed: %ld instructions\n",
              static_cast<long>(seen.instructions));
  EXPECT_GT(seen.instructions, 1'000u);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seen.instructions, most);
#endif
}

}  // namespace bm::test
