#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <random>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compiler/cache/disk_cache.h"
#include "tests/unit/compiler/cache/hammer_payload.h"
#include "tests/unit/compiler/cache/temporary_directory.h"

namespace bm::compiler {
namespace {

struct Hammer {
  pid_t pid = -1;
  int pipe = -1;
};

Hammer start_hammer(const std::string& directory, int seed) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  // Later hammers must not keep our end open: when the test dies, writing must fail.
  ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  const std::string seed_text = std::to_string(seed), pipe_text = std::to_string(ends[1]);
  std::string program = BM_HAMMER, where = directory, seed_arg = seed_text, pipe_arg = pipe_text;
  std::array<char*, 5> argv{program.data(), where.data(), seed_arg.data(), pipe_arg.data(),
                            nullptr};
  pid_t pid = -1;
  EXPECT_EQ(::posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv.data(), environ), 0);
  ::close(ends[1]);
  return {pid, ends[0]};
}

/// Lets it do `operations`, then kills it wherever it happens to be. False: it ended by itself.
bool kill_after(Hammer& hammer, int operations) {
  char byte = 0;
  bool is_running = true;
  for (int i = 0; i < operations && is_running; ++i)
    is_running = ::read(hammer.pipe, &byte, 1) == 1;
  ::kill(hammer.pid, SIGKILL);
  int status = 0;
  ::waitpid(hammer.pid, &status, 0);
  ::close(hammer.pipe);
  hammer.pid = -1;
  EXPECT_TRUE(WIFSIGNALED(status))
      << "exit status " << WEXITSTATUS(status) << " (9: wrong payload, 8: error)";
  return is_running;
}

/// BM_CACHE_KILLS: so many instead of 60 (10,000 in the long run).
int number_of_kills() {
  const char* text = std::getenv("BM_CACHE_KILLS");
  return text == nullptr ? 60 : std::max(1, std::atoi(text));
}

TEST(DiskCacheKilled, EightProcessesKilledAtRandomNeverLeaveAWrongPayload) {
  const int kills = number_of_kills();
  const TemporaryDirectory temporary;
  std::minstd_rand random(12345);
  std::array<Hammer, 8> hammers;
  int seed = 0;
  for (Hammer& hammer : hammers) hammer = start_hammer(temporary.path(), seed++);
  for (int i = 0; i < kills; ++i) {
    Hammer& victim = hammers[random() % hammers.size()];
    ASSERT_TRUE(kill_after(victim, static_cast<int>(random() % 60)));
    victim = start_hammer(temporary.path(), seed++);
  }
  for (Hammer& hammer : hammers) ASSERT_TRUE(kill_after(hammer, 20));

  DiskCache cache({.directory = temporary.path()});
  uint32_t num_found = 0;
  for (uint32_t key = 0; key < 64; ++key) {
    const auto found = cache.get("hammer", "key" + std::to_string(key));
    ASSERT_TRUE(found);
    if (!*found) continue;
    ++num_found;
    EXPECT_TRUE(is_hammer_payload(key, **found)) << "key " << key;
  }
  EXPECT_GT(num_found, 0u);
  EXPECT_EQ(cache.stats().dropped, 0u);
  EXPECT_EQ(cache.stats().memory_reason, "");
}

}  // namespace
}  // namespace bm::compiler
