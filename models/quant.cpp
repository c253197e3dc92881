// Compiled with -ffp-contract=off: every product and difference is an operation of its own.

#include "models/quant.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "models/quant_blocks.h"
#include "runtime/base/check.h"
#include "runtime/base/half.h"

namespace bm::models {
namespace {

constexpr std::array kTypes = {
    GgmlTypeInfo{GgmlType::kF32, "F32", 1, 4},
    GgmlTypeInfo{GgmlType::kF16, "F16", 1, 2},
    GgmlTypeInfo{GgmlType::kQ4_0, "Q4_0", 32, 18},
    GgmlTypeInfo{GgmlType::kQ4_1, "Q4_1", 32, 20},
    GgmlTypeInfo{GgmlType::kQ5_0, "Q5_0", 32, 22},
    GgmlTypeInfo{GgmlType::kQ5_1, "Q5_1", 32, 24},
    GgmlTypeInfo{GgmlType::kQ8_0, "Q8_0", 32, 34},
    GgmlTypeInfo{GgmlType::kQ2_K, "Q2_K", 256, 84},
    GgmlTypeInfo{GgmlType::kQ3_K, "Q3_K", 256, 110},
    GgmlTypeInfo{GgmlType::kQ4_K, "Q4_K", 256, 144},
    GgmlTypeInfo{GgmlType::kQ5_K, "Q5_K", 256, 176},
    GgmlTypeInfo{GgmlType::kQ6_K, "Q6_K", 256, 210},
    GgmlTypeInfo{GgmlType::kIQ2_XXS, "IQ2_XXS", 256, 66},
    GgmlTypeInfo{GgmlType::kIQ2_XS, "IQ2_XS", 256, 74},
    GgmlTypeInfo{GgmlType::kIQ3_XXS, "IQ3_XXS", 256, 98},
    GgmlTypeInfo{GgmlType::kIQ1_S, "IQ1_S", 256, 50},
    GgmlTypeInfo{GgmlType::kIQ4_NL, "IQ4_NL", 32, 18},
    GgmlTypeInfo{GgmlType::kIQ3_S, "IQ3_S", 256, 110},
    GgmlTypeInfo{GgmlType::kIQ2_S, "IQ2_S", 256, 82},
    GgmlTypeInfo{GgmlType::kIQ4_XS, "IQ4_XS", 256, 136},
    GgmlTypeInfo{GgmlType::kI8, "I8", 1, 1},
    GgmlTypeInfo{GgmlType::kI16, "I16", 1, 2},
    GgmlTypeInfo{GgmlType::kI32, "I32", 1, 4},
    GgmlTypeInfo{GgmlType::kI64, "I64", 1, 8},
    GgmlTypeInfo{GgmlType::kF64, "F64", 1, 8},
    GgmlTypeInfo{GgmlType::kIQ1_M, "IQ1_M", 256, 56},
    GgmlTypeInfo{GgmlType::kBF16, "BF16", 1, 2},
    GgmlTypeInfo{GgmlType::kTQ1_0, "TQ1_0", 256, 54},
    GgmlTypeInfo{GgmlType::kTQ2_0, "TQ2_0", 256, 66},
    GgmlTypeInfo{GgmlType::kMXFP4, "MXFP4", 32, 17},
    GgmlTypeInfo{GgmlType::kNVFP4, "NVFP4", 64, 36},
    GgmlTypeInfo{GgmlType::kQ1_0, "Q1_0", 128, 18},
    GgmlTypeInfo{GgmlType::kQ2_0, "Q2_0", 64, 18},
};

struct OtherType {
  uint32_t number;
  const char* name;
};

// Types that exist but that we cannot read, so that the refusal can name them.
constexpr std::array kOtherTypes = {
    OtherType{4, "Q4_2"},
    OtherType{5, "Q4_3"},
    OtherType{9, "Q8_1"},
    OtherType{15, "Q8_K"},
};

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

uint8_t byte(size_t v) { return static_cast<uint8_t>(v); }
float load_f16(const std::byte* p) { return f16_to_f32(load<uint16_t>(p)); }

template <class T>
void convert_numbers(const std::byte* src, std::span<float> dst) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = static_cast<float>(load<T>(src + i * sizeof(T)));
}

float number(ScaleKind kind, uint16_t bits) {
  switch (kind) {
    case ScaleKind::kNone: return 1;
    case ScaleKind::kF16: return f16_to_f32(bits);
    case ScaleKind::kU8: return static_cast<float>(bits);
    case ScaleKind::kI8: return static_cast<float>(static_cast<int8_t>(bits));
    case ScaleKind::kNibbles: return static_cast<float>(bits & 15);
    case ScaleKind::kE8M0: return std::ldexp(1.0F, bits - 128);
  }
  __builtin_unreachable();
}

float minimum_of(ScaleKind kind, const DecodedBlock& block, size_t group) {
  if (kind == ScaleKind::kNibbles) return static_cast<float>(block.scales[group] >> 4);
  return number(kind, block.minima[group]);
}

void dequantize_blocks(const BlockFormat& format, const GgmlTypeInfo& info, const std::byte* src,
                       std::span<float> dst) {
  DecodedBlock block;
  std::array<float, 256> numbers{};
  for (size_t code = 0; code < 1U << format.code_bits(); ++code)
    numbers[code] =
        static_cast<float>(int{format.book ? (*format.book)[code] : byte(code)} - format.zero);
  for (size_t at = 0; at < dst.size(); at += info.block_values, src += info.block_bytes) {
    format.decode(src, &block);
    const float factor = format.unit * (format.has_factor ? f16_to_f32(block.factor) : 1);
    const float minimum_factor =
        format.has_factor && format.has_minimum ? f16_to_f32(block.minimum_factor) : 1;
    for (size_t g = 0; g < info.block_values / format.group; ++g) {
      const float scale = factor * number(format.scales, block.scales[g]);
      float* y = &dst[at + g * format.group];
      const uint8_t* codes = &block.codes[g * format.group];
      if (!format.has_minimum) {
        for (size_t i = 0; i < format.group; ++i) y[i] = scale * numbers[codes[i]];
        continue;
      }
      const float minimum = minimum_factor * minimum_of(format.scales, block, g);
      for (size_t i = 0; i < format.group; ++i) y[i] = scale * numbers[codes[i]] - minimum;
    }
  }
}

Status check_sizes(const GgmlTypeInfo& info, uint64_t values, uint64_t bytes) {
  const uint64_t needed = BM_TRY(ggml_row_bytes(info.type, values));
  if (needed != bytes)
    return fail(Code::kInvalidArgument, "{} values of {} need {} bytes, not {}", values, info.name,
                needed, bytes);
  return {};
}

/// 1/d, or 0 where that is not a number: blocks of zeros, and of values below about 1e-37.
float reciprocal(float d) {
  const float r = 1.0f / d;
  return std::isfinite(r) ? r : 0.0f;
}

void quantize_q8_0(const float* x, std::byte* b) {
  float amax = 0;
  for (size_t j = 0; j < 32; ++j) amax = std::max(amax, std::fabs(x[j]));
  const float d = amax / 127.0f, inverse = reciprocal(d);
  const uint16_t stored = f32_to_f16(d);
  std::memcpy(b, &stored, 2);
  for (size_t j = 0; j < 32; ++j)
    b[2 + j] = static_cast<std::byte>(static_cast<int8_t>(std::round(x[j] * inverse)));
}

void quantize_q4_0(const float* x, std::byte* b) {
  float extreme = 0;  // the value of greatest magnitude, with its sign, becomes code 0 = −8
  for (size_t j = 0; j < 32; ++j)
    if (std::fabs(x[j]) > std::fabs(extreme)) extreme = x[j];
  const float d = extreme / -8.0f, inverse = reciprocal(d);
  const uint16_t stored = f32_to_f16(d);
  std::memcpy(b, &stored, 2);
  const auto code = [&](float v) {
    return std::min(15u, static_cast<uint32_t>(v * inverse + 8.5f));
  };
  for (size_t j = 0; j < 16; ++j)
    b[2 + j] = static_cast<std::byte>(code(x[j]) | (code(x[j + 16]) << 4));
}

}  // namespace

const GgmlTypeInfo* find_ggml_type(uint32_t number) {
  for (const GgmlTypeInfo& info : kTypes)
    if (static_cast<uint32_t>(info.type) == number) return &info;
  return nullptr;
}

const GgmlTypeInfo& ggml_type_info(GgmlType type) {
  for (const GgmlTypeInfo& info : kTypes)
    if (info.type == type) return info;
  __builtin_unreachable();
}

std::string ggml_type_name(uint32_t number) {
  if (const GgmlTypeInfo* info = find_ggml_type(number)) return info->name;
  for (const OtherType& other : kOtherTypes)
    if (other.number == number) return other.name;
  return fmt::format("type {}", number);
}

Result<uint64_t> ggml_row_bytes(GgmlType type, uint64_t values) {
  const GgmlTypeInfo& info = ggml_type_info(type);
  uint64_t bytes = 0;
  if (values % info.block_values != 0)
    return fail(Code::kInvalidArgument, "{} values are not whole {} blocks of {}", values,
                info.name, info.block_values);
  if (__builtin_mul_overflow(values / info.block_values, uint64_t{info.block_bytes}, &bytes))
    return fail(Code::kInvalidArgument, "{} values of {} need more than 2^64 bytes", values,
                info.name);
  return bytes;
}

Status dequantize_row(GgmlType type, std::span<const std::byte> src, std::span<float> dst) {
  const GgmlTypeInfo& info = ggml_type_info(type);
  BM_TRY(check_sizes(info, dst.size(), src.size()));
  const std::byte* p = src.data();
  if (const BlockFormat* format = find_block_format(type)) {
    dequantize_blocks(*format, info, p, dst);
    return {};
  }
  switch (type) {
    case GgmlType::kF32:
      if (!dst.empty()) std::memcpy(dst.data(), p, src.size());
      break;
    case GgmlType::kF16:
      for (size_t i = 0; i < dst.size(); ++i) dst[i] = load_f16(p + 2 * i);
      break;
    case GgmlType::kBF16:
      for (size_t i = 0; i < dst.size(); ++i) dst[i] = bf16_to_f32(load<uint16_t>(p + 2 * i));
      break;
    case GgmlType::kI8: convert_numbers<int8_t>(p, dst); break;
    case GgmlType::kI16: convert_numbers<int16_t>(p, dst); break;
    case GgmlType::kI32: convert_numbers<int32_t>(p, dst); break;
    case GgmlType::kI64: convert_numbers<int64_t>(p, dst); break;
    case GgmlType::kF64: convert_numbers<double>(p, dst); break;
    default: check_failed("a type without conversion", __FILE__, __LINE__);
  }
  return {};
}

Status quantize_row(GgmlType type, std::span<const float> src, std::span<std::byte> dst) {
  const GgmlTypeInfo& info = ggml_type_info(type);
  BM_TRY(check_sizes(info, src.size(), dst.size()));
  for (const float v : src)
    if (info.block_values > 1 && !std::isfinite(v))
      return fail(Code::kInvalidArgument, "{} cannot hold {}", info.name, v);
  const auto store = [&](size_t i, uint16_t half) { std::memcpy(dst.data() + 2 * i, &half, 2); };
  if (type == GgmlType::kF32) {
    if (!src.empty()) std::memcpy(dst.data(), src.data(), dst.size());
  } else if (type == GgmlType::kF16) {
    for (size_t i = 0; i < src.size(); ++i) store(i, f32_to_f16(src[i]));
  } else if (type == GgmlType::kBF16) {
    for (size_t i = 0; i < src.size(); ++i) store(i, f32_to_bf16(src[i]));
  } else if (type == GgmlType::kQ8_0) {
    for (size_t i = 0; i < src.size(); i += 32)
      quantize_q8_0(&src[i], &dst[i / 32 * info.block_bytes]);
  } else if (type == GgmlType::kQ4_0) {
    for (size_t i = 0; i < src.size(); i += 32)
      quantize_q4_0(&src[i], &dst[i / 32 * info.block_bytes]);
  } else {
    return fail(Code::kUnsupported, "no quantiser for {}", info.name);
  }
  return {};
}

}  // namespace bm::models
