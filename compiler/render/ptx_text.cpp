#include "compiler/render/ptx_text.h"

#include <bit>

#include "runtime/base/half.h"

namespace bm::compiler::ptx {

const FileInfo& info(File file) {
  static constexpr std::array<FileInfo, kFiles> kInfo = {{{"%p", "pred"},
                                                          {"%h", "b16"},
                                                          {"%r", "b32"},
                                                          {"%rd", "b64"},
                                                          {"%f", "f32"},
                                                          {"%fd", "f64"}}};
  return kInfo[static_cast<size_t>(file)];
}

File file_of(DType t) {
  switch (t) {
    case DType::kBool: return File::kPred;
    case DType::kI8:
    case DType::kU8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kU32:
    case DType::kBF16: return File::kB32;
    case DType::kI64:
    case DType::kU64: return File::kB64;
    case DType::kF16: return File::kB16;
    case DType::kF32: return File::kF32;
    case DType::kF64: return File::kF64;
  }
  __builtin_unreachable();
}

std::string_view memory_type(DType t) {
  switch (t) {
    case DType::kBool:
    case DType::kU8: return "u8";
    case DType::kI8: return "s8";
    case DType::kI16: return "s16";
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16: return "u16";
    case DType::kI32: return "s32";
    case DType::kU32: return "u32";
    case DType::kI64: return "s64";
    case DType::kU64: return "u64";
    case DType::kF32: return "f32";
    case DType::kF64: return "f64";
  }
  __builtin_unreachable();
}

std::string_view arithmetic_type(DType t, bool is_narrow) {
  if (t == DType::kF32) return "f32";
  if (t == DType::kF64) return "f64";
  if (item_size(t) == 8 && !is_narrow) return is_signed(t) ? "s64" : "u64";
  return is_signed(t) || is_narrow ? "s32" : "u32";
}

std::string literal(DType t, int64_t imm) {
  if (!is_float(t)) {
    if (t == DType::kU64) return fmt::format("{}", static_cast<uint64_t>(imm));
    // The digits of the least number alone would not fit.
    if (imm == INT64_MIN) return "0x8000000000000000";
    return fmt::format("{}", imm);
  }
  const double v = std::bit_cast<double>(imm);
  if (t == DType::kF16) return fmt::format("{}", f32_to_f16(static_cast<float>(v)));
  if (t == DType::kBF16) return fmt::format("{}", f32_to_bf16(static_cast<float>(v)));
  if (t == DType::kF32)
    return fmt::format("0f{:08X}", std::bit_cast<uint32_t>(static_cast<float>(v)));
  return fmt::format("0d{:016X}", static_cast<uint64_t>(imm));
}

std::string Writer::fresh(File file) {
  return fmt::format("{}{}", info(file).prefix, used_[static_cast<size_t>(file)]++);
}

std::string Writer::declarations() const {
  std::string text;
  for (size_t i = 0; i < kFiles; ++i)
    if (used_[i])
      text += fmt::format("\t.reg .{} {}<{}>;\n", info(static_cast<File>(i)).type,
                          info(static_cast<File>(i)).prefix, used_[i]);
  return text;
}

}  // namespace bm::compiler::ptx
