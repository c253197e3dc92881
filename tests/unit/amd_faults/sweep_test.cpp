// Every call to the kernel driver fails once, from opening the device to closing it: no crash, no
// hang, nothing left, the call named, and the machine works afterwards.

#include <cerrno>
#include <set>

#include <gtest/gtest.h>

#include "runtime/base/env.h"
#include "tests/unit/amd_faults/bench.h"

namespace bm::amd::faults {
namespace {

Status use(Bench& bench) {
  BM_TRY(bench.open());
  BM_TRY(bench.works());
  BM_TRY(bench.allocate(40 << 20));
  BM_TRY(bench.allocate(40 << 20, true));
  std::vector<std::byte> mine(10'000);
  { const auto wrapped = BM_TRY(bench.hal().allocate({.size = 10'000, .external = mine.data()})); }
  return bench.device().synchronize();
}

TEST(AmdSweep, EveryCallOfTheDeviceFailsOnce) {
  const ScopedSetting quiet("BM_LOG", "amd=0");
  const ScopedSetting wait("BM_WAIT_TIMEOUT_MS", "5000");
  int calls = 0;
  {
    Bench bench({}, PacketMode::kPm4);
    const Status used = use(bench);
    ASSERT_TRUE(used) << used.error().message;
    bench.close();
    calls = static_cast<int>(bench.system().calls());
  }
  EXPECT_GT(calls, 60);
  int failures = 0;
  std::set<std::string> named;
  for (int call = 0; call < calls; ++call) {
    const int error = std::array{ENOMEM, EINVAL, EIO}[static_cast<size_t>(call) % 3];
    SCOPED_TRACE(fmt::format("call {}, {}", call, errno_text(error)));
    Bench bench({.failing_call = call, .failing_error = error}, PacketMode::kPm4);
    const Status used = use(bench);
    if (!used) {
      ++failures;
      const std::string& text = used.error().message;
      const size_t at = text.find("KFD ");
      const bool is_told = at != std::string::npos || text.find("reset") != std::string::npos;
      EXPECT_TRUE(is_told) << text;
      if (at != std::string::npos)
        named.insert(text.substr(at + 4, text.find_first_of(" :", at + 4) - at - 4));
    }
    bench.close();
    // One that the kernel refuses to destroy stays.
    EXPECT_LE(bench.system().queues(), 1u);
    EXPECT_EQ(bench.system().open_files(), 0u);
    bench.system().options().failing_call = -1;
    const Status again = use(bench);
    EXPECT_TRUE(again) << again.error().message;
  }
  EXPECT_GT(failures, 25);
  for (const char* name : {"GET_VERSION", "ACQUIRE_VM", "ALLOC_MEMORY_OF_GPU", "MAP_MEMORY_TO_GPU",
                           "CREATE_EVENT", "CREATE_QUEUE"})
    EXPECT_TRUE(named.contains(name)) << name;
}

}  // namespace
}  // namespace bm::amd::faults
