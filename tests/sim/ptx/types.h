#pragma once
// Scalar types of PTX instructions and registers.

#include <cstdint>
#include <string_view>

namespace bm::sim::ptx {

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kF16x2,
  kBF16,
  kBF16x2,
  kF32,
  kF64,
  kTF32,
  kE4M3,
  kE5M2,
  kE4M3x2,
  kE5M2x2,
  kU16x2,
  kS16x2,
};

enum class TypeClass : uint8_t { kPredicate, kBits, kUnsigned, kSigned, kFloat };

/// kNone for an unknown name; no dot in front.
Type type_named(std::string_view name);
std::string_view type_name(Type type);
uint32_t type_bytes(Type type);
TypeClass type_class(Type type);

/// Whether a register declared as `declared` may be an operand of type `wanted` of the same size:
/// untyped bits agree with everything, integers with each other, floats with themselves.
bool types_agree(Type declared, Type wanted);

}  // namespace bm::sim::ptx
