// Compiled with -ffp-contract=off: a fused multiply-add would change the last bit of the formats
// with a minimum (Q4_1, Q5_1, Q4_K, Q5_K).

#include "models/quant.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

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
    GgmlTypeInfo{GgmlType::kQ4_K, "Q4_K", 256, 144},
    GgmlTypeInfo{GgmlType::kQ5_K, "Q5_K", 256, 176},
    GgmlTypeInfo{GgmlType::kQ6_K, "Q6_K", 256, 210},
    GgmlTypeInfo{GgmlType::kI8, "I8", 1, 1},
    GgmlTypeInfo{GgmlType::kI16, "I16", 1, 2},
    GgmlTypeInfo{GgmlType::kI32, "I32", 1, 4},
    GgmlTypeInfo{GgmlType::kI64, "I64", 1, 8},
    GgmlTypeInfo{GgmlType::kF64, "F64", 1, 8},
    GgmlTypeInfo{GgmlType::kBF16, "BF16", 1, 2},
};

struct OtherType {
  uint32_t number;
  const char* name;
};

// Types that exist but that we cannot read, so that the refusal can name them.
constexpr std::array kOtherTypes = {
    OtherType{4, "Q4_2"},     OtherType{5, "Q4_3"},    OtherType{9, "Q8_1"},
    OtherType{10, "Q2_K"},    OtherType{11, "Q3_K"},   OtherType{15, "Q8_K"},
    OtherType{16, "IQ2_XXS"}, OtherType{17, "IQ2_XS"}, OtherType{18, "IQ3_XXS"},
    OtherType{19, "IQ1_S"},   OtherType{20, "IQ4_NL"}, OtherType{21, "IQ3_S"},
    OtherType{22, "IQ2_S"},   OtherType{23, "IQ4_XS"}, OtherType{29, "IQ1_M"},
    OtherType{34, "TQ1_0"},   OtherType{35, "TQ2_0"},  OtherType{39, "MXFP4"},
};

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

float load_f16(const std::byte* p) { return f16_to_f32(load<uint16_t>(p)); }
uint32_t u8(const std::byte* p, size_t i) { return std::to_integer<uint32_t>(p[i]); }
float centered(uint32_t code, int zero) {
  return static_cast<float>(static_cast<int>(code) - zero);
}

template <class T>
void convert_numbers(const std::byte* src, std::span<float> dst) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = static_cast<float>(load<T>(src + i * sizeof(T)));
}

void q8_0_block(const std::byte* b, float* y) {
  const float d = load_f16(b);
  for (size_t j = 0; j < 32; ++j) y[j] = static_cast<float>(load<int8_t>(b + 2 + j)) * d;
}

void q4_0_block(const std::byte* b, float* y) {
  const float d = load_f16(b);
  for (size_t j = 0; j < 16; ++j) {
    y[j] = centered(u8(b + 2, j) & 15, 8) * d;
    y[j + 16] = centered(u8(b + 2, j) >> 4, 8) * d;
  }
}

void q4_1_block(const std::byte* b, float* y) {
  const float d = load_f16(b), m = load_f16(b + 2);
  for (size_t j = 0; j < 16; ++j) {
    y[j] = static_cast<float>(u8(b + 4, j) & 15) * d + m;
    y[j + 16] = static_cast<float>(u8(b + 4, j) >> 4) * d + m;
  }
}

// Fifth bits: bit j of `high` belongs to value j, so bits 0–15 to the low and 16–31 to the high
// halves.
uint32_t fifth_bit(uint32_t high, size_t value) { return ((high >> value) & 1) << 4; }

void q5_0_block(const std::byte* b, float* y) {
  const float d = load_f16(b);
  const auto high = load<uint32_t>(b + 2);
  for (size_t j = 0; j < 16; ++j) {
    y[j] = centered((u8(b + 6, j) & 15) | fifth_bit(high, j), 16) * d;
    y[j + 16] = centered((u8(b + 6, j) >> 4) | fifth_bit(high, j + 16), 16) * d;
  }
}

void q5_1_block(const std::byte* b, float* y) {
  const float d = load_f16(b), m = load_f16(b + 2);
  const auto high = load<uint32_t>(b + 4);
  for (size_t j = 0; j < 16; ++j) {
    y[j] = static_cast<float>((u8(b + 8, j) & 15) | fifth_bit(high, j)) * d + m;
    y[j + 16] = static_cast<float>((u8(b + 8, j) >> 4) | fifth_bit(high, j + 16)) * d + m;
  }
}

struct ScaleMin {
  float scale, min;
};

// Eight 6-bit scales and eight 6-bit minima in twelve bytes: the first four of each lie in the low
// six bits of bytes 0–7; the last four have their low nibbles in bytes 8–11, their top bits in
// bytes 0–7.
ScaleMin k_scale_min(const std::byte* s, size_t j) {
  if (j < 4) return {static_cast<float>(u8(s, j) & 63), static_cast<float>(u8(s, j + 4) & 63)};
  return {static_cast<float>((u8(s, j + 4) & 15) | ((u8(s, j - 4) >> 6) << 4)),
          static_cast<float>((u8(s, j + 4) >> 4) | ((u8(s, j) >> 6) << 4))};
}

void q4_k_block(const std::byte* b, float* y) {
  const float d = load_f16(b), dmin = load_f16(b + 2);
  const std::byte* q = b + 16;
  for (size_t j = 0; j < 8; ++j) {  // sub-blocks 2i and 2i+1 share 32 bytes: low and high nibbles
    const ScaleMin s = k_scale_min(b + 4, j);
    const float d1 = d * s.scale, m1 = dmin * s.min;
    const unsigned shift = j % 2 == 0 ? 0 : 4;
    for (size_t l = 0; l < 32; ++l)
      y[j * 32 + l] = d1 * static_cast<float>((u8(q, j / 2 * 32 + l) >> shift) & 15) - m1;
  }
}

void q5_k_block(const std::byte* b, float* y) {
  const float d = load_f16(b), dmin = load_f16(b + 2);
  const std::byte *high = b + 16, *q = b + 48;
  for (size_t j = 0; j < 8; ++j) {
    const ScaleMin s = k_scale_min(b + 4, j);
    const float d1 = d * s.scale, m1 = dmin * s.min;
    const unsigned shift = j % 2 == 0 ? 0 : 4;
    for (size_t l = 0; l < 32; ++l) {
      const uint32_t code =
          ((u8(q, j / 2 * 32 + l) >> shift) & 15) | (((u8(high, l) >> j) & 1) << 4);
      y[j * 32 + l] = d1 * static_cast<float>(code) - m1;
    }
  }
}

void q6_k_block(const std::byte* b, float* y) {
  const std::byte *low = b, *high = b + 128, *scales = b + 192;
  const float d = load_f16(b + 208);
  for (size_t half = 0; half < 2; ++half) {
    for (size_t quarter = 0; quarter < 4;
         ++quarter) {  // 32 values: nibbles of one half of 64 bytes
      for (size_t l = 0; l < 32; ++l) {
        const uint32_t nibbles = u8(low, half * 64 + (quarter % 2) * 32 + l);
        const uint32_t top = (u8(high, half * 32 + l) >> (2 * quarter)) & 3;
        const uint32_t code = (quarter < 2 ? nibbles & 15 : nibbles >> 4) | (top << 4);
        const auto scale = load<int8_t>(scales + half * 8 + quarter * 2 + l / 16);
        y[half * 128 + quarter * 32 + l] = (d * static_cast<float>(scale)) * centered(code, 32);
      }
    }
  }
}

template <void (*kBlock)(const std::byte*, float*)>
void each_block(const GgmlTypeInfo& info, const std::byte* src, std::span<float> dst) {
  for (size_t i = 0; i < dst.size(); i += info.block_values, src += info.block_bytes)
    kBlock(src, dst.data() + i);
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
    case GgmlType::kQ8_0: each_block<q8_0_block>(info, p, dst); break;
    case GgmlType::kQ4_0: each_block<q4_0_block>(info, p, dst); break;
    case GgmlType::kQ4_1: each_block<q4_1_block>(info, p, dst); break;
    case GgmlType::kQ5_0: each_block<q5_0_block>(info, p, dst); break;
    case GgmlType::kQ5_1: each_block<q5_1_block>(info, p, dst); break;
    case GgmlType::kQ4_K: each_block<q4_k_block>(info, p, dst); break;
    case GgmlType::kQ5_K: each_block<q5_k_block>(info, p, dst); break;
    case GgmlType::kQ6_K: each_block<q6_k_block>(info, p, dst); break;
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
