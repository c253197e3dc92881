#pragma once
// The compile cache: blobs by (kind, key) that survive the process. Never an error the user sees:
// what cannot be stored or read back intact is compiled again.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/cache/memory_cache.h"
#include "runtime/base/result.h"

namespace bm::compiler {

class SqliteCache;

/// Numbers for `bellmetal cache stats`; hits, misses, writes and dropped count this process only.
struct CacheStats {
  std::string path = {};           ///< database file; empty when nothing is stored on disk
  std::string memory_reason = {};  ///< why only memory is used; empty when the file is in use
  uint64_t entries = 0;
  uint64_t payload_bytes = 0;  ///< sum of the stored blobs
  uint64_t file_bytes = 0;     ///< size of the database file
  uint64_t max_bytes = 0;      ///< payload bytes above which old entries are dropped
  uint64_t hits = 0, misses = 0, writes = 0;
  uint64_t dropped = 0;  ///< entries or files found damaged and thrown away
};

/// Thread: safe, also with other processes on the same file, and across fork.
///
/// A blob is returned only if hash, second hash and length of its key and the checksum of its
/// payload all match. A file that cannot be opened, read or written (no home directory, others
/// could have written it, read-only, full disk, I/O error) makes this a memory cache, with one
/// warning on stderr; the file stays as it is. Only what SQLite twice calls damaged is replaced.
class DiskCache {
 public:
  struct Options {
    std::string directory = {};  ///< absolute; empty: memory only
    std::string file_name = "kernels.db";
    bool keeps_damaged = false;  ///< a damaged file is kept as file_name.damaged
    std::string problem =
        {};  ///< why `directory` is empty, shown in the warning; empty: say nothing
    uint64_t max_bytes = uint64_t{1} << 30;
  };

  explicit DiskCache(Options options);
  ~DiskCache();
  DiskCache(const DiskCache&) = delete;
  DiskCache& operator=(const DiskCache&) = delete;

  /// The cache of this process, as BM_CACHE and BM_CACHE_DIR say. Opens its file on first use.
  static DiskCache& instance();
  /// What searches for schedules have found, in a file of its own (tuned.db): compiled kernels can
  /// be made again, the hours of a search cannot, so neither a damaged kernels.db nor emptying or
  /// trimming it costs a result.
  static DiskCache& tuned();

  /// Whether anything was ever stored: asks without making a file.
  bool has_contents();

  /// The blob stored under (kind, key), or nothing.
  Result<std::optional<std::vector<std::byte>>> get(std::string_view kind, std::string_view key);
  /// Stores a copy of `blob`, replacing an older one. A blob that cannot be stored is not an error.
  Status put(std::string_view kind, std::string_view key, std::span<const std::byte> blob);
  /// Intact blobs stored under `kind`, in no order. Errors: those of the file.
  Result<std::vector<std::vector<std::byte>>> all(std::string_view kind);
  /// Forgets every entry, on disk too. Errors: kIo when the file could not be emptied.
  Status clear();
  /// Drops the least recently used entries until the payloads take at most `max_bytes`.
  Status trim(uint64_t max_bytes);
  CacheStats stats();

 private:
  friend class ForkGuard;

  SqliteCache* file();  // opened on demand; nullptr: memory only
  void use_memory_only(std::string reason);
  void replace_if_damaged(const std::function<Status(SqliteCache&)>& again);
  void trim_sometimes(SqliteCache& cache);
  void warn_once(std::string_view what);

  std::mutex mutex_;
  Options options_;
  std::unique_ptr<SqliteCache> file_;
  MemoryCache memory_;
  std::string memory_reason_;
  bool is_memory_only_ = false;
  bool has_warned_ = false;
  int num_unconfirmed_ = 0;  ///< files called damaged that were not when looked at again
  uint64_t hits_ = 0, misses_ = 0, writes_ = 0, dropped_ = 0;
};

}  // namespace bm::compiler
