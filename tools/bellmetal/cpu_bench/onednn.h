#pragma once
// oneDNN as a peer, through its C API (version 2).

#include <cstdint>
#include <memory>
#include <string>

#include "tools/bellmetal/cpu_bench/library.h"

namespace bm::cli {

/// Source of the numbers: oneDNN 2.6, dnnl_types.h, dnnl_data_type_t.
enum class DnnlType : int { kBf16 = 2, kF32 = 3, kS32 = 4, kS8 = 5, kU8 = 6 };

class OneDnn {
 public:
  /// A GEMM whose B was packed into the library's own layout before.
  class Matmul {
   public:
    virtual ~Matmul() = default;
    virtual void run() = 0;
  };
  struct MatmulShape {
    int64_t m, n, k;
    DnnlType a, b, c;
  };

  /// `path`: the library; empty: the usual names. Errors: kNotFound with the remedy, kUnsupported
  /// for another major version.
  static Result<std::unique_ptr<OneDnn>> open(const std::string& path, uint32_t threads);
  virtual ~OneDnn() = default;

  /// c [m, n] = a [m, k] · b [k, n], all row by row.
  virtual void gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c) = 0;
  /// The pointers must stay valid; `b` is only read here.
  virtual Result<std::unique_ptr<Matmul>> prepacked(const MatmulShape& shape, const void* a,
                                                    const void* b, void* c) = 0;
  virtual std::string version() const = 0;
};

}  // namespace bm::cli
