#pragma once
// Structures that the resource manager on the card's GSP takes and gives. They are of one release,
// the firmware's: files of another are refused before anything is sent.
//
// Source: NVIDIA open-gpu-kernel-modules, tag 570.144 (structures compiled, see tools/abigen).

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "drivers/nv/abi/abi.h"
#include "runtime/base/check.h"
#include "runtime/base/result.h"

namespace bm::nv::abi::gsp {

inline constexpr Version kRelease = {570, 144, 0};

#include "drivers/nv/abi/gsp_570_144.gen.inc"

/// One structure, zeroed, laid out as the firmware has it: `Gsp<WprMeta> meta;
/// meta.set(WprMeta::revision, 1);`. Little-endian.
template <class S>
class Gsp {
 public:
  Gsp() : bytes_(S::kBytes) {}
  /// The first of `bytes`. Errors: kCorrupt naming `what`: fewer than it has.
  static Result<Gsp> decode(std::span<const std::byte> bytes, std::string_view what) {
    if (bytes.size() < S::kBytes)
      return fail(Code::kCorrupt, "{}: {} bytes, and it has {}", what, bytes.size(), S::kBytes);
    Gsp made;
    std::memcpy(made.bytes_.data(), bytes.data(), S::kBytes);
    return made;
  }

  /// A value that does not fit ends the process: it is a promise of ours.
  Gsp& set(const FieldPlace& field, uint64_t value, uint32_t index = 0) {
    BM_CHECK(index < field.count && field.bytes <= sizeof value);
    BM_CHECK(field.bytes == sizeof value || value >> (8 * field.bytes) == 0);
    std::memcpy(bytes_.data() + field.offset + size_t{index} * field.stride, &value, field.bytes);
    return *this;
  }
  uint64_t get(const FieldPlace& field, uint32_t index = 0) const {
    BM_CHECK(index < field.count && field.bytes <= sizeof(uint64_t));
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + field.offset + size_t{index} * field.stride, field.bytes);
    return value;
  }
  /// All of a field, an array or text; shorter values leave the rest as it is.
  Gsp& set_bytes(const FieldPlace& field, std::span<const std::byte> value) {
    BM_CHECK(value.size() <= size_t{field.count} * field.stride);
    if (!value.empty()) std::memcpy(bytes_.data() + field.offset, value.data(), value.size());
    return *this;
  }
  std::span<const std::byte> get_bytes(const FieldPlace& field) const {
    return std::span(bytes_).subspan(field.offset, size_t{field.count} * field.stride);
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace bm::nv::abi::gsp
