#pragma once
// Machine code with the assembly text it was made from behind it: what reads the former by its own
// headers (ELF) does not notice, and who cannot use it has the latter.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace bm {

struct PairedImage {
  std::span<const std::byte> code;
  std::string_view text;  ///< without the NUL that follows it; empty: there is none
};

namespace detail {
// Layout: code, text, NUL, bytes of code as uint64 (little endian), this.
inline constexpr char kPairMark[8] = {'B', 'M', 'P', 'A', 'I', 'R', '0', '1'};
inline constexpr size_t kPairTail = sizeof(uint64_t) + sizeof kPairMark;
}  // namespace detail

inline std::vector<std::byte> pair_image(std::span<const std::byte> code, std::string_view text) {
  std::vector<std::byte> out(code.size() + text.size() + 1 + detail::kPairTail);
  std::byte* at = out.data();
  const auto append = [&at](const void* data, size_t bytes) {
    if (bytes != 0) std::memcpy(at, data, bytes);
    at += bytes;
  };
  const uint64_t code_bytes = code.size();
  append(code.data(), code.size());
  append(text.data(), text.size());
  append("", 1);
  append(&code_bytes, sizeof code_bytes);
  append(detail::kPairMark, sizeof detail::kPairMark);
  return out;
}

/// Any bytes may be given: those that are no pair are code without text.
inline PairedImage split_image(std::span<const std::byte> image) {
  const PairedImage whole{image, {}};
  if (image.size() < detail::kPairTail + 1) return whole;
  const size_t tail = image.size() - detail::kPairTail;
  uint64_t code_bytes = 0;
  std::memcpy(&code_bytes, image.data() + tail, sizeof code_bytes);
  const bool is_pair = std::memcmp(image.data() + tail + sizeof code_bytes, detail::kPairMark,
                                   sizeof detail::kPairMark) == 0;
  if (!is_pair || code_bytes >= tail || image[tail - 1] != std::byte{0}) return whole;
  const auto* text = reinterpret_cast<const char*>(image.data() + code_bytes);
  return {image.first(code_bytes), {text, tail - 1 - code_bytes}};
}

}  // namespace bm
