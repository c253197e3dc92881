#include "tests/sim/pci/bus_memory.h"

#include <iterator>

namespace bm::sim {

bool BusMemory::overlaps(uint64_t address, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto after = pieces_.lower_bound(address);
  if (after != pieces_.end() && after->first < address + bytes) return true;
  return after != pieces_.begin() &&
         std::prev(after)->first + std::prev(after)->second.bytes > address;
}

bool BusMemory::map(uint64_t address, Piece piece) {
  if (overlaps(address, piece.bytes)) return false;
  const std::lock_guard lock(mutex_);
  pieces_[address] = piece;
  return true;
}

void BusMemory::unmap(uint64_t address) {
  const std::lock_guard lock(mutex_);
  pieces_.erase(address);
}

std::byte* BusMemory::at(uint64_t address, uint64_t bytes, bool is_write, uint64_t* contiguous) {
  const std::lock_guard lock(mutex_);
  auto after = pieces_.upper_bound(address);
  if (after == pieces_.begin()) return nullptr;
  const auto& [start, piece] = *std::prev(after);
  const uint64_t offset = address - start;
  if (offset >= piece.bytes || bytes > piece.bytes - offset) return nullptr;
  if (is_write && piece.is_read_only) return nullptr;
  if (contiguous != nullptr) *contiguous = piece.bytes - offset;
  return piece.host + offset;
}

}  // namespace bm::sim
