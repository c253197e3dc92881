#include "compiler/cache/sqlite.h"

#include <sqlite3.h>

namespace bm::compiler {
namespace {

Code code_from_sqlite(int result) {
  switch (result & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return Code::kCorrupt;
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return Code::kTimeout;
    case SQLITE_FULL:
    case SQLITE_NOMEM: return Code::kOutOfMemory;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH: return Code::kPermission;
    // Above all SQLITE_IOERR and SQLITE_CANTOPEN: what the system refused says nothing about the
    // file.
    default: return Code::kIo;
  }
}

tl::unexpected<Error> failure(sqlite3* database, int result) {
  return fail(code_from_sqlite(result), "{}",
              database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(result));
}

}  // namespace

void Statement::Finalize::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

// A failed bind (out of range, out of memory) leaves NULL behind; the row's checks then fail.
Statement& Statement::bind(int parameter, int64_t value) {
  sqlite3_bind_int64(statement_.get(), parameter, value);
  return *this;
}

Statement& Statement::bind(int parameter, std::span<const std::byte> value) {
  // A null pointer would bind NULL instead of an empty blob.
  const void* data = value.empty() ? static_cast<const void*>("") : value.data();
  sqlite3_bind_blob64(statement_.get(), parameter, data, value.size(), SQLITE_STATIC);
  return *this;
}

Statement& Statement::bind(int parameter, std::string_view value) {
  const char* data = value.empty() ? "" : value.data();
  sqlite3_bind_text64(statement_.get(), parameter, data, value.size(), SQLITE_STATIC, SQLITE_UTF8);
  return *this;
}

Result<bool> Statement::step() {
  const int result = sqlite3_step(statement_.get());
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  return failure(sqlite3_db_handle(statement_.get()), result);
}

Status Statement::run() {
  const ResetAtExit reset_at_exit(*this);
  BM_TRY(step());
  return {};
}

void Statement::reset() { sqlite3_reset(statement_.get()); }

Status Statement::check_columns() const {
  // Reading a column may allocate; then it reads as empty, and only this tells.
  sqlite3* const database = sqlite3_db_handle(statement_.get());
  if (sqlite3_errcode(database) == SQLITE_NOMEM) return failure(database, SQLITE_NOMEM);
  return {};
}

int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::span<const std::byte> Statement::blob(int column) const {
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement_.get(), column));
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return data == nullptr ? std::span<const std::byte>{}
                         : std::span(data, static_cast<size_t>(size));
}

std::string_view Statement::text(int column) const {
  const std::span<const std::byte> bytes = blob(column);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void Database::Close::operator()(sqlite3* database) const { sqlite3_close_v2(database); }

Result<Database> Database::open(const std::string& path, int busy_timeout_ms) {
  sqlite3* raw = nullptr;
  // The caller holds a lock around every use, so SQLite's own are not needed.
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int result = sqlite3_open_v2(path.c_str(), &raw, flags, nullptr);
  Database database;
  database.database_.reset(raw);
  if (result != SQLITE_OK) return failure(raw, result);
  sqlite3_busy_timeout(raw, busy_timeout_ms);
  sqlite3_db_config(raw, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  // Closing must neither take long nor delete by name a log that belongs to a newer file.
  sqlite3_db_config(raw, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  return database;
}

Status Database::execute(const char* sql) {
  const int result = sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr);
  if (result != SQLITE_OK) return failure(database_.get(), result);
  return {};
}

Result<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int result = sqlite3_prepare_v3(database_.get(), sql.data(), static_cast<int>(sql.size()),
                                        SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (result != SQLITE_OK) return failure(database_.get(), result);
  return Statement(statement);
}

Result<int64_t> Database::integer(std::string_view sql) {
  Statement statement = BM_TRY(prepare(sql));
  if (!BM_TRY(statement.step())) return fail(Code::kCorrupt, "no row for: {}", sql);
  return statement.integer(0);
}

}  // namespace bm::compiler
