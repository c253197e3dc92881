// A signal while NVRTC compiles ends the process as it does anywhere else: NVRTC's own handlers
// call exit(4) in the middle of it.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "compiler/toolchain/nvrtc.h"

namespace bm::test {
namespace {

/// Work for the front end, which is the part with handlers of its own, and for nothing behind it.
const std::string& source() {
  static const std::string text = [] {
    std::string made;
    for (int i = 0; i < 20000; ++i)
      made +=
          fmt::format("template <int N> __device__ int f{0}(int x) {{ return x * {0} + N; }}\n", i);
    return made + "extern \"C\" __global__ void add(int* out) { out[0] = f7<3>(out[1]); }\n";
  }();
  return text;
}

bool compiles() { return bool(compiler::nvrtc_compile(source(), "sm_90", false)); }

/// Compiles until the signal `number` has ended the process.
[[noreturn]] void compile_until(int number) {
  const auto after = std::chrono::milliseconds(::getpid() % 100);
  std::thread([number, after] {
    std::this_thread::sleep_for(after);
    ::kill(::getpid(), number);
  }).detach();
  for (int i = 0; i < 1000; ++i)
    if (!compiles()) ::_exit(2);
  ::_exit(3);
}

class NvrtcSignalDeathTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!compiler::nvrtc_version()) GTEST_SKIP() << "no NVRTC here: set CUDA_PATH to a toolkit";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_P(NvrtcSignalDeathTest, EndsTheProcessAsWithoutNvrtc) {
  const int number = GetParam();
  for (int round = 0; round < 8; ++round)
    EXPECT_EXIT(
        compile_until(number),
        [number](int status) {
          if (WIFSIGNALED(status)) return WTERMSIG(status) == number;
          return number == SIGINT && WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGINT;
        },
        "");
}

INSTANTIATE_TEST_SUITE_P(Signals, NvrtcSignalDeathTest, testing::Values(SIGINT, SIGTERM, SIGHUP));

}  // namespace
}  // namespace bm::test
