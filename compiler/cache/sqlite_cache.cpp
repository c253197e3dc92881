#include "compiler/cache/sqlite_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "compiler/cache/cache_directory.h"
#include "runtime/base/scoped_fd.h"

namespace bm::compiler {
namespace {

constexpr int kBusyTimeoutMs = 2000;
constexpr int64_t kSchemaVersion = 1;
// last_used is refreshed at most this often: a hit must not cost a write.
constexpr int64_t kUseGranularitySeconds = int64_t{24} * 3600;
constexpr size_t kMaxPendingUses = 64;

/// What identifies an entry: a 128-bit hash to find it, a second hash and the length to be sure.
struct KeyHash {
  std::array<std::byte, 16> hash;
  int64_t second = 0;
  int64_t key_bytes = 0;
  uint64_t seed = 0;  ///< makes a payload's checksum valid for this key only
};

KeyHash hash_key(std::string_view kind, std::string_view key) {
  std::string text(kind);
  text.push_back('\0');
  text.append(key);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return {.hash = std::bit_cast<std::array<std::byte, 16>>(canonical.digest),
          .second = std::bit_cast<int64_t>(XXH64(text.data(), text.size(), 0x62656c6c)),
          .key_bytes = static_cast<int64_t>(text.size()),
          .seed = hash.low64};
}

int64_t checksum(std::span<const std::byte> blob, const KeyHash& key) {
  return std::bit_cast<int64_t>(XXH3_64bits_withSeed(blob.data(), blob.size(), key.seed));
}

int64_t now_seconds() { return static_cast<int64_t>(::time(nullptr)); }

/// Exclusive lock between processes while the file is opened, created or replaced.
Result<ScopedFd> lock_for_opening(const std::string& path) {
  const std::string lock_path = path + ".lock";
  ScopedFd fd(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.is_open()) {
    return fail(code_from_errno(errno), "open {}: {}", lock_path, errno_text(errno));
  }
  // TIMEOUT: opening takes 1 ms; 2 s covers a dozen processes on a slow disk. A holder that was
  // stopped (Ctrl-Z) must not stop us too, so this does not wait in flock itself.
  for (int attempt = 0; attempt < 2000; ++attempt) {
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
    if (errno != EWOULDBLOCK && errno != EINTR) {
      // File systems without flock: SQLite's own locks still protect the contents.
      return fd;
    }
    const timespec one_ms{.tv_sec = 0, .tv_nsec = 1'000'000};
    ::nanosleep(&one_ms, nullptr);
  }
  return fail(Code::kTimeout, "{} stayed locked by another process", lock_path);
}

}  // namespace

SqliteCache::SqliteCache(std::string path, Options options, Database database)
    : path_(std::move(path)), options_(options), database_(std::move(database)) {}

Result<SqliteCache::Identity> SqliteCache::identity_of(const std::string& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0)
    return fail(code_from_errno(errno), "{}: {}", path, errno_text(errno));
  return Identity{info.st_dev, info.st_ino};
}

Status SqliteCache::remove_files(const std::string& path, Options options) {
  // The log first: a new database must never find the old one's log beside it.
  for (const char* suffix : {"-wal", "-shm", "-journal", ""}) {
    const std::string name = path + suffix;
    const std::string kept = path + ".damaged" + suffix;
    const int done =
        options.keeps_damaged ? ::rename(name.c_str(), kept.c_str()) : ::unlink(name.c_str());
    if (done != 0 && errno != ENOENT)
      return fail(code_from_errno(errno), "remove {}: {}", name, errno_text(errno));
  }
  return {};
}

Result<std::unique_ptr<SqliteCache>> SqliteCache::open(const std::string& path, Options options) {
  const ScopedFd lock = BM_TRY(lock_for_opening(path));
  auto cache = open_locked(path, options);
  // What was read wrong once may be right the next time; what was lost is lost.
  if (!cache && cache.error().code == Code::kCorrupt) cache = open_locked(path, options);
  if (cache || cache.error().code != Code::kCorrupt) return cache;
  BM_TRY(remove_files(path, options));
  cache = open_locked(path, options);
  if (cache) (*cache)->was_replaced_ = true;
  return cache;
}

Result<std::unique_ptr<SqliteCache>> SqliteCache::open_locked(const std::string& path,
                                                              Options options) {
  BM_TRY(check_cache_file(path));
  Database database = BM_TRY(Database::open(path, kBusyTimeoutMs));
  std::unique_ptr<SqliteCache> cache(new SqliteCache(path, options, std::move(database)));
  const int64_t version = BM_TRY(cache->database_.integer("PRAGMA user_version"));
  if (version != 0 && version != kSchemaVersion)
    return fail(Code::kUnsupported,
                "{} is of another Bellmetal version (schema {}, this one has {}); remove it or use "
                "another BM_CACHE_DIR",
                path, version, kSchemaVersion);
  if (BM_TRY(cache->database_.integer(
          "SELECT count(*) FROM sqlite_schema WHERE type='table' AND name='blobs'")) == 0)
    BM_TRY(cache->create_table());
  BM_TRY(cache->database_.execute("PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=500;"));
  BM_TRY(cache->prepare_statements());
  cache->identity_ = BM_TRY(identity_of(path));
  return cache;
}

Status SqliteCache::create_table() {
  BM_TRY(database_.execute("PRAGMA auto_vacuum=INCREMENTAL"));
  // Without shared memory (some network and virtual file systems) there is no write-ahead log;
  // a rollback journal is slower but as safe.
  if (!database_.execute("PRAGMA journal_mode=WAL")) {
    BM_TRY(database_.execute("PRAGMA journal_mode=TRUNCATE"));
  }
  // The payload comes last so that sums over the other columns do not read it.
  return database_.execute(
      "BEGIN IMMEDIATE;"
      "CREATE TABLE IF NOT EXISTS blobs("
      "  hash BLOB NOT NULL UNIQUE, second_hash INTEGER NOT NULL, key_bytes INTEGER NOT NULL,"
      "  kind TEXT NOT NULL, checksum INTEGER NOT NULL, created INTEGER NOT NULL,"
      "  last_used INTEGER NOT NULL, size INTEGER NOT NULL, payload BLOB NOT NULL);"
      "PRAGMA user_version=1;"
      "COMMIT;");
}

Status SqliteCache::prepare_statements() {
  select_ = BM_TRY(
      database_.prepare("SELECT rowid, second_hash, key_bytes, checksum, last_used, size, payload"
                        " FROM blobs WHERE hash=?1"));
  insert_ =
      BM_TRY(database_.prepare("INSERT OR REPLACE INTO blobs VALUES(?1,?2,?3,?4,?5,?6,?6,?7,?8)"));
  touch_ = BM_TRY(database_.prepare("UPDATE blobs SET last_used=?2 WHERE rowid=?1"));
  delete_ = BM_TRY(database_.prepare("DELETE FROM blobs WHERE rowid=?1"));
  return {};
}

Result<bool> SqliteCache::discard_if_damaged(const std::function<Status(SqliteCache&)>& again) {
  const ScopedFd lock = BM_TRY(lock_for_opening(path_));
  const auto now = identity_of(path_);
  if (!now && now.error().code == Code::kNotFound) return false;
  if (!now) return tl::unexpected<Error>(now.error());
  if (*now != identity_) return false;
  {
    const auto fresh = open_locked(path_, options_);
    const Status second = fresh ? again(**fresh) : Status(tl::unexpected<Error>(fresh.error()));
    if (second) return false;
    if (second.error().code != Code::kCorrupt) return tl::unexpected<Error>(second.error());
  }
  BM_TRY(remove_files(path_, options_));
  return true;
}

struct SqliteCache::Row {
  bool is_there = false, is_intact = false;
  int64_t id = 0, last_used = 0;
  std::vector<std::byte> payload = {};
};

Result<SqliteCache::Row> SqliteCache::read_row(std::string_view kind, std::string_view key) {
  const KeyHash hash = hash_key(kind, key);
  const ResetAtExit reset_at_exit(select_);
  select_.bind(1, hash.hash);
  if (!BM_TRY(select_.step())) return Row{};
  const std::span<const std::byte> payload = select_.blob(6);
  BM_TRY(select_.check_columns());
  Row row{.is_there = true, .id = select_.integer(0), .last_used = select_.integer(4)};
  row.is_intact = select_.integer(1) == hash.second && select_.integer(2) == hash.key_bytes &&
                  select_.integer(3) == checksum(payload, hash) &&
                  select_.integer(5) == static_cast<int64_t>(payload.size());
  if (row.is_intact) row.payload.assign(payload.begin(), payload.end());
  return row;
}

Result<SqliteCache::Lookup> SqliteCache::get(std::string_view kind, std::string_view key) {
  Row row = BM_TRY(read_row(kind, key));
  if (!row.is_there) return Lookup{};
  if (!row.is_intact) {
    // Deleted only when it reads wrong twice.
    row = BM_TRY(read_row(kind, key));
    if (!row.is_intact) {
      if (row.is_there) BM_TRY(delete_.bind(1, row.id).run());
      return Lookup{.was_damaged = row.is_there};
    }
  }
  note_use(row.id, row.last_used);
  return Lookup{.blob = std::move(row.payload)};
}

Status SqliteCache::put(std::string_view kind, std::string_view key,
                        std::span<const std::byte> blob) {
  const KeyHash hash = hash_key(kind, key);
  BM_TRY(insert_.bind(1, hash.hash)
             .bind(2, hash.second)
             .bind(3, hash.key_bytes)
             .bind(4, kind)
             .bind(5, checksum(blob, hash))
             .bind(6, now_seconds())
             .bind(7, static_cast<int64_t>(blob.size()))
             .bind(8, blob)
             .run());
  write_uses();
  return {};
}

Result<std::vector<std::vector<std::byte>>> SqliteCache::all(std::string_view kind) {
  Statement query =
      BM_TRY(database_.prepare("SELECT hash, checksum, payload FROM blobs WHERE kind=?1"));
  query.bind(1, kind);
  std::vector<std::vector<std::byte>> blobs;
  while (BM_TRY(query.step())) {
    XXH128_canonical_t canonical;
    const std::span<const std::byte> hash = query.blob(0), payload = query.blob(2);
    BM_TRY(query.check_columns());
    if (hash.size() != sizeof canonical.digest) continue;
    std::memcpy(canonical.digest, hash.data(), hash.size());
    KeyHash key;
    key.seed = XXH128_hashFromCanonical(&canonical).low64;
    if (query.integer(1) == checksum(payload, key))
      blobs.emplace_back(payload.begin(), payload.end());
  }
  return blobs;
}

void SqliteCache::note_use(int64_t row, int64_t last_used) {
  if (now_seconds() - last_used < kUseGranularitySeconds) return;
  used_rows_.push_back(row);
  if (used_rows_.size() >= kMaxPendingUses) write_uses();
}

void SqliteCache::write_uses() {
  if (used_rows_.empty()) return;
  // Only the order of trimming depends on these, so a failure is not worth reporting.
  if (database_.execute("BEGIN")) {
    for (const int64_t row : used_rows_) (void)touch_.bind(1, row).bind(2, now_seconds()).run();
    if (!database_.execute("COMMIT")) (void)database_.execute("ROLLBACK");
  }
  used_rows_.clear();
}

Status SqliteCache::clear() {
  used_rows_.clear();
  return database_.execute(
      "DELETE FROM blobs; PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE);");
}

Status SqliteCache::trim(uint64_t max_bytes) {
  write_uses();
  Statement drop = BM_TRY(database_.prepare(
      "DELETE FROM blobs WHERE rowid IN (SELECT rowid FROM"
      " (SELECT rowid, sum(size) OVER (ORDER BY last_used DESC, rowid DESC) AS kept FROM blobs)"
      " WHERE kept > ?1)"));
  const uint64_t limit = std::min(max_bytes, uint64_t{std::numeric_limits<int64_t>::max()});
  BM_TRY(drop.bind(1, static_cast<int64_t>(limit)).run());
  return database_.execute("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(PASSIVE);");
}

Result<SqliteCache::Totals> SqliteCache::totals() {
  Statement query = BM_TRY(database_.prepare("SELECT count(*), coalesce(sum(size), 0) FROM blobs"));
  if (!BM_TRY(query.step())) return fail(Code::kCorrupt, "{} gives no totals", path_);
  Totals totals{.entries = static_cast<uint64_t>(query.integer(0)),
                .payload_bytes = static_cast<uint64_t>(query.integer(1))};
  struct stat info{};
  if (::stat(path_.c_str(), &info) == 0) totals.file_bytes = static_cast<uint64_t>(info.st_size);
  return totals;
}

}  // namespace bm::compiler
