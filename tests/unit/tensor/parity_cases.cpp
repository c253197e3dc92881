#include "tests/unit/tensor/parity_cases.h"

#include <random>

#include "tests/unit/tensor/support.h"

namespace bm::test {

std::vector<DType> dtypes_of(Types types) {
  std::vector<DType> out;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto t = static_cast<DType>(i);
    const bool fits = types == Types::kAll || (types == Types::kNumbers && !is_bool(t)) ||
                      (types == Types::kFloats && is_float(t)) ||
                      (types == Types::kIntegers && is_int(t)) ||
                      (types == Types::kBits && !is_float(t));
    if (fits) out.push_back(t);
  }
  return out;
}

Tensor draw_input(const ParityInput& input, DType dtype, const ParityCase& row, uint64_t seed,
                  const std::string& device) {
  std::mt19937_64 random(seed);
  const auto whole = [&](int64_t lo, int64_t hi) {
    return static_cast<double>(lo +
                               static_cast<int64_t>(random() % static_cast<uint64_t>(hi - lo + 1)));
  };
  const auto real = [&](double lo, double hi) {
    return lo + (hi - lo) * static_cast<double>(random() >> 11) * 0x1p-53;
  };
  const bool is_real = is_float(dtype);
  const int64_t low = is_signed(dtype) ? -9 : 0;
  std::vector<double> v(static_cast<size_t>(max_elements(input.shape)));
  for (double& x : v) {
    switch (input.draw) {
      case Draw::kAny: x = is_real ? real(-3, 3) : whole(low, 9); break;
      case Draw::kPositive: x = is_real ? real(0.25, 4) : whole(1, 9); break;
      case Draw::kUnit: x = is_real ? real(-0.95, 0.95) : whole(0, 1); break;
      case Draw::kNonZero:
        do x = is_real ? real(-3, 3) : whole(low, 9);
        while (std::fabs(x) < 0.25);
        break;
      case Draw::kCount: x = whole(0, 3); break;
      case Draw::kPositions: {
        const int64_t n = row.inputs[0].shape.at(0).constant();
        x = whole(-n, n - 1);
        break;
      }
      case Draw::kFlags: x = whole(0, 1); break;
    }
    if (is_bool(dtype)) x = x != 0 ? whole(0, 1) : 0;
  }
  if (input.draw == Draw::kPositions) dtype = DType::kI64;
  if (input.draw == Draw::kFlags) dtype = DType::kBool;
  return tensor_of(v, input.shape, dtype, device);
}

namespace {

using Inputs = const std::vector<Tensor>&;
using Rows = std::vector<ParityCase>;

const Shape kShapes[] = {{}, {1}, {7}, {0, 3}, {13, 1, 5}, {2, 67}};

struct Unary {
  const char* name;
  Tensor (Tensor::*op)() const;
  Types types;
  Draw draw;
  double factor;
};

void add_unary(Rows& rows) {
  const Unary table[] = {
      {"exp2", &Tensor::exp2, Types::kNumbers, Draw::kAny, 4},
      {"exp", &Tensor::exp, Types::kNumbers, Draw::kAny, 4},
      {"expm1", &Tensor::expm1, Types::kFloats, Draw::kAny, 8},
      {"log2", &Tensor::log2, Types::kNumbers, Draw::kPositive, 4},
      {"log", &Tensor::log, Types::kNumbers, Draw::kPositive, 4},
      {"log1p", &Tensor::log1p, Types::kFloats, Draw::kUnit, 8},
      {"log10", &Tensor::log10, Types::kFloats, Draw::kPositive, 4},
      {"sin", &Tensor::sin, Types::kNumbers, Draw::kAny, 4},
      {"cos", &Tensor::cos, Types::kFloats, Draw::kAny, 4},
      {"tan", &Tensor::tan, Types::kFloats, Draw::kUnit, 8},
      {"asin", &Tensor::asin, Types::kFloats, Draw::kUnit, 8},
      {"acos", &Tensor::acos, Types::kFloats, Draw::kUnit, 8},
      {"atan", &Tensor::atan, Types::kFloats, Draw::kAny, 8},
      {"sinh", &Tensor::sinh, Types::kFloats, Draw::kAny, 8},
      {"cosh", &Tensor::cosh, Types::kFloats, Draw::kAny, 8},
      {"tanh", &Tensor::tanh, Types::kFloats, Draw::kAny, 8},
      {"sqrt", &Tensor::sqrt, Types::kNumbers, Draw::kPositive, 2},
      {"rsqrt", &Tensor::rsqrt, Types::kFloats, Draw::kPositive, 4},
      {"reciprocal", &Tensor::reciprocal, Types::kFloats, Draw::kNonZero, 2},
      {"square", &Tensor::square, Types::kNumbers, Draw::kAny, 0},
      {"abs", &Tensor::abs, Types::kAll, Draw::kAny, 0},
      {"sign", &Tensor::sign, Types::kAll, Draw::kAny, 0},
      {"trunc", &Tensor::trunc, Types::kNumbers, Draw::kAny, 0},
      {"floor", &Tensor::floor, Types::kNumbers, Draw::kAny, 0},
      {"ceil", &Tensor::ceil, Types::kNumbers, Draw::kAny, 0},
      {"round", &Tensor::round, Types::kNumbers, Draw::kAny, 0},
      {"isnan", &Tensor::isnan, Types::kAll, Draw::kAny, 0},
      {"isinf", &Tensor::isinf, Types::kAll, Draw::kAny, 0},
      {"isfinite", &Tensor::isfinite, Types::kAll, Draw::kAny, 0},
      {"relu", &Tensor::relu, Types::kAll, Draw::kAny, 0},
      {"sigmoid", &Tensor::sigmoid, Types::kFloats, Draw::kAny, 4},
      {"silu", &Tensor::silu, Types::kFloats, Draw::kAny, 4},
      {"softplus", &Tensor::softplus, Types::kFloats, Draw::kAny, 8},
      {"hardswish", &Tensor::hardswish, Types::kFloats, Draw::kAny, 4},
      {"hardsigmoid", &Tensor::hardsigmoid, Types::kFloats, Draw::kAny, 4},
      {"mish", &Tensor::mish, Types::kFloats, Draw::kAny, 16},
      {"erf", &Tensor::erf, Types::kFloats, Draw::kAny, 8},
      {"negate", &Tensor::operator-, Types::kNumbers, Draw::kAny, 0},
      {"logical_not", &Tensor::operator!, Types::kAll, Draw::kAny, 0},
      {"bitwise_not", &Tensor::operator~, Types::kBits, Draw::kAny, 0},
  };
  size_t turn = 0;
  for (const Unary& u : table)  // every row one long shape, and one of the others in turn
    for (const Shape& shape : {kShapes[5], kShapes[turn++ % 5]})
      rows.push_back({fmt::format("{} {}", u.name, to_string(shape)),
                      u.types,
                      {{shape, u.draw}},
                      [op = u.op](Inputs in) { return (in[0].*op)(); },
                      u.factor});
}

struct Binary {
  const char* name;
  Tensor (*op)(const Tensor&, const Tensor&);
  Types types;
  Draw left, right;
  double factor;
};

void add_binary(Rows& rows) {
  const Binary table[] = {
      {"add", operator+, Types::kAll, Draw::kAny, Draw::kAny, 0},
      {"subtract", operator-, Types::kNumbers, Draw::kAny, Draw::kAny, 0},
      {"multiply", operator*, Types::kAll, Draw::kAny, Draw::kAny, 0},
      {"divide", operator/, Types::kNumbers, Draw::kAny, Draw::kNonZero, 1},
      {"and", operator&, Types::kBits, Draw::kAny, Draw::kAny, 0},
      {"or", operator|, Types::kBits, Draw::kAny, Draw::kAny, 0},
      {"xor", operator^, Types::kBits, Draw::kAny, Draw::kAny, 0},
      {"shift_left", operator<<, Types::kIntegers, Draw::kAny, Draw::kAny, 0},
      {"shift_right", operator>>, Types::kIntegers, Draw::kAny, Draw::kAny, 0},
      {"less", operator<, Types::kAll, Draw::kAny, Draw::kAny, 0},
      {"greater", operator>, Types::kAll, Draw::kAny, Draw::kAny, 0},
      {"less_equal", operator<=, Types::kAll, Draw::kAny, Draw::kAny, 0},
      {"greater_equal", operator>=, Types::kAll, Draw::kAny, Draw::kAny, 0},
      {"equal", operator==, Types::kAll, Draw::kAny, Draw::kAny, 0},
      {"not_equal", operator!=, Types::kAll, Draw::kAny, Draw::kAny, 0},
      {"maximum", [](const Tensor& a, const Tensor& b) { return a.maximum(b); }, Types::kAll,
       Draw::kAny, Draw::kAny, 0},
      {"minimum", [](const Tensor& a, const Tensor& b) { return a.minimum(b); }, Types::kAll,
       Draw::kAny, Draw::kAny, 0},
      {"floor_div", [](const Tensor& a, const Tensor& b) { return a.floor_div(b); },
       Types::kNumbers, Draw::kAny, Draw::kNonZero, 0},
      {"mod", [](const Tensor& a, const Tensor& b) { return a.mod(b); }, Types::kNumbers,
       Draw::kAny, Draw::kNonZero, 2},
      {"trunc_div", [](const Tensor& a, const Tensor& b) { return a.trunc_div(b); },
       Types::kNumbers, Draw::kAny, Draw::kNonZero, 0},
      {"fmod", [](const Tensor& a, const Tensor& b) { return a.fmod(b); }, Types::kNumbers,
       Draw::kAny, Draw::kNonZero, 0},
      {"div_by_zero",
       [](const Tensor& a, const Tensor& b) { return a.floor_div(b * 0) + a.mod(b * 0); },
       Types::kIntegers, Draw::kAny, Draw::kAny, 0},
      {"pow", [](const Tensor& a, const Tensor& b) { return a.pow(b); }, Types::kFloats,
       Draw::kPositive, Draw::kAny, 32},
      {"pow_int", [](const Tensor& a, const Tensor& b) { return a.pow(b); }, Types::kIntegers,
       Draw::kAny, Draw::kCount, 0},
      {"lerp", [](const Tensor& a, const Tensor& b) { return a.lerp(b, 0.25); }, Types::kFloats,
       Draw::kAny, Draw::kAny, 2},
  };
  const std::pair<Shape, Shape> shapes[] = {
      {{5, 1, 3}, {7, 1}}, {{}, {4}}, {{11}, {11}}, {{0, 1}, {1, 3}}, {{1, 1}, {}}};
  size_t turn = 0;
  for (const Binary& b : table)
    for (const auto& [left, right] : {shapes[0], shapes[1 + turn++ % 4]})
      rows.push_back({fmt::format("{} {} {}", b.name, to_string(left), to_string(right)),
                      b.types,
                      {{left, b.left}, {right, b.right}},
                      [op = b.op](Inputs in) { return op(in[0], in[1]); },
                      b.factor});
}

void add_movement(Rows& rows) {
  const auto add = [&](std::string name, Shape shape, std::function<Tensor(Inputs)> f) {
    rows.push_back({std::move(name), Types::kAll, {{std::move(shape)}}, std::move(f), 0});
  };
  add("permute", {2, 3, 5}, [](Inputs in) { return in[0].permute({2, 0, 1}); });
  add("expand", {3, 1}, [](Inputs in) { return in[0].expand({2, 3, 4}); });
  add("pad", {3, 5}, [](Inputs in) { return in[0].pad({{1, 2}, {0, -1}}, 1); });
  add("flip", {3, 5}, [](Inputs in) { return in[0].flip({0, 1}); });
  add("slice step", {11, 2}, [](Inputs in) { return in[0].slice(0, {1, 10, 3}); });
  add("slice back", {11, 2}, [](Inputs in) { return in[0].slice(0, {9, 0, -4}); });
  add("reshape chain", {4, 3, 5}, [](Inputs in) {
    return in[0].permute({1, 0, 2}).reshape({6, 10}).transpose().reshape({4, 15});
  });
  add("repeat", {3, 2}, [](Inputs in) { return in[0].repeat({2, 1, 3}); });
  add("repeat_interleave", {3, 2}, [](Inputs in) { return in[0].repeat_interleave(3, 1); });
  add("roll", {7}, [](Inputs in) { return in[0].roll(3, 0); });
  add("cat", {3, 2},
      [](Inputs in) { return Tensor::cat(std::array{in[0], in[0].flip({0}), in[0]}, 1); });
  add("stack", {3, 2},
      [](Inputs in) { return Tensor::stack(std::array{in[0], in[0].flip({0})}, 1); });
  add("tril", {5, 7}, [](Inputs in) { return in[0].tril(1); });
  add("triu", {2, 5, 3}, [](Inputs in) { return in[0].triu(-1); });
  add("diagonal", {2, 5, 3}, [](Inputs in) { return in[0].diagonal(); });
  add("empty", {0, 3}, [](Inputs in) { return in[0].transpose().pad({{0, 0}, {1, 1}}); });
  rows.push_back({"gather",
                  Types::kAll,
                  {{{5, 3}}, {{4, 3}, Draw::kPositions}},
                  [](Inputs in) { return in[0].gather(0, in[1]); },
                  0});
  rows.push_back({"take",
                  Types::kAll,
                  {{{5, 3}}, {{2, 2}, Draw::kPositions}},
                  [](Inputs in) { return in[0].take(in[1]); },
                  0});
  for (const char* how : {"set", "max", "min"})
    rows.push_back({fmt::format("scatter {}", how),
                    Types::kNumbers,
                    {{{5, 3}}, {{4, 2}, Draw::kPositions}, {{4, 3}}},
                    [how](Inputs in) { return in[0].scatter(0, in[1], in[2], how); },
                    0});
  for (const char* how : {"add", "prod"})
    rows.push_back({fmt::format("scatter {}", how),
                    Types::kNumbers,
                    {{{5, 3}}, {{4, 2}, Draw::kPositions}, {{4, 3}}},
                    [how](Inputs in) { return in[0].scatter(0, in[1], in[2], how); },
                    8});
  rows.push_back({"where",
                  Types::kAll,
                  {{{3, 1}, Draw::kFlags}, {{3, 4}}, {{4}}},
                  [](Inputs in) { return in[0].where(in[1], in[2]); },
                  0});
}

void add_casts(Rows& rows) {
  for (DType to : dtypes_of(Types::kAll))
    rows.push_back({fmt::format("cast to {}", dtype_name(to)),
                    Types::kAll,
                    {{{2, 17}}},
                    [to](Inputs in) { return in[0].cast(to); },
                    0});
  rows.push_back({"cast out of range",
                  Types::kFloats,
                  {{{19}}},
                  [](Inputs in) {
                    return (in[0] * 100).cast(DType::kI8).cast(DType::kI32) +
                           (in[0] * 100).cast(DType::kU8).cast(DType::kI32);
                  },
                  0});
  rows.push_back({"bitcast",
                  Types::kFloats,
                  {{{19}}},
                  [](Inputs in) {
                    const DType bits = item_size(in[0].dtype()) == 2   ? DType::kU16
                                       : item_size(in[0].dtype()) == 4 ? DType::kU32
                                                                       : DType::kU64;
                    return in[0].bitcast(bits);
                  },
                  0});
}

void add_reductions(Rows& rows) {
  const auto add = [&](std::string name, Types types, Draw draw, double factor,
                       std::function<Tensor(const Tensor&)> f) {
    for (const Shape& shape : {Shape{3, 17, 2}, Shape{2, 1, 131}})
      rows.push_back({fmt::format("{} {}", name, to_string(shape)),
                      types,
                      {{shape, draw}},
                      [f](Inputs in) { return f(in[0]); },
                      factor});
  };
  add("sum last", Types::kAll, Draw::kAny, 32, [](const Tensor& x) { return x.sum({-1}); });
  add("sum some", Types::kAll, Draw::kAny, 32, [](const Tensor& x) { return x.sum({0, 1}, true); });
  add("sum all", Types::kAll, Draw::kAny, 64, [](const Tensor& x) { return x.sum(); });
  add("prod", Types::kNumbers, Draw::kUnit, 16, [](const Tensor& x) { return x.prod({0}); });
  add("max", Types::kAll, Draw::kAny, 0, [](const Tensor& x) { return x.max({1}); });
  add("min", Types::kAll, Draw::kAny, 0, [](const Tensor& x) { return x.min({0, 2}); });
  add("mean", Types::kAll, Draw::kAny, 32, [](const Tensor& x) { return x.mean({1, 2}); });
  add("var", Types::kFloats, Draw::kAny, 64, [](const Tensor& x) { return x.var({1, 2}); });
  add("std", Types::kFloats, Draw::kAny, 64, [](const Tensor& x) { return x.std({2, 0}); });
  add("any", Types::kAll, Draw::kAny, 0, [](const Tensor& x) { return x.any({2}); });
  add("all", Types::kAll, Draw::kAny, 0, [](const Tensor& x) { return x.all({1}); });
  add("argmax", Types::kAll, Draw::kAny, 0, [](const Tensor& x) { return x.argmax(2); });
  add("argmin", Types::kAll, Draw::kAny, 0, [](const Tensor& x) { return x.argmin(); });
  add("logsumexp", Types::kFloats, Draw::kAny, 16,
      [](const Tensor& x) { return x.logsumexp({2}); });
  add("softmax", Types::kFloats, Draw::kAny, 16, [](const Tensor& x) { return x.softmax(1); });
  add("log_softmax", Types::kFloats, Draw::kAny, 16,
      [](const Tensor& x) { return x.log_softmax(); });
  add("cumsum", Types::kNumbers, Draw::kAny, 128, [](const Tensor& x) { return x.cumsum(2); });
  add("cummax", Types::kNumbers, Draw::kAny, 0, [](const Tensor& x) { return x.cummax(1); });
  add("sort", Types::kAll, Draw::kAny, 0, [](const Tensor& x) { return x.sort(1).second; });
  rows.push_back({"sort network",
                  Types::kAll,
                  {{{2, 70}}},
                  [](Inputs in) { return in[0].sort(1, true).first; },
                  0});
  rows.push_back(
      {"topk", Types::kNumbers, {{{2, 70}}}, [](Inputs in) { return in[0].topk(3).second; }, 0});
}

void add_networks(Rows& rows) {
  const auto add = [&](std::string name, Types types, std::vector<ParityInput> in, double factor,
                       std::function<Tensor(Inputs)> f) {
    rows.push_back({std::move(name), types, std::move(in), std::move(f), factor});
  };
  add("matmul", Types::kAll, {{{7, 13}}, {{13, 5}}}, 32,
      [](Inputs in) { return in[0].matmul(in[1]); });
  add("matmul tiled", Types::kNumbers, {{{64, 32}}, {{32, 48}}}, 64,
      [](Inputs in) { return in[0].matmul(in[1]); });
  add("matmul batched", Types::kNumbers, {{{2, 1, 3, 5}}, {{4, 5, 1}}}, 32,
      [](Inputs in) { return in[0].matmul(in[1]); });
  add("matvec", Types::kNumbers, {{{17, 67}}, {{67}}}, 64,
      [](Inputs in) { return in[0].matmul(in[1]); });
  add("linear", Types::kFloats, {{{3, 7}}, {{5, 7}}, {{5}}}, 32,
      [](Inputs in) { return in[0].linear(in[1], in[2]); });
  add("einsum", Types::kNumbers, {{{3, 5, 3}}, {{5, 2}}}, 32,
      [](Inputs in) { return Tensor::einsum("iji,jk->ki", in); });
  add("conv2d", Types::kNumbers, {{{1, 4, 7, 6}}, {{6, 2, 3, 2}}, {{6}}}, 64,
      [](Inputs in) { return in[0].conv(in[1], in[2], {2, 1}, {1, 0}, {1, 2}, 2); });
  add("conv1d", Types::kFloats, {{{2, 3, 11}}, {{4, 3, 3}}}, 64,
      [](Inputs in) { return in[0].conv(in[1], {}, {3}); });
  add("conv_transpose", Types::kFloats, {{{1, 4, 3, 4}}, {{4, 2, 3, 2}}}, 64,
      [](Inputs in) { return in[0].conv_transpose(in[1], {}, {2}, {1, 0}, {1, 0}, {1}, 2); });
  add("max_pool", Types::kNumbers, {{{2, 3, 8, 7}}}, 0,
      [](Inputs in) { return in[0].max_pool({3, 2}, {2}, {1, 0}); });
  add("avg_pool", Types::kFloats, {{{2, 3, 8, 7}}}, 16,
      [](Inputs in) { return in[0].avg_pool({3, 2}, {2}, {1, 0}, false); });
  add("layer_norm", Types::kFloats, {{{5, 19}}, {{19}}, {{19}}}, 64,
      [](Inputs in) { return in[0].layer_norm(in[1], in[2]); });
  add("rms_norm", Types::kFloats, {{{5, 19}}, {{19}}}, 32,
      [](Inputs in) { return in[0].rms_norm(in[1]); });
  add("group_norm", Types::kFloats, {{{2, 6, 5}}}, 64,
      [](Inputs in) { return in[0].group_norm(3); });
  add("batch_norm", Types::kFloats, {{{2, 3, 5}}, {{3}}, {{3}, Draw::kPositive}}, 32,
      [](Inputs in) { return in[0].batch_norm(in[1], in[1], in[1], in[2]); });
  add("attention", Types::kFloats, {{{4, 3, 8}}, {{2, 5, 8}}, {{2, 5, 8}}}, 32,
      [](Inputs in) { return Tensor::attention(in[0], in[1], in[2]); });
  add("causal attention", Types::kFloats, {{{1, 5, 4}}, {{1, 5, 4}}}, 32,
      [](Inputs in) { return Tensor::attention(in[0], in[1], in[1], {}, true); });
}

}  // namespace

std::vector<ParityCase> parity_cases() {
  Rows rows;
  add_unary(rows);
  add_binary(rows);
  add_movement(rows);
  add_casts(rows);
  add_reductions(rows);
  add_networks(rows);
  return rows;
}

}  // namespace bm::test
