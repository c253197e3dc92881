#include "runtime/base/thread.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/base/out_of_memory.h"

namespace bm {
namespace {

TEST(Thread, RunsItsBodyAndIsJoinedByItsDestructor) {
  std::atomic<int> ran{0};
  {
    auto thread = Thread::start([&] { ran = 1; });
    ASSERT_TRUE(thread) << thread.error().message;
    EXPECT_TRUE(thread->is_joinable());
  }
  EXPECT_EQ(ran, 1);
}

TEST(Thread, MovesAndJoinsOnce) {
  std::atomic<int> ran{0};
  std::vector<Thread> threads;
  for (int i = 0; i < 3; ++i) {
    auto thread = Thread::start([&] { ++ran; });
    ASSERT_TRUE(thread) << thread.error().message;
    threads.push_back(std::move(*thread));
  }
  threads.front().join();
  EXPECT_FALSE(threads.front().is_joinable());
  threads.clear();
  EXPECT_EQ(ran, 3);
}

TEST(Thread, HasAStackForCompilersHoweverSmallTheDefaultIs) {
  pthread_attr_t before, small;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_getattr_default_np(&small), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&small, size_t{64} << 10), 0);
  ASSERT_EQ(pthread_setattr_default_np(&small), 0);
  size_t size = 0;
  {
    auto thread = Thread::start([&] {
      pthread_attr_t mine;
      void* low = nullptr;
      pthread_getattr_np(pthread_self(), &mine);
      pthread_attr_getstack(&mine, &low, &size);
      pthread_attr_destroy(&mine);
    });
    EXPECT_TRUE(thread);
  }
  pthread_setattr_default_np(&before);
  pthread_attr_destroy(&before);
  pthread_attr_destroy(&small);
  EXPECT_GE(size, kThreadStack);
}

/// A child that may start no thread; root is not bound by the limit, so it becomes another user.
TEST(Thread, SaysWhyItCannotBeStarted) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{0, 0};
    if (setrlimit(RLIMIT_NPROC, &none) != 0 || (getuid() == 0 && setuid(65534) != 0)) _exit(3);
    const auto thread = Thread::start([] {});
    if (thread) _exit(4);
    _exit(thread.error().message.find("ulimit -u") != std::string::npos ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(WorkerThreads, AreOnePerCoreUnlessAskedAndBoundedByTheCores) {
  const uint32_t cores = std::max(std::thread::hardware_concurrency(), 1u);
  EXPECT_EQ(worker_threads(0), cores);
  EXPECT_EQ(worker_threads(1), 1u);
  EXPECT_EQ(worker_threads(kAlwaysThreads), kAlwaysThreads);
  const uint32_t most = std::max(kAlwaysThreads, kThreadsPerCore * cores);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(worker_threads(4096), std::min(most, 4096u));
  EXPECT_EQ(worker_threads(4096), std::min(most, 4096u));
  const std::string said = ::testing::internal::GetCapturedStderr();
  if (most < 4096) {
    EXPECT_NE(said.find("BM_THREADS=4096"), std::string::npos) << said;
    EXPECT_EQ(said.find("BM_THREADS=4096"), said.rfind("BM_THREADS=4096")) << "said twice";
  }
}

TEST(OutOfMemory, NamesWhatAndHowMuch) {
  note_failed_allocation(12345);
  EXPECT_EQ(out_of_memory("reading x").message, "out of memory: reading x, 12345 bytes");
  EXPECT_EQ(out_of_memory("reading x").code, Code::kOutOfMemory);
  note_failed_allocation(0);
  EXPECT_TRUE(out_of_memory("y").message.starts_with("out of memory: y, the process holds "));
}

/// More than any address space holds, whatever the compiler may know of allocations nobody uses.
void* volatile never_had;
void allocate_too_much() {
  volatile size_t bytes = size_t{1} << 62;
  never_had = ::operator new(bytes);
}

TEST(OutOfMemory, EndsTheProcessInsideALibraryThatCannotBeUnwound) {
  EXPECT_EXIT(
      {
        const EndsOutOfMemory outer("outer library");
        const EndsOutOfMemory ends("inner library");
        allocate_too_much();
      },
      testing::ExitedWithCode(1), "out of memory: inner library");
  EXPECT_EXIT(
      {
        const EndsOutOfMemory ends("outer library");
        { const EndsOutOfMemory inner("inner library"); }
        allocate_too_much();
      },
      testing::ExitedWithCode(1), "out of memory: outer library");
}

TEST(OutOfMemory, ThrowsOutsideSuchLibraries) {
  { const EndsOutOfMemory ends("a library"); }
  EXPECT_THROW(allocate_too_much(), std::bad_alloc);
}

TEST(OutOfMemory, GuardTurnsExhaustionIntoAnErrorAndPassesTheRest) {
  const auto got = guard_memory("the call", []() -> Result<int> { throw std::bad_alloc(); });
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::kOutOfMemory);
  const auto size = guard_memory("the call", []() -> Result<size_t> {
    return std::vector<int>(std::vector<int>().max_size() + 1).size();
  });
  ASSERT_FALSE(size);
  EXPECT_EQ(size.error().code, Code::kOutOfMemory);
  EXPECT_THROW((void)guard_memory("the call", []() -> Status { throw 1; }), int);
  EXPECT_THROW(
      (void)guard_memory("the call", []() -> Status { throw std::runtime_error("another"); }),
      std::runtime_error);
  EXPECT_EQ(guard_memory("the call", []() -> Result<int> { return 7; }), 7);
}

TEST(OutOfMemoryDeathTest, EndsWithAMessageAndCodeOne) {
  EXPECT_EXIT(end_out_of_memory("compiling"), ::testing::ExitedWithCode(1),
              "bellmetal: out of memory: compiling, ");
}

}  // namespace
}  // namespace bm
