// Sums of products in tiles of registers, against the reference interpreter. Numbers are small and
// whole: every order of additions gives the same sums.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <span>

#include "compiler/ir/evaluate.h"
#include "compiler/schedules/gemm_cpu/prepack.h"
#include "compiler/schedules/gemm_cpu/gemm_plan.h"
#include "runtime/base/half.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::compiler {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;

using test::Factors;
using test::RandomKernel;

int64_t panel_cases(uint64_t first, uint64_t count, const hal::Arch& arch, const char* renderer,
                    Factors factors = Factors::kAny) {
  int64_t panels = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    RandomKernel c = test::random_panels(seed, factors);
    const Status verified = ir::verify(c.kernel);
    EXPECT_TRUE(verified) << seed << c.text << verified.error().message;
    if (!verified) continue;
    const auto schedule = make_panel_schedule(c.kernel, target_info(arch), 2, {});
    if (!schedule) continue;
    panels += factors == Factors::kAny || schedule->panels()->products[0].dot;
    std::vector<std::vector<std::byte>> want = c.buffers;
    std::vector<std::span<std::byte>> spans(want.begin(), want.end());
    const Status evaluated = evaluate(c.kernel, spans, c.vars);
    EXPECT_TRUE(evaluated) << seed << c.text;
    const auto program = test::build_kernel(c.kernel, arch, renderer);
    EXPECT_TRUE(program) << seed << c.text << (program ? "" : program.error().message);
    if (!evaluated || !program) continue;
    std::vector<void*> pointers;
    for (auto& b : c.buffers) pointers.push_back(b.data());
    test::run_kernel(**program, pointers, c.vars);
    EXPECT_EQ(std::memcmp(c.buffers[0].data(), want[0].data(), want[0].size()), 0)
        << "seed " << seed << c.text;
  }
  return panels;
}

TEST(Panels, RandomProductsEqualTheReference) {
  EXPECT_GT(panel_cases(1, 60, test::native_arch(), "LLVM"), 30);
}

TEST(Panels, RandomProductsInC) {
  EXPECT_GT(panel_cases(1000, 20, test::native_arch(), "CLANG"), 0);
}

TEST(Panels, RandomProductsWithoutExtensions) {
  EXPECT_GT(panel_cases(2000, 40, test::baseline_arch(), "LLVM"), 8);
}

TEST(Panels, SmallCachesMakeManyBlocks) {
  hal::Arch arch = test::native_arch();
  arch.l2_bytes = 4096;
  EXPECT_GT(panel_cases(3000, 40, arch, "LLVM"), 12);
}

hal::Arch without_avx512() {
  return test::arch_of({.renderer = "LLVM", .is_native = true, .without = "-avx512f"});
}

TEST(Panels, RandomProductsOfBytes) {
  EXPECT_GT(panel_cases(4000, 60, test::native_arch(), "LLVM", Factors::kBytes), 30);
}

TEST(Panels, RandomProductsOfBytesInC) {
  EXPECT_GT(panel_cases(5000, 20, test::native_arch(), "CLANG", Factors::kBytes), 4);
}

TEST(Panels, RandomProductsOfBytesWithoutInstructionsForThem) {
  EXPECT_GT(panel_cases(6000, 40, without_avx512(), "LLVM", Factors::kBytes), 8);
  EXPECT_GT(panel_cases(6500, 40, test::baseline_arch(), "LLVM", Factors::kBytes), 8);
}

TEST(Panels, ProductsOfBytesInManyBlocks) {
  hal::Arch arch = test::native_arch();
  arch.l2_bytes = 4096;
  EXPECT_GT(panel_cases(7000, 40, arch, "LLVM", Factors::kBytes), 12);
}

/// This machine as a model whose dot products of bfloat16 are not known to be slow.
hal::Arch bf16_arch() {
  hal::Arch arch = test::native_arch();
  arch.cpu = "x86-64-v4";
  return arch;
}

bool has_bf16_dots() {
  const TargetInfo target = target_info(bf16_arch());
  return std::any_of(target.dots.begin(), target.dots.end(), [&](const DotInfo& d) {
    return d.kind == DotKind::kBF16BF16 && d.bits == target.vector_bits;
  });
}

TEST(Panels, RandomProductsOfBfloat16) {
  if (!has_bf16_dots()) GTEST_SKIP() << "this processor has no dot products of bfloat16";
  EXPECT_GT(panel_cases(8000, 50, bf16_arch(), "LLVM", Factors::kBF16), 20);
}

TEST(Panels, RandomProductsOfBfloat16InC) {
  if (!has_bf16_dots()) GTEST_SKIP() << "this processor has no dot products of bfloat16";
  EXPECT_GT(panel_cases(9000, 20, bf16_arch(), "CLANG", Factors::kBF16), 4);
}

struct Extents {
  int64_t m, n, k;
};

/// out[i, j] = Σ a[i, k]·b[k, j]; `is_k_major`: B is K-major; `is_variable`: up to m rows.
ir::KernelIr product(Extents e, DType left, DType right, DType sum, bool is_k_major,
                     bool is_variable = false) {
  ir::KernelIr kernel;
  kernel.name = "product";
  kernel.graph = std::make_unique<Graph>();
  Graph& g = *kernel.graph;
  kernel.params = {{sum, e.m * e.n, true, false},
                   {left, e.m * e.k, false, true},
                   {right, e.k * e.n, false, true}};
  if (is_variable) kernel.vars = {{"m", 1, e.m}};
  const Node *i = g.range(is_variable ? g.var(0, 1, e.m) : g.index(e.m)),
             *j = g.range(g.index(e.n)), *d = g.range(g.index(e.k));
  const Node* a = g.cast(g.load(1, left, g.add(g.mul(i, e.k), d)), sum);
  const Node* at = is_k_major ? g.add(g.mul(j, e.k), d) : g.add(g.mul(d, e.n), j);
  const Node* b = g.cast(g.load(2, right, at), sum);
  const Node* total = g.reduce(ir::ReduceOp::kSum, g.binary(Op::kMul, a, b), std::array{d});
  kernel.ranges = {i, j};
  kernel.stores.push_back({0, g.add(g.mul(i, e.n), j), total});
  return kernel;
}

/// A [m, k] · B [k, n], float32 and `right`, on fresh numbers against float64.
void expect_product(const ir::KernelIr& kernel, const Extents& e, DType right,
                    std::span<const int64_t> vars) {
  std::mt19937_64 random(std::random_device{}());
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> a(static_cast<size_t>(kernel.params[1].elements)),
      b(static_cast<size_t>(e.k * e.n));
  for (float& v : a) v = uniform(random);
  std::vector<std::vector<std::byte>> buffers(3);
  for (size_t i = 0; i < 3; ++i)
    buffers[i].resize(
        static_cast<size_t>(kernel.params[i].elements * item_size(kernel.params[i].dtype)));
  std::memcpy(buffers[1].data(), a.data(), buffers[1].size());
  for (size_t i = 0; i < b.size(); ++i) {
    const float v = uniform(random);
    const uint16_t half = f32_to_f16(v);
    b[i] = right == DType::kF16 ? f16_to_f32(half) : v;
    if (right == DType::kF16)
      std::memcpy(&buffers[2][2 * i], &half, 2);
    else
      std::memcpy(&buffers[2][4 * i], &v, 4);
  }
  const Status done = test::run_on_cpu(test::native_arch(), "LLVM", kernel, buffers, vars);
  ASSERT_TRUE(done) << done.error().message;
  for (int64_t i = 0; i < e.m; ++i)
    for (int64_t j = 0; j < e.n; ++j) {
      double want = 0;
      for (int64_t k = 0; k < e.k; ++k)
        want += static_cast<double>(a[static_cast<size_t>(i * e.k + k)]) *
                static_cast<double>(b[static_cast<size_t>(k * e.n + j)]);
      float got;
      std::memcpy(&got, &buffers[0][static_cast<size_t>(i * e.n + j) * sizeof got], sizeof got);
      ASSERT_NEAR(static_cast<double>(got), want, 1e-3) << e.m << ": " << i << ", " << j;
    }
}

/// Rows that are one tile: B goes by once, and a copy of it would be read once.
TEST(Panels, RowsOfOneTileStreamB) {
  const TargetInfo target = target_info(test::native_arch());
  for (const DType right : {DType::kF32, DType::kF16})
    for (const auto& [m, is_once] : {std::pair{5, true}, {8, true}, {12, true}, {13, false}}) {
      const Extents e{m, 64, 1003};
      const ir::KernelIr kernel = product(e, DType::kF32, right, DType::kF32, false);
      const auto schedule =
          make_panel_schedule(kernel, target, 2, {.has_skinny = false, .knobs = nullptr});
      ASSERT_TRUE(schedule && schedule->panels());
      const PackedGemmPlan& plan = *schedule->panels();
      EXPECT_EQ(plan.reads_b_once, is_once) << m;
      if (is_once) {
        EXPECT_TRUE(plan.products[0].reads_b_in_place);
        EXPECT_TRUE(plan.products[0].is_single) << "accumulators stay in registers";
        EXPECT_EQ(plan.rows, static_cast<uint32_t>(m));
      }
      expect_product(kernel, e, right, {});
    }
}

/// The number of rows is known at launch: one tile, or several that share a packed B.
TEST(Panels, VariableRowsStreamOrPackB) {
  constexpr int64_t kMost = 72;
  for (const int64_t n : {96, 100}) {  // whole tiles, and one that is cut
    const ir::KernelIr kernel =
        product({kMost, n, 601}, DType::kF32, DType::kF16, DType::kF32, false, true);
    const auto schedule = make_panel_schedule(kernel, target_info(test::native_arch()), 2, {});
    ASSERT_TRUE(schedule && schedule->panels());
    EXPECT_TRUE(schedule->panels()->products[0].packs_b_on_the_fly);
    const int64_t tile = schedule->panels()->rows;
    for (const int64_t m : {int64_t{1}, tile - 1, tile, tile + 1, 3 * tile, kMost})
      expect_product(kernel, {m, n, 601}, DType::kF16, std::array{m});
  }
}

TEST(Panels, PackedOperandsAreReadInPlace) {
  const auto run = [](const ir::KernelIr& kernel, std::vector<std::vector<std::byte>>* buffers) {
    const Status done = test::run_on_cpu(test::native_arch(), "LLVM", kernel, *buffers, {});
    ASSERT_TRUE(done) << done.error().message;
  };
  std::mt19937_64 random(7);
  for (const Factors factors : {Factors::kAny, Factors::kBytes}) {
    const bool is_bytes = factors == Factors::kBytes;
    const DType left = is_bytes ? DType::kU8 : DType::kF32,
                right = is_bytes ? DType::kI8 : DType::kF32,
                sum = is_bytes ? DType::kI32 : DType::kF32;
    const ir::KernelIr kernel = product({9, 77, 131}, left, right, sum, true);
    const TargetInfo target = target_info(test::native_arch());
    EXPECT_FALSE(pack_constants(kernel, target, 2, {false, true, false}));
    const auto packed = pack_constants(kernel, target, 2, {false, false, true});
    ASSERT_TRUE(packed);
    EXPECT_EQ(packed->operand, 2);
    const auto schedule = make_panel_schedule(packed->main, target, 2, {});
    ASSERT_TRUE(schedule);
    EXPECT_TRUE(schedule->panels()->products[0].reads_b_in_place);
    EXPECT_FALSE(pack_constants(packed->main, target, 2, {false, false, true, true}));
    std::vector<std::vector<std::byte>> want;
    for (const ir::Param& p : kernel.params) {
      want.emplace_back(static_cast<size_t>(p.elements * item_size(p.dtype)));
      for (size_t i = 0; i < want.back().size(); i += static_cast<size_t>(item_size(p.dtype))) {
        const auto number = static_cast<int>(random() % 7);
        const auto real = static_cast<float>(number);
        std::memcpy(&want.back()[i], is_float(p.dtype) ? static_cast<const void*>(&real) : &number,
                    static_cast<size_t>(item_size(p.dtype)));
      }
    }
    auto got = want;
    run(kernel, &want);
    const ir::Param& panels = packed->pack.params[0];
    std::vector<std::vector<std::byte>> operands{
        std::vector<std::byte>(static_cast<size_t>(panels.elements * item_size(panels.dtype))),
        got[2]};
    run(packed->pack, &operands);
    got.push_back(operands[0]);
    run(packed->main, &got);
    EXPECT_EQ(got[0], want[0]);
  }
}

TEST(Panels, FewRowsReadAMatrixFromMemoryWhereItIs) {
  hal::Arch arch = test::native_arch();
  arch.l1_bytes = 4 << 10;
  arch.l2_bytes = 16 << 10;
  std::mt19937_64 random(std::random_device{}());
  const auto draw = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least));
  };
  for (int i = 0; i < 12; ++i) {
    const int64_t m = draw(4, 25), n = draw(70, 300), k = draw(100, 300);
    SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, k));
    const ir::KernelIr kernel = product({m, n, k}, DType::kF32, DType::kF32, DType::kF32, false);
    const auto schedule = make_panel_schedule(kernel, target_info(arch), 2, {});
    ASSERT_TRUE(schedule);
    EXPECT_TRUE(schedule->panels()->is_skinny);
    std::vector<std::vector<std::byte>> buffers;
    std::vector<std::vector<float>> numbers;
    for (const ir::Param& p : kernel.params) {
      std::vector<float>& values = numbers.emplace_back();
      for (int64_t e = 0; e < p.elements; ++e)
        values.push_back(static_cast<float>(random() % 15) - 7);
      const auto bytes = std::as_bytes(std::span(values));
      buffers.emplace_back(bytes.begin(), bytes.end());
    }
    const char* renderer = i % 4 == 0 ? "CLANG" : "LLVM";
    const Status done = test::run_on_cpu(arch, renderer, kernel, buffers, {});
    ASSERT_TRUE(done) << done.error().message;
    for (int64_t row = 0; row < m; ++row)
      for (int64_t column = 0; column < n; ++column) {
        float want = 0, got = 0;
        for (int64_t d = 0; d < k; ++d)
          want += numbers[1][static_cast<size_t>(row * k + d)] *
                  numbers[2][static_cast<size_t>(d * n + column)];
        std::memcpy(&got, &buffers[0][static_cast<size_t>(row * n + column) * 4], 4);
        ASSERT_EQ(got, want) << row << ", " << column;
      }
  }
  const auto many =
      make_panel_schedule(product({60, 300, 300}, DType::kF32, DType::kF32, DType::kF32, false),
                          target_info(arch), 2, {});
  ASSERT_TRUE(many);
  EXPECT_FALSE(many->panels()->is_skinny) << "a copy pays";
}

/// out[i, j] = x[i, j] - Σ_k a·b[k, j], where k is the loop i of the output again, as
/// unify_ranges leaves it.
TEST(Panels, ALoopOfTheOutputMayBeOneOfTheSum) {
  constexpr int64_t kRows = 64, kColumns = 700;
  ir::KernelIr kernel;
  kernel.name = "shared";
  kernel.graph = std::make_unique<Graph>();
  Graph& g = *kernel.graph;
  kernel.params = {{DType::kF32, kRows * kColumns, true, false},
                   {DType::kF32, 1, false, true},
                   {DType::kF32, kRows * kColumns, false, true},
                   {DType::kF32, kRows * kColumns, false, true}};
  const Node *i = g.range(g.index(kRows)), *j = g.range(g.index(kColumns));
  const Node* at = g.add(g.mul(i, kColumns), j);
  const Node* product =
      g.binary(Op::kMul, g.load(1, DType::kF32, g.index(0)), g.load(2, DType::kF32, at));
  const Node* sum = g.reduce(ir::ReduceOp::kSum, product, std::array{i});
  kernel.ranges = {i, j};
  kernel.stores.push_back({0, at, g.binary(Op::kSub, g.load(3, DType::kF32, at), sum)});
  std::mt19937_64 random(std::random_device{}());
  std::vector<std::vector<std::byte>> buffers;
  std::vector<std::vector<float>> numbers;
  for (const ir::Param& p : kernel.params) {
    std::vector<float>& values = numbers.emplace_back();
    for (int64_t e = 0; e < p.elements; ++e)
      values.push_back(static_cast<float>(random() % 15) - 7);
    const auto bytes = std::as_bytes(std::span(values));
    buffers.emplace_back(bytes.begin(), bytes.end());
  }
  const Status done = test::run_on_cpu(test::native_arch(), "LLVM", kernel, buffers, {});
  ASSERT_TRUE(done) << done.error().message;
  for (size_t column = 0; column < kColumns; ++column) {
    float want = 0;
    for (size_t k = 0; k < kRows; ++k) want += numbers[1][0] * numbers[2][k * kColumns + column];
    for (size_t row = 0; row < kRows; ++row) {
      float got = 0;
      std::memcpy(&got, &buffers[0][(row * kColumns + column) * 4], 4);
      ASSERT_EQ(got, numbers[3][row * kColumns + column] - want) << row << ", " << column;
    }
  }
}

TEST(Panels, Bfloat16SumsAreTheSameInEveryRenderer) {
  if (!has_bf16_dots()) GTEST_SKIP() << "this processor has no dot products of bfloat16";
  std::mt19937_64 random(std::random_device{}());
  for (const bool is_k_major : {false, true}) {
    const auto draw = [&](int64_t least, int64_t most) {
      return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least));
    };
    const int64_t m = draw(5, 60), n = draw(33, 150), k = draw(100, 2200);
    const ir::KernelIr kernel =
        product({m, n, k}, DType::kBF16, DType::kBF16, DType::kF32, is_k_major);
    std::vector<std::vector<std::byte>> inputs(3);
    std::vector<std::vector<double>> numbers(3);
    inputs[0].resize(static_cast<size_t>(m * n) * 4);
    for (size_t p = 1; p < 3; ++p)
      for (int64_t i = 0; i < kernel.params[p].elements; ++i) {
        const float x = static_cast<float>(random() % 2'000'001) / 1e6F - 1;
        const uint16_t half = f32_to_bf16(x);
        numbers[p].push_back(static_cast<double>(bf16_to_f32(half)));
        inputs[p].resize(inputs[p].size() + 2);
        std::memcpy(&inputs[p][inputs[p].size() - 2], &half, 2);
      }
    std::vector<std::vector<std::byte>> results;
    for (const char* renderer : {"LLVM", "CLANG"}) {
      auto buffers = inputs;
      const Status run = test::run_on_cpu(bf16_arch(), renderer, kernel, buffers, {});
      ASSERT_TRUE(run) << run.error().message;
      results.push_back(buffers[0]);
    }
    EXPECT_EQ(results[0], results[1]) << m << " " << n << " " << k;
    for (int64_t i = 0; i < m; i += 3)
      for (int64_t j = 0; j < n; ++j) {
        double want = 0;
        for (int64_t d = 0; d < k; ++d)
          want += numbers[1][static_cast<size_t>(i * k + d)] *
                  numbers[2][static_cast<size_t>(is_k_major ? j * k + d : d * n + j)];
        float got = 0;
        std::memcpy(&got, &results[0][static_cast<size_t>(i * n + j) * 4], 4);
        EXPECT_NEAR(static_cast<double>(got), want, 1e-4) << m << " " << n << " " << k;
      }
  }
}

}  // namespace
}  // namespace bm::compiler
