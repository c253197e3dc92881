#include "compiler/cache/memory_cache.h"

#include <gtest/gtest.h>

namespace bm::compiler {
namespace {

std::vector<std::byte> blob(size_t size, int fill) { return {size, static_cast<std::byte>(fill)}; }

TEST(MemoryCache, ReturnsWhatWasPut) {
  MemoryCache cache(100);
  cache.put("elf", "a", blob(10, 1));
  EXPECT_EQ(cache.get("elf", "a"), blob(10, 1));
  EXPECT_EQ(cache.get("elf", "b"), std::nullopt);
  EXPECT_EQ(cache.get("ptx", "a"), std::nullopt);
}

TEST(MemoryCache, PutReplacesAndCountsBytesOnce) {
  MemoryCache cache(100);
  cache.put("elf", "a", blob(10, 1));
  cache.put("elf", "a", blob(20, 2));
  EXPECT_EQ(cache.get("elf", "a"), blob(20, 2));
  EXPECT_EQ(cache.entries(), 1u);
  EXPECT_EQ(cache.bytes(), 20u);
}

TEST(MemoryCache, DropsTheLeastRecentlyUsedWhenFull) {
  MemoryCache cache(30);
  cache.put("elf", "a", blob(10, 1));
  cache.put("elf", "b", blob(10, 2));
  cache.put("elf", "c", blob(10, 3));
  EXPECT_TRUE(cache.get("elf", "a"));  // now b is the oldest
  cache.put("elf", "d", blob(10, 4));
  EXPECT_TRUE(cache.get("elf", "a"));
  EXPECT_FALSE(cache.get("elf", "b"));
  EXPECT_EQ(cache.bytes(), 30u);
}

TEST(MemoryCache, BlobLargerThanTheCacheIsNotKeptAndEvictsNothing) {
  MemoryCache cache(30);
  cache.put("elf", "a", blob(10, 1));
  cache.put("elf", "b", blob(31, 2));
  EXPECT_TRUE(cache.get("elf", "a"));
  EXPECT_FALSE(cache.get("elf", "b"));
}

TEST(MemoryCache, ClearForgetsEmptyBlobsToo) {
  MemoryCache cache(30);
  cache.put("elf", "a", {});
  EXPECT_TRUE(cache.get("elf", "a"));
  cache.clear();
  EXPECT_EQ(cache.entries(), 0u);
}

}  // namespace
}  // namespace bm::compiler
