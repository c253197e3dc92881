// Transposed packed GEMM (vectors run along M, C tiles are transposed before the store), against
// the reference interpreter (small whole numbers: every order of additions gives the same sums)
// and, to the last bit, against the same products the other way round.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <span>

#include "compiler/ir/evaluate.h"
#include "compiler/tune/knobs.h"
#include "compiler/schedules/gemm_cpu/prepack.h"
#include "compiler/schedules/gemm_cpu/gemm_plan.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::compiler {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using test::Buffers;

const Knobs kTransposed{{{"transposed", 1}}}, kStraight{{{"transposed", 0}}};

struct Convolution {
  int64_t in = 1, out = 1, height = 1, width = 1, kernel = 1, stride = 1, padding = 0, images = 1;
  int64_t rows() const { return (height + 2 * padding - kernel) / stride + 1; }
  int64_t columns() const { return (width + 2 * padding - kernel) / stride + 1; }
  std::string text() const {
    return fmt::format("{} x {} x {} x {} to {}, {} x {} every {}, padded by {}", images, in,
                       height, width, out, kernel, kernel, stride, padding);
  }
};

/// out = max(0, convolution + bias + other), other like out.
ir::KernelIr kernel_of(const Convolution& c) {
  ir::KernelIr k;
  k.name = "convolution";
  k.graph = std::make_unique<Graph>();
  Graph& g = *k.graph;
  const int64_t pixels = c.rows() * c.columns();
  const DType t = DType::kF32;
  k.params = {{t, c.images * c.out * pixels, true, false},
              {t, c.images * c.in * c.height * c.width, false, true},
              {t, c.out * c.in * c.kernel * c.kernel, false, true},
              {t, c.out, false, true},
              {t, c.images * c.out * pixels, false, true}};
  const Node *n = g.range(g.index(c.images)), *o = g.range(g.index(c.out)),
             *y = g.range(g.index(c.rows())), *x = g.range(g.index(c.columns()));
  const Node *i = g.range(g.index(c.in)), *dy = g.range(g.index(c.kernel)),
             *dx = g.range(g.index(c.kernel));
  const auto place = [&](const Node* at, const Node* tap) {
    return g.add(g.add(g.mul(at, c.stride), tap), -c.padding);
  };
  const auto inside = [&](const Node* at, int64_t size) {
    return g.both(g.less(g.index(-1), at), g.less(at, g.index(size)));
  };
  const Node *row = place(y, dy), *column = place(x, dx);
  const Node* line = g.add(g.mul(g.add(g.mul(n, c.in), i), c.height), row);
  const Node* pixel = g.load(1, t, g.add(g.mul(line, c.width), column),
                             g.both(inside(row, c.height), inside(column, c.width)));
  const Node* tap = g.add(g.mul(g.add(g.mul(i, c.kernel), dy), c.kernel), dx);
  const Node* weight = g.load(2, t, g.add(g.mul(o, c.in * c.kernel * c.kernel), tap));
  const Node* sum =
      g.reduce(ir::ReduceOp::kSum, g.binary(Op::kMul, pixel, weight), std::array{i, dy, dx});
  const Node* at =
      g.add(g.mul(g.add(g.mul(g.add(g.mul(n, c.out), o), c.rows()), y), c.columns()), x);
  const Node* value = g.binary(Op::kAdd, sum, g.load(3, t, o));
  value = g.binary(Op::kAdd, value, g.load(4, t, at));
  k.ranges = {n, o, y, x};
  k.stores.push_back({0, at, g.binary(Op::kMax, value, g.constant_f(t, 0))});
  return k;
}

class TransposedGemm : public testing::Test {
 protected:
  int64_t draw(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  Convolution convolution() {
    Convolution c{.in = draw(3, 40), .out = draw(16, 70), .height = draw(7, 20)};
    c.width = draw(7, 20);
    c.kernel = draw(0, 2) * 2 + 1;
    c.stride = draw(1, 2);
    c.padding = draw(0, c.kernel / 2);
    c.images = draw(1, 2);
    return c;
  }
  Buffers buffers_of(const ir::KernelIr& k, bool is_whole) {
    Buffers out;
    for (const ir::Param& p : k.params) {
      std::vector<float> values;
      for (int64_t e = 0; e < p.elements; ++e)
        values.push_back(is_whole ? static_cast<float>(draw(-3, 3))
                                  : static_cast<float>(draw(-1'000'000, 1'000'000)) / 1e6F);
      const auto bytes = std::as_bytes(std::span(values));
      out.emplace_back(bytes.begin(), bytes.end());
    }
    return out;
  }
  static std::vector<std::byte> result(const ir::KernelIr& k, Buffers buffers,
                                       const hal::Arch& arch, const char* renderer,
                                       const Knobs& knobs) {
    const Status done = test::run_on_cpu(arch, renderer, k, buffers, {}, {.knobs = &knobs});
    EXPECT_TRUE(done) << done.error().message;
    return buffers[0];
  }
  /// Whether the schedule was transposed.
  bool compare(const Convolution& c, const hal::Arch& arch, const char* renderer) {
    SCOPED_TRACE(c.text());
    const ir::KernelIr k = kernel_of(c);
    const auto schedule = make_panel_schedule(k, target_info(arch), 2, {.knobs = &kTransposed});
    if (!schedule || !schedule->panels()->is_transposed) return false;
    Buffers want = buffers_of(k, true);
    const auto got = result(k, want, arch, renderer, kTransposed);
    std::vector<std::span<std::byte>> spans(want.begin(), want.end());
    EXPECT_TRUE(evaluate(k, spans, {}));
    EXPECT_EQ(got, want[0]);
    const Buffers real = buffers_of(k, false);
    EXPECT_EQ(result(k, real, arch, renderer, kTransposed),
              result(k, real, arch, "LLVM", kStraight));
    return true;
  }
  void several(int count, int least, const hal::Arch& arch, const char* renderer) {
    int transposed = 0;
    // Draws are fresh in every run: a few unlucky ones more are no failure.
    for (int i = 0; (i < count || (transposed < least && i < 5 * count)) && !HasFailure(); ++i)
      transposed += compare(convolution(), arch, renderer);
    EXPECT_GE(transposed, least);
  }

  std::mt19937_64 random_{std::random_device{}()};
};

TEST_F(TransposedGemm, Convolutions) { several(30, 10, test::native_arch(), "LLVM"); }

TEST_F(TransposedGemm, ConvolutionsInC) { several(8, 1, test::native_arch(), "CLANG"); }

TEST_F(TransposedGemm, ConvolutionsWithoutExtensions) {
  several(12, 2, test::baseline_arch(), "LLVM");
}

TEST_F(TransposedGemm, SmallCachesMakeManyBlocks) {
  hal::Arch arch = test::native_arch();
  arch.l1_bytes = 1024;
  arch.l2_bytes = 16 << 10;
  several(20, 6, arch, "LLVM");
}

TEST_F(TransposedGemm, AnyProduct) {
  hal::Arch small = test::native_arch();
  small.l1_bytes = 1024;
  small.l2_bytes = 16 << 10;
  const std::array archs{test::native_arch(), small, test::baseline_arch()};
  int transposed = 0;
  for (uint64_t seed = 1; seed <= 90; ++seed) {
    const hal::Arch& arch = archs[seed % archs.size()];
    const test::RandomKernel c = test::random_panels(seed, test::Factors::kAny);
    const auto schedule =
        make_panel_schedule(c.kernel, target_info(arch), 2, {.knobs = &kTransposed});
    if (!schedule || !schedule->panels()->is_transposed) continue;
    ++transposed;
    Buffers want = c.buffers, got = c.buffers;
    std::vector<std::span<std::byte>> spans(want.begin(), want.end());
    ASSERT_TRUE(evaluate(c.kernel, spans, c.vars)) << c.text;
    const Status done = test::run_on_cpu(arch, seed % 8 ? "LLVM" : "CLANG", c.kernel, got, c.vars,
                                         {.knobs = &kTransposed});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(got[0], want[0]) << "seed " << seed << c.text;
  }
  EXPECT_GE(transposed, 2);
}

TEST_F(TransposedGemm, ConstantWeightsArePackedForIt) {
  const TargetInfo target = target_info(test::native_arch());
  if (target.vector_bits < 512) GTEST_SKIP() << "for vectors of 16 numbers";
  // One column beyond three vectors: a quarter of the lanes would be idle.
  const Convolution c{.in = 64, .out = 128, .height = 7, .width = 7, .kernel = 3, .padding = 1};
  const ir::KernelIr k = kernel_of(c);
  const auto packed = pack_constants(k, target, 2, {false, false, true, true, false});
  ASSERT_TRUE(packed);
  EXPECT_EQ(packed->operand, 2);
  const auto schedule = make_panel_schedule(packed->main, target, 2, {});
  ASSERT_TRUE(schedule);
  EXPECT_TRUE(schedule->panels()->is_transposed);
  EXPECT_TRUE(schedule->panels()->products[0].reads_b_in_place);
  Buffers want = buffers_of(k, false);
  Buffers panels{std::vector<std::byte>(static_cast<size_t>(packed->pack.params[0].elements) * 4),
                 want[2]};
  ASSERT_TRUE(test::run_on_cpu(test::native_arch(), "LLVM", packed->pack, panels, {}));
  Buffers got = want;
  got.push_back(panels[0]);
  ASSERT_TRUE(test::run_on_cpu(test::native_arch(), "LLVM", packed->main, got, {}));
  EXPECT_EQ(got[0], result(k, want, test::native_arch(), "LLVM", kStraight));
}

}  // namespace
}  // namespace bm::compiler
