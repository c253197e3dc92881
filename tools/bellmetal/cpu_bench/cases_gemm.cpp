// Products of matrices, and of a matrix and a vector.
#include <cmath>

#include "tools/bellmetal/cpu_bench/cases.h"

namespace bm::cli {
namespace {

struct Extents {
  int64_t m, n, k;
};

using Values = std::vector<float>;

/// Error of a GEMM against float64 sums, on at most 16 of its rows.
double product_error(const Values& got, const Values& a, const Values& b, const Extents& e) {
  if (got.size() != static_cast<size_t>(e.m * e.n)) return INFINITY;
  const int64_t step = std::max<int64_t>(1, e.m / 16);
  Values mine, want;
  for (int64_t i = 0; i < e.m; i += step) {
    std::vector<double> row(static_cast<size_t>(e.n), 0.0);
    for (int64_t k = 0; k < e.k; ++k) {
      const double left = a[static_cast<size_t>(i * e.k + k)];
      const float* right = b.data() + k * e.n;
      for (size_t j = 0; j < row.size(); ++j) row[j] += left * static_cast<double>(right[j]);
    }
    for (size_t j = 0; j < row.size(); ++j) {
      want.push_back(static_cast<float>(row[j]));
      mine.push_back(got[static_cast<size_t>(i * e.n) + j]);
    }
  }
  return relative_error(mine, want);
}

Values as_floats(const Tensor& t) { return t.cast(DType::kF32).data<float>(); }

template <class R>
std::function<Result<double>()> product_check(R replay, const Tensor& a, const Tensor& b,
                                              Extents e) {
  return [replay, a, b, e]() -> Result<double> {
    return product_error(replay->values(), as_floats(a), as_floats(b), e);
  };
}

Result<Contest> sgemm(World& w, Extents e, double goal) {
  const Tensor a = w.random({e.m, e.k}, 1), b = w.random({e.k, e.n}, 2);
  auto replay = make_replay([](const auto& in) { return in[0].matmul(in[1]); }, {a, b});
  auto out = std::make_shared<Arena>(static_cast<size_t>(e.m * e.n) * 4);
  Contest c;
  c.unit = Unit::kGflops;
  c.amount = 2.0 * static_cast<double>(e.m * e.n) * static_cast<double>(e.k);
  c.ours = contender("ours", [replay] { replay->run(); });
  if (auto* peer = w.openblas())
    c.peers.push_back(contender("OpenBLAS", [peer, e, a, b, out] {
      peer->gemm(e.m, e.n, e.k, floats(a), floats(b), out->data());
    }));
  if (auto* peer = w.onednn())
    c.peers.push_back(contender("oneDNN", [peer, e, a, b, out] {
      peer->gemm(e.m, e.n, e.k, floats(a), floats(b), out->data());
    }));
  c.check = product_check(replay, a, b, e);
  c.tolerance = 2e-5;
  c.goal = {.of_peer = goal, .of_bound = 0, .at_most = 0};
  return c;
}

/// int8 and bfloat16 GEMM beside oneDNN with B prepacked.
Result<Contest> narrow_gemm(World& w, Extents e, const Tensor& a, const Tensor& b, DType out_type,
                            OneDnn::MatmulShape shape, double tolerance) {
  auto replay = make_replay(
      [out_type](const auto& in) {
        return out_type == DType::kI32 ? in[0].cast(out_type).matmul(in[1].cast(out_type))
                                       : in[0].matmul(in[1]);
      },
      {a, b});
  Contest c;
  c.unit = out_type == DType::kI32 ? Unit::kGops : Unit::kGflops;
  c.amount = 2.0 * static_cast<double>(e.m * e.n) * static_cast<double>(e.k);
  c.ours = contender("ours", [replay] { replay->run(); });
  if (auto* peer = w.onednn()) {
    auto out = std::make_shared<Arena>(static_cast<size_t>(e.m * e.n) * 4);
    auto packed = peer->prepacked(shape, a.buffer().host(), b.buffer().host(), out->data());
    if (packed)
      c.peers.push_back(
          contender("oneDNN prepacked",
                    [a, b, out, matmul = std::shared_ptr(std::move(*packed))] { matmul->run(); }));
    else
      c.notes.push_back(packed.error().message);
  }
  c.check = product_check(replay, a, b, e);
  c.tolerance = tolerance;
  c.goal = {.of_peer = 0.9, .of_bound = 0, .at_most = 0};
  return c;
}

Tensor stored(const Tensor& t, DType dtype) {
  Tensor out = t.cast(dtype).contiguous();
  return out.realize();
}

Result<Contest> bf16_gemm(World& w, Extents e) {
  const Tensor a = stored(w.random({e.m, e.k}, 1), DType::kBF16);
  const Tensor b = stored(w.random({e.k, e.n}, 2), DType::kBF16);
  const OneDnn::MatmulShape shape{e.m, e.n, e.k, DnnlType::kBf16, DnnlType::kBf16, DnnlType::kBf16};
  return narrow_gemm(w, e, a, b, DType::kBF16, shape, 1e-2);
}

Result<Contest> u8s8_gemm(World& w, Extents e) {
  const Tensor a = stored(w.random({e.m, e.k}, 1, 0, 255), DType::kU8);
  const Tensor b = stored(w.random({e.k, e.n}, 2, -127, 127), DType::kI8);
  const OneDnn::MatmulShape shape{e.m, e.n, e.k, DnnlType::kU8, DnnlType::kS8, DnnlType::kS32};
  return narrow_gemm(w, e, a, b, DType::kI32, shape, 1e-6);
}

Result<Contest> sgemv(World& w, bool is_transposed) {
  const int64_t n = w.size(4096);
  const Tensor a = w.random({n, n}, 1);
  const Tensor x = w.random(is_transposed ? Shape{1, n} : Shape{n, 1}, 2);
  auto replay = make_replay(
      [is_transposed](const auto& in) {
        return is_transposed ? in[1].matmul(in[0]) : in[0].matmul(in[1]);
      },
      {a, x});
  auto out = std::make_shared<Arena>(static_cast<size_t>(n) * 4);
  Contest c;
  c.unit = Unit::kGbytes;
  c.amount = 4.0 * static_cast<double>(n * n);
  c.ours = contender("ours", [replay] { replay->run(); });
  if (auto* peer = w.openblas())
    c.peers.push_back(contender("OpenBLAS", [peer, n, a, x, out, is_transposed] {
      peer->gemv(is_transposed, n, n, floats(a), floats(x), out->data());
    }));
  if (auto* peer = w.onednn())
    c.peers.push_back(contender("oneDNN", [peer, n, a, x, out, is_transposed] {
      if (is_transposed)
        peer->gemm(1, n, n, floats(x), floats(a), out->data());
      else
        peer->gemm(n, 1, n, floats(a), floats(x), out->data());
    }));
  c.bounds.push_back(read_limit(w.team(), static_cast<size_t>(n * n) * 4));
  c.check = is_transposed ? product_check(replay, x, a, {1, n, n})
                          : product_check(replay, a, x, {n, 1, n});
  c.tolerance = 2e-5;
  c.goal = {.of_peer = 1.05, .of_bound = 0.9, .at_most = 0};
  return c;
}

}  // namespace

std::vector<Case> gemm_cases() {
  std::vector<Case> out;
  const auto add = [&](std::string name, Extents e, auto make) {
    out.push_back({std::move(name), [e, make](World& w) {
                     return make(w, Extents{w.size(e.m), w.size(e.n), w.size(e.k)});
                   }});
  };
  for (const int64_t n : {256, 384, 512, 1024, 2048})
    add(fmt::format("sgemm {}", n), {n, n, n},
        [goal = n < 512 ? 0.9 : 1.0](World& w, Extents e) { return sgemm(w, e, goal); });
  // Odd, thin, flat and deep: tails in every direction.
  constexpr Extents kShapes[] = {{1000, 1000, 1000}, {333, 777, 555},  {127, 129, 131},
                                 {4096, 64, 1024},   {64, 4096, 1024}, {128, 1024, 4096},
                                 {2048, 2048, 64},   {17, 2048, 2047}};
  for (const Extents& e : kShapes)
    add(fmt::format("sgemm {} x {} x {}", e.m, e.n, e.k), e,
        [](World& w, Extents s) { return sgemm(w, s, 0.9); });
  for (const int64_t n : {512, 1024, 2048}) {
    add(fmt::format("bf16 gemm {}", n), {n, n, n}, bf16_gemm);
    add(fmt::format("u8s8 gemm {}", n), {n, n, n}, u8s8_gemm);
  }
  return out;
}

std::vector<Case> gemv_cases() {
  return {{"sgemv 4096 a.x", [](World& w) { return sgemv(w, false); }},
          {"sgemv 4096 x.a", [](World& w) { return sgemv(w, true); }}};
}

}  // namespace bm::cli
