#include "tests/sim/ptx/types.h"

#include <array>

namespace bm::sim::ptx {
namespace {

struct Row {
  Type type;
  std::string_view name;
  uint8_t bytes;
  TypeClass kind;
};

using enum TypeClass;
constexpr std::array kRows{
    Row{Type::kPred, "pred", 1, kPredicate}, Row{Type::kB8, "b8", 1, kBits},
    Row{Type::kB16, "b16", 2, kBits},        Row{Type::kB32, "b32", 4, kBits},
    Row{Type::kB64, "b64", 8, kBits},        Row{Type::kB128, "b128", 16, kBits},
    Row{Type::kU8, "u8", 1, kUnsigned},      Row{Type::kU16, "u16", 2, kUnsigned},
    Row{Type::kU32, "u32", 4, kUnsigned},    Row{Type::kU64, "u64", 8, kUnsigned},
    Row{Type::kS8, "s8", 1, kSigned},        Row{Type::kS16, "s16", 2, kSigned},
    Row{Type::kS32, "s32", 4, kSigned},      Row{Type::kS64, "s64", 8, kSigned},
    Row{Type::kF16, "f16", 2, kFloat},       Row{Type::kF16x2, "f16x2", 4, kFloat},
    Row{Type::kBF16, "bf16", 2, kFloat},     Row{Type::kBF16x2, "bf16x2", 4, kFloat},
    Row{Type::kF32, "f32", 4, kFloat},       Row{Type::kF64, "f64", 8, kFloat},
    Row{Type::kTF32, "tf32", 4, kFloat},     Row{Type::kE4M3, "e4m3", 1, kFloat},
    Row{Type::kE5M2, "e5m2", 1, kFloat},     Row{Type::kE4M3x2, "e4m3x2", 2, kFloat},
    Row{Type::kE5M2x2, "e5m2x2", 2, kFloat}, Row{Type::kU16x2, "u16x2", 4, kUnsigned},
    Row{Type::kS16x2, "s16x2", 4, kSigned},
};

const Row* find(Type type) {
  for (const Row& row : kRows)
    if (row.type == type) return &row;
  return nullptr;
}

/// Formats that live in untyped registers only.
bool is_packed(Type t) {
  return t == Type::kF16x2 || t == Type::kBF16 || t == Type::kBF16x2 || t == Type::kTF32 ||
         t == Type::kE4M3x2 || t == Type::kE5M2x2 || t == Type::kE4M3 || t == Type::kE5M2;
}

}  // namespace

Type type_named(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.type;
  return Type::kNone;
}

std::string_view type_name(Type type) {
  const Row* row = find(type);
  return row ? row->name : "?";
}

uint32_t type_bytes(Type type) {
  const Row* row = find(type);
  return row ? row->bytes : 0;
}

TypeClass type_class(Type type) {
  const Row* row = find(type);
  return row ? row->kind : kBits;
}

bool types_agree(Type declared, Type wanted) {
  if (type_bytes(declared) != type_bytes(wanted)) return false;
  const TypeClass d = type_class(declared), w = type_class(wanted);
  if ((d == kPredicate) != (w == kPredicate)) return false;
  if (d == kBits || w == kBits || d == kPredicate) return true;
  if ((d == kFloat) != (w == kFloat)) return false;
  return d != kFloat || declared == wanted || is_packed(wanted);
}

}  // namespace bm::sim::ptx
