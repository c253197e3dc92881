#include "models/llama_matrix.h"

#include "models/llama_blocks.h"
#include "models/llama_kept_weights.h"
#include "runtime/base/check.h"
#include "runtime/buffer.h"

namespace bm::models {

struct Matrix::Packed {
  GgmlType type = GgmlType::kQ8_0;
  int64_t rows = 0, columns = 0;
  Tensor codes, high, scales, minima, factors, minimum_factors;

  Tensor linear(const QuantisedActivations& x) const;
  Tensor values() const;
  /// A matrix for every number of `index` [n], out of a stack: parts have an axis in front.
  Packed selected(const Tensor& index, int64_t experts) const;

 private:
  Tensor linear_q8_0(const QuantisedActivations& x) const;
  Tensor linear_q4_0(const QuantisedActivations& x) const;
  Tensor linear_q4_k(const QuantisedActivations& x) const;
  Tensor linear_q6_k(const QuantisedActivations& x) const;
  Tensor linear_halves(const Tensor& x) const;
  int64_t groups() const { return rows / 16; }
  int64_t blocks() const { return columns / 32; }
};

namespace {

constexpr int64_t kRows = kPackedRows, kBlock = kPackedBlock, kSuper = kPackedSuper;
constexpr float kCodes = 127;
/// Scales below have no finite reciprocal; such blocks count as zero.
constexpr double kLeastScale = 1e-37;

bool is_half(GgmlType type) { return type == GgmlType::kF16 || type == GgmlType::kBF16; }
bool has_super_blocks(GgmlType type) { return type == GgmlType::kQ4_K || type == GgmlType::kQ6_K; }

// --- expressions -------------------------------------------------------------------------------

/// Parts of a matrix for every vector have an axis in front, those of a matrix for all get one.
Tensor with_vectors(const Tensor& part, int64_t rank) {
  return part.rank() == rank ? part.unsqueeze(0) : part;
}

/// [R, C, g, 16, 4] → [m, R, 16, C, g, 4], for products with vectors.
Tensor words(const Tensor& part, const Shape& shape) {
  return with_vectors(part, 5).permute({0, 1, 4, 2, 3, 5}).expand(shape);
}

/// Codes `from` … `from + 4·groups` of every block of the vectors, likewise.
Tensor codes_of(const QuantisedActivations& x, int64_t from, int64_t groups, const Shape& shape) {
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
  return with_vectors(part, 3).permute({0, 1, 3, 2}).expand(shape).cast(DType::kF32);
}

/// [m, C] → [m, R, 16, C].
Tensor per_vector(const Tensor& part, const Shape& shape) {
  return part.reshape({part.size(0), 1, 1, part.size(1)}).expand(shape);
}

/// Factors [R, C/8, 16] → [R, C, 16].
Tensor per_block(const Tensor& factors) {
  constexpr int64_t kParts = kSuper / kBlock;
  const Shape& s = factors.shape();
  Shape grown(s.begin(), s.end() - 1), flat(s.begin(), s.end() - 2);
  grown.insert(grown.end(), {kParts, s.back()});
  flat.insert(flat.end(), {s[s.size() - 2].constant() * kParts, s.back()});
  return factors.unsqueeze(-2).expand(grown).reshape(flat);
}

Tensor finish(const Tensor& terms, const SymInt& m, int64_t rows) {
  return terms.sum({3}).reshape({m, rows});
}

}  // namespace

namespace {

/// Of a stack [experts, …] what `index` [n] names: [n, …]. The index is known to be in bounds, and
/// only once it has the shape of the result: then no load of the kernel is guarded, and the fuser
/// finds nothing to store.
Tensor picked(const Tensor& stack, const Tensor& index) {
  Shape shape = stack.shape(), flat(shape.size(), SymInt(1));
  const int64_t experts = shape[0].constant();
  shape[0] = flat[0] = index.size(0);
  return stack.gather(0, index.reshape(flat).expand(shape).minimum(experts - 1));
}

}  // namespace

// --- vectors -----------------------------------------------------------------------------------

QuantisedActivations QuantisedActivations::repeat(int64_t count) const {
  QuantisedActivations out{Tensor()};
  out.base_ = this;
  out.repetitions_ = count;
  out.x_ = out.repeated(x_);
  return out;
}

Tensor QuantisedActivations::repeated(const Tensor& rows) const {
  const SymInt m = rows.size(0), n = rows.size(1);
  return rows.unsqueeze(1).expand({m, repetitions_, n}).reshape({m * repetitions_, n});
}

void QuantisedActivations::quantize() const {
  if (codes_.is_valid()) return;
  if (base_ != nullptr) {
    codes_ = repeated(base_->codes()), scales_ = repeated(base_->scales());
    return;
  }
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

const Tensor& QuantisedActivations::codes() const {
  quantize();
  return codes_;
}

const Tensor& QuantisedActivations::scales() const {
  quantize();
  return scales_;
}

const Tensor& QuantisedActivations::code_sums(int64_t length) const {
  Tensor& sums = length == 16 ? code_sums16_ : code_sums32_;
  if (!sums.is_valid() && base_ != nullptr) {
    sums = repeated(base_->code_sums(length));
  } else if (!sums.is_valid()) {
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

const Tensor& QuantisedActivations::block_sums() const {
  if (!block_sums_.is_valid() && base_ != nullptr) {
    block_sums_ = repeated(base_->block_sums());
  } else if (!block_sums_.is_valid()) {
    const SymInt m = codes().size(0);
    const int64_t blocks = codes().size(1).constant() / kBlock;
    const Tensor sums = codes().reshape({m, blocks, kBlock}).cast(DType::kI32);
    block_sums_ = (sums.sum({2}, false, DType::kI32).cast(DType::kF32) * scales_).contiguous();
  }
  return block_sums_;
}

// --- matrices ----------------------------------------------------------------------------------

bool Matrix::can_pack(GgmlType type, uint64_t rows, uint64_t columns) {
  switch (type) {
    case GgmlType::kQ8_0:
    case GgmlType::kQ4_0: return rows % kRows == 0 && columns % kBlock == 0 && rows * columns > 0;
    case GgmlType::kF16:
    case GgmlType::kBF16: return rows % kPackedHalves == 0 && rows * columns > 0;
    case GgmlType::kQ4_K:
    case GgmlType::kQ6_K: return rows % kRows == 0 && columns % kSuper == 0 && rows * columns > 0;
    default: return false;
  }
}

uint64_t Matrix::packed_bytes(GgmlType type, uint64_t rows, uint64_t columns) {
  const uint64_t values = rows * columns;
  switch (type) {
    case GgmlType::kF16:
    case GgmlType::kBF16: return 2 * values;
    case GgmlType::kQ8_0: return values + values / 32 * 2;
    case GgmlType::kQ4_0: return values / 2 + values / 32 * 2;
    case GgmlType::kQ4_K: return values / 2 + values / 32 * 2 + values / 256 * 4;
    case GgmlType::kQ6_K: return values / 2 + values / 4 + values / 16 + values / 256 * 2;
    default: return 0;
  }
}

Matrix Matrix::pack(GgmlType type, std::span<const std::byte> data, int64_t rows, int64_t columns,
                    std::string_view device, KeptWeights* kept, bool is_there) {
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
  const auto part = [&](Tensor& t, const Shape& shape, DType dtype) -> uint8_t* {
    t = kept != nullptr ? kept->make(shape, dtype) : Tensor::empty(shape, dtype, device);
    if (is_there) return nullptr;
    if (std::byte* host = t.buffer().host()) return reinterpret_cast<uint8_t*>(host);
    copies.emplace_back(
        &t, std::vector<std::byte>(static_cast<size_t>(t.elements() * item_size(dtype))));
    return reinterpret_cast<uint8_t*>(copies.back().second.data());
  };
  PackedParts t;
  if (is_half(type)) {
    t.codes = part(packed->codes, {rows / kPackedHalves, columns, kPackedHalves},
                   type == GgmlType::kF16 ? DType::kF16 : DType::kBF16);
  } else {
    const int64_t groups = type == GgmlType::kQ8_0 ? 8 : 4;
    t.codes = part(packed->codes, {r, c, groups, kRows, 4}, DType::kU8);
  }
  if (is_half(type)) {
    // The numbers are all there is.
  } else if (!has_super_blocks(type)) {
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
  if (!is_there) pack_blocks(type, data, rows, columns, t);
  for (auto& [tensor, bytes] : copies) unwrap(runtime::copy_in(tensor->buffer(), bytes));
  Matrix out;
  out.packed_ = std::move(packed);
  return out;
}

Tensor Matrix::linear(const QuantisedActivations& x) const {
  return packed_ ? packed_->linear(x) : x.values().linear(weight_.cast(DType::kF32));
}

Tensor Matrix::linear(const QuantisedActivations& x, const Tensor& index, int64_t experts) const {
  if (packed_) return packed_->selected(index, experts).linear(x);
  // A product and a sum: a matmul may copy its operands, and all the chosen matrices do not fit.
  const SymInt n = x.values().size(0), rows = weight_.size(1), columns = weight_.size(2);
  const Tensor chosen = picked(weight_, index).cast(DType::kF32);
  return (chosen * x.values().reshape({n, 1, columns}).expand({n, rows, columns})).sum({2});
}

Tensor Matrix::take(const Tensor& index) const {
  return packed_ ? packed_->values().take(index) : weight_.take(index).cast(DType::kF32);
}

Matrix::Packed Matrix::Packed::selected(const Tensor& index, int64_t experts) const {
  Packed out = *this;
  out.rows = rows / experts;
  for (Tensor* part :
       {&out.codes, &out.high, &out.scales, &out.minima, &out.factors, &out.minimum_factors}) {
    if (!part->is_valid()) continue;
    Shape stacked = part->shape();
    stacked[0] = stacked[0].constant() / experts;
    stacked.insert(stacked.begin(), experts);
    *part = picked(part->reshape(stacked), index);
  }
  return out;
}

Tensor Matrix::Packed::linear(const QuantisedActivations& x) const {
  switch (type) {
    case GgmlType::kF16:
    case GgmlType::kBF16: return linear_halves(x.values());
    case GgmlType::kQ8_0: return linear_q8_0(x);
    case GgmlType::kQ4_0: return linear_q4_0(x);
    case GgmlType::kQ4_K: return linear_q4_k(x);
    default: return linear_q6_k(x);
  }
}

// Parts are expanded to the shape of the product before they are computed with: then nothing is
// evaluated once per vector and worth storing.
Tensor Matrix::Packed::linear_q8_0(const QuantisedActivations& x) const {
  const SymInt m = x.codes().size(0);
  const Shape all{m, groups(), kRows, blocks(), 8, 4}, per{m, groups(), kRows, blocks()};
  const Tensor sum =
      dot(words(codes, all), codes_of(x, 0, 8, all)) + per_vector(x.code_sums(32), per) * -128;
  return finish(sum.cast(DType::kF32) * per_row(scales, per) * per_vector(x.scales(), per), m,
                rows);
}

Tensor Matrix::Packed::linear_q4_0(const QuantisedActivations& x) const {
  const SymInt m = x.codes().size(0);
  const Shape all{m, groups(), kRows, blocks(), 4, 4}, per{m, groups(), kRows, blocks()};
  const Tensor w = words(codes, all);
  const Tensor sum = dot(w & 15, codes_of(x, 0, 4, all)) + dot(w >> 4, codes_of(x, 16, 4, all)) +
                     per_vector(x.code_sums(32), per) * -8;
  return finish(sum.cast(DType::kF32) * per_row(scales, per) * per_vector(x.scales(), per), m,
                rows);
}

Tensor Matrix::Packed::linear_q4_k(const QuantisedActivations& x) const {
  const SymInt m = x.codes().size(0);
  const Shape all{m, groups(), kRows, blocks(), 4, 4}, per{m, groups(), kRows, blocks()};
  const Tensor w = words(codes, all);
  const Tensor sum = dot(w & 15, codes_of(x, 0, 4, all)) + dot(w >> 4, codes_of(x, 16, 4, all));
  const Tensor scale = per_row(scales, per) * per_row(per_block(factors), per);
  const Tensor minimum = per_row(minima, per) * per_row(per_block(minimum_factors), per);
  return finish(sum.cast(DType::kF32) * scale * per_vector(x.scales(), per), m, rows) -
         finish(minimum * per_vector(x.block_sums(), per), m, rows);
}

Tensor Matrix::Packed::linear_q6_k(const QuantisedActivations& x) const {
  const SymInt m = x.codes().size(0);
  const Shape all{m, groups(), kRows, blocks(), 2, 4}, per{m, groups(), kRows, blocks()};
  const Tensor top = words(high, all);
  Tensor terms;
  for (int64_t half = 0; half < 2; ++half) {
    const Tensor sums = x.code_sums(16).reshape({m, blocks(), 2}).slice(2, {half, half + 1});
    Tensor sum = per_vector(sums.reshape({m, blocks()}), per) * -32;
    for (int64_t part = 0; part < 2; ++part) {
      const int64_t quarter = 2 * half + part;
      const Tensor low = words(codes.slice(-3, {2 * part, 2 * part + 2}), all);
      const Tensor code = (half == 0 ? low & 15 : low >> 4) | ((top >> 2 * quarter & 3) << 4);
      sum = sum + dot(code, codes_of(x, 8 * quarter, 2, all));
    }
    const Tensor scale = per_row(scales.slice(-2, {half, half + 1}).squeeze(-2), per);
    const Tensor term = sum.cast(DType::kF32) * scale;
    terms = half == 0 ? term : terms + term;
  }
  return finish(terms * per_row(per_block(factors), per) * per_vector(x.scales(), per), m, rows);
}

Tensor Matrix::Packed::linear_halves(const Tensor& x) const {
  const SymInt m = x.size(0);
  const Shape all{m, rows / kPackedHalves, kPackedHalves, columns};
  const Tensor w = with_vectors(codes, 3).permute({0, 1, 3, 2}).expand(all).cast(DType::kF32);
  return (w * x.reshape({m, 1, 1, columns}).expand(all)).sum({3}).reshape({m, rows});
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
    case GgmlType::kF16:
    case GgmlType::kBF16: return numbers(codes).permute({0, 2, 1}).reshape({rows, columns});
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
