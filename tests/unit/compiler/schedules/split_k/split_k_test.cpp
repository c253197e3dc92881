// Split-K GEMM: when it is chosen, and what it gives for shapes, types and layouts drawn anew in
// every run.
#include "compiler/schedules/split_k/split_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <set>
#include <string>

#include "compiler/ir/number.h"
#include "compiler/schedules/strategy.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"
#include "tests/unit/compiler/runner.h"

namespace bm::compiler {
namespace {

using test::Buffers;
using test::Product;
using test::product_kernel;

hal::Arch card(uint32_t units) {
  hal::Arch arch = test::ptx_arch();
  arch.units = units;
  return arch;
}

std::string_view strategy(const Product& p, uint32_t units) {
  const hal::Arch arch = card(units);
  return strategy_of(make_schedule(product_kernel(p), target_info(arch), units)).name;
}

TEST(SplitK, TakesFewResultsOfALongKOnly) {
  const Product f32{.in = DType::kF32, .m = 64, .n = 64, .k = 16384};
  EXPECT_EQ(strategy(f32, 132), "gemm.split_k");
  EXPECT_EQ(strategy({.m = 64, .n = 64, .k = 16384}, 132), "gemm.split_k");
  EXPECT_EQ(strategy({.m = 45, .n = 23, .k = 9001}, 132), "gemm.split_k");
  // Tiles for all compute units; a short K; one row, whose results groups share already.
  EXPECT_EQ(strategy({.m = 2048, .n = 2048, .k = 2048}, 132), "gemm.pipelined");
  EXPECT_NE(strategy({.in = DType::kF32, .m = 64, .n = 64, .k = 64}, 132), "gemm.split_k");
  EXPECT_NE(strategy({.in = DType::kF32, .m = 1, .n = 64, .k = 16384}, 132), "gemm.split_k");
}

TEST(SplitK, ExplainSaysHowKIsSplit) {
  const ir::KernelIr kernel = product_kernel({.in = DType::kF32, .m = 30, .n = 31, .k = 16384});
  const Schedule schedule = make_schedule(kernel, target_info(card(132)), 132);
  ASSERT_NE(schedule.split_k(), nullptr);
  const std::string text = to_string(schedule);
  EXPECT_NE(text.find("split-K GEMM: tiles of "), std::string::npos) << text;
  EXPECT_NE(text.find("16384) split over " + std::to_string(schedule.block)), std::string::npos)
      << text;
}

TEST(SplitK, TheTunerTriesOtherSplitsAndTiles) {
  const ir::KernelIr kernel = product_kernel({.in = DType::kF32, .m = 64, .n = 64, .k = 16384});
  const TargetInfo target = target_info(card(132));
  std::set<uint32_t> splits, tiles;
  for (const Knobs& k : tuning_candidates(kernel, target, {}, 132)) {
    EXPECT_TRUE(Knobs::parse(k.text())) << k.text();
    const Schedule s = make_schedule(kernel, target, 132, {.knobs = &k});
    if (!s.split_k()) continue;
    splits.insert(s.split_k()->splits);
    tiles.insert(s.split_k()->results());
  }
  EXPECT_GE(splits.size(), 3u);
  EXPECT_GE(tiles.size(), 3u);
}

struct Counts {
  double per_product = 0;  ///< instructions of all threads
  double bytes = 0;        ///< loaded, for each multiplication
  double of_unit = 0;      ///< instructions of the threads of one compute unit, in thousands
  uint64_t conflicts = 0;
};

/// Counted by the PTX interpreter, for a card of 132 compute units.
Counts count(const Product& p, const Knobs& knobs, std::string_view name) {
  const hal::Arch arch = card(132);
  const ir::KernelIr kernel = product_kernel(p);
  const Schedule s = make_schedule(kernel, target_info(arch), arch.units, {.knobs = &knobs});
  EXPECT_EQ(strategy_of(s).name, name);
  const ScopedSetting text("BM_NV_CODE", "ptx");
  const auto code = compile(kernel, arch, "PTX", {.use_cache = false, .knobs = &knobs});
  Buffers buffers = test::small_numbers(kernel);
  const auto run = code ? test::run_on_ptx(*code, buffers, {}) : fail(Code::kInternal, "no code");
  EXPECT_TRUE(run);
  if (!run) return {};
  const auto all = static_cast<double>(run->lane_instructions);
  const auto groups = static_cast<double>(s.grid[0].constant * s.grid[1].constant);
  const double products = static_cast<double>(p.m * p.n * p.k);
  const Counts out{all / products, static_cast<double>(run->traffic.global_load_bytes) / products,
                   all / std::min(groups, 132.0) / 1000, run->traffic.shared_conflicts};
  std::printf(
      "%s %ldx%ldx%ld %s: %.0f groups, %.2f instructions and %.2f bytes per product, "
      "%.0f thousand instructions of a unit\n",
      std::string(dtype_name(p.in)).c_str(), static_cast<long>(p.m), static_cast<long>(p.n),
      static_cast<long>(p.k), std::string(name).c_str(), groups, out.per_product, out.bytes,
      out.of_unit);
  return out;
}

TEST(SplitK, SharesTheWorkAmongMoreUnitsThanTilesAndLoadsLessThanSingleResults) {
  Knobs plain, tile;
  plain.values["plain"] = 1;
  for (const DType in : {DType::kF32, DType::kF16}) {
    const Product p{.in = in, .m = 64, .n = 64, .k = 4096, .is_right_deep = true};
    const bool is_half = in == DType::kF16;
    tile.values = {{"tile_m", is_half ? 64 : 32}, {"tile_n", is_half ? 64 : 32}};
    const Counts split = count(p, {}, "gemm.split_k");
    const Counts single = count(p, plain, "groups");
    const Counts tiles = count(p, tile, is_half ? "gemm.pipelined" : "gemm.simt");
    EXPECT_LT(split.bytes, single.bytes / 2);
    EXPECT_LT(split.per_product, single.per_product);
    // Stores of the second array alone: one pass of each of the 4 sub-groups of 128 groups.
    EXPECT_LE(split.conflicts, 4u * 128);
    if (!is_half) {
      EXPECT_LT(split.of_unit, tiles.of_unit / 4);
    }
  }
}

/// Shape, types, layouts and splits, drawn.
struct Drawn {
  Product p;
  Knobs knobs;
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int64_t between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  double value() { return std::uniform_real_distribution<double>(-1, 1)(random_); }

  Drawn kernel() {
    struct Types {
      DType in, sum, out;
    };
    static constexpr std::array kTypes = {
        Types{DType::kF32, DType::kF32, DType::kF32}, Types{DType::kF16, DType::kF32, DType::kF16},
        Types{DType::kBF16, DType::kF32, DType::kF32}, Types{DType::kF16, DType::kF32, DType::kF32},
        Types{DType::kF64, DType::kF64, DType::kF64}};
    const Types t = kTypes[static_cast<size_t>(between(0, kTypes.size() - 1))];
    Drawn d{.p = {.in = t.in,
                  .sum = t.sum,
                  .out = t.out,
                  .m = between(2, 13),
                  .n = between(2, 13),
                  .k = between(512, 1600),
                  .batches = between(1, 3),
                  .is_left_transposed = between(0, 1) == 1,
                  .is_right_deep = between(0, 1) == 1,
                  .has_epilogue = between(0, 1) == 1},
            .knobs = {}};
    d.knobs.values["tile_m"] = between(1, std::min<int64_t>(d.p.m, 6));
    d.knobs.values["tile_n"] = between(2, std::min<int64_t>(d.p.n, 6));
    d.knobs.values["block"] = int64_t{64} << between(0, 2);
    return d;
  }

  Buffers inputs(const ir::KernelIr& kernel) {
    Buffers out;
    for (const ir::Param& p : kernel.params) {
      const auto size = static_cast<size_t>(item_size(p.dtype));
      out.emplace_back(static_cast<size_t>(p.elements) * size);
      if (!p.is_read) continue;
      for (size_t at = 0; at < out.back().size(); at += size)
        test::put(p.dtype, value(), &out.back()[at]);
    }
    return out;
  }

 private:
  std::mt19937_64 random_;
};

double number(DType t, const std::vector<std::byte>& bytes, int64_t i) {
  return number_at(t, &bytes[static_cast<size_t>(i * item_size(t))]);
}

/// Against sums in float64, within what sums of float32 in any order may differ by.
void expect_product(const Product& p, const Buffers& got, const std::string& what) {
  const double unit = p.sum == DType::kF64 ? 0x1p-52 : 0x1p-23;
  const double out_unit = p.out == DType::kF16 ? 0x1p-11 : 0;
  for (int64_t b = 0; b < p.batches; ++b)
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0, size = 1;
        for (int64_t k = 0; k < p.k; ++k) {
          const int64_t left = (p.is_left_transposed ? k * p.m + i : i * p.k + k) + b * p.m * p.k;
          const int64_t right = (p.is_right_deep ? j * p.k + k : k * p.n + j) + b * p.n * p.k;
          const double product = number(p.in, got[1], left) * number(p.in, got[2], right);
          sum += product;
          size += std::abs(product);
        }
        if (p.has_epilogue) sum = std::max(sum + number(p.sum, got[3], j), 0.0);
        const double is = number(p.out, got[0], (b * p.m + i) * p.n + j);
        ASSERT_NEAR(is, sum, 16 * unit * size + out_unit * std::abs(sum))
            << what << " result " << b << " " << i << " " << j;
      }
}

class SplitKOn : public testing::TestWithParam<test::Where> {};

TEST_P(SplitKOn, GivesWhatFloat64GivesForRandomShapes) {
  const test::Where& where = GetParam();
  if (const std::string reason = why_not(where); !reason.empty()) GTEST_SKIP() << reason;
  const hal::Arch arch = arch_of(where);
  const uint64_t first = std::random_device{}();
  int splits = 0;
  for (uint64_t seed = first; seed < first + 12; ++seed) {
    Draw draw(seed);
    const Drawn d = draw.kernel();
    const ir::KernelIr kernel = product_kernel(d.p);
    const Schedule schedule =
        make_schedule(kernel, target_info(arch), arch.units, {.knobs = &d.knobs});
    const std::string what =
        "seed " + std::to_string(seed) + ", " + d.knobs.text() + "\n" + to_string(schedule);
    if (strategy_of(schedule).name == "gemm.split_k") ++splits;
    Buffers got = draw.inputs(kernel);
    const Status done = run_on(where, kernel, got, {}, {.knobs = &d.knobs});
    ASSERT_TRUE(done) << what << done.error().message;
    expect_product(d.p, got, what);
    if (HasFatalFailure()) return;
  }
  // The cost model may prefer another schedule for a shape or a tile of a few of them.
  EXPECT_GE(splits, 6) << "seeds from " << first;
}

/// The sum's order is the plan's, whatever order work-groups run in.
TEST_P(SplitKOn, GivesTheSameBitsEveryTime) {
  const test::Where& where = GetParam();
  if (const std::string reason = why_not(where); !reason.empty()) GTEST_SKIP() << reason;
  Draw draw(std::random_device{}());
  const ir::KernelIr kernel = product_kernel({.in = DType::kF32, .m = 6, .n = 10, .k = 2500});
  Knobs knobs;
  knobs.values = {{"tile_m", 3}, {"tile_n", 4}};
  const Buffers start = draw.inputs(kernel);
  Buffers first = start, second = start;
  ASSERT_TRUE(run_on(where, kernel, first, {}, {.knobs = &knobs}));
  ASSERT_TRUE(run_on(where, kernel, second, {}, {.knobs = &knobs}));
  EXPECT_EQ(first[0], second[0]);
}

INSTANTIATE_TEST_SUITE_P(Gpus, SplitKOn,
                         testing::Values(test::Where{"PTX"}, test::Where{"NVPTX"},
                                         test::Where{"OPENCL"}, test::Where{"GFX1100"},
                                         test::Where{"GFX942"}),
                         [](const auto& where) { return where_name(where.param); });

}  // namespace
}  // namespace bm::compiler
