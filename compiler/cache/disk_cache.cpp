#include "compiler/cache/disk_cache.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <pthread.h>
#include <unistd.h>

#include "compiler/cache/cache_directory.h"
#include "compiler/cache/sqlite_cache.h"
#include "runtime/base/env.h"

namespace bm::compiler {
namespace {

constexpr uint64_t kMaxMemoryBytes = uint64_t{256} << 20;
// Looking at the sum of all sizes costs up to a millisecond, so not after every write.
constexpr uint64_t kWritesBetweenTrims = 64;
// A file that errs again and again without being damaged is no use to this process.
constexpr int kMostUnconfirmed = 3;

DiskCache::Options options_from_environment() {
  const Settings& now = settings();
  if (!now.cache) return {};
  if (now.cache_dir.empty()) {
    return {.problem = "no directory: set BM_CACHE_DIR, XDG_CACHE_HOME or HOME"};
  }
  return {.directory = now.cache_dir};
}

DiskCache::Options options_of_tuned() {
  DiskCache::Options options = options_from_environment();
  options.problem.clear();  // the other cache says it
  options.file_name = "tuned.db";
  options.keeps_damaged = true;
  return options;
}

template <class T>
Status status_of(const Result<T>& result) {
  if (result) return {};
  return tl::unexpected<Error>(result.error());
}

}  // namespace

/// Closes every cache file before fork and lets both sides open their own again. SQLite's locks
/// belong to the process that took them: a child using (or even closing) its parent's connection
/// would believe in locks it does not hold.
class ForkGuard {
 public:
  static ForkGuard& instance() {
    // Never destroyed: atfork handlers stay.
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
    static ForkGuard* const guard = new ForkGuard;
    return *guard;
  }
  void add(DiskCache* cache) {
    const std::lock_guard lock(mutex_);
    caches_.push_back(cache);
  }
  void remove(DiskCache* cache) {
    const std::lock_guard lock(mutex_);
    std::erase(caches_, cache);
  }

 private:
  ForkGuard() { ::pthread_atfork(&ForkGuard::before, &ForkGuard::after, &ForkGuard::after); }

  static void before() {
    ForkGuard& self = instance();
    self.mutex_.lock();
    for (DiskCache* cache : self.caches_) {
      cache->mutex_.lock();
      cache->file_.reset();
    }
  }
  static void after() {
    ForkGuard& self = instance();
    for (DiskCache* cache : self.caches_) cache->mutex_.unlock();
    self.mutex_.unlock();
  }

  std::mutex mutex_;
  std::vector<DiskCache*> caches_;
};

DiskCache::DiskCache(Options options)
    : options_(std::move(options)), memory_(std::min(options_.max_bytes, kMaxMemoryBytes)) {
  ForkGuard::instance().add(this);
}

DiskCache::~DiskCache() { ForkGuard::instance().remove(this); }

DiskCache& DiskCache::instance() {
  // Never destroyed: other threads may still compile while the process exits.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static DiskCache* const cache = new DiskCache(options_from_environment());
  return *cache;
}

DiskCache& DiskCache::tuned() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static DiskCache* const cache = new DiskCache(options_of_tuned());
  return *cache;
}

bool DiskCache::has_contents() {
  const std::lock_guard lock(mutex_);
  if (file_ != nullptr || memory_.entries() != 0) return true;
  return !is_memory_only_ && !options_.directory.empty() &&
         ::access((options_.directory + "/" + options_.file_name).c_str(), F_OK) == 0;
}

SqliteCache* DiskCache::file() {
  if (file_ != nullptr) return file_.get();
  if (is_memory_only_) return nullptr;
  if (options_.directory.empty()) {
    use_memory_only(options_.problem);
    return nullptr;
  }
  const Result<std::string> folder = prepare_cache_directory(options_.directory);
  if (!folder) {
    use_memory_only(folder.error().message);
    return nullptr;
  }
  auto opened = SqliteCache::open(*folder + "/" + options_.file_name,
                                  {.keeps_damaged = options_.keeps_damaged});
  if (opened) {
    file_ = *std::move(opened);
    if (file_->was_replaced()) {
      ++dropped_;
      warn_once(fmt::format("{} was damaged and has been emptied{}", file_->path(),
                            options_.keeps_damaged ? "; it is kept as .damaged" : ""));
    }
    return file_.get();
  }
  use_memory_only(std::move(opened.error()).within(options_.directory).message);
  return nullptr;
}

void DiskCache::use_memory_only(std::string reason) {
  file_.reset();
  is_memory_only_ = true;
  if (!reason.empty()) {
    warn_once(fmt::format(
        "{}; compiled kernels are kept in memory only (BM_CACHE=0: no cache file)", reason));
  }
  memory_reason_ = reason.empty() ? "turned off" : std::move(reason);
}

void DiskCache::warn_once(std::string_view what) {
  if (has_warned_) return;
  has_warned_ = true;
  fmt::print(stderr, "bellmetal: compile cache: {}\n", what);
}

void DiskCache::replace_if_damaged(const std::function<Status(SqliteCache&)>& again) {
  const Result<bool> is_removed = file_->discard_if_damaged(again);
  const std::string path = file_->path();
  if (!is_removed) {
    use_memory_only(fmt::format("{}: {}", path, is_removed.error().message));
    return;
  }
  file_.reset();
  if (*is_removed) {
    ++dropped_;
    warn_once(fmt::format("{} was damaged and has been replaced{}", path,
                          options_.keeps_damaged ? "; it is kept as .damaged" : ""));
  } else if (++num_unconfirmed_ >= kMostUnconfirmed) {
    use_memory_only(
        fmt::format("{}: read wrong {} times, although it is not damaged", path, num_unconfirmed_));
  }
}

Result<std::optional<std::vector<std::byte>>> DiskCache::get(std::string_view kind,
                                                             std::string_view key) {
  const std::lock_guard lock(mutex_);
  std::optional<std::vector<std::byte>> blob;
  if (SqliteCache* const cache = file(); cache != nullptr) {
    auto found = cache->get(kind, key);
    if (found) {
      if (found->was_damaged) {
        ++dropped_;
        warn_once(fmt::format("dropped a damaged entry of {}", cache->path()));
      }
      blob = std::move(found->blob);
    } else if (found.error().code == Code::kCorrupt) {
      replace_if_damaged([&](SqliteCache& fresh) { return status_of(fresh.get(kind, key)); });
    } else if (found.error().code != Code::kTimeout) {
      use_memory_only(std::move(found.error().message));
    }
  }
  // Also with a file: what the file could not take is here.
  if (!blob) blob = memory_.get(kind, key);
  ++(blob ? hits_ : misses_);
  return blob;
}

Status DiskCache::put(std::string_view kind, std::string_view key,
                      std::span<const std::byte> blob) {
  const std::lock_guard lock(mutex_);
  ++writes_;
  // The second attempt is for a damaged file that the first one replaced.
  for (int attempt = 0; attempt < 2; ++attempt) {
    SqliteCache* const cache = file();
    if (cache == nullptr) break;
    const Status stored = cache->put(kind, key, blob);
    if (stored) {
      trim_sometimes(*cache);
      return {};
    }
    if (stored.error().code == Code::kCorrupt) {
      replace_if_damaged([&](SqliteCache& fresh) { return fresh.put(kind, key, blob); });
      continue;
    }
    if (stored.error().code != Code::kTimeout) {
      // A full disk can still be read from, so the file stays open.
      warn_once(fmt::format("{}: {}; new kernels are kept in memory", cache->path(),
                            stored.error().message));
    }
    break;
  }
  memory_.put(kind, key, blob);
  return {};
}

void DiskCache::trim_sometimes(SqliteCache& cache) {
  if (writes_ % kWritesBetweenTrims != 0) return;
  const auto totals = cache.totals();
  // Down to four fifths, so that a full cache does not trim at every look.
  if (totals && totals->payload_bytes > options_.max_bytes) {
    (void)cache.trim(options_.max_bytes / 5 * 4);
  }
}

Result<std::vector<std::vector<std::byte>>> DiskCache::all(std::string_view kind) {
  const std::lock_guard lock(mutex_);
  std::vector<std::vector<std::byte>> blobs = memory_.all(kind);
  SqliteCache* const cache = file();
  if (cache == nullptr) return blobs;
  auto stored = cache->all(kind);
  if (!stored && stored.error().code == Code::kCorrupt) {
    replace_if_damaged([&](SqliteCache& fresh) { return status_of(fresh.all(kind)); });
    if (SqliteCache* const next = file(); next != nullptr) stored = next->all(kind);
  }
  if (!stored) return tl::unexpected<Error>(std::move(stored.error()));
  blobs.insert(blobs.end(), std::make_move_iterator(stored->begin()),
               std::make_move_iterator(stored->end()));
  return blobs;
}

Status DiskCache::clear() {
  const std::lock_guard lock(mutex_);
  memory_.clear();
  SqliteCache* const cache = file();
  if (cache == nullptr) return {};
  Status cleared = cache->clear();
  if (!cleared && cleared.error().code == Code::kCorrupt) {
    replace_if_damaged([](SqliteCache& fresh) { return fresh.clear(); });
    return {};
  }
  return cleared;
}

Status DiskCache::trim(uint64_t max_bytes) {
  const std::lock_guard lock(mutex_);
  memory_.trim(max_bytes);
  SqliteCache* const cache = file();
  if (cache == nullptr) return {};
  Status trimmed = cache->trim(max_bytes);
  if (!trimmed && trimmed.error().code == Code::kCorrupt) {
    replace_if_damaged([&](SqliteCache& fresh) { return fresh.trim(max_bytes); });
    return {};
  }
  return trimmed;
}

CacheStats DiskCache::stats() {
  const std::lock_guard lock(mutex_);
  CacheStats stats{.entries = memory_.entries(), .payload_bytes = memory_.bytes()};
  if (SqliteCache* const cache = file(); cache != nullptr) {
    stats.path = cache->path();
    if (const auto totals = cache->totals()) {
      stats.entries += totals->entries;
      stats.payload_bytes += totals->payload_bytes;
      stats.file_bytes = totals->file_bytes;
    } else if (totals.error().code == Code::kCorrupt) {
      replace_if_damaged([](SqliteCache& fresh) { return status_of(fresh.totals()); });
    }
  }
  stats.memory_reason = memory_reason_;
  stats.max_bytes = options_.max_bytes;
  stats.hits = hits_;
  stats.misses = misses_;
  stats.writes = writes_;
  stats.dropped = dropped_;
  return stats;
}

}  // namespace bm::compiler
