#pragma once
// OpenBLAS as a peer.

#include <cstdint>
#include <memory>
#include <string>

#include "tools/bellmetal/cpu_bench/library.h"

namespace bm::cli {

class OpenBlas {
 public:
  /// `path`: the library; empty: the usual names. Errors: kNotFound with the remedy.
  static Result<std::unique_ptr<OpenBlas>> open(const std::string& path, uint32_t threads);

  /// c [m, n] = a [m, k] · b [k, n], all row by row.
  void gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c) const;
  /// y = a · x for a [rows, columns], or y = aᵀ · x.
  void gemv(bool is_transposed, int64_t rows, int64_t columns, const float* a, const float* x,
            float* y) const;
  std::string version() const;  ///< what the library says of itself

 private:
  std::shared_ptr<Library> library_;
  // Source: OpenBLAS, cblas.h; blasint is int in Debian's libopenblas0.
  void (*gemm_)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                const float* a, int lda, const float* b, int ldb, float beta, float* c,
                int ldc) = nullptr;
  void (*gemv_)(int order, int trans, int m, int n, float alpha, const float* a, int lda,
                const float* x, int incx, float beta, float* y, int incy) = nullptr;
  char* (*config_)() = nullptr;
};

}  // namespace bm::cli
