#pragma once
// What the compile cache falls back to when no file can be used: a bounded map in memory.

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bm::compiler {

/// Keeps the most recently used blobs. Thread: caller holds a lock.
class MemoryCache {
 public:
  explicit MemoryCache(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  std::optional<std::vector<std::byte>> get(std::string_view kind, std::string_view key);
  /// A blob larger than the whole cache is not kept.
  void put(std::string_view kind, std::string_view key, std::span<const std::byte> blob);
  std::vector<std::vector<std::byte>> all(std::string_view kind) const;
  void trim(uint64_t max_bytes);
  void clear() { trim(0); }

  uint64_t entries() const { return index_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string name;
    std::vector<std::byte> blob;
  };
  uint64_t max_bytes_;
  uint64_t bytes_ = 0;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> index_;  // views into entries_
};

}  // namespace bm::compiler
