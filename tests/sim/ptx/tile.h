#pragma once
// Tiles in shared memory as wgmma and tcgen05 read them: swizzled lines, K-major or turned.
#include <bit>
#include <vector>

#include "runtime/base/half.h"
#include "tests/sim/ptx/exec.h"

namespace bm::sim::ptx {

/// Of K, in one instruction.
inline constexpr uint32_t kStepBytes = 32;
/// Of a float32: instructions on tf32 do not see the others.
inline constexpr uint32_t kTf32Digits = 0xffffe000;

/// A tile in shared memory: `lines` rows or columns, 32 bytes deep.
struct Tile {
  uint64_t start = 0, leading = 0, stride = 0;
  uint32_t width = 128;  ///< bytes of a line of an atom
  bool is_transposed = false;

  /// Where 16 bytes are that start at `address` of the tile without swizzle.
  uint64_t swizzled(uint64_t address) const {
    const uint64_t mask = width / 16 - 1;
    return address ^ (((address >> 7) & mask) << 4);
  }
  /// Of byte `byte` along the depth of row or column `line`; numbers of two bytes where turned.
  uint64_t at(uint32_t line, uint32_t byte) const {
    uint64_t address = start;
    if (is_transposed) {
      const uint32_t step = byte / 2, per_line = width / 2;
      address += line / per_line * leading + step / 8 * stride + step % 8 * width +
                 line % per_line * 2 + byte % 2;
    } else {
      address += line / 8 * stride + line % 8 * width + byte;
    }
    return swizzled(address);
  }
};

/// Every 16 bytes of the tile once: f(address), until one is false.
template <class F>
bool each_piece(const Tile& tile, uint32_t lines, F&& f) {
  if (tile.is_transposed) {
    for (uint32_t step = 0; step < kStepBytes / 2; ++step)
      for (uint32_t line = 0; line < lines; line += 8)
        if (!f(tile.at(line, 2 * step))) return false;
    return true;
  }
  for (uint32_t line = 0; line < lines; ++line)
    for (uint32_t byte = 0; byte < kStepBytes; byte += 16)
      if (!f(tile.at(line, byte))) return false;
  return true;
}

inline double number_at(const Exec& x, const Tile& tile, uint32_t line, uint32_t k, Type t) {
  const auto byte = [&](uint32_t b) -> uint32_t {
    return static_cast<uint8_t>(x.shared[tile.at(line, b)]);
  };
  const auto word = [&] {
    return byte(4 * k) | byte(4 * k + 1) << 8 | byte(4 * k + 2) << 16 | byte(4 * k + 3) << 24;
  };
  switch (t) {
    case Type::kTF32: return std::bit_cast<float>(word() & kTf32Digits);
    case Type::kF16: return f16_to_f32(static_cast<uint16_t>(byte(2 * k) | byte(2 * k + 1) << 8));
    case Type::kBF16: return bf16_to_f32(static_cast<uint16_t>(byte(2 * k) | byte(2 * k + 1) << 8));
    case Type::kS8: return static_cast<int8_t>(byte(k));
    default: return byte(k);
  }
}

inline std::vector<double> numbers(const Exec& x, const Tile& tile, uint32_t lines, Type operand,
                                   bool is_negated) {
  const uint32_t depth = kStepBytes / type_bytes(operand);
  std::vector<double> out;
  for (uint32_t line = 0; line < lines; ++line)
    for (uint32_t k = 0; k < depth; ++k) {
      const double v = number_at(x, tile, line, k, operand);
      out.push_back(is_negated ? -v : v);
    }
  return out;
}

}  // namespace bm::sim::ptx
