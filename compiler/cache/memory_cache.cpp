#include "compiler/cache/memory_cache.h"

namespace bm::compiler {
namespace {

std::string full_name(std::string_view kind, std::string_view key) {
  std::string name(kind);
  name.push_back('\0');
  name.append(key);
  return name;
}

}  // namespace

std::optional<std::vector<std::byte>> MemoryCache::get(std::string_view kind,
                                                       std::string_view key) {
  const auto found = index_.find(full_name(kind, key));
  if (found == index_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->blob;
}

void MemoryCache::put(std::string_view kind, std::string_view key,
                      std::span<const std::byte> blob) {
  std::string name = full_name(kind, key);
  if (const auto found = index_.find(name); found != index_.end()) {
    const auto entry = found->second;
    bytes_ -= entry->blob.size();
    index_.erase(found);
    entries_.erase(entry);
  }
  if (blob.size() > max_bytes_) return;
  entries_.push_front({std::move(name), {blob.begin(), blob.end()}});
  index_.emplace(entries_.front().name, entries_.begin());
  bytes_ += blob.size();
  trim(max_bytes_);
}

std::vector<std::vector<std::byte>> MemoryCache::all(std::string_view kind) const {
  std::vector<std::vector<std::byte>> blobs;
  const std::string front = full_name(kind, "");
  for (const Entry& e : entries_)
    if (e.name.starts_with(front)) blobs.push_back(e.blob);
  return blobs;
}

void MemoryCache::trim(uint64_t max_bytes) {
  while (!entries_.empty() && (bytes_ > max_bytes || max_bytes == 0)) {
    bytes_ -= entries_.back().blob.size();
    index_.erase(entries_.back().name);
    entries_.pop_back();
  }
}

}  // namespace bm::compiler
