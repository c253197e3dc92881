#pragma once
// Distributions compress firmware as FILE.xz or FILE.zst.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::firmware {

enum class Compression : uint8_t { kNone, kZstd, kXz };

/// What goes behind a file's name: "", ".zst", ".xz".
std::string_view suffix(Compression compression);

/// The contents, at most `limit_bytes`; memory for the decoder is bounded too.
/// Errors: kCorrupt (damaged, cut off, something behind the end, larger than the limit);
/// kOutOfMemory.
Result<std::vector<std::byte>> decompress(std::span<const std::byte> packed,
                                          Compression compression, uint64_t limit_bytes);

/// CRC-32 of IEEE 802.3, as zlib computes it.
uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace bm::firmware
