#pragma once
// The part of SQLite the cache uses, with our errors. Only sqlite.cpp includes sqlite3.h.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace bm::compiler {

/// Prepared statement. Thread: one at a time, together with its Database.
///
/// Errors of every call: kCorrupt (SQLite says CORRUPT or NOTADB, nothing else), kTimeout (another
/// process kept its lock past the busy timeout), kOutOfMemory (memory or disk is full),
/// kPermission, kIo.
class Statement {
 public:
  Statement() = default;
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}

  Statement& bind(int parameter, int64_t value);
  /// `value` must live until the next reset().
  Statement& bind(int parameter, std::span<const std::byte> value);
  Statement& bind(int parameter, std::string_view value);

  /// Next row: true if there is one. reset() must follow before the statement is used again.
  Result<bool> step();
  /// Runs a statement without rows, then resets it.
  Status run();
  void reset();

  /// Whether columns could be read. Errors: kOutOfMemory; what they gave before means nothing then.
  Status check_columns() const;
  int64_t integer(int column) const;
  /// Valid until the next step() or reset().
  std::span<const std::byte> blob(int column) const;
  std::string_view text(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

/// Resets a statement at the end of a scope: an open read would pin the write-ahead log.
class ResetAtExit {
 public:
  explicit ResetAtExit(Statement& statement) : statement_(statement) {}
  ~ResetAtExit() { statement_.reset(); }
  ResetAtExit(const ResetAtExit&) = delete;
  ResetAtExit& operator=(const ResetAtExit&) = delete;

 private:
  Statement& statement_;
};

/// Open connection. Must not be carried across fork (close it first).
class Database {
 public:
  /// Opens or creates the file; SQLite reads it only at the first statement.
  static Result<Database> open(const std::string& path, int busy_timeout_ms);

  Status execute(const char* sql);
  Result<Statement> prepare(std::string_view sql);
  /// First column of the first row of a query, as an integer.
  Result<int64_t> integer(std::string_view sql);

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace bm::compiler
