#pragma once
// What is mapped for DMA.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace bm::sim {

/// System memory as the device addresses it. Thread: any.
class BusMemory {
 public:
  struct Piece {
    std::byte* host = nullptr;
    uint64_t bytes = 0;
    bool is_read_only = false;
  };
  /// False: something is mapped there already.
  bool map(uint64_t address, Piece piece);
  void unmap(uint64_t address);
  /// `contiguous`: receives how much lies there in one piece. nullptr: nothing, or not writable.
  std::byte* at(uint64_t address, uint64_t bytes, bool is_write, uint64_t* contiguous = nullptr);
  bool overlaps(uint64_t address, uint64_t bytes) const;
  size_t mappings() const {
    const std::lock_guard lock(mutex_);
    return pieces_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, Piece> pieces_;
};

}  // namespace bm::sim
