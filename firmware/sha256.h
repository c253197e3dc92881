#pragma once
// SHA-256 (FIPS 180-4, section 6.2). For recognising files, about 200 MB/s; nothing secret depends
// on it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace bm::firmware {

std::array<uint8_t, 32> sha256(std::span<const std::byte> bytes);
/// The same as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace bm::firmware
