#pragma once
// Quantised GEMM and GEMV: weight matrices as plain elements, or as quantised blocks that kernels
// multiply with as they are, by int8 dot products with quantised activations.

#include <functional>
#include <memory>
#include <optional>

#include "models/quant.h"
#include "tensor/tensor.h"

namespace bm::models {

class KeptWeights;

/// Activations that weight matrices are multiplied with. What quantised matrices need of them is
/// made once and shared: every 32 elements of a vector become int8 codes with one scale.
class QuantisedActivations {
 public:
  /// `x` [m, columns] float32.
  explicit QuantisedActivations(Tensor x) : x_(std::move(x)) {}
  /// Every vector `count` times in succession: [m · count, columns]. Codes are those of this one,
  /// which must outlive the result.
  QuantisedActivations repeat(int64_t count) const;
  const Tensor& values() const { return x_; }
  /// The vectors in the type of 16-bit weights, made once; see rounded_activations().
  const Tensor& rounded(DType type) const;
  /// As float16, each sixteen columns in the order 0 1 4 5 8 9 12 13 2 3 6 7 10 11 14 15: what a
  /// lane of a matrix instruction has of them then is a word of codes.
  const Tensor& interleaved() const;
  const Tensor& codes() const;   ///< [m, columns] int8, −127 … 127
  const Tensor& scales() const;  ///< [m, columns/32] float32: value ≈ code·scale, off by scale/2
  /// Sums of `length` (16 or 32) contiguous codes: [m, columns/length] int32.
  const Tensor& code_sums(int64_t length) const;
  /// Block sums: of the values of `length` (16 or 32) codes, for formats with a minimum:
  /// [m, columns/length] float32.
  const Tensor& block_sums(int64_t length) const;

 private:
  void quantize() const;
  Tensor repeated(const Tensor& rows) const;
  const QuantisedActivations* base_ = nullptr;  ///< of which this is a repetition
  int64_t repetitions_ = 1;
  mutable Tensor rounded_, interleaved_, x_, codes_, scales_, code_sums16_, code_sums32_,
      block_sums16_, block_sums32_;
};

/// Immutable matrix [rows, columns]. Packed ones are kept in the order kernels read them, rows side
/// by side; see llama_blocks.h.
class Matrix {
 public:
  Matrix() = default;
  /// `weight` [rows, columns] of any float type.
  explicit Matrix(Tensor weight) : weight_(std::move(weight)) {}

  /// Whether pack() takes such a matrix: whole blocks of every quantised format, F32, F16 and BF16
  /// with rows in thirty-twos.
  static bool can_pack(GgmlType type, uint64_t rows, uint64_t columns);
  /// Bytes on the device after pack().
  static uint64_t packed_bytes(GgmlType type, uint64_t rows, uint64_t columns);
  /// `data`: rows as in a GGUF file. `kept`: where the matrix lies, perhaps already (its item is
  /// the current one); nullptr: in memory of its own. Throws: Exception (kOutOfMemory, device
  /// errors).
  /// `done`: as in pack_blocks().
  static Matrix pack(GgmlType type, std::span<const std::byte> data, int64_t rows, int64_t columns,
                     std::string_view device, KeptWeights* kept = nullptr, bool is_there = false,
                     const std::function<void(std::span<const std::byte>)>& done = {});

  bool is_valid() const { return weight_.is_valid() || packed_ != nullptr; }
  /// x [m, columns] → [m, rows] float32. Packed blocks are multiplied with the codes of x: the
  /// result is off by at most Σ |w|·scale/2 over the columns, besides rounding of float32 sums.
  Tensor linear(const QuantisedActivations& x) const;
  /// This matrix is a stack of `experts` matrices. x [n, columns], index [n] uint32 below
  /// `experts` → [n, rows/experts] float32: every vector is multiplied with the matrix that its
  /// index names, and no other matrix is read. A Matrix of plain elements has the shape [experts,
  /// rows, columns] then.
  Tensor linear(const QuantisedActivations& x, const Tensor& index, int64_t experts) const;
  /// Rows by number, exact: index [n] → [n, columns] float32.
  Tensor take(const Tensor& index) const;

 private:
  struct Packed;
  Tensor weight_;
  std::shared_ptr<const Packed> packed_;
  int64_t packed_rows_ = 0;  ///< without those that fill up
};

}  // namespace bm::models
