#include "drivers/cpu/pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <thread>
#include <utility>
#include <vector>

#include "drivers/cpu/cpu_info.h"
#include "drivers/cpu/device.h"
#include "runtime/base/env.h"
#include "tests/unit/drivers/kernels.h"

namespace bm::cpu {
namespace {

using test::address;

/// args: counts. Not atomic: every block belongs to one thread, and the caller sees all of them.
void count_block(const uint64_t* args, uint64_t begin, uint64_t end, void*) {
  auto* counts = reinterpret_cast<uint32_t*>(args[0]);
  for (uint64_t block = begin; block < end; ++block) counts[block] += 1;
}

void expect_all(const std::vector<uint32_t>& counts, uint32_t value) {
  for (size_t i = 0; i < counts.size(); ++i) ASSERT_EQ(counts[i], value) << "block " << i;
}

TEST(Pool, RunsEveryBlockOnce) {
  Pool pool({.threads = 4});
  for (uint64_t blocks : {1u, 2u, 3u, 7u, 31u, 32u, 33u, 1000u, 100'003u}) {
    std::vector<uint32_t> counts(blocks);
    const uint64_t args[] = {address(counts.data())};
    pool.run(count_block, args, blocks);
    expect_all(counts, 1);
  }
}

TEST(Pool, StartsItsWorkersWithTheFirstRun) {
  Pool pool({.threads = 3});
  EXPECT_EQ(pool.workers_started(), 0u);
  std::vector<uint32_t> counts(10);
  const uint64_t args[] = {address(counts.data())};
  pool.run(count_block, args, 0);
  EXPECT_EQ(pool.workers_started(), 0u) << "nothing to do";
  pool.run(count_block, args, 10);
  EXPECT_EQ(pool.workers_started(), 2u);
}

TEST(Pool, OneThreadNeedsNoWorkers) {
  Pool pool({.threads = 1});
  std::vector<uint32_t> counts(10);
  const uint64_t args[] = {address(counts.data())};
  pool.run(count_block, args, 10);
  EXPECT_EQ(pool.workers_started(), 0u);
  expect_all(counts, 1);
}

TEST(Pool, ManyRunsInARowSeeEachOthersWrites) {
  Pool pool({.threads = 4});
  std::vector<uint32_t> counts(257);
  const uint64_t args[] = {address(counts.data())};
  for (int i = 0; i < 3000; ++i) pool.run(count_block, args, counts.size());
  expect_all(counts, 3000);
}

TEST(Pool, FourThreadsMayRunAtOnce) {
  Pool pool({.threads = 4, .pin = true});
  std::vector<std::vector<uint32_t>> counts(4, std::vector<uint32_t>(97));
  std::vector<std::thread> threads;
  for (auto& mine : counts)
    threads.emplace_back([&pool, &mine] {
      const uint64_t args[] = {address(mine.data())};
      for (int i = 0; i < 500; ++i) pool.run(count_block, args, mine.size());
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : counts) expect_all(mine, 500);
}

TEST(Pool, AKernelMayRunAnother) {
  struct Nested {
    Pool* pool;
    std::vector<uint32_t> inner[8];
  };
  Nested nested{};
  Pool pool({.threads = 3});
  nested.pool = &pool;
  for (auto& inner : nested.inner) inner.resize(50);
  const uint64_t args[] = {address(&nested)};
  pool.run(
      [](const uint64_t* a, uint64_t begin, uint64_t end, void*) {
        auto& mine = *reinterpret_cast<Nested*>(a[0]);
        for (uint64_t block = begin; block < end; ++block) {
          const uint64_t inner_args[] = {address(mine.inner[block].data())};
          mine.pool->run(count_block, inner_args, mine.inner[block].size());
        }
      },
      args, 8);
  for (const auto& inner : nested.inner) expect_all(inner, 1);
}

/// args: counts. Fills its scratch, lets others run, and looks for what they left in it.
void use_scratch(const uint64_t* args, uint64_t begin, uint64_t end, void* scratch) {
  auto* counts = reinterpret_cast<uint32_t*>(args[0]);
  auto* words = static_cast<volatile uint64_t*>(scratch);
  const bool is_good = scratch != nullptr && reinterpret_cast<uint64_t>(scratch) % 64 == 0;
  for (uint64_t block = begin; block < end; ++block) {
    bool is_mine = is_good;
    for (uint64_t i = 0; is_good && i < 512; ++i) words[i] = block ^ args[0];
    std::this_thread::yield();
    for (uint64_t i = 0; is_good && i < 512; ++i)
      is_mine = is_mine && words[i] == (block ^ args[0]);
    counts[block] += is_mine ? 1 : 100;
  }
}

TEST(Pool, EveryThreadHasItsOwnScratch) {
  Pool pool({.threads = 4});
  ASSERT_TRUE(pool.reserve_scratch(4096).has_value());
  std::vector<std::vector<uint32_t>> counts(12, std::vector<uint32_t>(97));
  std::vector<std::thread> threads;
  // More callers than blocks of scratch.
  for (auto& mine : counts)
    threads.emplace_back([&pool, &mine] {
      const uint64_t args[] = {address(mine.data())};
      for (int i = 0; i < 50; ++i) pool.run(use_scratch, args, mine.size(), 4096);
    });
  for (uint64_t bytes = 1 << 12; bytes <= 4 << 20; bytes *= 2)
    EXPECT_TRUE(pool.reserve_scratch(bytes).has_value());
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : counts) expect_all(mine, 50);
}

/// args: counts. Counts blocks that do not begin with ones, and leaves zeros.
void expect_ones(const uint64_t* args, uint64_t, uint64_t, void* scratch) {
  auto* words = static_cast<uint64_t*>(scratch);
  for (int i = 0; i < 512; ++i)
    if (std::exchange(words[i], 0) != ~uint64_t{0})
      reinterpret_cast<std::atomic<uint64_t>*>(args[0])->fetch_add(1);
}

TEST(Pool, PoisonedScratchIsOnesAtEveryLaunch) {
  const ScopedSetting poison("BM_POISON", "1");
  Pool pool({.threads = 2});
  ASSERT_TRUE(pool.reserve_scratch(4096).has_value());
  std::atomic<uint64_t> stale{0};
  const std::array args{reinterpret_cast<uint64_t>(&stale)};
  for (int i = 0; i < 3; ++i) pool.run(expect_ones, args.data(), 1, 4096);
  EXPECT_EQ(stale, 0u);
}

TEST(Pool, ScratchBeyondTheMachineIsRefused) {
  Pool pool({.threads = 2});
  for (uint64_t bytes : {uint64_t{1} << 60, ~uint64_t{0}, ~uint64_t{0} - (3 << 20)}) {
    const Status status = pool.reserve_scratch(bytes);
    ASSERT_FALSE(status.has_value()) << bytes;
    EXPECT_EQ(status.error().code, Code::kOutOfMemory);
  }
  ASSERT_TRUE(pool.reserve_scratch(64).has_value());
}

double process_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

TEST(Pool, IdleWorkersSpinShortlyThenPark) {
  Pool pool({.threads = 4});
  std::vector<uint32_t> counts(64);
  const uint64_t args[] = {address(counts.data())};
  pool.run(count_block, args, counts.size());
  // Nothing can be waited for here: what must happen is that nothing does.
  const double before = process_seconds();
  usleep(200'000);
  EXPECT_LT(process_seconds() - before, 0.05) << "three workers would have spun for 0.6 s";
  pool.run(count_block, args, counts.size());
  expect_all(counts, 2);
}

/// args: for each block, what its thread may use and whether the thread is the caller's.
struct Where {
  int cores = 0;
  bool is_caller = false;
  pthread_t thread{};
  cpu_set_t usable{};
};
void note_where(const uint64_t* args, uint64_t begin, uint64_t end, void*) {
  auto* notes = reinterpret_cast<Where*>(args[0]);
  const auto caller = static_cast<pthread_t>(args[1]);
  cpu_set_t usable;
  pthread_getaffinity_np(pthread_self(), sizeof usable, &usable);
  for (uint64_t b = begin; b < end; ++b)
    notes[b] = {CPU_COUNT(&usable), pthread_equal(pthread_self(), caller) != 0, pthread_self(),
                usable};
  usleep(200);  // so that every worker gets its share
}

TEST(Pool, PinnedWorkersHaveOneCoreAndTheCallerKeepsIts) {
  cpu_set_t mine;
  pthread_getaffinity_np(pthread_self(), sizeof mine, &mine);
  for (const bool pin : {false, true}) {
    Pool pool({.threads = 3, .pin = pin});
    std::vector<Where> notes(24);
    const uint64_t args[] = {address(notes.data()), static_cast<uint64_t>(pthread_self())};
    int by_workers = 0, first_by_caller = 0;
    for (int round = 0; round < 20; ++round) {
      pool.run(note_where, args, notes.size());
      first_by_caller += notes[0].is_caller;
      for (const Where& n : notes) {
        // Workers that are not pinned may be kept from the caller's core.
        if (n.is_caller || pin) {
          EXPECT_EQ(n.cores, n.is_caller ? CPU_COUNT(&mine) : 1);
        }
        by_workers += !n.is_caller;
      }
    }
    EXPECT_GT(by_workers, 0);
    EXPECT_GT(first_by_caller, 10) << "the first chunk is the caller's";
  }
}

constexpr int kRounds = 20;

/// Runs on `pool` with parked workers; calls `look` with the round, the core of the caller and
/// each note of a worker.
template <class Look>
void run_with_parked_workers(Pool& pool, Look look) {
  std::vector<Where> notes(24);
  const uint64_t args[] = {address(notes.data()), static_cast<uint64_t>(pthread_self())};
  pool.run(note_where, args, notes.size());
  for (int round = 0; round < kRounds; ++round) {
    usleep(5000);
    const int core = sched_getcpu();
    pool.run(note_where, args, notes.size());
    if (core != sched_getcpu()) continue;
    for (const Where& n : notes)
      if (!n.is_caller) look(round, core, n);
  }
}

TEST(Pool, WokenWorkersLeaveTheCallersCoreToIt) {
  if (usable_cores() < 2) GTEST_SKIP() << "one core";
  Pool pool({.threads = 2});
  int apart = 0, together = 0;
  run_with_parked_workers(pool, [&](int, int core, const Where& n) {
    ++(CPU_ISSET(core, &n.usable) ? together : apart);
  });
  EXPECT_GT(apart, 4 * together) << "a caller may move while it wakes them, but not often";
}

TEST(Pool, AffinityOfWorkersSetFromOutsideStays) {
  if (usable_cores() < 2) GTEST_SKIP() << "one core";
  Pool pool({.threads = 2});
  cpu_set_t one;
  CPU_ZERO(&one);
  int set_in = kRounds;
  run_with_parked_workers(pool, [&](int round, int core, const Where& n) {
    if (round > set_in) {
      EXPECT_TRUE(CPU_EQUAL(&one, &n.usable));
    } else if (set_in == kRounds) {
      CPU_SET(core, &one);
      ASSERT_EQ(pthread_setaffinity_np(n.thread, sizeof one, &one), 0);
      set_in = round;
    }
  });
  EXPECT_LT(set_in, kRounds - 1);
}

TEST(Pool, AsManyThreadsAsTheSettingSays) {
  const ScopedSetting threads("BM_THREADS", "3");
  const auto device = open_device("", 0, "");
  ASSERT_TRUE(device);
  EXPECT_EQ((*device)->arch().units, 3u);
  const ScopedSetting all("BM_THREADS", "0");
  const auto usual = open_device("", 0, "");
  ASSERT_TRUE(usual);
  EXPECT_EQ((*usual)->arch().units, usable_cores());
}

TEST(Pool, IsNeverUsedInAForkedChild) {
  Pool pool({.threads = 4});
  std::vector<uint32_t> counts(1000);
  const uint64_t args[] = {address(counts.data())};
  pool.run(count_block, args, counts.size());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);  // a hang is the failure looked for
    pool.run(count_block, args, counts.size());
    bool good = true;
    for (uint32_t count : counts) good = good && count == 2;
    pool.~Pool();
    _exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  pool.run(count_block, args, counts.size());
  expect_all(counts, 2);
}

}  // namespace
}  // namespace bm::cpu
