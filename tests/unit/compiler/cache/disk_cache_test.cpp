#include "compiler/cache/disk_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "tests/unit/compiler/cache/temporary_directory.h"

namespace bm::compiler {
namespace {

std::vector<std::byte> blob(size_t size, int fill) { return {size, static_cast<std::byte>(fill)}; }

class DiskCacheTest : public testing::Test {
 protected:
  DiskCache::Options options() const { return {.directory = temporary_.path() + "/cache"}; }
  std::string file() const { return temporary_.path() + "/cache/kernels.db"; }

  /// Changes the file behind the cache's back.
  void execute(const char* sql) const {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(file().c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(database);
    sqlite3_close(database);
  }

  TemporaryDirectory temporary_;
};

std::optional<std::vector<std::byte>> get(DiskCache& cache, std::string_view key) {
  auto found = cache.get("elf", key);
  EXPECT_TRUE(found);
  return found ? *std::move(found) : std::nullopt;
}

TEST_F(DiskCacheTest, BlobsSurviveReopening) {
  {
    DiskCache cache(options());
    ASSERT_TRUE(cache.put("elf", "a", blob(5000, 7)));
    ASSERT_TRUE(cache.put("elf", "empty", {}));
  }
  DiskCache cache(options());
  EXPECT_EQ(get(cache, "a"), blob(5000, 7));
  EXPECT_EQ(get(cache, "empty"), blob(0, 0));
  EXPECT_EQ(get(cache, "b"), std::nullopt);
  EXPECT_EQ(cache.stats().hits, 2u);
  EXPECT_EQ(cache.stats().misses, 1u);
}

TEST_F(DiskCacheTest, KindIsPartOfTheKey) {
  DiskCache cache(options());
  ASSERT_TRUE(cache.put("elf", "a", blob(1, 1)));
  ASSERT_TRUE(cache.put("ptx", "a", blob(1, 2)));
  EXPECT_EQ(get(cache, "a"), blob(1, 1));
  EXPECT_EQ(*cache.get("ptx", "a"), blob(1, 2));
}

TEST_F(DiskCacheTest, DamagedPayloadIsDroppedWithOneWarning) {
  DiskCache cache(options());
  ASSERT_TRUE(cache.put("elf", "a", blob(100, 1)));
  ASSERT_TRUE(cache.put("elf", "b", blob(100, 2)));
  execute("UPDATE blobs SET payload = zeroblob(100)");
  testing::internal::CaptureStderr();
  EXPECT_EQ(get(cache, "a"), std::nullopt);
  EXPECT_EQ(get(cache, "b"), std::nullopt);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("damaged"), std::string::npos) << said;
  EXPECT_EQ(cache.stats().dropped, 2u);
  EXPECT_EQ(cache.stats().entries, 0u);
  ASSERT_TRUE(cache.put("elf", "a", blob(100, 1)));
  EXPECT_EQ(get(cache, "a"), blob(100, 1));
}

TEST_F(DiskCacheTest, PayloadOfAnotherKeyIsNotReturned) {
  DiskCache cache(options());
  ASSERT_TRUE(cache.put("elf", "a", blob(100, 1)));
  ASSERT_TRUE(cache.put("elf", "b", blob(100, 2)));
  execute(
      "UPDATE blobs SET payload = (SELECT payload FROM blobs WHERE rowid = 1),"
      " checksum = (SELECT checksum FROM blobs WHERE rowid = 1) WHERE rowid = 2");
  testing::internal::CaptureStderr();
  EXPECT_EQ(get(cache, "b"), std::nullopt);
  testing::internal::GetCapturedStderr();
}

TEST_F(DiskCacheTest, RowOfACollidingKeyIsNotReturned) {
  DiskCache cache(options());
  ASSERT_TRUE(cache.put("elf", "a", blob(100, 1)));
  execute("UPDATE blobs SET second_hash = second_hash + 1");
  testing::internal::CaptureStderr();
  EXPECT_EQ(get(cache, "a"), std::nullopt);
  testing::internal::GetCapturedStderr();
}

TEST_F(DiskCacheTest, FileThatIsNoDatabaseIsReplaced) {
  std::filesystem::create_directory(temporary_.path() + "/cache");
  std::ofstream(file()) << std::string(10000, 'x');
  testing::internal::CaptureStderr();
  DiskCache cache(options());
  EXPECT_EQ(get(cache, "a"), std::nullopt);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("emptied"), std::string::npos);
  ASSERT_TRUE(cache.put("elf", "a", blob(100, 1)));
  DiskCache again(options());
  EXPECT_EQ(get(again, "a"), blob(100, 1));
}

TEST_F(DiskCacheTest, OverwrittenPagesNeverGiveAWrongBlob) {
  constexpr int kEntries = 200;
  uint64_t num_dropped = 0;
  for (const int offset : {0, 100, 4096, 20000, 60000}) {
    {
      DiskCache cache(options());
      for (int i = 0; i < kEntries; ++i) {
        ASSERT_TRUE(cache.put("elf", std::to_string(i), blob(700, i)));
      }
    }
    execute("PRAGMA wal_checkpoint(TRUNCATE)");  // the log would hide what happens to the file
    std::fstream out(file(), std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(offset);
    out << std::string(3000, '\x5a');
    out.close();
    testing::internal::CaptureStderr();
    {
      DiskCache cache(options());
      for (int i = 0; i < kEntries; ++i) {
        const auto found = get(cache, std::to_string(i));
        if (found) {
          EXPECT_EQ(*found, blob(700, i)) << "offset " << offset;
        }
      }
      ASSERT_TRUE(cache.put("elf", "new", blob(10, 1)));
      EXPECT_EQ(get(cache, "new"), blob(10, 1));
      num_dropped += cache.stats().dropped;
      EXPECT_EQ(cache.stats().memory_reason, "");
    }
    testing::internal::GetCapturedStderr();
  }
  EXPECT_GE(num_dropped, 4u) << "the damage was not even seen";
}

TEST_F(DiskCacheTest, TruncatedFileIsReplaced) {
  {
    DiskCache cache(options());
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(cache.put("elf", std::to_string(i), blob(700, i)));
  }
  execute("PRAGMA wal_checkpoint(TRUNCATE)");
  std::filesystem::resize_file(file(), 9000);
  testing::internal::CaptureStderr();
  DiskCache cache(options());
  for (int i = 0; i < 200; ++i) {
    const auto found = get(cache, std::to_string(i));
    if (found) {
      EXPECT_EQ(*found, blob(700, i));
    }
  }
  ASSERT_TRUE(cache.put("elf", "new", blob(10, 1)));
  EXPECT_EQ(get(cache, "new"), blob(10, 1));
  testing::internal::GetCapturedStderr();
}

TEST_F(DiskCacheTest, ReplacedFileIsSharedWithTheOtherConnections) {
  DiskCache first(options()), second(options());
  ASSERT_TRUE(first.put("elf", "a", blob(10, 1)));
  ASSERT_TRUE(second.put("elf", "b", blob(10, 2)));
  // Both have the file open when it is damaged under them.
  execute(
      "PRAGMA writable_schema=ON; UPDATE sqlite_schema SET rootpage=99999 WHERE name='blobs';"
      "PRAGMA schema_version=77");
  testing::internal::CaptureStderr();
  EXPECT_EQ(get(first, "a"), std::nullopt);
  ASSERT_TRUE(first.put("elf", "a", blob(10, 3)));
  EXPECT_EQ(get(second, "b"), std::nullopt);
  EXPECT_EQ(get(second, "a"), blob(10, 3)) << "the second must not remove the first's new file";
  testing::internal::GetCapturedStderr();
}

TEST_F(DiskCacheTest, UnusableDirectoryMeansMemoryAndOneWarning) {
  std::ofstream(temporary_.path() + "/cache") << "a file, not a directory";
  testing::internal::CaptureStderr();
  DiskCache cache(options());
  ASSERT_TRUE(cache.put("elf", "a", blob(10, 1)));
  EXPECT_EQ(get(cache, "a"), blob(10, 1));
  EXPECT_EQ(get(cache, "b"), std::nullopt);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("in memory only"), std::string::npos) << said;
  EXPECT_NE(cache.stats().memory_reason, "");
  EXPECT_EQ(cache.stats().path, "");
}

TEST_F(DiskCacheTest, NoDirectoryWithAReasonWarnsAndWithoutOneIsSilent) {
  testing::internal::CaptureStderr();
  DiskCache silent(DiskCache::Options{});
  ASSERT_TRUE(silent.put("elf", "a", blob(10, 1)));
  EXPECT_EQ(get(silent, "a"), blob(10, 1));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  DiskCache loud({.problem = "no home"});
  EXPECT_EQ(get(loud, "a"), std::nullopt);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("no home"), std::string::npos);
}

TEST_F(DiskCacheTest, WriteThatDoesNotFitIsKeptInMemoryAndTheFileStaysReadable) {
  DiskCache cache(options());
  ASSERT_TRUE(cache.put("elf", "small", blob(10, 1)));
  // A limit on file sizes stands in for a full disk.
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{.rlim_cur = 200'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(cache.put("elf", "large", blob(1'000'000, 2)));
  EXPECT_TRUE(cache.put("elf", "larger", blob(1'500'000, 3)));
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, old_handler);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_EQ(get(cache, "small"), blob(10, 1));
  EXPECT_EQ(get(cache, "large"), blob(1'000'000, 2));
  EXPECT_EQ(get(cache, "larger"), blob(1'500'000, 3));
  DiskCache other(options());
  EXPECT_EQ(get(other, "small"), blob(10, 1));
  EXPECT_EQ(get(other, "large"), std::nullopt);
}

TEST_F(DiskCacheTest, ClearEmptiesTheFile) {
  DiskCache cache(options());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(cache.put("elf", std::to_string(i), blob(10000, i)));
  ASSERT_TRUE(cache.trim(uint64_t{1} << 40));
  EXPECT_GT(cache.stats().file_bytes, 1'000'000u);
  ASSERT_TRUE(cache.clear());
  EXPECT_EQ(get(cache, "1"), std::nullopt);
  EXPECT_EQ(cache.stats().entries, 0u);
  EXPECT_LT(cache.stats().file_bytes, 100'000u);
}

TEST_F(DiskCacheTest, TrimKeepsTheMostRecentlyUsed) {
  DiskCache cache(options());
  for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(cache.put("elf", key, blob(1000, 1)));
  execute("UPDATE blobs SET last_used = 1000 + rowid");
  EXPECT_TRUE(get(cache, "a"));  // long unused: this hit is written down
  ASSERT_TRUE(cache.trim(2000));
  EXPECT_TRUE(get(cache, "a"));
  EXPECT_FALSE(get(cache, "b"));
  EXPECT_TRUE(get(cache, "c"));
}

TEST_F(DiskCacheTest, GrowthIsBounded) {
  DiskCache cache({.directory = options().directory, .max_bytes = 100'000});
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(cache.put("elf", std::to_string(i), blob(1000, i)));
  EXPECT_LE(cache.stats().payload_bytes, 100'000u + 64 * 1000u);
}

TEST_F(DiskCacheTest, ManyThreadsShareOneCache) {
  DiskCache cache(options());
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&cache, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string key = std::to_string(i);
        if (i % 8 == t) {
          EXPECT_TRUE(cache.put("elf", key, blob(500, i)));
        }
        const auto found = cache.get("elf", key);
        ASSERT_TRUE(found);
        if (*found) {
          EXPECT_EQ(**found, blob(500, i));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(get(cache, std::to_string(i)), blob(500, i));
}

TEST_F(DiskCacheTest, BothSidesOfAForkCanUseIt) {
  DiskCache cache(options());
  ASSERT_TRUE(cache.put("elf", "before", blob(10, 1)));
  for (int round = 0; round < 5; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const std::string key = "child" + std::to_string(round);
      const bool is_good = get(cache, "before") == blob(10, 1) &&
                           cache.put("elf", key, blob(10, 2)) && get(cache, key) == blob(10, 2) &&
                           cache.stats().memory_reason.empty();
      ::_exit(is_good ? 0 : 1);
    }
    ASSERT_TRUE(cache.put("elf", "parent" + std::to_string(round), blob(10, 3)));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(get(cache, "child" + std::to_string(round)), blob(10, 2));
    EXPECT_EQ(get(cache, "parent" + std::to_string(round)), blob(10, 3));
  }
  EXPECT_EQ(cache.stats().memory_reason, "");
}

TEST_F(DiskCacheTest, ForkWhileOtherThreadsUseItDoesNotHang) {
  DiskCache cache(options());
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&cache, t] {
      for (int i = 0; i < 200; ++i) {
        EXPECT_TRUE(cache.put("elf", std::to_string(t), blob(300, t)));
        EXPECT_TRUE(cache.get("elf", std::to_string(t)));
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(cache.put("elf", "child", blob(9, 9)) ? 0 : 1);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(get(cache, "child"), blob(9, 9));
}

}  // namespace
}  // namespace bm::compiler

/// Read by ThreadSanitizer at start. A child of fork leaves its parent's threads behind: no leak.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "report_thread_leaks=0";
}
