#include "models/llama_matrix.h"

#include <algorithm>
#include <cstring>

#include "models/llama_blocks.h"
#include "models/llama_kept_weights.h"
#include "models/quant_blocks.h"
#include "runtime/base/check.h"
#include "runtime/buffer.h"
#include "tensor/rounded_activations.h"

namespace bm::models {

struct Matrix::Packed {
  GgmlType type = GgmlType::kQ8_0;
  const BlockFormat* format = nullptr;  ///< nullptr: F16 and BF16
  int64_t rows = 0, columns = 0;        ///< rows: those of the parts, with what fills them up
  Tensor codes, high, scales, minima, factors, minimum_factors;

  Tensor linear(const QuantisedActivations& x) const;
  Tensor take(const Tensor& index) const;
  /// A matrix for every number of `index` [n], out of a stack: parts have an axis in front.
  Packed selected(const Tensor& index, int64_t experts) const;

 private:
  Tensor linear_blocks(const QuantisedActivations& x) const;
  Tensor linear_dequantised(const QuantisedActivations& x) const;
  bool is_dequantised(const Tensor& x) const;
  Tensor linear_elements(const Tensor& x) const;
  Tensor rows_of(const Tensor& part, int64_t row, const Tensor& index) const;
  Tensor codes_at(int64_t piece, const Shape& shape) const;
  Tensor scale_of(int64_t group, const Shape& shape) const;
  Tensor minimum_of(int64_t group, const Shape& shape) const;
  /// Groups of four columns that lie in one word of every plane: a piece of a block.
  int64_t piece_words() const {
    return format->high_bits ? std::min(format->low_bits, format->high_bits) : format->low_bits;
  }
  int64_t groups() const { return rows / 16; }
  int64_t blocks() const { return columns / 32; }
};

namespace {

constexpr int64_t kRows = kPackedRows, kBlock = kPackedBlock;
/// Vectors from which on blocks become float16, and what divides the rows of such a matrix.
constexpr int64_t kDequantisedVectors = 16, kDequantisedRows = 64;
constexpr float kCodes = 127;
/// Scales below have no finite reciprocal; such blocks count as zero.
constexpr double kLeastScale = 1e-37;

/// Of elements that are packed as they are; kBool: another format.
DType element_dtype(GgmlType type) {
  switch (type) {
    case GgmlType::kF32: return DType::kF32;
    case GgmlType::kF16: return DType::kF16;
    case GgmlType::kBF16: return DType::kBF16;
    default: return DType::kBool;
  }
}
bool has_elements(GgmlType type) { return element_dtype(type) != DType::kBool; }
int64_t scale_groups(const BlockFormat& format) { return kBlock / format.group; }
uint64_t round_up(uint64_t rows) { return (rows + kRows - 1) / kRows * kRows; }

DType dtype_of(ScaleKind kind) {
  return kind == ScaleKind::kF16 ? DType::kF16 : kind == ScaleKind::kI8 ? DType::kI8 : DType::kU8;
}

/// Stored scales as float32.
Tensor number_of(ScaleKind kind, const Tensor& stored) {
  if (kind == ScaleKind::kNibbles) return (stored & 15).cast(DType::kF32);
  if (kind != ScaleKind::kE8M0) return stored.cast(DType::kF32);
  // Below 2 the exponent is that of subnormal numbers.
  const Tensor e = stored.cast(DType::kI32);
  return (e < 2).where((e + 1) * 0x200000, (e - 1) * 0x800000).bitcast(DType::kF32);
}

/// `bits` of a plane's words, from bit `from` on.
Tensor bits_of(const Tensor& words, int64_t from, int64_t bits) {
  const Tensor moved = from == 0 ? words : words >> from;
  return from + bits == 8 ? moved : moved & ((1 << bits) - 1);
}

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

/// As words(), with a word of four groups of lanes and two pairs each as axes of their own: [R, C,
/// g, 16, 4] → [m, R, 16, C, g/4, 4, 2, 2].
Tensor lane_words(const Tensor& part, const Shape& all) {
  const Shape& s = part.shape();
  return part.reshape({1, s[0], s[1], s[2].constant() / 4, 4, kRows, 2, 2})
      .permute({0, 1, 5, 2, 3, 4, 6, 7})
      .expand(all);
}

/// [R, C, 16] → the same.
Tensor per_lane_row(const Tensor& part, const Shape& all) {
  return part.permute({0, 2, 1})
      .reshape({1, part.size(0), kRows, part.size(1), 1, 1, 1, 1})
      .expand(all);
}

/// What the book has for codes: halves of it by one bit after the other. Bitwise operations alone,
/// so that four codes of a word are looked up at once and dot products stay what they are.
Tensor looked_up(const BlockFormat& format, const Tensor& code) {
  const auto mask = [&](uint32_t bit) {
    return ((bit == 0 ? code : code >> int64_t{bit}) & 1) * 255;
  };
  const Tensor first = mask(0);
  std::vector<Tensor> entries;
  for (size_t i = 0; i < 1U << format.code_bits(); i += 2) {
    const int64_t zero = (*format.book)[i], one = (*format.book)[i + 1];
    entries.push_back(first & (zero ^ one));
    if (zero != 0) entries.back() = entries.back() ^ zero;
  }
  for (uint32_t bit = 1; bit < format.code_bits(); ++bit) {
    const Tensor is_one = mask(bit);
    for (size_t i = 0; i < entries.size() / 2; ++i) {
      const Tensor &zero = entries[2 * i], &one = entries[2 * i + 1];
      entries[i] = zero ^ (is_one & (zero ^ one));
    }
    entries.resize(entries.size() / 2);
  }
  return entries[0];
}

/// Sums of products over the last two axes.
Tensor dot(const Tensor& a, const Tensor& b) {
  return (a.cast(DType::kI32) * b.cast(DType::kI32)).sum({-2, -1}, false, DType::kI32);
}

/// [R, C, 16] → [m, R, 16, C].
Tensor per_row(const Tensor& part, const Shape& shape) {
  return with_vectors(part, 3).permute({0, 1, 3, 2}).expand(shape);
}

/// [m, C] → [m, R, 16, C].
Tensor per_vector(const Tensor& part, const Shape& shape) {
  return part.reshape({part.size(0), 1, 1, part.size(1)}).expand(shape);
}

/// Factors [R, C/8, 16] → [R, C, 16].
Tensor per_block(const Tensor& factors) {
  constexpr int64_t kParts = kPackedSuper / kBlock;
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

const Tensor& QuantisedActivations::rounded(DType type) const {
  if (!rounded_.is_valid() || rounded_.dtype() != type) rounded_ = rounded_activations(x_, type);
  return rounded_;
}

const Tensor& QuantisedActivations::interleaved() const {
  if (!interleaved_.is_valid() && base_ != nullptr) {
    interleaved_ = repeated(base_->interleaved());
  } else if (!interleaved_.is_valid()) {
    const SymInt m = x_.size(0), n = x_.size(1);
    interleaved_ = rounded(DType::kF16)
                       .reshape({m, n.constant() / 16, 4, 2, 2})
                       .permute({0, 1, 3, 2, 4})
                       .reshape({m, n})
                       .contiguous();
  }
  return interleaved_;
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

const Tensor& QuantisedActivations::block_sums(int64_t length) const {
  Tensor& sums = length == 16 ? block_sums16_ : block_sums32_;
  if (!sums.is_valid() && base_ != nullptr) {
    sums = repeated(base_->block_sums(length));
  } else if (!sums.is_valid()) {
    const SymInt m = codes().size(0);
    const int64_t blocks = codes().size(1).constant() / kBlock, parts = kBlock / length;
    const Tensor whole = codes()
                             .reshape({m, blocks, parts, length})
                             .cast(DType::kI32)
                             .sum({3}, false, DType::kI32)
                             .cast(DType::kF32);
    sums = (whole * scales_.unsqueeze(2).expand({m, blocks, parts}))
               .reshape({m, blocks * parts})
               .contiguous();
  }
  return sums;
}

// --- matrices ----------------------------------------------------------------------------------

bool Matrix::can_pack(GgmlType type, uint64_t rows, uint64_t columns) {
  if (rows * columns == 0) return false;
  if (has_elements(type)) return rows % kPackedElements == 0;
  const BlockFormat* format = find_block_format(type);
  return format != nullptr && columns % (format->has_factor ? kPackedSuper : kBlock) == 0;
}

uint64_t Matrix::packed_bytes(GgmlType type, uint64_t rows, uint64_t columns) {
  if (has_elements(type))
    return static_cast<uint64_t>(item_size(element_dtype(type))) * rows * columns;
  const BlockFormat* format = find_block_format(type);
  if (format == nullptr) return 0;
  const uint64_t values = round_up(rows) * columns,
                 scales = format->scales == ScaleKind::kNone ? 0 : values / format->group,
                 scale_bytes = static_cast<uint64_t>(item_size(dtype_of(format->scales)));
  const bool has_minima = format->has_minimum && format->scales != ScaleKind::kNibbles;
  const uint64_t factors = format->has_factor ? values / kPackedSuper : 0;
  return values * format->code_bits() / 8 + scales * scale_bytes * (has_minima ? 2 : 1) +
         factors * 2 * (format->has_minimum ? 2 : 1);
}

Matrix Matrix::pack(GgmlType type, std::span<const std::byte> data, int64_t rows, int64_t columns,
                    std::string_view device, KeptWeights* kept, bool is_there,
                    const std::function<void(std::span<const std::byte>)>& done) {
  BM_CHECK(can_pack(type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns)));
  auto packed = std::make_shared<Packed>();
  const BlockFormat* format = find_block_format(type);
  packed->type = type;
  packed->format = format;
  packed->rows = format ? static_cast<int64_t>(round_up(static_cast<uint64_t>(rows))) : rows;
  packed->columns = columns;
  const int64_t r = packed->rows / kRows, c = columns / kBlock, s = columns / kPackedSuper;
  std::vector<std::pair<Tensor*, std::vector<std::byte>>> copies;
  copies.reserve(6);  // parts point into it
  // Parts of devices whose memory the host cannot reach are made here and copied.
  const auto part = [&](Tensor& t, const Shape& shape, DType dtype) -> uint8_t* {
    t = kept != nullptr ? kept->make(shape, dtype) : Tensor::empty(shape, dtype, device);
    if (is_there) return nullptr;
    const auto size = static_cast<size_t>(t.elements() * item_size(dtype));
    if (std::byte* host = t.buffer().host()) {
      if (packed->rows != rows) std::memset(host, 0, size);
      return reinterpret_cast<uint8_t*>(host);
    }
    copies.emplace_back(&t, std::vector<std::byte>(size));
    return reinterpret_cast<uint8_t*>(copies.back().second.data());
  };
  PackedParts t;
  if (format == nullptr) {
    t.codes = part(packed->codes, {rows / kPackedElements, columns, kPackedElements},
                   element_dtype(type));
  } else {
    const auto plane = [&](Tensor& to, int64_t bits) {
      return part(to, {r, c, bits, kRows, 4}, DType::kU8);
    };
    const auto of_groups = [&](Tensor& to) {
      const int64_t groups = scale_groups(*format);
      return part(to, groups == 1 ? Shape{r, c, kRows} : Shape{r, c, groups, kRows},
                  dtype_of(format->scales));
    };
    t.codes = plane(packed->codes, format->low_bits);
    if (format->high_bits) t.high = plane(packed->high, format->high_bits);
    if (format->scales != ScaleKind::kNone) t.scales = of_groups(packed->scales);
    if (format->has_minimum && format->scales != ScaleKind::kNibbles)
      t.minima = of_groups(packed->minima);
    if (format->has_factor) t.factors = part(packed->factors, {r, s, kRows}, DType::kF16);
    if (format->has_factor && format->has_minimum)
      t.minimum_factors = part(packed->minimum_factors, {r, s, kRows}, DType::kF16);
  }
  if (!is_there) pack_blocks(type, data, rows, columns, t, done);
  for (auto& [tensor, bytes] : copies) unwrap(runtime::copy_in(tensor->buffer(), bytes));
  Matrix out;
  out.packed_ = std::move(packed);
  out.packed_rows_ = rows;
  return out;
}

Tensor Matrix::linear(const QuantisedActivations& x) const {
  if (!packed_) {
    if (const auto type = rounded_type(x.values(), weight_))
      return x.rounded(*type).matmul(weight_.transpose(), DType::kF32);
    return x.values().linear(weight_.cast(DType::kF32));
  }
  const Tensor out = packed_->linear(x);
  return packed_rows_ == packed_->rows ? out : out.slice(1, {0, packed_rows_});
}

Tensor Matrix::linear(const QuantisedActivations& x, const Tensor& index, int64_t experts) const {
  if (packed_) return packed_->selected(index, experts).linear(x);
  // A product and a sum: a matmul may copy its operands, and all the chosen matrices do not fit.
  const SymInt n = x.values().size(0), rows = weight_.size(1), columns = weight_.size(2);
  const Tensor chosen = picked(weight_, index).cast(DType::kF32);
  return (chosen * x.values().reshape({n, 1, columns}).expand({n, rows, columns})).sum({2});
}

Tensor Matrix::take(const Tensor& index) const {
  return packed_ ? packed_->take(index) : weight_.take(index).cast(DType::kF32);
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
  if (!format) return linear_elements(x.values());
  return is_dequantised(x.values()) ? linear_dequantised(x) : linear_blocks(x);
}

/// Whether blocks become float16 on their way into the instructions for 16-bit floats: of prompts,
/// where that takes less than scaling the results of int8 blocks does.
bool Matrix::Packed::is_dequantised(const Tensor& x) const {
  const bool has_words = format->group == kBlock && format->high_bits == 0 &&
                         format->low_bits >= 4 && format->scales != ScaleKind::kNibbles &&
                         (scales.is_valid() || factors.is_valid());
  return has_words && rows % kDequantisedRows == 0 && blocks() % 2 == 0 && codes.rank() == 5 &&
         x.size(0).max() >= kDequantisedVectors && dequantises(x);
}

/// Codes of a piece of every block [m, R, 16, C, words, 4] uint8, or what the book has for them.
Tensor Matrix::Packed::codes_at(int64_t piece, const Shape& shape) const {
  const int64_t count = piece_words(), first = piece * count;
  const auto plane = [&](const Tensor& part, int64_t bits) {
    const Tensor own = bits == count ? part : part.slice(-3, {first % bits, first % bits + count});
    return bits_of(words(own, shape), first / bits * bits, bits);
  };
  Tensor code = plane(codes, format->low_bits);
  if (format->high_bits) code = code | plane(high, format->high_bits) << format->low_bits;
  return format->book ? looked_up(*format, code) : code;
}

/// Of one of the groups of every block that share a scale, [m, R, 16, C] float32.
Tensor Matrix::Packed::scale_of(int64_t group, const Shape& shape) const {
  const bool is_one = format->group == kBlock;
  const Tensor own = is_one ? scales : scales.slice(-2, {group, group + 1}).squeeze(-2);
  return number_of(format->scales, per_row(own, shape));
}

Tensor Matrix::Packed::minimum_of(int64_t group, const Shape& shape) const {
  const bool has_nibbles = format->scales == ScaleKind::kNibbles, is_one = format->group == kBlock;
  const Tensor& part = has_nibbles ? scales : minima;
  const Tensor own = per_row(is_one ? part : part.slice(-2, {group, group + 1}).squeeze(-2), shape);
  return (has_nibbles ? own >> 4 : own).cast(DType::kF32);
}

// Parts are expanded to the shape of the product before they are computed with: then nothing is
// evaluated once per vector and worth storing.
Tensor Matrix::Packed::linear_blocks(const QuantisedActivations& x) const {
  const SymInt m = x.codes().size(0);
  const int64_t count = piece_words(), pieces = kBlock / 4 / count, parts = scale_groups(*format);
  const Shape all{m, groups(), kRows, blocks(), count, 4}, per{m, groups(), kRows, blocks()};
  const auto of_group = [&](const Tensor& sums, int64_t group) {  // [m, C·parts]
    if (parts == 1) return per_vector(sums, per);
    return per_vector(
        sums.reshape({m, blocks(), parts}).slice(2, {group, group + 1}).reshape({m, blocks()}),
        per);
  };
  Tensor terms, minima_terms;
  for (int64_t group = 0; group < parts; ++group) {
    Tensor sum;
    for (int64_t piece = group * pieces / parts; piece < (group + 1) * pieces / parts; ++piece) {
      const Tensor products = dot(codes_at(piece, all), codes_of(x, 4 * count * piece, count, all));
      sum = sum.is_valid() ? sum + products : products;
    }
    if (format->zero != 0)
      sum = sum + of_group(x.code_sums(format->group), group) * -int64_t{format->zero};
    Tensor term = sum.cast(DType::kF32);
    if (scales.is_valid()) term = term * scale_of(group, per);
    terms = group == 0 ? term : terms + term;
    if (!format->has_minimum) continue;
    const Tensor minimum = minimum_of(group, per) * of_group(x.block_sums(format->group), group);
    minima_terms = group == 0 ? minimum : minima_terms + minimum;
  }
  const auto factor = [&](const Tensor& part) {
    return per_row(per_block(part), per).cast(DType::kF32);
  };
  if (factors.is_valid()) terms = terms * factor(factors);
  Tensor out = finish(terms * per_vector(x.scales(), per), m, rows);
  if (format->unit != 1.0F) out = out * static_cast<double>(format->unit);
  if (!format->has_minimum) return out;
  if (minimum_factors.is_valid()) minima_terms = minima_terms * factor(minimum_factors);
  return out - finish(minima_terms, m, rows);
}

// w = code·scale − (zero·scale + minimum) in float32, rounded to float16 once; sums in float32.
Tensor Matrix::Packed::linear_dequantised(const QuantisedActivations& x) const {
  const SymInt m = x.values().size(0);
  const int64_t words = piece_words(), pieces = kBlock / 4 / words, groups_of_four = words / 4;
  const Shape all{m, groups(), kRows, blocks(), groups_of_four, 4, 2, 2};
  const Tensor in = x.interleaved().reshape({m, 1, 1, blocks(), kBlock / 16, 2, 4, 2});
  const auto number = [&](ScaleKind kind, const Tensor& part) {
    return number_of(kind, per_lane_row(part, all));
  };
  Tensor scale;
  if (scales.is_valid()) scale = number(format->scales, scales);
  if (factors.is_valid()) {
    const Tensor factor = number(ScaleKind::kF16, per_block(factors));
    scale = scale.is_valid() ? scale * factor : factor;
  }
  if (format->unit != 1.0F) scale = scale * static_cast<double>(format->unit);
  Tensor below;
  if (format->zero != 0) below = scale * static_cast<double>(format->zero);
  if (format->has_minimum) {
    Tensor minimum = number(format->scales, minima);
    if (minimum_factors.is_valid())
      minimum = minimum * number(ScaleKind::kF16, per_block(minimum_factors));
    below = below.is_valid() ? below + minimum : minimum;
  }
  Tensor terms;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    Tensor code = bits_of(lane_words(codes, all), piece * format->low_bits, format->low_bits);
    if (format->book) code = looked_up(*format, code);
    Tensor weight = code.cast(DType::kF32) * scale;
    if (below.is_valid()) weight = weight - below;
    const int64_t first = piece * groups_of_four;
    const Tensor vector =
        in.slice(4, {first, first + groups_of_four}).permute({0, 1, 2, 3, 4, 6, 5, 7}).expand(all);
    const Tensor products = vector.cast(DType::kF32) * weight.cast(DType::kF16).cast(DType::kF32);
    terms = piece == 0 ? products : terms + products;
  }
  return terms.sum({3, 4, 5, 6, 7}).reshape({m, rows});
}

Tensor Matrix::Packed::linear_elements(const Tensor& x) const {
  const SymInt m = x.size(0);
  const Shape all{m, rows / kPackedElements, kPackedElements, columns};
  const Tensor w = with_vectors(codes, 3).permute({0, 1, 3, 2}).expand(all).cast(DType::kF32);
  return (w * x.reshape({m, 1, 1, columns}).expand(all)).sum({3}).reshape({m, rows});
}

/// Rows of a part [R, …, 16 (32), …], `row` being the axis of the rows of an R, by number: [n, …].
/// Taken first: what is computed of them then is computed of these rows alone.
Tensor Matrix::Packed::rows_of(const Tensor& part, int64_t row, const Tensor& index) const {
  std::vector<int64_t> order{0, row};
  Shape shape{rows};
  for (int64_t axis = 1; axis < part.rank(); ++axis) {
    if (axis == row) continue;
    order.push_back(axis);
    shape.push_back(part.size(axis));
  }
  return part.permute(order).reshape(shape).take(index);
}

/// index [n] → [n, columns] float32.
Tensor Matrix::Packed::take(const Tensor& index) const {
  const auto numbers = [](const Tensor& t) { return t.cast(DType::kF32); };
  if (!format) return numbers(rows_of(codes, 2, index));
  const SymInt n = index.size(0);
  const Shape all{n, blocks(), kBlock / 4, 4};
  const auto plane = [&](const Tensor& part, int64_t bits) {
    const Tensor own = rows_of(part, 3, index);
    std::vector<Tensor> pieces;
    for (int64_t from = 0; from < 8; from += bits) pieces.push_back(bits_of(own, from, bits));
    return Tensor::stack(pieces, 2).reshape(all);
  };
  const auto spread = [&](const Tensor& scale, int64_t parts) {
    const Tensor own = rows_of(scale, scale.rank() - 1, index);  // [n, C, parts], or without parts
    const int64_t each = kBlock / 4 / parts;
    return own.reshape({n, blocks(), parts, 1, 1})
        .expand({n, blocks(), parts, each, 4})
        .reshape(all);
  };
  const auto factor = [&](const Tensor& part) { return numbers(spread(per_block(part), 1)); };
  Tensor code = plane(codes, format->low_bits);
  if (format->high_bits) code = code | plane(high, format->high_bits) << format->low_bits;
  if (format->book) code = looked_up(*format, code);
  Tensor value = numbers(code);
  if (format->zero != 0) value = value - static_cast<double>(format->zero);
  const int64_t parts = scale_groups(*format);
  Tensor scale;
  if (scales.is_valid()) scale = number_of(format->scales, spread(scales, parts));
  if (factors.is_valid()) scale = scale.is_valid() ? scale * factor(factors) : factor(factors);
  if (format->unit != 1.0F) scale = scale * static_cast<double>(format->unit);
  value = value * scale;
  if (format->has_minimum) {
    Tensor minimum = format->scales == ScaleKind::kNibbles ? numbers(spread(scales, parts) >> 4)
                                                           : numbers(spread(minima, parts));
    if (minimum_factors.is_valid()) minimum = minimum * factor(minimum_factors);
    value = value - minimum;
  }
  return value.reshape({n, columns});
}

}  // namespace bm::models
