// Operations over an axis whose length is a variable: the same answer as over an axis that has that
// length, computed plainly and by replays of one capture.
#include "tensor/jit.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

constexpr int64_t kMost = 9;

/// `run(x, n)` may use the first n rows of the [9, 6] tensor x.
struct SymbolicCase {
  const char* name;
  std::function<Tensor(const Tensor& x, const SymInt& n)> run;
};

Tensor rows(const Tensor& x, const SymInt& n) { return x.slice(0, {0, n, 1}); }

const std::vector<SymbolicCase>& cases() {
  static const std::vector<SymbolicCase> all = {
      {"elementwise", [](const Tensor& x, const SymInt& n) { return (rows(x, n) * 2 + 1).tanh(); }},
      {"sum", [](const Tensor& x, const SymInt& n) { return rows(x, n).sum({0}); }},
      {"mean all", [](const Tensor& x, const SymInt& n) { return rows(x, n).mean(); }},
      {"var", [](const Tensor& x, const SymInt& n) { return rows(x, n).var({0}, false, 0); }},
      {"max", [](const Tensor& x, const SymInt& n) { return rows(x, n).max({0}); }},
      {"argmin", [](const Tensor& x, const SymInt& n) { return rows(x, n).argmin(0); }},
      {"softmax", [](const Tensor& x, const SymInt& n) { return rows(x, n).softmax(0); }},
      {"logsumexp", [](const Tensor& x, const SymInt& n) { return rows(x, n).logsumexp({0}); }},
      {"cumsum", [](const Tensor& x, const SymInt& n) { return rows(x, n).cumsum(0); }},
      {"outer matmul",
       [](const Tensor& x, const SymInt& n) {
         return rows(x, n).matmul(x.slice(0, {0, 4, 1}).transpose());
       }},
      {"inner matmul",
       [](const Tensor& x, const SymInt& n) { return rows(x, n).transpose().matmul(rows(x, n)); }},
      {"layer_norm", [](const Tensor& x, const SymInt& n) { return rows(x, n).layer_norm(); }},
      {"cat",
       [](const Tensor& x, const SymInt& n) {
         return Tensor::cat(std::array{rows(x, n), x.slice(0, {3, 5, 1})});
       }},
      {"flip", [](const Tensor& x, const SymInt& n) { return rows(x, n).flip({0}); }},
      {"flip and repeat_interleave",
       [](const Tensor& x, const SymInt& n) {
         return rows(x, n).flip({0}).repeat_interleave(2, 0);
       }},
      {"pad", [](const Tensor& x, const SymInt& n) { return rows(x, n).pad({{1, 2}, {0, 0}}, 5); }},
      {"tril", [](const Tensor& x, const SymInt& n) { return rows(x, n).tril(); }},
      {"flatten", [](const Tensor& x, const SymInt& n) { return rows(x, n).flatten() + 1; }},
      {"heads",
       [](const Tensor& x, const SymInt& n) {
         return rows(x, n).unflatten(1, {2, 3}).permute({1, 0, 2}) * 2;
       }},
      {"last row", [](const Tensor& x, const SymInt& n) { return x.index({n - 1}); }},
      {"attention",
       [](const Tensor& x, const SymInt& n) {
         return Tensor::attention(x.slice(0, {2, 4, 1}), rows(x, n), rows(x, n));
       }},
      {"causal attention",
       [](const Tensor& x, const SymInt& n) {
         return Tensor::attention(rows(x, n), rows(x, n), rows(x, n), {}, true);
       }},
      {"attention of that width",
       [](const Tensor& x, const SymInt& n) {
         const Tensor q = x.slice(0, {0, n, 1}).transpose();
         return Tensor::attention(q, q * 2, x.transpose());
       }},
      {"gather",
       [](const Tensor& x, const SymInt& n) {
         return rows(x, n).take(Tensor::arange(n, DType::kI64, x.device().name()) * -1);
       }},
      {"scatter",
       [](const Tensor& x, const SymInt& n) {
         const Tensor at = Tensor::arange(n, DType::kI64, x.device().name()).mod(3);
         return x.slice(1, {0, 1, 1})
             .squeeze()
             .scatter(0, at, x.slice(1, {1, 2, 1}).squeeze().slice(0, {0, n, 1}), "add");
       }},
  };
  return all;
}

class Symbolic : public OnDevice {
 protected:
  Tensor x() const {
    std::vector<double> v(kMost * 6);
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>((i * 29) % 41) / 16 - 1;
    return f32(v, {kMost, 6});
  }
};
BM_ON_DEVICES(Symbolic);

TEST_P(Symbolic, LengthsAgreeWithFixedOnes) {
  for (const SymbolicCase& c : cases()) {
    const Var n("n", 1, kMost);
    for (int64_t length : {int64_t{1}, int64_t{4}, kMost}) {
      n.set(length);
      EXPECT_TRUE(
          are_close(numbers(c.run(x(), length)), numbers(c.run(x(), SymInt(n))), {1e-5, 1e-5}))
          << c.name << " of " << length;
    }
  }
}

TEST_P(Symbolic, OneCaptureServesEveryLength) {
  for (const SymbolicCase& c : cases()) {
    const Var n("n", 1, kMost);
    n.set(3);
    Jit step([&](const Tensor& in) { return c.run(in, SymInt(n)).contiguous(); });
    const Tensor in = x();
    for (int64_t length : {int64_t{3}, int64_t{3}, int64_t{7}, int64_t{1}, kMost}) {
      n.set(length);
      EXPECT_TRUE(are_close(numbers(c.run(x(), length)), numbers(step(in)), {1e-5, 1e-5}))
          << c.name << " of " << length;
    }
  }
}

}  // namespace
}  // namespace bm::test
