// The edges of the public surface: tensors without a value, creation, decisions that NumPy and
// PyTorch made first, numbers past 64 bits, and what many operands or many programs cost.
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "runtime/allocator.h"
#include "runtime/base/env.h"
#include "tensor/jit.h"
#include "tensor/programs.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

class Surface : public OnDevice {};
BM_ON_DEVICES(Surface);

TEST_P(Surface, EyeHasOnesOnItsDiagonal) {
  const std::string on = device();
  EXPECT_TRUE(has_values(Tensor::eye(3, -1, DType::kF32, on), {3, 3}, {1, 0, 0, 0, 1, 0, 0, 0, 1}));
  EXPECT_TRUE(has_values(Tensor::eye(2, 3, DType::kI32, on), {2, 3}, {1, 0, 0, 0, 1, 0}));
  EXPECT_TRUE(has_values(Tensor::eye(3, 1, DType::kBool, on), {3, 1}, {1, 0, 0}));
  EXPECT_TRUE(has_values(Tensor::eye(0, 4, DType::kF32, on), {0, 4}, {}));
  EXPECT_NE(message_of([&] { Tensor::eye(-2); }).find("-2 rows"), std::string::npos);
}

TEST_P(Surface, LinspaceIncludesBothEnds) {
  const std::string on = device();
  const auto line = [&](double a, double b, int64_t n, DType t = DType::kF32) {
    return Tensor::linspace(a, b, n, t, on);
  };
  EXPECT_TRUE(has_values(line(0, 1, 5), {5}, {0, 0.25, 0.5, 0.75, 1}));
  EXPECT_TRUE(has_values(line(3, -3, 4, DType::kI32), {4}, {3, 1, -1, -3}));
  EXPECT_TRUE(has_values(line(7, 9, 1), {1}, {7}));
  EXPECT_TRUE(has_values(line(7, 9, 0), {0}, {}));
  // 1/3 has no end in binary: the last one is the end all the same, and values are those of
  // float64 rounded once.
  std::vector<double> expected;
  for (int i = 0; i < 100; ++i) expected.push_back(static_cast<float>(i * (0.3 / 99)));
  expected.back() = static_cast<float>(0.3);
  EXPECT_TRUE(has_values(line(0, 0.3, 100), {100}, expected));
  EXPECT_TRUE(has_values(line(-1e308, 1e308, 3, DType::kF64), {3}, {-1e308, 0, 1e308}));
  EXPECT_NE(message_of([&] { line(0, 1, -1); }).find("negative"), std::string::npos);
  EXPECT_NE(message_of([&] { line(0, kNan, 3); }).find("finite"), std::string::npos);
}

TEST_P(Surface, ArangeTakesBeginEndAndStep) {
  const std::string on = device();
  const auto range = [&](double a, double b, double step, DType t) {
    return Tensor::arange(a, b, step, t, on);
  };
  EXPECT_TRUE(has_values(range(2, 10, 3, DType::kI64), {3}, {2, 5, 8}));
  EXPECT_TRUE(has_values(range(5, -2, -2, DType::kI32), {4}, {5, 3, 1, -1}));
  EXPECT_TRUE(has_values(range(0, 1, 0.25, DType::kF32), {4}, {0, 0.25, 0.5, 0.75}));
  EXPECT_TRUE(has_values(range(1, 1, 1, DType::kF32), {0}, {}));
  EXPECT_TRUE(has_values(range(1, 5, -1, DType::kF32), {0}, {}));
  std::vector<double> tenths;
  for (int i = 0; i < 1000; ++i) tenths.push_back(static_cast<float>(i * 0.1));
  EXPECT_TRUE(has_values(range(0, 100, 0.1, DType::kF32), {1000}, tenths));
  EXPECT_NE(message_of([&] { range(0, 1, 0, DType::kF32); }).find("step is 0"), std::string::npos);
  EXPECT_NE(message_of([&] { range(0, kInf, 1, DType::kF32); }).find("finite"), std::string::npos);
  EXPECT_NE(message_of([&] { range(0, 3, 0.5, DType::kI64); }).find("must be integers"),
            std::string::npos);
}

TEST_P(Surface, ExtremesOfNoElementsAreAnErrorNamingAxisAndShape) {
  const Tensor x = count({3, 0, 2});
  using Run = std::function<Tensor()>;
  const std::vector<Run> runs = {[&] { return x.max({1}); },  [&] { return x.min({1}); },
                                 [&] { return x.max(); },     [&] { return x.argmax(1); },
                                 [&] { return x.argmin(1); }, [&] { return x.max({-2}, true); }};
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string message = message_of(runs[i]);
    EXPECT_NE(message.find("axis 1 of [3, 0, 2]"), std::string::npos) << i << ": " << message;
    EXPECT_NE(message.find("no elements"), std::string::npos) << i << ": " << message;
  }
  EXPECT_NE(message_of([&] { x.argmax(); }).find("no elements"), std::string::npos);
  EXPECT_TRUE(has_values(x.max({0}), {0, 2}, {})) << "the axis itself is not empty";
  EXPECT_TRUE(has_values(x.sum({1}), {3, 2}, {0, 0, 0, 0, 0, 0}));
  // These have an identity: PyTorch's results, too.
  EXPECT_TRUE(has_values(x.softmax(1), {3, 0, 2}, {}));
  const std::vector<double> none(6, -kInf);
  EXPECT_TRUE(has_values(x.logsumexp({1}), {3, 2}, none));
}

TEST_P(Surface, IntegersToNegativePowersAreAnError) {
  for (const DType t : {DType::kI8, DType::kI32, DType::kI64, DType::kU8}) {
    const Tensor base = tensor_of({2, 1, 3}, {3}, t, device());
    EXPECT_NE(message_of([&] { base.pow(-1); }).find("negative powers"), std::string::npos);
    EXPECT_NE(message_of([&] { base.pow(-100); }).find("negative powers"), std::string::npos);
  }
  EXPECT_NE(message_of([&] {
              i64({2, 3}).pow(Tensor::full_int({2}, -2, DType::kI64, device()));
            }).find("negative powers"),
            std::string::npos);
  EXPECT_TRUE(has_values(i64({5, -3}).pow(0), {2}, {1, 1}));
  EXPECT_TRUE(has_values(i64({2, 4}).pow(-1.0), {2}, {0.5, 0.25})) << "a floating exponent";
  // Known only when it runs: what integer arithmetic leaves, as PyTorch has it.
  EXPECT_TRUE(has_values(i64({2, 1, -1, -1}).pow(i64({-1, -5, -3, -2})), {4}, {0, 1, -1, 1}));
}

TEST_P(Surface, SignOfMinusZeroIsZero) {
  for (const DType t : {DType::kF16, DType::kF32, DType::kF64}) {
    const std::vector<double> got = numbers(tensor_of({-0.0, 0.0, -2, 3}, {4}, t, device()).sign());
    EXPECT_EQ(got, (std::vector<double>{0, 0, -1, 1}));
    EXPECT_FALSE(std::signbit(got[0]));
    EXPECT_FALSE(std::signbit(got[1]));
  }
  EXPECT_TRUE(std::isnan(numbers(f32({kNan}).sign())[0]));
}

TEST_P(Surface, SliceEndsMayBeAsLargeAsAnyNumber) {
  const Tensor x = count({5});
  EXPECT_TRUE(has_values(x.slice(0, {1, INT64_MAX, 1}), {4}, {1, 2, 3, 4}));
  EXPECT_TRUE(has_values(x.slice(0, {INT64_MIN + 1, 2, 1}), {2}, {0, 1}));
  EXPECT_TRUE(has_values(x.slice(0, {0, 5, INT64_MAX}), {1}, {0}));
}

TEST_P(Surface, ThousandsOfOperandsAreJoined) {
  const int64_t most = device() == "CPU" ? 300 : 70;
  std::vector<Tensor> parts;
  std::vector<double> rows, columns(static_cast<size_t>(2 * (most + most / 2)));
  int64_t at = 0;
  for (int64_t i = 0; i < most; ++i) {
    const int64_t length = 1 + i % 2;
    std::vector<double> v;
    for (int64_t k = 0; k < 2 * length; ++k) v.push_back(static_cast<double>(i * 10 + k));
    parts.push_back(f32(v, {length, 2}));
    rows.insert(rows.end(), v.begin(), v.end());
    for (int64_t k = 0; k < length; ++k) {
      columns[static_cast<size_t>(at + k)] = v[static_cast<size_t>(2 * k)];
      columns[static_cast<size_t>(at + k) + columns.size() / 2] = v[static_cast<size_t>(2 * k) + 1];
    }
    at += length;
  }
  EXPECT_TRUE(has_values(Tensor::cat(parts), {at, 2}, rows));
  for (Tensor& p : parts) p = p.transpose();
  EXPECT_TRUE(has_values(Tensor::cat(parts, -1), {2, at}, columns));
}

TEST_P(Surface, LongRowsAreSorted) {
  // Elsewhere sorting compares in networks, which other tests cover.
  if (device() != "CPU") GTEST_SKIP() << "devices with work-groups sort otherwise";
  std::mt19937 random(7);
  const std::vector<std::pair<int64_t, int64_t>> sizes = {
      {1, 65}, {3, 300}, {2, 4095}, {1, 4097}, {1, 100'003}};
  for (const auto& [rows, length] : sizes) {
    for (const DType t : {DType::kF32, DType::kI64, DType::kU8}) {
      std::vector<double> v(static_cast<size_t>(rows * length));
      for (double& x : v)
        x = t == DType::kU8
                ? static_cast<double>(random() % 256)
                : static_cast<double>(static_cast<int32_t>(random())) / (is_float(t) ? 64 : 1);
      const Tensor x = tensor_of(v, {rows, length}, t, device());
      v = numbers(x);
      for (const bool is_descending : {false, true}) {
        std::vector<double> expected, order;
        for (int64_t r = 0; r < rows; ++r) {
          const auto row = v.begin() + r * length;
          std::vector<int64_t> place(static_cast<size_t>(length));
          std::iota(place.begin(), place.end(), int64_t{0});
          std::stable_sort(place.begin(), place.end(), [&](int64_t a, int64_t b) {
            return is_descending ? row[a] > row[b] : row[a] < row[b];
          });
          for (const int64_t p : place) {
            expected.push_back(row[p]);
            order.push_back(static_cast<double>(p));
          }
        }
        const auto [values, at] = x.sort(-1, is_descending);
        EXPECT_TRUE(has_values(values, {rows, length}, expected)) << length << dtype_name(t);
        EXPECT_TRUE(has_values(at, {rows, length}, order)) << length << dtype_name(t);
      }
    }
  }
}

// --- tensors without a value --------------------------------------------------------------------

TEST(NoValue, EveryOperationSaysSo) {
  const Tensor none, x = Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2});
  const Tensor index = Tensor::from<int64_t>({0, 1, 1, 0}).reshape({2, 2});
  const Tensor row = Tensor::from<float>({1, 2});
  const Axes two{2, 2};
  using Run = std::function<void()>;
  std::vector<std::pair<const char*, Run>> runs = {
      {"shape", [&] { (void)none.shape(); }},
      {"size", [&] { (void)none.size(0); }},
      {"rank", [&] { (void)none.rank(); }},
      {"dtype", [&] { (void)none.dtype(); }},
      {"device", [&] { (void)none.device(); }},
      {"elements", [&] { (void)none.elements(); }},
      {"is_realized", [&] { (void)none.is_realized(); }},
      {"node", [&] { (void)none.node(); }},
      {"axis", [&] { (void)none.axis(0); }},
      {"realize",
       [&] {
         Tensor t;
         t.realize();
       }},
      {"realize of several",
       [&] {
         Tensor t;
         Tensor* all[] = {&t};
         Tensor::realize(all);
       }},
      {"buffer", [&] { (void)none.buffer(); }},
      {"bytes", [&] { (void)none.bytes(); }},
      {"data", [&] { (void)none.data<float>(); }},
      {"item", [&] { (void)none.item<float>(); }},
      {"assign to",
       [&] {
         Tensor t;
         t.assign(x);
       }},
      {"assign from",
       [&] {
         Tensor t = x;
         t.assign(none);
       }},
      {"to", [&] { none.to("CPU"); }},
      {"contiguous", [&] { none.contiguous(); }},
      {"clone", [&] { none.clone(); }},
      {"reshape", [&] { none.reshape({1}); }},
      {"permute", [&] { none.permute({}); }},
      {"expand", [&] { none.expand({2}); }},
      {"pad", [&] { none.pad({}); }},
      {"shrink", [&] { none.shrink({}); }},
      {"flip", [&] { none.flip({0}); }},
      {"transpose", [&] { none.transpose(); }},
      {"slice", [&] { none.slice(0, {}); }},
      {"index", [&] { none.index({}); }},
      {"squeeze", [&] { none.squeeze(); }},
      {"unsqueeze", [&] { none.unsqueeze(0); }},
      {"flatten", [&] { none.flatten(); }},
      {"unflatten", [&] { none.unflatten(0, {1}); }},
      {"repeat", [&] { none.repeat({}); }},
      {"repeat_interleave", [&] { none.repeat_interleave(2, 0); }},
      {"roll", [&] { none.roll(1, 0); }},
      {"split", [&] { none.split(1); }},
      {"chunk", [&] { none.chunk(1); }},
      {"cat", [&] { Tensor::cat(std::array{x, none}); }},
      {"cat first", [&] { Tensor::cat(std::array{none, x}); }},
      {"stack", [&] { Tensor::stack(std::array{x, none}); }},
      {"gather", [&] { none.gather(0, index); }},
      {"gather index", [&] { x.gather(0, none); }},
      {"take", [&] { none.take(index); }},
      {"take index", [&] { x.take(none); }},
      {"scatter", [&] { none.scatter(0, index, x); }},
      {"scatter index", [&] { x.scatter(0, none, x); }},
      {"scatter source", [&] { x.scatter(0, index, none); }},
      {"tril", [&] { none.tril(); }},
      {"triu", [&] { none.triu(); }},
      {"diagonal", [&] { none.diagonal(); }},
      {"cast", [&] { none.cast(DType::kF64); }},
      {"bitcast", [&] { none.bitcast(DType::kI32); }},
      {"isnan", [&] { none.isnan(); }},
      {"leaky_relu", [&] { none.leaky_relu(); }},
      {"gelu", [&] { none.gelu(); }},
      {"elu", [&] { none.elu(); }},
      {"clip", [&] { none.clip(0, 1); }},
      {"clip of nothing", [&] { none.clip({}, {}).shape(); }},
      {"where", [&] { none.where(x, x); }},
      {"where a", [&] { (x > 1).where(none, x); }},
      {"where b", [&] { (x > 1).where(x, none); }},
      {"lerp", [&] { x.lerp(none, x); }},
      {"lerp weight", [&] { x.lerp(x, none); }},
      {"sum", [&] { none.sum(); }},
      {"argmax", [&] { none.argmax(); }},
      {"argmin", [&] { none.argmin(); }},
      {"softmax", [&] { none.softmax(); }},
      {"log_softmax", [&] { none.log_softmax(); }},
      {"cumsum", [&] { none.cumsum(0); }},
      {"cumprod", [&] { none.cumprod(0); }},
      {"cummax", [&] { none.cummax(0); }},
      {"sort", [&] { none.sort(); }},
      {"topk", [&] { none.topk(1); }},
      {"matmul", [&] { none.matmul(x); }},
      {"matmul b", [&] { x.matmul(none); }},
      {"dot", [&] { x.dot(none); }},
      {"linear", [&] { none.linear(x); }},
      {"linear weight", [&] { x.linear(none); }},
      {"conv", [&] { none.conv(x); }},
      {"conv weight", [&] { x.conv(none); }},
      {"conv_transpose", [&] { none.conv_transpose(x); }},
      {"max_pool", [&] { none.max_pool(two); }},
      {"avg_pool", [&] { none.avg_pool(two); }},
      {"layer_norm", [&] { none.layer_norm(); }},
      {"rms_norm", [&] { none.rms_norm(); }},
      {"batch_norm", [&] { none.batch_norm(x, x, x, x); }},
      {"batch_norm mean", [&] { x.batch_norm(row, row, none, row); }},
      {"group_norm", [&] { none.group_norm(1); }},
      {"attention", [&] { Tensor::attention(none, x, x); }},
      {"attention k", [&] { Tensor::attention(x, none, x); }},
      {"attention v", [&] { Tensor::attention(x, x, none); }},
      {"einsum", [&] { Tensor::einsum("ij,jk->ik", std::array{x, none}); }},
  };
  using Unary = Tensor (Tensor::*)() const;
  const std::vector<std::pair<const char*, Unary>> unary = {
      {"operator-", &Tensor::operator- },
       {"operator!", &Tensor::operator!},
        {"operator~", &Tensor::operator~},
         {"exp2", &Tensor::exp2},
         {"exp", &Tensor::exp},
         {"expm1", &Tensor::expm1},
         {"log2", &Tensor::log2},
         {"log", &Tensor::log},
         {"log1p", &Tensor::log1p},
         {"log10", &Tensor::log10},
         {"sin", &Tensor::sin},
         {"cos", &Tensor::cos},
         {"tan", &Tensor::tan},
         {"asin", &Tensor::asin},
         {"acos", &Tensor::acos},
         {"atan", &Tensor::atan},
         {"sinh", &Tensor::sinh},
         {"cosh", &Tensor::cosh},
         {"tanh", &Tensor::tanh},
         {"sqrt", &Tensor::sqrt},
         {"rsqrt", &Tensor::rsqrt},
         {"reciprocal", &Tensor::reciprocal},
         {"square", &Tensor::square},
         {"abs", &Tensor::abs},
         {"sign", &Tensor::sign},
         {"trunc", &Tensor::trunc},
         {"floor", &Tensor::floor},
         {"ceil", &Tensor::ceil},
         {"round", &Tensor::round},
         {"isinf", &Tensor::isinf},
         {"isfinite", &Tensor::isfinite},
         {"relu", &Tensor::relu},
         {"sigmoid", &Tensor::sigmoid},
         {"silu", &Tensor::silu},
         {"softplus", &Tensor::softplus},
         {"hardswish", &Tensor::hardswish},
         {"hardsigmoid", &Tensor::hardsigmoid},
         {"mish", &Tensor::mish},
         {"erf", &Tensor::erf}};
  for (const auto& [name, run] : unary) runs.emplace_back(name, [&none, run] { (none.*run)(); });
  using Binary = Tensor (Tensor::*)(const Tensor&) const;
  const std::vector<std::pair<const char*, Binary>> binary = {{"maximum", &Tensor::maximum},
                                                              {"minimum", &Tensor::minimum},
                                                              {"pow", &Tensor::pow},
                                                              {"mod", &Tensor::mod},
                                                              {"floor_div", &Tensor::floor_div},
                                                              {"fmod", &Tensor::fmod},
                                                              {"trunc_div", &Tensor::trunc_div}};
  for (const auto& [name, run] : binary) {
    runs.emplace_back(name, [&none, &x, run] { (none.*run)(x); });
    runs.emplace_back(name, [&none, &x, run] { (x.*run)(none); });
  }
  using Operator = Tensor (*)(const Tensor&, const Tensor&);
  const Operator operators[] = {operator+, operator-, operator*, operator/, operator&, operator|
                                ,
                                operator^, operator<<, operator>>, operator<, operator>, operator<=
                                ,
                                operator>=, operator==, operator!= };
  for (const Operator run : operators) {
    runs.emplace_back("operator", [&none, &x, run] { run(none, x); });
    runs.emplace_back("operator", [&none, &x, run] { run(x, none); });
    runs.emplace_back("operator", [&none, run] { run(none, 2); });
  }
  using Reduction = Tensor (Tensor::*)(const Axes&, bool) const;
  const std::vector<std::pair<const char*, Reduction>> reductions = {
      {"prod", &Tensor::prod},          {"max", &Tensor::max}, {"min", &Tensor::min},
      {"mean", &Tensor::mean},          {"any", &Tensor::any}, {"all", &Tensor::all},
      {"logsumexp", &Tensor::logsumexp}};
  for (const auto& [name, run] : reductions)
    runs.emplace_back(name, [&none, run] { (none.*run)({}, false); });
  runs.emplace_back("var", [&] { none.var(); });
  runs.emplace_back("std", [&] { none.std(); });
  for (const auto& [name, run] : runs) {
    const std::string message = message_of(run);
    EXPECT_NE(message.find("no value"), std::string::npos) << name << ": \"" << message << '"';
  }
}

TEST(NoValue, AMovedFromTensorHasNone) {
  Tensor a = Tensor::from<float>({1});
  const Tensor b = std::move(a);
  EXPECT_FALSE(a.is_valid());  // NOLINT(bugprone-use-after-move)
  EXPECT_NE(message_of([&] { (void)(a + b); }).find("moved from"), std::string::npos);
}

// --- symbolic integers past 64 bits -------------------------------------------------------------

TEST(SymInt, OverflowIsAnError) {
  const Var n("n", 0, INT64_MAX / 2), m("m", INT64_MIN / 2, 0);
  const auto refuses = [](auto&& f) {
    return message_of([&] { (void)f(); }).find("does not fit 64 bits") != std::string::npos;
  };
  EXPECT_TRUE(refuses([] { return SymInt(INT64_MAX) + 1; }));
  EXPECT_TRUE(refuses([] { return SymInt(INT64_MIN) - 1; }));
  EXPECT_TRUE(refuses([] { return SymInt(1) - SymInt(INT64_MIN); }));
  EXPECT_TRUE(refuses([] { return SymInt(int64_t{1} << 40) * (int64_t{1} << 40); }));
  EXPECT_TRUE(refuses([&] { return SymInt(n) * INT64_MAX * 2; }));
  EXPECT_TRUE(refuses([&] { return SymInt(n) * INT64_MAX + n; }));
  EXPECT_TRUE(refuses([&] { return (SymInt(n) * 3).max(); }));
  EXPECT_TRUE(refuses([&] { return (SymInt(m) * 3).min(); }));
  EXPECT_EQ((SymInt(n) * 3).min(), 0);
  EXPECT_EQ((SymInt(n) * 2 + SymInt(m) * 2 + 1).max(), INT64_MAX / 2 * 2 + 1);
  n.set(INT64_MAX / 2);
  EXPECT_TRUE(refuses([&] { return (SymInt(n) * 3).value(); }));
  m.set(INT64_MIN / 2);
  EXPECT_EQ((SymInt(n) * 3 + SymInt(m) * 3).value(), (INT64_MAX / 2 + INT64_MIN / 2) * 3)
      << "the parts do not fit, the whole does";
  EXPECT_TRUE(refuses([&] { return elements_now({n, n}); }));
}

// --- programs -----------------------------------------------------------------------------------

TEST(Programs, ConstantsToFillWithShareOneKernel) {
  for (const DType t : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI8,
                        DType::kU32, DType::kI64, DType::kU64}) {
    const KernelRecorder recorder;
    for (const double v : {0.0, 1.0, 0.5, 3.0, 100.0})
      EXPECT_TRUE(has_values(Tensor::full({7}, is_float(t) ? v : std::floor(v), t, "CPU"), {7},
                             std::vector<double>(7, is_float(t) ? v : std::floor(v))))
          << dtype_name(t);
    EXPECT_EQ(recorder.kernels().size(), 1u) << dtype_name(t);
  }
  EXPECT_TRUE(has_values(Tensor::full({2}, -kInf, DType::kF32, "CPU"), {2}, {-kInf, -kInf}));
  EXPECT_TRUE(std::signbit(numbers(Tensor::full({2}, -0.0, DType::kF64, "CPU"))[1]));
  EXPECT_EQ(Tensor::full_int({2}, INT64_MIN, DType::kI64, "CPU").data<int64_t>()[1], INT64_MIN);
  EXPECT_EQ(Tensor::full_int({2}, -1, DType::kU64, "CPU").data<uint64_t>()[1], UINT64_MAX);
}

TEST(Programs, StepsOfASortingNetworkShareTheirKernel) {
  // Each two steps in a kernel of their own would be 45 here, and 105 for a million elements.
  const KernelRecorder recorder;
  Tensor::rand({5000}, DType::kF32, "NULL::sm_90").sort().first.realize();
  EXPECT_LE(recorder.kernels().size(), 12u);
}

TEST(Programs, TheLeastRecentlyUsedGo) {
  struct Restore {
    ~Restore() { limit_programs(kMostPrograms); }
  } restore;
  limit_programs(8);
  const Tensor x = Tensor::full({1000}, 2, DType::kF32, "CPU").realize();
  for (int64_t i = 1; i <= 40; ++i) {
    EXPECT_EQ((x.slice(0, {0, i, 1}) + 1).sum().item<float>(), static_cast<float>(3 * i));
    EXPECT_LE(programs_kept(), 8u + 2);
  }
  EXPECT_EQ((x.slice(0, {0, 1, 1}) + 1).sum().item<float>(), 3.0F) << "compiled again";
}

TEST(Programs, ThoseOfACaptureStayUntilItGoes) {
  struct Restore {
    ~Restore() { limit_programs(kMostPrograms); }
  } restore;
  Jit jit([](const Tensor& a) { return (a * 3 - 1).realize(); });
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}, "CPU");
  for (int i = 0; i < 3; ++i) jit(x);
  limit_programs(0);
  for (int64_t i = 1; i <= 5; ++i) (x.slice(0, {0, (i % 4) + 1, 1}).exp()).realize();
  EXPECT_EQ(jit(x).data<float>(), (std::vector<float>{2, 5, 8, 11}));
}

// --- several CPU devices ------------------------------------------------------------------------

TEST(CpuUnits, AreDevicesOfTheirOwn) {
  const std::vector<float> v{1, 2, 3, 4};
  const Tensor a = Tensor::from(v, {4}, "CPU"), b = Tensor::from(v, {4}, "CPU:1"),
               c = Tensor::from(v, {4}, "cpu:2");
  EXPECT_NE(&a.device(), &b.device());
  EXPECT_EQ(b.device().name(), "CPU:1");
  EXPECT_EQ(&c.device(), unwrap(runtime::open_device("CPU:2")));
  EXPECT_NE(message_of([&] { (void)(a + b); }).find("CPU:1"), std::string::npos);
  EXPECT_EQ(((a * 2).to("CPU:1") + b).to("CPU:2").realize().matmul(c).item<float>(), 90.0F);
  EXPECT_EQ(Tensor::ones({3}, DType::kF32, "REF:3").sum().item<float>(), 3.0F);
  for (const runtime::DeviceListing& row : runtime::list_devices())
    EXPECT_NE(row.name, "CPU:1") << "the list is of hardware";
}

TEST(CpuUnits, ACaptureSpansThem) {
  Jit jit([](const Tensor& x) {
    const Tensor half = (x * 2).to("CPU:1");
    return (half + 1).to("CPU").realize();
  });
  for (int i = 0; i < 4; ++i) {
    const Tensor x = Tensor::full({5}, i, DType::kF32, "CPU").realize();
    EXPECT_EQ(jit(x).data<float>(), std::vector<float>(5, static_cast<float>(2 * i + 1)));
  }
}

// --- the end of the process ---------------------------------------------------------------------

/// Leaves work in flight on an OpenCL device that compiles its kernels while they run.
[[noreturn]] void exit_with_work_in_flight() {
  static std::vector<Tensor> kept;
  Tensor x = Tensor::full({64, 64}, 0.5, DType::kF32, "CL").realize();
  for (int i = 0; i < 4; ++i) {
    x = (x.matmul(x) + i).sin().realize();
    kept.push_back(x);
  }
  std::exit(0);
}

TEST(ExitDeathTest, WorkInFlightIsWaitedFor) {
  if (const std::string reason = why_not("CL"); !reason.empty()) GTEST_SKIP() << reason;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // Empty caches, PoCL's too. The test runs again in the process that dies, whose environment these
  // are from the start.
  std::string folder = std::filesystem::temp_directory_path() / "bellmetal_exit_XXXXXX";
  const bool is_child = std::getenv("BM_TEST_EXIT") != nullptr;
  if (!is_child) {
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    setenv("BM_TEST_EXIT", "1", 1);
    setenv("POCL_CACHE_DIR", folder.c_str(), 1);
    setenv("BM_CACHE_DIR", folder.c_str(), 1);
  }
  EXPECT_EXIT(exit_with_work_in_flight(), ::testing::ExitedWithCode(0), "");
  if (!is_child) std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace bm::test
