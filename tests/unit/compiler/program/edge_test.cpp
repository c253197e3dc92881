// Edges of casts, divisions and shifts: every operation on all pairs of awkward values must be what
// ir::fold says, for every dtype, renderer and target.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "compiler/ir/evaluate.h"
#include "runtime/base/half.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using ir::Op;

constexpr std::array kAllTypes = {DType::kBool, DType::kI8,  DType::kU8,  DType::kI16, DType::kU16,
                                  DType::kI32,  DType::kU32, DType::kI64, DType::kU64, DType::kF16,
                                  DType::kBF16, DType::kF32, DType::kF64};

/// Bit patterns of awkward values of a type.
std::vector<uint64_t> awkward(DType t) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (is_bool(t)) return {0, 1};
  std::vector<uint64_t> v;
  if (is_float(t)) {
    for (double d : {0.0,
                     1.0,
                     0.5,
                     2.0,
                     3.0,
                     7.0,
                     127.0,
                     128.0,
                     255.0,
                     256.0,
                     129.5,
                     32767.0,
                     32768.0,
                     65535.0,
                     65504.0,
                     65536.0,
                     2147483520.0,
                     2147483647.0,
                     2147483648.0,
                     4294967295.0,
                     4294967296.0,
                     9223372036854774784.0,
                     9223372036854775808.0,
                     18446744073709549568.0,
                     18446744073709551616.0,
                     1e-8,
                     6e-8,
                     3e-5,
                     1e-40,
                     5e-324,
                     1e30,
                     1e300,
                     kInf,
                     static_cast<double>(std::numeric_limits<float>::max()),
                     0.333333333,
                     1e-3,
                     65520.0,
                     65519.0})
      for (double s : {d, -d}) {
        const auto f = static_cast<float>(s);
        v.push_back(t == DType::kF64   ? std::bit_cast<uint64_t>(s)
                    : t == DType::kF32 ? std::bit_cast<uint32_t>(f)
                    : t == DType::kF16 ? f32_to_f16(f)
                                       : f32_to_bf16(f));
      }
    v.push_back(t == DType::kF64   ? 0x7ff8000000000000
                : t == DType::kF32 ? 0x7fc00000
                : t == DType::kF16 ? 0x7e00
                                   : 0x7fc0);
    return v;
  }
  const int width = static_cast<int>(item_size(t)) * 8;
  const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  for (uint64_t x :
       {uint64_t{0},  uint64_t{1},  uint64_t{2},   uint64_t{3},        uint64_t{7},
        uint64_t{8},  uint64_t{15}, uint64_t{16},  uint64_t{31},       uint64_t{32},
        uint64_t{63}, uint64_t{64}, uint64_t{100}, uint64_t{16777217}, uint64_t{9007199254740993},
        mask,         mask - 1,     mask >> 1,     (mask >> 1) + 1,    (mask >> 1) + 2,
        mask - 6})
    v.push_back(x & mask);
  return v;
}

std::vector<std::byte> pack(const std::vector<uint64_t>& bits, DType t) {
  const auto size = static_cast<size_t>(item_size(t));
  std::vector<std::byte> out(bits.size() * size);
  for (size_t i = 0; i < bits.size(); ++i) std::memcpy(&out[i * size], &bits[i], size);
  return out;
}

bool is_nan_bits(DType t, uint64_t b) {
  switch (t) {
    case DType::kF16: return (b & 0x7fff) > 0x7c00;
    case DType::kBF16: return (b & 0x7fff) > 0x7f80;
    case DType::kF32: return (b & 0x7fffffff) > 0x7f800000;
    case DType::kF64: return (b & 0x7fffffffffffffff) > 0x7ff0000000000000;
    default: return false;
  }
}

/// Runs `op` on columns of operands and compares each element with the reference.
void check(Op op, DType out, const std::vector<DType>& in,
           const std::vector<std::vector<uint64_t>>& columns, const Where& where) {
  const auto n = static_cast<int64_t>(columns[0].size());
  const auto kernel = map_kernel(op, out, in, n);
  std::vector<std::vector<std::byte>> got{
      std::vector<std::byte>(static_cast<size_t>(n * item_size(out)))};
  for (size_t i = 0; i < in.size(); ++i) got.push_back(pack(columns[i], in[i]));
  auto want = got;
  const Status done = run_on(where, kernel, got, {});
  ASSERT_TRUE(done) << done.error().message;
  std::vector<std::span<std::byte>> spans(want.begin(), want.end());
  ASSERT_TRUE(compiler::evaluate(kernel, spans, {}));
  const auto size = static_cast<size_t>(item_size(out));
  int shown = 0;
  for (size_t i = 0; i < static_cast<size_t>(n) && shown < 3; ++i) {
    uint64_t g = 0, w = 0;
    std::memcpy(&g, &got[0][i * size], size);
    std::memcpy(&w, &want[0][i * size], size);
    if (g == w || (is_nan_bits(out, g) && is_nan_bits(out, w))) continue;
    ++shown;
    ADD_FAILURE() << where_name(where) << ": " << ir::op_name(op) << " " << dtype_name(in[0])
                  << " → " << dtype_name(out)
                  << fmt::format(" of {:#x}, {:#x}: got {:#x}, want {:#x}", columns[0][i],
                                 columns.size() > 1 ? columns[1][i] : 0, g, w);
  }
}

class Edges : public testing::TestWithParam<Where> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(where()); !reason.empty()) GTEST_SKIP() << reason;
  }
  const Where& where() const { return GetParam(); }
  /// clang and OpenCL compilers take long for each kernel: they see a part of the table.
  bool is_sampled(size_t i) const {
    return std::string_view(where().renderer) == "LLVM" || i % 7 == 0 ||
           std::getenv("BM_TEST_LONG") != nullptr;
  }
};

TEST_P(Edges, CastsSaturateAndKeepNan) {
  size_t i = 0;
  for (DType from : kAllTypes)
    for (DType to : kAllTypes)
      if (from != to && is_sampled(i++)) check(Op::kCast, to, {from}, {awkward(from)}, where());
}

TEST_P(Edges, BitcastsKeepEveryBit) {
  size_t i = 0;
  for (DType from : kAllTypes)
    for (DType to : kAllTypes)
      if (from != to && item_size(from) == item_size(to) && !is_bool(from) && !is_bool(to) &&
          is_sampled(i++))
        check(Op::kBitcast, to, {from}, {awkward(from)}, where());
}

TEST_P(Edges, BinaryOperationsFollowTheReference) {
  static constexpr std::array kOps = {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kMod,
                                      Op::kMax, Op::kMin, Op::kAnd, Op::kOr,  Op::kXor,
                                      Op::kShl, Op::kShr, Op::kLt,  Op::kEq,  Op::kNe};
  size_t i = 0;
  for (DType t : kAllTypes) {
    std::vector<std::vector<uint64_t>> pairs(2);
    for (uint64_t a : awkward(t))
      for (uint64_t b : awkward(t)) {
        pairs[0].push_back(a);
        pairs[1].push_back(b);
      }
    for (Op op : kOps) {
      if (is_float(t) &&
          (op == Op::kAnd || op == Op::kOr || op == Op::kXor || op == Op::kShl || op == Op::kShr))
        continue;
      if (is_bool(t) && op != Op::kAnd && op != Op::kOr && op != Op::kXor && op != Op::kEq &&
          op != Op::kNe && op != Op::kLt)
        continue;
      if (!is_sampled(i++)) continue;
      check(op, ir::is_comparison(op) ? DType::kBool : t, {t, t}, pairs, where());
    }
  }
}

TEST_P(Edges, UnaryOperationsFollowTheReference) {
  size_t i = 0;
  for (DType t : kAllTypes)
    for (Op op : {Op::kNeg, Op::kNot, Op::kTrunc, Op::kRecip, Op::kSqrt}) {
      const bool is_float_only = op == Op::kRecip || op == Op::kSqrt || op == Op::kTrunc;
      if (is_float_only != is_float(t) && op != Op::kNeg) continue;
      if ((op == Op::kNeg && is_bool(t)) || !is_sampled(i++)) continue;
      check(op, t, {t}, {awkward(t)}, where());
    }
}

TEST_P(Edges, FusedMultiplyAddRoundsOnce) {
  for (DType t : {DType::kF32, DType::kF64}) {
    std::vector<std::vector<uint64_t>> triples(3);
    const auto values = awkward(t);
    for (size_t a = 0; a < values.size(); ++a)
      for (size_t b = 0; b < values.size(); ++b) {
        triples[0].push_back(values[a]);
        triples[1].push_back(values[b]);
        triples[2].push_back(values[(a * 7 + b * 3) % values.size()]);
      }
    // Without hardware, float64 may differ in the last bit of ties and near the ends of the range.
    if (t == DType::kF64 && !where().is_native) continue;
    check(Op::kFma, t, {t, t, t}, triples, where());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Edges,
                         testing::Values(Where{"LLVM", true}, Where{"LLVM", false},
                                         Where{"CLANG", true}, Where{"CLANG", false},
                                         Where{"OPENCL"}, Where{"PTX"}, Where{"NVRTC"},
                                         Where{"NVPTX"}, Where{"GFX1100"}, Where{"GFX1201"},
                                         Where{"GFX1030"}, Where{"GFX942"}),
                         [](const auto& given) { return where_name(given.param); });

}  // namespace
}  // namespace bm::test
