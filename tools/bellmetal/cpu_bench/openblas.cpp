#include "tools/bellmetal/cpu_bench/openblas.h"

namespace bm::cli {
namespace {

// Source: OpenBLAS, cblas.h, enums CBLAS_ORDER and CBLAS_TRANSPOSE.
constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;

}  // namespace

Result<std::unique_ptr<OpenBlas>> OpenBlas::open(const std::string& path, uint32_t threads) {
  auto out = std::make_unique<OpenBlas>();
  out->library_ = BM_TRY(Library::open(
      path,
      {"libopenblas.so.0", "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0",
       "libopenblas.so"},
      "install libopenblas0-pthread or give --peer openblas=PATH"));
  void (*set_threads)(int) = nullptr;
  BM_TRY(out->library_->bind(out->gemm_, "cblas_sgemm"));
  BM_TRY(out->library_->bind(out->gemv_, "cblas_sgemv"));
  BM_TRY(out->library_->bind(out->config_, "openblas_get_config"));
  BM_TRY(out->library_->bind(set_threads, "openblas_set_num_threads"));
  set_threads(static_cast<int>(threads));
  return out;
}

void OpenBlas::gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b,
                    float* c) const {
  const auto i = [](int64_t x) { return static_cast<int>(x); };
  gemm_(kRowMajor, kNoTrans, kNoTrans, i(m), i(n), i(k), 1, a, i(k), b, i(n), 0, c, i(n));
}

void OpenBlas::gemv(bool is_transposed, int64_t rows, int64_t columns, const float* a,
                    const float* x, float* y) const {
  const auto i = [](int64_t v) { return static_cast<int>(v); };
  gemv_(kRowMajor, is_transposed ? kTrans : kNoTrans, i(rows), i(columns), 1, a, i(columns), x, 1,
        0, y, 1);
}

std::string OpenBlas::version() const { return config_(); }

}  // namespace bm::cli
