// Kernels of rows: values kept between passes, shared loop indices, results stored around the
// caches.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "compiler/ir/evaluate.h"
#include "compiler/analysis/unify.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using ir::Node;
using ir::Op;

std::vector<float> random_floats(size_t n) {
  std::mt19937 random{std::random_device{}()};
  std::uniform_real_distribution<float> uniform(-2, 2);
  std::vector<float> v(n);
  for (float& x : v) x = uniform(random);
  return v;
}

ir::KernelIr unified(ir::KernelIr kernel) {
  compiler::unify_ranges(&kernel);
  return kernel;
}

/// Runs a kernel of float32 params (0 is written, 1 read) with `offset` bytes before both.
std::vector<float> run(const ir::KernelIr& kernel, const hal::Arch& arch, const char* renderer,
                       const std::vector<float>& in, size_t offset) {
  auto program = build_kernel(kernel, arch, renderer);
  EXPECT_TRUE(program) << program.error().message;
  if (!program) return {};
  const auto count = static_cast<size_t>(kernel.params[0].elements);
  std::vector<std::byte> from(in.size() * 4 + 64 + offset), to(count * 4 + 64 + offset);
  std::memcpy(from.data() + offset, in.data(), in.size() * 4);
  void* const buffers[] = {to.data() + offset, from.data() + offset};
  run_kernel(**program, buffers, {});
  std::vector<float> out(count);
  std::memcpy(out.data(), to.data() + offset, count * 4);
  return out;
}

/// `plain`: the kernel as it was before its loops were unified.
void expect_right(const ir::KernelIr& plain, const ir::KernelIr& kernel, const hal::Arch& arch,
                  size_t offset) {
  const std::vector<float> in = random_floats(static_cast<size_t>(kernel.params[1].elements));
  std::vector<std::vector<std::byte>> want{
      std::vector<std::byte>(static_cast<size_t>(kernel.params[0].elements) * 4),
      std::vector<std::byte>(in.size() * 4)};
  std::memcpy(want[1].data(), in.data(), in.size() * 4);
  const std::vector<std::span<std::byte>> spans(want.begin(), want.end());
  ASSERT_TRUE(compiler::evaluate(plain, spans, {}));
  std::vector<float> expected(want[0].size() / 4);
  std::memcpy(expected.data(), want[0].data(), want[0].size());
  const std::vector<float> a = run(kernel, arch, "LLVM", in, offset);
  const std::vector<float> b = run(kernel, arch, "CLANG", in, offset);
  ASSERT_EQ(a.size(), expected.size());
  ASSERT_EQ(b.size(), expected.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], expected[i], 1e-5F + 1e-5F * std::abs(expected[i])) << i;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * 4), 0) << "the renderers differ";
}

/// Streams from 64 bytes on.
hal::Arch tiny_caches() {
  hal::Arch arch = native_arch();
  arch.l2_bytes = 8;
  arch.l1_bytes = 8;
  return arch;
}

std::string program_of(const ir::KernelIr& kernel, const hal::Arch& arch) {
  auto text = compiler::explain(kernel, arch, "LLVM");
  return text ? text->lowered : text.error().message;
}

TEST(RowKernels, KeepDearValuesBetweenPasses) {
  for (const int64_t columns : {1, 5, 16, 33, 90}) {
    const ir::KernelIr plain = softmax_kernel(3, columns), k = unified(softmax_kernel(3, columns));
    expect_right(plain, k, native_arch(), 0);
    expect_right(plain, k, baseline_arch(), 4);
  }
  const std::string text = program_of(unified(softmax_kernel(7, 1000)), native_arch());
  EXPECT_NE(text.find("local 0: float32[1000]"), std::string::npos) << text;
  // Where rows leave the caches, they are computed again instead.
  const std::string none = program_of(unified(softmax_kernel(7, 1000)), tiny_caches());
  EXPECT_EQ(none.find("local 0"), std::string::npos) << none;
}

/// out[i] = a[i][0] + Σ_k Σ_j a[k][j]·(j + 1) over a square.
ir::KernelIr nested_kernel() {
  ir::KernelIr k;
  k.name = "nested";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  const Node* i = g.range(g.index(9));
  const Node* row = g.range(g.index(9));
  const Node* column = g.range(g.index(9));
  k.ranges = {i};
  k.params = {{DType::kF32, 9, true, false}, {DType::kF32, 81, false, true}};
  const Node* a = g.load(1, DType::kF32, g.add(g.mul(row, 9), column));
  const Node* weighed = g.binary(Op::kMul, a, g.cast(g.add(column, 1), DType::kF32));
  const Node* inner = g.reduce(ir::ReduceOp::kSum, weighed, std::array{column});
  const Node* own = g.load(1, DType::kF32, g.mul(i, 9));
  k.stores.push_back(
      {.param = 0,
       .index = i,
       .value = g.binary(Op::kAdd, own, g.reduce(ir::ReduceOp::kSum, inner, std::array{row}))});
  return k;
}

TEST(RowKernels, LoopsOfOneLengthAreNotMixedUp) {
  const ir::KernelIr changed = unified(nested_kernel());
  ASSERT_TRUE(ir::verify(changed));
  expect_right(nested_kernel(), changed, native_arch(), 0);
}

/// Variance of everything, over two loops of equal length: Σ (a - Σ a / n²)².
ir::KernelIr variance_kernel(int64_t n, bool is_transposed) {
  ir::KernelIr k;
  k.name = "variance";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  const auto element = [&](const Node* row, const Node* column) {
    return g.load(1, DType::kF32, g.add(g.mul(row, n), column));
  };
  const std::array inner{g.range(g.index(n)), g.range(g.index(n))};
  const std::array outer{g.range(g.index(n)), g.range(g.index(n))};
  const Node* one = element(inner[is_transposed], inner[!is_transposed]);
  const Node* share = g.constant_f(DType::kF32, 1.0 / static_cast<double>(n * n));
  const Node* mean = g.binary(Op::kMul, g.reduce(ir::ReduceOp::kSum, one, inner), share);
  const Node* distance = g.binary(Op::kSub, element(outer[0], outer[1]), mean);
  const Node* square = g.binary(Op::kMul, distance, distance);
  k.params = {{DType::kF32, 1, true, false}, {DType::kF32, n * n, false, true}};
  k.stores.push_back(
      {.param = 0, .index = g.index(0), .value = g.reduce(ir::ReduceOp::kSum, square, outer)});
  return k;
}

TEST(RowKernels, NestedReductionsOverLoopsOfOneLengthKeepThemApart) {
  for (const int64_t n : {3, 16, 33})
    for (const bool is_transposed : {false, true}) {
      const ir::KernelIr changed = unified(variance_kernel(n, is_transposed));
      ASSERT_TRUE(ir::verify(changed)) << n;
      expect_right(variance_kernel(n, is_transposed), changed, native_arch(), 0);
    }
}

TEST(RowKernels, LargeResultsGoAroundTheCaches) {
  const std::array<DType, 1> f32{DType::kF32};
  for (const size_t offset : {0u, 4u, 20u, 64u})
    for (const int64_t n : {64, 100, 1024, 4099})
      expect_right(map_kernel(Op::kNeg, DType::kF32, f32, n),
                   map_kernel(Op::kNeg, DType::kF32, f32, n), tiny_caches(), offset);
  const ir::KernelIr large = map_kernel(Op::kNeg, DType::kF32, f32, 4096);
  EXPECT_NE(program_of(large, tiny_caches()).find("stream p0"), std::string::npos);
  EXPECT_EQ(program_of(large, native_arch()).find("stream p0"), std::string::npos);
}

}  // namespace
}  // namespace bm::test
