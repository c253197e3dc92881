#pragma once
// ggml as a peer: one product of a quantised matrix and a vector on its CPU backend.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/quant.h"
#include "tools/bellmetal/cpu_bench/library.h"

namespace bm::cli {

class Ggml {
 public:
  class Product {
   public:
    virtual ~Product() = default;
    virtual void run() = 0;
    virtual std::vector<float> result() = 0;
  };
  struct Matrix {
    models::GgmlType type;
    int64_t rows, columns;
    std::span<const std::byte> data;  ///< copied
  };

  /// `path`: libggml.so; empty: the usual names. Errors: kNotFound with the remedy.
  static Result<std::unique_ptr<Ggml>> open(const std::string& path, uint32_t threads);
  virtual ~Ggml() = default;
  /// With the rows as they are in files, or repacked by the library when it loads them.
  /// Errors: kUnsupported where it repacks no such matrix.
  virtual Result<std::unique_ptr<Product>> product(const Matrix& matrix,
                                                   std::span<const float> vector,
                                                   bool is_repacked) = 0;
};

}  // namespace bm::cli
