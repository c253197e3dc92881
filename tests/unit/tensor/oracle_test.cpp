// A selection of operations against NumPy and PyTorch, run by tests/oracle/ops_reference.py.
// Skipped where Python has no NumPy; PyTorch's rows are left out where it is missing.
#include <cstdio>
#include <map>
#include <sstream>

#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

struct Expected {
  Shape shape;
  std::vector<double> values;
};

/// Output of the script; empty when it cannot run.
std::string run_script() {
  std::FILE* pipe = popen("/usr/bin/python3 tests/oracle/ops_reference.py 2>/dev/null", "r");
  if (pipe == nullptr) return "";
  std::string out;
  char chunk[4096];
  for (size_t n; (n = std::fread(chunk, 1, sizeof chunk, pipe)) > 0;) out.append(chunk, n);
  return pclose(pipe) == 0 ? out : "";
}

std::map<std::string, Expected> parse(const std::string& text) {
  std::map<std::string, Expected> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t colon = line.find(" :");
    std::istringstream head(line.substr(0, colon)), tail(line.substr(colon + 2));
    std::string name, dtype, dims;
    head >> name >> dtype >> dims;
    Expected e;
    std::istringstream sizes(dims);
    for (std::string n; std::getline(sizes, n, ',');) e.shape.emplace_back(std::stoll(n));
    for (std::string v; tail >> v;) e.values.push_back(std::stod(v));
    rows[name] = std::move(e);
  }
  return rows;
}

const std::map<std::string, Expected>& expectations() {
  static const std::map<std::string, Expected> rows = parse(run_script());
  return rows;
}

/// The script's inputs.
Tensor grid(const Shape& shape, const std::string& device, int64_t k = 0) {
  std::vector<double> v(static_cast<size_t>(max_elements(shape)));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = (static_cast<double>((static_cast<int64_t>(i) * 37 + k * 11) % 64) - 32) / 16;
  return tensor_of(v, shape, DType::kF32, device);
}

class Oracle : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (expectations().empty())
      GTEST_SKIP()
          << "tests/oracle/ops_reference.py did not run: it needs /usr/bin/python3 with NumPy";
  }
  Tensor g(const Shape& shape, int64_t k = 0) const { return grid(shape, device(), k); }
  void expect(const std::string& name, const Tensor& actual, double tolerance = 0) {
    const auto it = expectations().find(name);
    if (it == expectations().end()) {
      ++missing_;
      return;
    }
    EXPECT_TRUE(has_values(actual, it->second.shape, it->second.values, {tolerance, tolerance}))
        << name;
  }
  int missing_ = 0;
};
BM_ON_DEVICES(Oracle);

TEST_P(Oracle, NumPyElementwise) {
  const Tensor x = g({3, 7}), y = g({3, 7}, 1), i = (x * 16).cast(DType::kI32),
               j = (y * 16).cast(DType::kI32);
  const Tensor d = (y == 0).where(1, y), e = (j == 0).where(1, j), p = x.abs() + 0.25;
  expect("add", x + y);
  expect("true_divide", i / e, 1e-7);
  expect("floor_divide", x.floor_div(d));
  expect("mod", x.mod(d), 1e-6);
  expect("fmod", x.fmod(d));
  expect("int_floor_divide", i.floor_div(e));
  expect("int_mod", i.mod(e));
  expect("round", (x * 4).round());
  expect("power", p.pow(y), 2e-6);
  const std::pair<const char*, Tensor (Tensor::*)() const> on_all[] = {
      {"exp", &Tensor::exp},   {"expm1", &Tensor::expm1}, {"sin", &Tensor::sin},
      {"cos", &Tensor::cos},   {"tanh", &Tensor::tanh},   {"arctan", &Tensor::atan},
      {"sinh", &Tensor::sinh}, {"cosh", &Tensor::cosh},   {"floor", &Tensor::floor},
      {"ceil", &Tensor::ceil}, {"trunc", &Tensor::trunc}, {"sign", &Tensor::sign}};
  for (const auto& [name, op] : on_all) expect(name, (x.*op)(), 5e-7);
  const std::pair<const char*, Tensor (Tensor::*)() const> on_positive[] = {
      {"log", &Tensor::log},
      {"log2", &Tensor::log2},
      {"log10", &Tensor::log10},
      {"log1p", &Tensor::log1p},
      {"sqrt", &Tensor::sqrt}};
  for (const auto& [name, op] : on_positive) expect(name, (p.*op)(), 5e-7);
  expect("arcsin", (x / 2.5).asin(), 5e-7);
  expect("arccos", (x / 2.5).acos(), 5e-7);
  EXPECT_EQ(missing_, 0);
}

TEST_P(Oracle, NumPyReductionsAndMovement) {
  const Tensor x = g({3, 7});
  expect("sum", x.sum({1}), 1e-6);
  expect("prod", x.prod({0}), 1e-6);
  expect("mean", x.mean({1}, true), 1e-6);
  expect("var", x.var({1}), 1e-6);
  expect("argmax", x.argmax(1));
  expect("argmin", x.argmin(0));
  expect("cumsum", x.cumsum(1), 1e-6);
  expect("cumprod", x.cumprod(0), 1e-6);
  expect("sort", x.sort(1).first);
  expect("argsort", x.sort(1).second);
  expect("matmul", g({2, 3, 5}).matmul(g({5, 4}, 1)), 1e-5);
  expect("einsum", Tensor::einsum("abc,cd->bda", std::array{g({2, 3, 5}), g({5, 4}, 1)}), 1e-5);
  expect("einsum_diagonal", Tensor::einsum("iji->j", std::array{g({3, 4, 3})}), 1e-6);
  expect("slice_back", x.slice(0, {{}, {}, -2}).slice(1, {5, 0, -3}));
  expect("roll", x.roll(3, 1));
  expect("tril", x.tril(1));
  expect("diagonal", g({2, 3, 4}).diagonal());
  expect("repeat", x.repeat_interleave(2, 1));
  expect("take", x.take(i64({2, 0, 1, 1}, {2, 2})));
  EXPECT_EQ(missing_, 0);
}

TEST_P(Oracle, PyTorchNetworks) {
  if (!expectations().contains("softmax")) GTEST_SKIP() << "/usr/bin/python3 has no PyTorch";
  const Tensor x = g({2, 6, 5});
  expect("gelu_tanh", x.gelu(), 1e-6);
  expect("gelu", x.gelu(false), 1e-6);
  const std::pair<const char*, Tensor (Tensor::*)() const> plain[] = {
      {"silu", &Tensor::silu},
      {"mish", &Tensor::mish},
      {"softplus", &Tensor::softplus},
      {"hardswish", &Tensor::hardswish},
      {"hardsigmoid", &Tensor::hardsigmoid},
      {"relu", &Tensor::relu},
      {"sigmoid", &Tensor::sigmoid},
      {"erf", &Tensor::erf}};
  for (const auto& [name, op] : plain) expect(name, (x.*op)(), 1e-6);
  expect("elu", x.elu(), 1e-6);
  expect("leaky_relu", x.leaky_relu(), 1e-6);
  expect("softmax", x.softmax(1), 1e-6);
  expect("log_softmax", x.log_softmax(), 1e-6);
  expect("logsumexp", x.logsumexp({0, 2}), 1e-6);
  expect("layer_norm", x.layer_norm({}, {}, 1e-5, 2), 1e-5);
  expect("group_norm", x.group_norm(3), 1e-5);
  expect("conv1d", x.conv(g({4, 3, 3}, 1), g({4}, 2), {2}, {1}, {1}, 2), 1e-5);
  expect("conv2d", g({2, 4, 7, 6}).conv(g({6, 2, 3, 2}, 1), g({6}, 2), {2, 1}, {1, 0}, {1, 2}, 2),
         1e-5);
  expect("conv3d", g({1, 2, 4, 3, 5}).conv(g({3, 2, 2, 2, 2}, 1)), 1e-5);
  expect("conv_transpose2d",
         g({1, 4, 3, 4})
             .conv_transpose(g({4, 3, 3, 2}, 1), g({6}, 2), {2, 3}, {1, 0}, {1, 2}, {1, 2}, 2),
         1e-5);
  expect("max_pool2d", g({2, 3, 8, 7}).max_pool({3, 2}, {2}, {1, 0}));
  expect("max_pool2d_dilated", g({1, 2, 9, 9}).max_pool({3, 3}, {2}, {1}, {2}));
  expect("avg_pool2d", g({2, 3, 8, 7}).avg_pool({3, 2}, {2}, {1, 0}), 1e-6);
  expect("avg_pool2d_valid", g({2, 3, 8, 7}).avg_pool({3, 2}, {2}, {1, 0}, false), 1e-6);
  const Tensor index = i64({2, 0, 1, 0, 0, 2}, {2, 3}), base = g({3, 3}), source = g({2, 3}, 1);
  expect("gather", base.gather(0, index));
  expect("scatter_add", base.scatter(0, index, source, "add"), 1e-6);
  expect("scatter_max", base.scatter(0, index, source, "max"));
  expect("topk", x.topk(3, 1).first);
  expect("attention", Tensor::attention(g({4, 3, 8}), g({4, 5, 8}, 1), g({4, 5, 8}, 2)), 1e-5);
  expect("cummax", x.cummax(1));
  EXPECT_EQ(missing_, 0);
}

}  // namespace
}  // namespace bm::test
