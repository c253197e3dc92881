#pragma once
// Fields of the kernel's structures, by offset.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bm::sim::amd {

inline uint32_t get32(const std::byte* at, size_t offset) {
  uint32_t value;
  std::memcpy(&value, at + offset, sizeof value);
  return value;
}
inline uint64_t get64(const std::byte* at, size_t offset) {
  uint64_t value;
  std::memcpy(&value, at + offset, sizeof value);
  return value;
}
inline void put32(std::byte* at, size_t offset, uint32_t value) {
  std::memcpy(at + offset, &value, sizeof value);
}
inline void put64(std::byte* at, size_t offset, uint64_t value) {
  std::memcpy(at + offset, &value, sizeof value);
}

}  // namespace bm::sim::amd
