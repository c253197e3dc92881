#pragma once
// A firmware file seen as bytes at offsets that it names itself: what the parsers of the vendors'
// formats read through. ELF files go through runtime/base/elf.h.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/base/result.h"

namespace bm::firmware {

/// Nothing is copied but scalars; the bytes outlive the image and its sections. Every error is
/// kCorrupt and names file, part, offset and what the file has.
class Image {
 public:
  Image(std::string name, std::span<const std::byte> bytes)
      : name_(std::move(name)), bytes_(bytes) {}

  const std::string& name() const { return name_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  uint64_t size() const { return bytes_.size(); }

  /// Little-endian T at `offset`, aligned or not. `what`: for the message, "ucode size".
  template <class T>
  Result<T> at(uint64_t offset, std::string_view what) const {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::span<const std::byte> from = BM_TRY(section(offset, sizeof(T), what));
    T value;
    std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  /// [offset, offset + bytes); may be empty at the end.
  Result<std::span<const std::byte>> section(uint64_t offset, uint64_t bytes,
                                             std::string_view what) const;
  /// `count` values of T from `offset` on.
  template <class T>
  Result<std::vector<T>> table(uint64_t offset, uint64_t count, std::string_view what) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (count > size() / sizeof(T)) return outside(offset, count, sizeof(T), what);
    const std::span<const std::byte> from = BM_TRY(section(offset, count * sizeof(T), what));
    std::vector<T> values(count);
    if (count != 0) std::memcpy(values.data(), from.data(), from.size());
    return values;
  }
  /// A part as an image of its own, for formats within formats; its errors name both.
  Result<Image> part(uint64_t offset, uint64_t bytes, std::string_view what) const;
  /// Compares CRC-32 (zlib's) of [from, end of file) with `expected`.
  Status check_crc32(uint64_t from, uint32_t expected) const;

 private:
  tl::unexpected<Error> outside(uint64_t offset, uint64_t count, uint64_t each,
                                std::string_view what) const;
  std::string name_;
  std::span<const std::byte> bytes_;
};

}  // namespace bm::firmware
