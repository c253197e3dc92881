#pragma once
// Bounds-checked little-endian reader: the only way to read lengths that come from a file or
// device.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "runtime/base/result.h"

namespace bm {

/// Reads forward; a failed read leaves the position unchanged. The bytes must outlive the reader
/// and what it hands out.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  /// Next sizeof(T) bytes as T; no alignment needed.
  /// Errors: kCorrupt naming the offset and what is missing.
  template <class T>
  Result<T> read() {
    static_assert(std::is_trivially_copyable_v<T>);
    static_assert(std::endian::native == std::endian::little, "byte swapping is not written");
    if (sizeof(T) > remaining()) [[unlikely]]
      return missing(sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return value;
  }

  /// Next `count` bytes without copying.
  Result<std::span<const std::byte>> bytes(uint64_t count) {
    if (count > remaining()) [[unlikely]]
      return missing(count);
    const auto result = bytes_.subspan(offset_, static_cast<size_t>(count));
    offset_ += static_cast<size_t>(count);
    return result;
  }

  /// Next `count` bytes as text; contents are not checked.
  Result<std::string_view> text(uint64_t count) {
    const std::span<const std::byte> raw = BM_TRY(bytes(count));
    return std::string_view(reinterpret_cast<const char*>(raw.data()), raw.size());
  }

  Status skip(uint64_t count) {
    if (count > remaining()) [[unlikely]]
      return missing(count);
    offset_ += static_cast<size_t>(count);
    return {};
  }

  /// Moves to an absolute position; the end itself is allowed.
  Status seek(uint64_t position) {
    if (position > bytes_.size()) [[unlikely]]
      return fail(Code::kCorrupt, "offset {} lies past the end ({} bytes)", position,
                  bytes_.size());
    offset_ = static_cast<size_t>(position);
    return {};
  }

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }
  uint64_t size() const { return bytes_.size(); }

 private:
  tl::unexpected<Error> missing(uint64_t wanted) const {
    return fail(Code::kCorrupt, "offset {}: {} bytes wanted, {} left", offset_, wanted,
                remaining());
  }

  std::span<const std::byte> bytes_;
  size_t offset_ = 0;
};

}  // namespace bm
