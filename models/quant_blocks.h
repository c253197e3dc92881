#pragma once
// Quantised blocks by description: one row for each format, which dequantisation, packing and
// kernels follow.
//
// A value is scale · (book[code] − zero) − minimum, where a format has a minimum:
//   scale   = unit · factor · scale of the value's group   (what a format lacks is 1)
//   minimum = factor of the minima · minimum of the group  (likewise)
// Every product is exact in float32, so the order of the factors does not matter.

#include <array>
#include <cstddef>
#include <cstdint>

#include "models/quant.h"

namespace bm::models {

/// What is kept as the scale of a group.
enum class ScaleKind : uint8_t {
  kNone,
  kF16,
  kU8,
  kI8,
  kNibbles,  ///< the scale in the low half of a byte, the minimum in the high one
  kE8M0,  ///< half a power of two by its exponent: 2^(e − 128). Source: OCP MX 1.0, section 5.4.1
};

/// A block in parts; those a format lacks are not written.
struct DecodedBlock {
  std::array<uint8_t, 256> codes;
  std::array<uint16_t, 16> scales;  ///< of the format's kind; kF16: the bits
  std::array<uint16_t, 16> minima;  ///< kU8 where the scales are bytes, else bits of float16
  uint16_t factor, minimum_factor;  ///< bits of float16
};

/// Codes stand for themselves, or for entries of a table of 16 numbers.
using Codebook = std::array<uint8_t, 16>;

struct BlockFormat {
  GgmlType type;
  uint8_t low_bits;   ///< of a code: 8, 4, 2 or 1
  uint8_t high_bits;  ///< above those: 0, 1 or 2
  uint8_t zero;
  const Codebook* book;  ///< nullptr: the code itself
  uint8_t group;         ///< values that share a scale: 16 or 32
  ScaleKind scales;
  bool has_minimum;
  bool has_factor;  ///< blocks of 256 have one more scale
  float unit;
  void (*decode)(const std::byte* block, DecodedBlock* out);

  uint32_t code_bits() const { return uint32_t{low_bits} + high_bits; }
};

/// nullptr for formats that are not quantised blocks.
const BlockFormat* find_block_format(GgmlType type);

}  // namespace bm::models
