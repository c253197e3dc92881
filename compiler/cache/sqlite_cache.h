#pragma once
// The cache file: one table of checked blobs. Policy (fallbacks, warnings) is disk_cache.h's.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/cache/sqlite.h"
#include "runtime/base/result.h"

namespace bm::compiler {

/// One connection to the file. Thread: caller holds a lock. Errors of every call: those of
/// Statement.
class SqliteCache {
 public:
  struct Options {
    /// A damaged file is kept as PATH.damaged: what it held cannot be made again.
    bool keeps_damaged = false;
  };
  /// Opens or creates the file. One that SQLite calls damaged twice, under the lock that opening
  /// takes, is replaced by an empty one (`was_replaced`); any other error leaves it as it is.
  /// Errors: those of Statement; kUnsupported for the file of another version; kTimeout when
  /// another process kept the opening lock for 2 s.
  static Result<std::unique_ptr<SqliteCache>> open(const std::string& path, Options options);

  /// After kCorrupt: does `again` on a new connection, under the lock, and removes the file if that
  /// gives kCorrupt, too, unless somebody already put a new one in its place. Result: whether it
  /// was removed. Call while this connection is still open (its inode number cannot be reused
  /// before it closes). Errors: those of open() and of `again`, kCorrupt excepted.
  Result<bool> discard_if_damaged(const std::function<Status(SqliteCache&)>& again);

  struct Lookup {
    std::optional<std::vector<std::byte>> blob = {};
    bool was_damaged = false;  ///< the entry was there but failed its checks; it has been deleted
  };
  Result<Lookup> get(std::string_view kind, std::string_view key);
  Status put(std::string_view kind, std::string_view key, std::span<const std::byte> blob);
  /// Blobs of a kind whose checksum is right.
  Result<std::vector<std::vector<std::byte>>> all(std::string_view kind);
  Status clear();
  Status trim(uint64_t max_bytes);

  struct Totals {
    uint64_t entries = 0, payload_bytes = 0, file_bytes = 0;
  };
  Result<Totals> totals();

  const std::string& path() const { return path_; }
  bool was_replaced() const { return was_replaced_; }

 private:
  struct Identity {
    uint64_t device = 0, inode = 0;
    bool operator==(const Identity&) const = default;
  };
  SqliteCache(std::string path, Options options, Database database);
  static Result<std::unique_ptr<SqliteCache>> open_locked(const std::string& path, Options options);
  static Result<Identity> identity_of(const std::string& path);
  static Status remove_files(const std::string& path, Options options);
  Status create_table();
  /// Of a row found by its hash: whether the payload is intact and of this key.
  struct Row;
  Result<Row> read_row(std::string_view kind, std::string_view key);
  Status prepare_statements();
  void note_use(int64_t row, int64_t last_used);
  void write_uses();

  std::string path_;
  Options options_;
  Database database_;
  Statement select_, insert_, touch_, delete_;
  std::vector<int64_t> used_rows_;  // rows whose last_used is to be refreshed by the next write
  Identity identity_;
  bool was_replaced_ = false;
};

}  // namespace bm::compiler
