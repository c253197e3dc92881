// Errors of the system under the cache's file: the n-th call of each kind fails, once, for every n.
// Whatever comes of it in that process, the file keeps what it had.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sqlite3.h>
#include <string>
#include <vector>

#include "compiler/cache/disk_cache.h"
#include "tests/unit/compiler/cache/temporary_directory.h"

namespace bm::compiler {
namespace {

enum class Call { kNone, kOpen, kRead, kWrite, kSync, kTruncate, kSize, kLock, kMap, kMemory };

/// What is to fail. One per process: SQLite's hooks reach nothing else.
struct Fault {
  Call call = Call::kNone;
  int left = 0;  ///< calls until it fails
  int code = 0;
  bool has_struck = false;
  bool strikes(Call now) {
    if (now != call || --left != 0) return false;
    has_struck = true;
    return true;
  }
};
Fault& fault() {
  static Fault one;
  return one;
}

/// The file system interface SQLite comes with, and in front of its calls the fault.
struct File {
  sqlite3_file base;
  sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};
sqlite3_file* real(sqlite3_file* f) { return reinterpret_cast<File*>(f)->real(); }
sqlite3_vfs* system_vfs() {
  static sqlite3_vfs* const vfs = sqlite3_vfs_find("unix");
  return vfs;
}

#define BM_PASS(name, call_kind, parameters, arguments)        \
  int name parameters {                                        \
    if (fault().strikes(Call::call_kind)) return fault().code; \
    return real(f)->pMethods->name arguments;                  \
  }
int xClose(sqlite3_file* f) { return real(f)->pMethods->xClose(real(f)); }
BM_PASS(xRead, kRead, (sqlite3_file * f, void* to, int n, sqlite3_int64 at), (real(f), to, n, at))
BM_PASS(xWrite, kWrite, (sqlite3_file * f, const void* from, int n, sqlite3_int64 at),
        (real(f), from, n, at))
BM_PASS(xTruncate, kTruncate, (sqlite3_file * f, sqlite3_int64 n), (real(f), n))
BM_PASS(xSync, kSync, (sqlite3_file * f, int flags), (real(f), flags))
BM_PASS(xFileSize, kSize, (sqlite3_file * f, sqlite3_int64* n), (real(f), n))
BM_PASS(xLock, kLock, (sqlite3_file * f, int level), (real(f), level))
BM_PASS(xUnlock, kNone, (sqlite3_file * f, int level), (real(f), level))
BM_PASS(xCheckReservedLock, kNone, (sqlite3_file * f, int* out), (real(f), out))
BM_PASS(xFileControl, kNone, (sqlite3_file * f, int op, void* arg), (real(f), op, arg))
BM_PASS(xSectorSize, kNone, (sqlite3_file * f), (real(f)))
BM_PASS(xDeviceCharacteristics, kNone, (sqlite3_file * f), (real(f)))
BM_PASS(xShmMap, kMap, (sqlite3_file * f, int page, int size, int extend, void volatile** out),
        (real(f), page, size, extend, out))
BM_PASS(xShmLock, kNone, (sqlite3_file * f, int offset, int n, int flags),
        (real(f), offset, n, flags))
void xShmBarrier(sqlite3_file* f) { real(f)->pMethods->xShmBarrier(real(f)); }
BM_PASS(xShmUnmap, kNone, (sqlite3_file * f, int is_deleted), (real(f), is_deleted))
#undef BM_PASS

int open_file(sqlite3_vfs*, const char* name, sqlite3_file* f, int flags, int* out) {
  static constexpr sqlite3_io_methods kMethods{.iVersion = 2,
                                               .xClose = xClose,
                                               .xRead = xRead,
                                               .xWrite = xWrite,
                                               .xTruncate = xTruncate,
                                               .xSync = xSync,
                                               .xFileSize = xFileSize,
                                               .xLock = xLock,
                                               .xUnlock = xUnlock,
                                               .xCheckReservedLock = xCheckReservedLock,
                                               .xFileControl = xFileControl,
                                               .xSectorSize = xSectorSize,
                                               .xDeviceCharacteristics = xDeviceCharacteristics,
                                               .xShmMap = xShmMap,
                                               .xShmLock = xShmLock,
                                               .xShmBarrier = xShmBarrier,
                                               .xShmUnmap = xShmUnmap,
                                               .xFetch = nullptr,
                                               .xUnfetch = nullptr};
  f->pMethods = nullptr;
  if (fault().strikes(Call::kOpen)) return fault().code;
  const int result = system_vfs()->xOpen(system_vfs(), name, real(f), flags, out);
  if (real(f)->pMethods != nullptr) f->pMethods = &kMethods;
  return result;
}

void* allocate(int size) {
  return fault().strikes(Call::kMemory) ? nullptr : std::malloc(static_cast<size_t>(size) + 8);
}

/// SQLite's allocator with room for the size in front, and the fault.
struct Memory {
  static void* make(int size) {
    auto* block = static_cast<int64_t*>(allocate(size));
    if (block == nullptr) return nullptr;
    *block = size;
    return block + 1;
  }
  static void free(void* p) { std::free(static_cast<int64_t*>(p) - 1); }
  static int size(void* p) {
    return p == nullptr ? 0 : static_cast<int>(static_cast<int64_t*>(p)[-1]);
  }
  static void* remake(void* p, int n) {
    void* more = make(n);
    if (more == nullptr) return nullptr;
    std::memcpy(more, p, static_cast<size_t>(std::min(n, size(p))));
    free(p);
    return more;
  }
  static int round(int n) { return (n + 7) & ~7; }
  static int start(void*) { return SQLITE_OK; }
  static void stop(void*) {}
};

class CacheErrors : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static sqlite3_mem_methods memory{Memory::make,  Memory::free,  Memory::remake, Memory::size,
                                      Memory::round, Memory::start, Memory::stop,   nullptr};
    ASSERT_EQ(sqlite3_shutdown(), SQLITE_OK);
    ASSERT_EQ(sqlite3_config(SQLITE_CONFIG_MALLOC, &memory), SQLITE_OK);
    ASSERT_EQ(sqlite3_initialize(), SQLITE_OK);
    static sqlite3_vfs vfs = *system_vfs();
    vfs.zName = "faulty";
    vfs.pNext = nullptr;
    vfs.szOsFile = static_cast<int>(sizeof(File)) + system_vfs()->szOsFile;
    vfs.xOpen = open_file;
    ASSERT_EQ(sqlite3_vfs_register(&vfs, /*makeDflt=*/1), SQLITE_OK);
  }

  static constexpr int kEntries = 40;
  static std::vector<std::byte> blob(int i) {
    return {size_t{300} + static_cast<size_t>(i) * 150, static_cast<std::byte>(i)};
  }
  static std::string key(int i) { return "k" + std::to_string(i); }
  DiskCache::Options options() const { return {.directory = temporary_.path() + "/cache"}; }
  std::string file() const { return temporary_.path() + "/cache/kernels.db"; }

  void fill() const {
    DiskCache cache(options());
    for (int i = 0; i < kEntries; ++i) ASSERT_TRUE(cache.put("elf", key(i), blob(i)));
  }
  void execute(const char* sql) const {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(file().c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(database);
  }
  void expect_whole(const std::string& after) const {
    DiskCache cache(options());
    int missing = 0;
    for (int i = 0; i < kEntries; ++i) {
      const auto found = cache.get("elf", key(i));
      ASSERT_TRUE(found);
      if (!*found)
        ++missing;
      else
        ASSERT_EQ(**found, blob(i)) << after;
    }
    EXPECT_EQ(missing, 0) << after;
    EXPECT_EQ(cache.stats().dropped, 0u) << after;
    EXPECT_EQ(cache.stats().memory_reason, "") << after;
  }

  /// A process's use of the cache while the n-th call fails, for n = 1, 2, … until none does.
  void sweep(Call call, int code, const char* name) const {
    fill();
    execute("PRAGMA wal_checkpoint(TRUNCATE)");
    const std::string copy = file() + ".copy";
    std::filesystem::copy_file(file(), copy, std::filesystem::copy_options::overwrite_existing);
    int struck = 0;
    for (int n = 1;; ++n) {
      // The same start for every n: what was put before lengthens the log.
      for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(file() + suffix);
      std::filesystem::copy_file(copy, file(), std::filesystem::copy_options::overwrite_existing);
      testing::internal::CaptureStderr();
      {
        fault() = {.call = call, .left = n, .code = code};
        DiskCache cache(options());
        for (const int i : {3, kEntries - 1, 17}) {
          const auto found = cache.get("elf", key(i));
          ASSERT_TRUE(found);
          if (*found) {
            EXPECT_EQ(**found, blob(i));
          }
        }
        EXPECT_TRUE(cache.put("elf", "new", blob(5)));
        const auto found = cache.get("elf", "new");
        ASSERT_TRUE(found);
        if (*found) {
          EXPECT_EQ(**found, blob(5));
        }
        EXPECT_EQ(cache.stats().dropped, 0u) << name << " " << n;
      }
      const bool is_over = !fault().has_struck;
      fault() = {};
      testing::internal::GetCapturedStderr();
      if (is_over) break;
      ++struck;
      expect_whole(std::string(name) + " " + std::to_string(n));
      if (HasFailure()) break;
    }
    EXPECT_GT(struck, 0) << name << ": nothing was injected";
  }

  TemporaryDirectory temporary_;
};

TEST_F(CacheErrors, AFileThatCannotBeOpenedStaysAsItIs) {
  // EMFILE, ENFILE, EACCES of the system.
  sweep(Call::kOpen, SQLITE_CANTOPEN, "open");
}

TEST_F(CacheErrors, AReadErrorEmptiesNothing) { sweep(Call::kRead, SQLITE_IOERR_READ, "read"); }

TEST_F(CacheErrors, AWriteErrorEmptiesNothing) { sweep(Call::kWrite, SQLITE_IOERR_WRITE, "write"); }

TEST_F(CacheErrors, AFullDiskEmptiesNothing) { sweep(Call::kWrite, SQLITE_FULL, "full"); }

TEST_F(CacheErrors, ErrorsOfOtherCallsEmptyNothing) {
  sweep(Call::kSize, SQLITE_IOERR_FSTAT, "size");
  sweep(Call::kLock, SQLITE_IOERR_LOCK, "lock");
  sweep(Call::kMap, SQLITE_IOERR_SHMMAP, "map");
}

TEST_F(CacheErrors, MissingMemoryEmptiesNothing) { sweep(Call::kMemory, SQLITE_NOMEM, "memory"); }

TEST_F(CacheErrors, OneReadThatSeesADamagedFileEmptiesNothing) {
  sweep(Call::kRead, SQLITE_CORRUPT, "corrupt");
  sweep(Call::kRead, SQLITE_NOTADB, "not a database");
}

TEST_F(CacheErrors, AFileOfAnotherVersionIsLeftAlone) {
  fill();
  execute("PRAGMA user_version=7");
  testing::internal::CaptureStderr();
  {
    DiskCache cache(options());
    EXPECT_TRUE(cache.put("elf", "a", blob(1)));
    EXPECT_NE(cache.stats().memory_reason, "");
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("another Bellmetal version"), std::string::npos) << said;
  execute("PRAGMA user_version=1");
  expect_whole("another version");
}

TEST_F(CacheErrors, ADamagedFileThatMayNotBeLostIsKept) {
  fill();
  std::ofstream(file(), std::ios::trunc) << std::string(9000, 'x');
  for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(file() + suffix);
  DiskCache::Options keeping = options();
  keeping.keeps_damaged = true;
  testing::internal::CaptureStderr();
  DiskCache cache(keeping);
  EXPECT_TRUE(cache.put("elf", "a", blob(1)));
  EXPECT_NE(testing::internal::GetCapturedStderr().find(".damaged"), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(file() + ".damaged"), 9000u);
}

}  // namespace
}  // namespace bm::compiler
