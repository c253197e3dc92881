// Layout of packed matrices, for R = rows/16 and C = columns/32. Bytes of four neighbouring columns
// lie together, for 16 rows side by side: one load holds what one dot product instruction takes.
//   Q8_0   codes [R, C, 8, 16, 4] uint8, shifted by 128; scales [R, C, 16] float16
//   Q4_0   codes [R, C, 4, 16, 4]: low halves of bytes are columns 0 … 15 of a block, high halves
//          columns 16 … 31; scales as above
//   Q4_K   codes as Q4_0; scales, minima [R, C/8, 8, 16] uint8; their factors [R, C/8, 16] float16
//   Q6_K   low four bits as Q4_0; high [R, C, 2, 16, 4]: bits 2q and 2q+1 belong to column
//          8q + 4g + j; scales [R, C/8, 8, 2, 16] int8; factors [R, C/8, 16] float16
#include "models/llama_matrix.h"

#include <cstring>

#include "runtime/base/check.h"
#include "runtime/buffer.h"

namespace bm::models {

struct Matrix::Packed {
  GgmlType type = GgmlType::kQ8_0;
  int64_t rows = 0, columns = 0;
  Tensor codes, high, scales, minima, factors, minimum_factors;

  Tensor linear(const Vectors& x) const;
  Tensor values() const;

 private:
  Tensor linear_q8_0(const Vectors& x) const;
  Tensor linear_q4_0(const Vectors& x) const;
  Tensor linear_q4_k(const Vectors& x) const;
  Tensor linear_q6_k(const Vectors& x) const;
  int64_t groups() const { return rows / 16; }
  int64_t blocks() const { return columns / 32; }
};

namespace {

constexpr int64_t kRows = 16;    ///< side by side
constexpr int64_t kBlock = 32;   ///< columns that share a scale of the vectors
constexpr int64_t kSuper = 256;  ///< columns of a block of Q4_K and Q6_K
constexpr float kCodes = 127;
/// Scales below have no finite reciprocal; such blocks count as zero.
constexpr double kLeastScale = 1e-37;

bool has_super_blocks(GgmlType type) { return type == GgmlType::kQ4_K || type == GgmlType::kQ6_K; }

uint8_t u8(const std::byte* p, int64_t i) { return std::to_integer<uint8_t>(p[i]); }

// --- repacking: one block of one row -----------------------------------------------------------

/// Where the parts of a matrix lie in host memory.
struct Target {
  uint8_t *codes = nullptr, *high = nullptr, *scales = nullptr, *minima = nullptr;
  uint8_t *factors = nullptr, *minimum_factors = nullptr;
};

/// Position of columns 4g … 4g+3 of a row in a part with `groups` such groups per block.
int64_t word_at(int64_t block, int64_t groups, int64_t g, int64_t row) {
  return ((block * groups + g) * kRows + row) * 4;
}

void put_half(uint8_t* part, int64_t at, const std::byte* half) {
  std::memcpy(part + 2 * at, half, 2);
}

/// 32 codes of four bits.
void put_nibbles(uint8_t* codes, int64_t block, int64_t row, const uint8_t* values) {
  for (int64_t k = 0; k < 16; ++k)
    codes[word_at(block, 4, k / 4, row) + k % 4] =
        static_cast<uint8_t>((values[k] & 15) | (values[k + 16] & 15) << 4);
}

void pack_q8_0(const Target& t, const std::byte* b, int64_t block, int64_t row) {
  put_half(t.scales, block * kRows + row, b);
  for (int64_t k = 0; k < kBlock; ++k)
    t.codes[word_at(block, 8, k / 4, row) + k % 4] = static_cast<uint8_t>(u8(b + 2, k) ^ 0x80);
}

void pack_q4_0(const Target& t, const std::byte* b, int64_t block, int64_t row) {
  put_half(t.scales, block * kRows + row, b);
  for (int64_t k = 0; k < 16; ++k) t.codes[word_at(block, 4, k / 4, row) + k % 4] = u8(b + 2, k);
}

/// `block`: number of the block of 256. Source of the 6-bit fields: as in quant.cpp.
void pack_q4_k(const Target& t, const std::byte* b, int64_t block, int64_t row) {
  put_half(t.factors, block * kRows + row, b);
  put_half(t.minimum_factors, block * kRows + row, b + 2);
  const std::byte *fields = b + 4, *q = b + 16;
  for (int64_t j = 0; j < 8; ++j) {
    const int64_t sub = block * 8 + j;
    uint8_t scale = u8(fields, j) & 63, minimum = u8(fields, j + 4) & 63;
    if (j >= 4) {
      scale = static_cast<uint8_t>((u8(fields, j + 4) & 15) | (u8(fields, j - 4) >> 6) << 4);
      minimum = static_cast<uint8_t>((u8(fields, j + 4) >> 4) | (u8(fields, j) >> 6) << 4);
    }
    t.scales[sub * kRows + row] = scale;
    t.minima[sub * kRows + row] = minimum;
    uint8_t values[kBlock];
    for (int64_t k = 0; k < kBlock; ++k)
      values[k] = static_cast<uint8_t>(u8(q, j / 2 * 32 + k) >> (j % 2 * 4) & 15);
    put_nibbles(t.codes, sub, row, values);
  }
}

void pack_q6_k(const Target& t, const std::byte* b, int64_t block, int64_t row) {
  put_half(t.factors, block * kRows + row, b + 208);
  for (int64_t j = 0; j < 8; ++j) {  // 32 values: see q6_k_block in quant.cpp
    const int64_t sub = block * 8 + j, half = j / 4, quarter = j % 4;
    uint8_t values[kBlock];
    for (int64_t k = 0; k < kBlock; ++k) {
      const int nibbles = u8(b, half * 64 + quarter % 2 * 32 + k) >> (quarter / 2 * 4) & 15;
      const int top = u8(b + 128, half * 32 + k) >> (2 * quarter) & 3;
      values[k] = static_cast<uint8_t>(nibbles | top << 4);
    }
    put_nibbles(t.codes, sub, row, values);
    for (int64_t k = 0; k < 8; ++k) {
      int bits = 0;
      for (int64_t q = 0; q < 4; ++q) bits |= values[8 * q + k] >> 4 << (2 * q);
      t.high[word_at(sub, 2, k / 4, row) + k % 4] = static_cast<uint8_t>(bits);
    }
    for (int64_t h = 0; h < 2; ++h)
      t.scales[(sub * 2 + h) * kRows + row] = u8(b + 192, half * 8 + quarter * 2 + h);
  }
}

// --- expressions -------------------------------------------------------------------------------

/// [R, C, g, 16, 4] → [m, R, 16, C, g, 4], for products with vectors.
Tensor words(const Tensor& part, const Shape& shape) {
  return part.permute({0, 3, 1, 2, 4}).unsqueeze(0).expand(shape);
}

/// Codes `from` … `from + 4·groups` of every block of the vectors, likewise.
Tensor codes_of(const Vectors& x, int64_t from, int64_t groups, const Shape& shape) {
  const SymInt m = x.codes().size(0);
  const int64_t blocks = x.codes().size(1).constant() / kBlock;
  return x.codes()
      .reshape({m, blocks, kBlock})
      .slice(2, {from, from + 4 * groups})
      .reshape({m, 1, 1, blocks, groups, 4})
      .expand(shape);
}

/// Sums of products over the last two axes.
Tensor dot(const Tensor& a, const Tensor& b) {
  return (a.cast(DType::kI32) * b.cast(DType::kI32)).sum({-2, -1}, false, DType::kI32);
}

/// [R, C, 16] → [m, R, 16, C] float32.
Tensor per_row(const Tensor& part, const Shape& shape) {
  return part.permute({0, 2, 1}).unsqueeze(0).expand(shape).cast(DType::kF32);
}

/// [m, C] → [m, R, 16, C].
Tensor per_vector(const Tensor& part, const Shape& shape) {
  return part.reshape({part.size(0), 1, 1, part.size(1)}).expand(shape);
}

/// Factors [R, C/8, 16] → [R, C, 16].
Tensor per_block(const Tensor& factors) {
  const Shape& s = factors.shape();
  return factors.unsqueeze(2)
      .expand({s[0], s[1], kSuper / kBlock, s[2]})
      .reshape({s[0], s[1].constant() * (kSuper / kBlock), s[2]});
}

Tensor finish(const Tensor& terms, const SymInt& m, int64_t rows) {
  return terms.sum({3}).reshape({m, rows});
}

}  // namespace

// --- vectors -----------------------------------------------------------------------------------

void Vectors::quantize() const {
  if (codes_.is_valid()) return;
  x_ = x_.contiguous();
  const SymInt m = x_.size(0);
  const int64_t columns = x_.size(1).constant(), blocks = columns / kBlock;
  const Tensor x = x_.reshape({m, blocks, kBlock});
  scales_ = (x.abs().max({2}) * (1.0 / kCodes)).contiguous();
  const Tensor scale = scales_.unsqueeze(2).expand({m, blocks, kBlock});
  const Tensor inverse = (scale > kLeastScale).where(scale.reciprocal(), 0.0);
  // Adding 1.5·2^23 rounds to an integer and leaves it in the lowest bits.
  const Tensor rounded = (x * inverse + 12582912.0).bitcast(DType::kI32);
  codes_ = rounded.cast(DType::kI8).reshape({m, columns}).contiguous();
}

const Tensor& Vectors::codes() const {
  quantize();
  return codes_;
}

const Tensor& Vectors::scales() const {
  quantize();
  return scales_;
}

const Tensor& Vectors::sums(int64_t length) const {
  Tensor& sums = length == 16 ? sums16_ : sums32_;
  if (!sums.is_valid()) {
    const SymInt m = codes().size(0);
    const int64_t count = codes().size(1).constant() / length;
    sums = codes()
               .reshape({m, count, length})
               .cast(DType::kI32)
               .sum({2}, false, DType::kI32)
               .contiguous();
  }
  return sums;
}

const Tensor& Vectors::totals() const {
  if (!totals_.is_valid()) {
    const SymInt m = codes().size(0);
    const int64_t blocks = codes().size(1).constant() / kBlock;
    const Tensor sums = codes().reshape({m, blocks, kBlock}).cast(DType::kI32);
    totals_ = (sums.sum({2}, false, DType::kI32).cast(DType::kF32) * scales_).contiguous();
  }
  return totals_;
}

// --- matrices ----------------------------------------------------------------------------------

bool Matrix::can_pack(GgmlType type, uint64_t rows, uint64_t columns) {
  switch (type) {
    case GgmlType::kQ8_0:
    case GgmlType::kQ4_0: return rows % kRows == 0 && columns % kBlock == 0 && rows * columns > 0;
    case GgmlType::kQ4_K:
    case GgmlType::kQ6_K: return rows % kRows == 0 && columns % kSuper == 0 && rows * columns > 0;
    default: return false;
  }
}

uint64_t Matrix::packed_bytes(GgmlType type, uint64_t rows, uint64_t columns) {
  const uint64_t values = rows * columns;
  switch (type) {
    case GgmlType::kQ8_0: return values + values / 32 * 2;
    case GgmlType::kQ4_0: return values / 2 + values / 32 * 2;
    case GgmlType::kQ4_K: return values / 2 + values / 32 * 2 + values / 256 * 4;
    case GgmlType::kQ6_K: return values / 2 + values / 4 + values / 16 + values / 256 * 2;
    default: return 0;
  }
}

Matrix Matrix::pack(GgmlType type, std::span<const std::byte> data, int64_t rows, int64_t columns,
                    std::string_view device) {
  BM_CHECK(can_pack(type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns)));
  auto packed = std::make_shared<Packed>();
  packed->type = type;
  packed->rows = rows;
  packed->columns = columns;
  const int64_t r = rows / kRows, c = columns / kBlock, s = columns / kSuper;
  const bool is_q6 = type == GgmlType::kQ6_K;
  std::vector<std::pair<Tensor*, std::vector<std::byte>>> copies;
  copies.reserve(6);  // parts point into it
  // Parts of devices whose memory the host cannot reach are made here and copied.
  const auto part = [&](Tensor& t, const Shape& shape, DType dtype) {
    t = Tensor::empty(shape, dtype, device);
    if (std::byte* host = t.buffer().host()) return reinterpret_cast<uint8_t*>(host);
    copies.emplace_back(
        &t, std::vector<std::byte>(static_cast<size_t>(t.elements() * item_size(dtype))));
    return reinterpret_cast<uint8_t*>(copies.back().second.data());
  };
  Target t;
  const int64_t groups = type == GgmlType::kQ8_0 ? 8 : 4;
  t.codes = part(packed->codes, {r, c, groups, kRows, 4}, DType::kU8);
  if (!has_super_blocks(type)) {
    t.scales = part(packed->scales, {r, c, kRows}, DType::kF16);
  } else {
    t.factors = part(packed->factors, {r, s, kRows}, DType::kF16);
    if (is_q6) {
      t.high = part(packed->high, {r, c, 2, kRows, 4}, DType::kU8);
      t.scales = part(packed->scales, {r, c, 2, kRows}, DType::kI8);
    } else {
      t.scales = part(packed->scales, {r, c, kRows}, DType::kU8);
      t.minima = part(packed->minima, {r, c, kRows}, DType::kU8);
      t.minimum_factors = part(packed->minimum_factors, {r, s, kRows}, DType::kF16);
    }
  }
  const GgmlTypeInfo& info = ggml_type_info(type);
  const int64_t per_row = columns / info.block_values;
  BM_CHECK(data.size() == static_cast<size_t>(rows * per_row) * info.block_bytes);
  const std::byte* source = data.data();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t b = 0; b < per_row; ++b, source += info.block_bytes) {
      const int64_t block = row / kRows * per_row + b, lane = row % kRows;
      if (type == GgmlType::kQ8_0) pack_q8_0(t, source, block, lane);
      if (type == GgmlType::kQ4_0) pack_q4_0(t, source, block, lane);
      if (type == GgmlType::kQ4_K) pack_q4_k(t, source, block, lane);
      if (type == GgmlType::kQ6_K) pack_q6_k(t, source, block, lane);
    }
  for (auto& [tensor, bytes] : copies) unwrap(runtime::copy_in(tensor->buffer(), bytes));
  Matrix out;
  out.packed_ = std::move(packed);
  return out;
}

Tensor Matrix::linear(const Vectors& x) const {
  return packed_ ? packed_->linear(x) : x.values().linear(weight_.cast(DType::kF32));
}

Tensor Matrix::take(const Tensor& index) const {
  return packed_ ? packed_->values().take(index) : weight_.take(index).cast(DType::kF32);
}

Tensor Matrix::Packed::linear(const Vectors& x) const {
  switch (type) {
    case GgmlType::kQ8_0: return linear_q8_0(x);
    case GgmlType::kQ4_0: return linear_q4_0(x);
    case GgmlType::kQ4_K: return linear_q4_k(x);
    default: return linear_q6_k(x);
  }
}

// Parts are expanded to the shape of the product before they are computed with: then nothing is
// evaluated once per vector and worth storing.
Tensor Matrix::Packed::linear_q8_0(const Vectors& x) const {
  const SymInt m = x.codes().size(0);
  const Shape all{m, groups(), kRows, blocks(), 8, 4}, per{m, groups(), kRows, blocks()};
  const Tensor sum =
      dot(words(codes, all), codes_of(x, 0, 8, all)) + per_vector(x.sums(32), per) * -128;
  return finish(sum.cast(DType::kF32) * per_row(scales, per) * per_vector(x.scales(), per), m,
                rows);
}

Tensor Matrix::Packed::linear_q4_0(const Vectors& x) const {
  const SymInt m = x.codes().size(0);
  const Shape all{m, groups(), kRows, blocks(), 4, 4}, per{m, groups(), kRows, blocks()};
  const Tensor w = words(codes, all);
  const Tensor sum = dot(w & 15, codes_of(x, 0, 4, all)) + dot(w >> 4, codes_of(x, 16, 4, all)) +
                     per_vector(x.sums(32), per) * -8;
  return finish(sum.cast(DType::kF32) * per_row(scales, per) * per_vector(x.scales(), per), m,
                rows);
}

Tensor Matrix::Packed::linear_q4_k(const Vectors& x) const {
  const SymInt m = x.codes().size(0);
  const Shape all{m, groups(), kRows, blocks(), 4, 4}, per{m, groups(), kRows, blocks()};
  const Tensor w = words(codes, all);
  const Tensor sum = dot(w & 15, codes_of(x, 0, 4, all)) + dot(w >> 4, codes_of(x, 16, 4, all));
  const Tensor scale = per_row(scales, per) * per_row(per_block(factors), per);
  const Tensor minimum = per_row(minima, per) * per_row(per_block(minimum_factors), per);
  return finish(sum.cast(DType::kF32) * scale * per_vector(x.scales(), per), m, rows) -
         finish(minimum * per_vector(x.totals(), per), m, rows);
}

Tensor Matrix::Packed::linear_q6_k(const Vectors& x) const {
  const SymInt m = x.codes().size(0);
  const Shape all{m, groups(), kRows, blocks(), 2, 4}, per{m, groups(), kRows, blocks()};
  const Tensor top = words(high, all);
  Tensor terms;
  for (int64_t half = 0; half < 2; ++half) {
    const Tensor sums = x.sums(16).reshape({m, blocks(), 2}).slice(2, {half, half + 1});
    Tensor sum = per_vector(sums.reshape({m, blocks()}), per) * -32;
    for (int64_t part = 0; part < 2; ++part) {
      const int64_t quarter = 2 * half + part;
      const Tensor low = words(codes.slice(2, {2 * part, 2 * part + 2}), all);
      const Tensor code = (half == 0 ? low & 15 : low >> 4) | ((top >> 2 * quarter & 3) << 4);
      sum = sum + dot(code, codes_of(x, 8 * quarter, 2, all));
    }
    const Tensor scale =
        per_row(scales.slice(2, {half, half + 1}).reshape({groups(), blocks(), kRows}), per);
    const Tensor term = sum.cast(DType::kF32) * scale;
    terms = half == 0 ? term : terms + term;
  }
  return finish(terms * per_row(per_block(factors), per) * per_vector(x.scales(), per), m, rows);
}

/// [rows, columns] float32, never stored: rows are taken from it.
Tensor Matrix::Packed::values() const {
  const auto numbers = [](const Tensor& t) { return t.cast(DType::kF32); };
  const auto whole = [&](const Tensor& t) {  // [R, C, …, groups, 16, 4] → [rows, columns]
    return t.reshape({groups(), blocks(), kBlock / 4, kRows, 4})
        .permute({0, 3, 1, 2, 4})
        .reshape({rows, columns});
  };
  const auto scaled = [&](const Tensor& scale) {  // [R, C, 16]
    return scale.reshape({groups(), blocks(), 1, kRows, 1})
        .expand({groups(), blocks(), kBlock / 4, kRows, 4})
        .reshape({groups(), blocks(), kBlock / 4, kRows, 4});
  };
  const auto nibbles = [&] {
    const std::array halves{codes & 15, codes >> 4};
    return Tensor::stack(halves, 2).reshape({groups(), blocks(), kBlock / 4, kRows, 4});
  };
  switch (type) {
    case GgmlType::kQ8_0: return whole((numbers(codes) - 128.0) * numbers(scaled(scales)));
    case GgmlType::kQ4_0: return whole((numbers(nibbles()) - 8.0) * numbers(scaled(scales)));
    case GgmlType::kQ4_K:
      return whole(numbers(nibbles()) *
                       (numbers(scaled(scales)) * numbers(scaled(per_block(factors)))) -
                   numbers(scaled(minima)) * numbers(scaled(per_block(minimum_factors))));
    default: break;
  }
  std::vector<Tensor> quarters;
  for (int64_t q = 0; q < 4; ++q) {
    const Tensor low = codes.slice(2, {q % 2 * 2, q % 2 * 2 + 2});
    quarters.push_back((q < 2 ? low & 15 : low >> 4) | ((high >> 2 * q & 3) << 4));
  }
  const Tensor code =
      Tensor::stack(quarters, 2).reshape({groups(), blocks(), kBlock / 4, kRows, 4});
  const Tensor scale = scales.unsqueeze(3)
                           .expand({groups(), blocks(), 2, 4, kRows})
                           .reshape({groups(), blocks(), kBlock / 4, kRows, 1})
                           .expand({groups(), blocks(), kBlock / 4, kRows, 4});
  return whole((numbers(code) - 32.0) * (numbers(scale) * numbers(scaled(per_block(factors)))));
}

}  // namespace bm::models
