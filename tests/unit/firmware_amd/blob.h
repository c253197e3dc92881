#pragma once
// Writes microcode files and discovery tables for the tests, by offsets read in amdgpu_ucode.h and
// discovery.h again: nothing here comes from the product.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace bm::firmware::amd {

class Blob {
 public:
  /// Grows with zeros as needed.
  template <class T>
  Blob& put(size_t at, T value) {
    if (bytes_.size() < at + sizeof(T)) bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  Blob& words(size_t at, const std::vector<uint32_t>& values) {
    for (size_t i = 0; i < values.size(); ++i) put(at + i * 4, values[i]);
    return *this;
  }
  Blob& fill(size_t at, size_t count, uint8_t value) {
    for (size_t i = 0; i < count; ++i) put(at + i, value);
    return *this;
  }
  template <class T>
  T get(size_t at) const {
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return value;
  }
  size_t size() const { return bytes_.size(); }
  void resize(size_t count) { bytes_.resize(count); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// CRC-32 of IEEE 802.3 bit by bit: polynomial 0xedb88320, reflected.
inline uint32_t slow_crc32(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320u : 0);
  }
  return ~crc;
}

/// Size and CRC, when all else stands.
inline Blob& seal(Blob& blob) {
  blob.put<uint32_t>(0, static_cast<uint32_t>(blob.size()));
  return blob.put<uint32_t>(28, slow_crc32(blob.bytes().subspan(32)));
}

/// A file with `words` behind the common header and `payload` bytes 1, 2, 3 … behind 0x100.
inline Blob ucode_file(uint16_t major, uint16_t minor, const std::vector<uint32_t>& words,
                       size_t payload, uint16_t ip_major = 11) {
  Blob blob;
  blob.put<uint32_t>(4, static_cast<uint32_t>(32 + words.size() * 4))
      .put<uint16_t>(8, major)
      .put<uint16_t>(10, minor)
      .put<uint16_t>(12, ip_major)
      .put<uint32_t>(16, 0x1234)
      .put<uint32_t>(20, static_cast<uint32_t>(payload))
      .put<uint32_t>(24, 0x100)
      .words(32, words);
  for (size_t i = 0; i < payload; ++i) blob.put<uint8_t>(0x100 + i, static_cast<uint8_t>(i + 1));
  return seal(blob);
}

inline uint16_t byte_sum(std::span<const std::byte> bytes) {
  uint32_t sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<uint8_t>(byte);
  return static_cast<uint16_t>(sum);
}

}  // namespace bm::firmware::amd
