#pragma once
// Fields of structures by offset. Everything here is little-endian, as is every machine we run on.

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace bm::sim::nv {

using Bytes = std::span<std::byte>;

template <class T = uint32_t>
T get(std::span<const std::byte> bytes, size_t offset) {
  T value{};
  if (offset + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <class T>
void put(Bytes bytes, size_t offset, std::type_identity_t<T> value) {
  if (offset + sizeof(T) <= bytes.size()) std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

inline uint32_t bits(uint64_t value, unsigned high, unsigned low) {
  return static_cast<uint32_t>(value >> low & ((uint64_t{1} << (high - low + 1)) - 1));
}

}  // namespace bm::sim::nv
