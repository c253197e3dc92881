// Products of matrices and convolutions gathered into shared memory: exact references in binary64,
// random numbers, odd extents; executed on the interpreters of AMD's and NVIDIA's instructions.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "compiler/compile.h"
#include "compiler/ir/number.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using ir::Node;

constexpr std::array kExecutedChips = {"gfx942", "gfx1100", "gfx1201"};

/// out[n][o][y][x] = Σ image[n][c][y·step + ky - pad][x·step + kx - pad]·weight[o][c][ky][kx],
/// zeros around the image; with channels last [n][y][x][c], [o][ky][kx][c] and [n][y][x][o].
struct Windows {
  DType in = DType::kF16, out = DType::kF32;
  int64_t images = 1, channels = 32, filters = 64, height = 8, width = 8, taps = 3, step = 1,
          pad = 1;
  bool is_last = false;

  DType sum() const { return is_float(in) ? DType::kF32 : DType::kI32; }
  int64_t rows() const { return (height + 2 * pad - taps) / step + 1; }
  int64_t columns() const { return (width + 2 * pad - taps) / step + 1; }
  int64_t image_at(int64_t n, int64_t c, int64_t y, int64_t x) const {
    return is_last ? ((n * height + y) * width + x) * channels + c
                   : ((n * channels + c) * height + y) * width + x;
  }
  int64_t weight_at(int64_t o, int64_t c, int64_t y, int64_t x) const {
    return is_last ? ((o * taps + y) * taps + x) * channels + c
                   : ((o * channels + c) * taps + y) * taps + x;
  }
  int64_t out_at(int64_t n, int64_t o, int64_t y, int64_t x) const {
    return is_last ? ((n * rows() + y) * columns() + x) * filters + o
                   : ((n * filters + o) * rows() + y) * columns() + x;
  }
};

ir::KernelIr windows_kernel(const Windows& w) {
  ir::KernelIr kernel;
  kernel.name = "windows";
  kernel.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *kernel.graph;
  const auto range = [&](int64_t extent) { return g.range(g.index(extent)); };
  const Node *n = range(w.images), *o = range(w.filters), *y = range(w.rows()),
             *x = range(w.columns()), *c = range(w.channels), *ky = range(w.taps),
             *kx = range(w.taps);
  kernel.ranges = w.is_last ? std::vector{n, y, x, o} : std::vector{n, o, y, x};
  const auto place = [&](const Node* out, const Node* tap) {
    return g.add(g.add(g.mul(out, w.step), tap), -w.pad);
  };
  const Node *row = place(y, ky), *column = place(x, kx);
  const auto is_inside = [&](const Node* v, int64_t extent) {
    return g.both(g.less(g.index(-1), v), g.less(v, g.index(extent)));
  };
  const auto dense = [&](std::vector<std::pair<const Node*, int64_t>> digits) {
    const Node* at = g.index(0);
    for (const auto& [digit, extent] : digits) at = g.add(g.mul(at, extent), digit);
    return at;
  };
  const Node* image_at =
      w.is_last ? dense({{n, w.images}, {row, w.height}, {column, w.width}, {c, w.channels}})
                : dense({{n, w.images}, {c, w.channels}, {row, w.height}, {column, w.width}});
  const Node* weight_at =
      w.is_last ? dense({{o, w.filters}, {ky, w.taps}, {kx, w.taps}, {c, w.channels}})
                : dense({{o, w.filters}, {c, w.channels}, {ky, w.taps}, {kx, w.taps}});
  const Node* out_at =
      w.is_last ? dense({{n, w.images}, {y, w.rows()}, {x, w.columns()}, {o, w.filters}})
                : dense({{n, w.images}, {o, w.filters}, {y, w.rows()}, {x, w.columns()}});
  const Node* gate =
      w.pad > 0 ? g.both(is_inside(row, w.height), is_inside(column, w.width)) : nullptr;
  const Node* image =
      g.cast(gate ? g.load(1, w.in, image_at, gate) : g.load(1, w.in, image_at), w.sum());
  const Node* weight = g.cast(g.load(2, w.in, weight_at), w.sum());
  const Node* sum =
      g.reduce(ir::ReduceOp::kSum, g.binary(ir::Op::kMul, image, weight), std::array{c, ky, kx});
  kernel.params = {
      {.dtype = w.out,
       .elements = w.images * w.filters * w.rows() * w.columns(),
       .is_written = true},
      {.dtype = w.in, .elements = w.images * w.channels * w.height * w.width, .is_read = true},
      {.dtype = w.in, .elements = w.filters * w.channels * w.taps * w.taps, .is_read = true}};
  kernel.stores.push_back({.param = 0, .index = out_at, .value = g.cast(sum, w.out)});
  return kernel;
}

Buffers random_numbers(const ir::KernelIr& kernel, uint64_t seed) {
  std::mt19937_64 random(seed);
  Buffers out;
  for (const ir::Param& p : kernel.params) {
    const auto size = static_cast<size_t>(item_size(p.dtype));
    out.emplace_back(static_cast<size_t>(p.elements) * size);
    for (size_t i = 0; p.is_read && i < static_cast<size_t>(p.elements); ++i) {
      const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
      const double v = is_float(p.dtype)       ? 2 * unit - 1
                       : p.dtype == DType::kU8 ? std::floor(unit * 256)
                                               : std::floor(unit * 256) - 128;
      put(p.dtype, v, &out.back()[i * size]);
    }
  }
  return out;
}

/// A sum in binary64 and what it is made of.
struct Wanted {
  double value = 0, size = 0;
  void add(double a, double b) {
    value += a * b;
    size += std::abs(a * b);
  }
};

struct Numbers {
  std::vector<double> left, right;
  Numbers(const ir::KernelIr& kernel, const Buffers& buffers) {
    const DType t = kernel.params[1].dtype;
    const auto size = static_cast<size_t>(item_size(t));
    for (size_t i = 0; i < buffers[1].size(); i += size)
      left.push_back(number_at(t, &buffers[1][i]));
    for (size_t i = 0; i < buffers[2].size(); i += size)
      right.push_back(number_at(t, &buffers[2][i]));
  }
};

std::vector<Wanted> reference(const Product& p, const ir::KernelIr& kernel, const Buffers& start) {
  const Numbers in(kernel, start);
  std::vector<Wanted> out(static_cast<size_t>(p.batches * p.m * p.n));
  for (int64_t b = 0; b < p.batches; ++b)
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j)
        for (int64_t k = 0; k < p.k; ++k) {
          const int64_t l = b * p.m * p.k + (p.is_left_transposed ? k * p.m + i : i * p.k + k);
          const int64_t r = b * p.n * p.k + (p.is_right_deep ? j * p.k + k : k * p.n + j);
          out[static_cast<size_t>((b * p.m + i) * p.n + j)].add(in.left[static_cast<size_t>(l)],
                                                                in.right[static_cast<size_t>(r)]);
        }
  if (p.has_epilogue)
    for (size_t i = 0; i < out.size(); ++i) {
      const auto column = i % static_cast<size_t>(p.n) * sizeof(float);
      out[i].value = std::max(out[i].value + number_at(p.sum, &start[3][column]), 0.0);
    }
  return out;
}

std::vector<Wanted> reference(const Windows& w, const ir::KernelIr& kernel, const Buffers& start) {
  const Numbers in(kernel, start);
  std::vector<Wanted> out(static_cast<size_t>(w.images * w.filters * w.rows() * w.columns()));
  for (int64_t n = 0; n < w.images; ++n)
    for (int64_t o = 0; o < w.filters; ++o)
      for (int64_t y = 0; y < w.rows(); ++y)
        for (int64_t x = 0; x < w.columns(); ++x)
          for (int64_t ky = 0; ky < w.taps; ++ky)
            for (int64_t kx = 0; kx < w.taps; ++kx) {
              const int64_t row = y * w.step + ky - w.pad, column = x * w.step + kx - w.pad;
              if (row < 0 || row >= w.height || column < 0 || column >= w.width) continue;
              for (int64_t c = 0; c < w.channels; ++c)
                out[static_cast<size_t>(w.out_at(n, o, y, x))].add(
                    in.left[static_cast<size_t>(w.image_at(n, c, row, column))],
                    in.right[static_cast<size_t>(w.weight_at(o, c, ky, kx))]);
            }
  return out;
}

/// Largest error against what sums of so many products in float32, and the result's type, may have.
double worst_excess(DType out, int64_t depth, const std::vector<Wanted>& want,
                    const std::vector<std::byte>& got) {
  const auto size = static_cast<size_t>(item_size(out));
  const double digits = out == DType::kF16 ? 0x1p-11 : out == DType::kBF16 ? 0x1p-8 : 0x1p-24;
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(number_at(out, &got[i * size]) - want[i].value);
    const double allowed = is_float(out) ? static_cast<double>(depth) * 0x1p-24 * want[i].size +
                                               2 * digits * std::abs(want[i].value) + 1e-6
                                         : 0.5;
    worst = std::max(worst, error / allowed);
  }
  return worst;
}

std::string schedule_of(const ir::KernelIr& kernel, const hal::Arch& arch) {
  const auto text = compiler::explain(kernel, arch, "");
  return text ? text->schedule : text.error().message;
}

hal::Arch nv_card(const char* name) {
  hal::Arch arch = ptx_arch();
  arch.name = name;
  arch.units = 2;
  return arch;
}

template <class Problem>
int64_t depth_of(const Problem& p) {
  if constexpr (requires { p.k; })
    return p.k;
  else
    return p.channels * p.taps * p.taps;
}

ir::KernelIr kernel_of(const Product& p) { return product_kernel(p); }
ir::KernelIr kernel_of(const Windows& w) { return windows_kernel(w); }

template <class Problem>
void expect_right_on_amd(const Problem& p, const char* chip, uint64_t seed, uint64_t shift = 0) {
  const ir::KernelIr kernel = kernel_of(p);
  const hal::Arch arch = amd_arch(chip);
  EXPECT_NE(schedule_of(kernel, arch).find("gemm.implicit"), std::string::npos)
      << chip << schedule_of(kernel, arch) << ir::to_string(kernel);
  const auto code = compiler::compile(kernel, arch, "", {.use_cache = false});
  ASSERT_TRUE(code) << code.error().message;
  const Buffers start = random_numbers(kernel, seed);
  Buffers got = start;
  const auto done = run_on_amd(*code, got, {}, shift);
  ASSERT_TRUE(done) << chip << ' ' << done.error().message << ir::to_string(kernel);
  EXPECT_LE(worst_excess(p.out, depth_of(p), reference(p, kernel, start), got[0]), 1)
      << chip << ir::to_string(kernel);
  EXPECT_EQ(done->lds_conflicts, 0u) << chip << ir::to_string(kernel);
}

template <class Problem>
void expect_right_on_nv(const Problem& p, const char* card, uint64_t seed,
                        const char* renderer = "PTX", uint64_t shift = 0) {
  const ir::KernelIr kernel = kernel_of(p);
  const hal::Arch arch = nv_card(card);
  EXPECT_NE(schedule_of(kernel, arch).find("gemm.implicit"), std::string::npos)
      << card << schedule_of(kernel, arch) << ir::to_string(kernel);
  const ScopedSetting text("BM_NV_CODE", "ptx");
  const auto code = compiler::compile(kernel, arch, renderer, {.use_cache = false});
  ASSERT_TRUE(code) << code.error().message;
  const Buffers start = random_numbers(kernel, seed);
  Buffers got = start;
  const auto done = run_on_ptx(*code, got, {}, shift);
  ASSERT_TRUE(done) << card << ' ' << done.error().message << ir::to_string(kernel);
  EXPECT_LE(worst_excess(p.out, depth_of(p), reference(p, kernel, start), got[0]), 1)
      << card << ir::to_string(kernel);
  EXPECT_EQ(done->traffic.shared_conflicts, 0u) << card << ir::to_string(kernel);
}

class ImplicitGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not({"GFX1100"}); !reason.empty()) GTEST_SKIP() << reason;
  }
};

Product integers(DType in, Product p) {
  p.in = in;
  p.sum = p.out = DType::kI32;
  return p;
}

TEST_F(ImplicitGemm, ProductsOfAnyOrderAreSumsInBinary64) {
  uint64_t seed = 1;
  for (const char* chip : kExecutedChips) {
    for (const bool is_left_transposed : {false, true})
      for (const bool is_right_deep : {false, true}) {
        const DType in = is_left_transposed ? DType::kBF16 : DType::kF16;
        expect_right_on_amd(Product{.in = in,
                                    .m = 128,
                                    .n = 128,
                                    .k = 96,
                                    .is_left_transposed = is_left_transposed,
                                    .is_right_deep = is_right_deep},
                            chip, ++seed);
      }
    for (const DType in : {DType::kI8, DType::kU8})
      // MFMA has no unsigned elements.
      if (in == DType::kI8 || std::string_view(chip) != "gfx942")
        expect_right_on_amd(integers(in, {.m = 128, .n = 64, .k = 192, .is_right_deep = true}),
                            chip, ++seed);
  }
}

/// Tiles reach beyond rows, columns and K; some of it is in no multiples of 16 bytes.
TEST_F(ImplicitGemm, ExtentsMayBeOdd) {
  uint64_t seed = 100;
  for (const char* chip : kExecutedChips) {
    expect_right_on_amd(Product{.m = 77, .n = 101, .k = 67, .is_right_deep = true}, chip, ++seed);
    expect_right_on_amd(Product{.m = 77, .n = 77, .k = 64, .batches = 3}, chip, ++seed);
    expect_right_on_amd(Product{.m = 65, .n = 70, .k = 33, .is_right_deep = true}, chip, ++seed);
    expect_right_on_amd(Product{.in = DType::kBF16,
                                .out = DType::kBF16,
                                .m = 136,
                                .n = 72,
                                .k = 200,
                                .has_epilogue = true},
                        chip, ++seed);
    expect_right_on_amd(
        Product{.m = 65, .n = 129, .k = 33, .batches = 2, .is_left_transposed = true}, chip,
        ++seed);
    expect_right_on_amd(integers(DType::kI8, {.m = 70, .n = 90, .k = 100}), chip, ++seed);
  }
}

TEST_F(ImplicitGemm, ParamsStartAnywhere) {
  for (const char* chip : kExecutedChips) {
    expect_right_on_amd(Product{.m = 64, .n = 128, .k = 64}, chip, 7, 2);
    expect_right_on_amd(Product{.m = 64, .n = 64, .k = 64, .is_right_deep = true}, chip, 8, 6);
  }
}

std::vector<Windows> convolutions() {
  return {{.channels = 64, .filters = 64, .height = 9, .width = 11},
          {.channels = 32, .filters = 70, .height = 8, .width = 8, .is_last = true},
          {.in = DType::kBF16,
           .images = 2,
           .channels = 40,
           .filters = 64,
           .height = 13,
           .width = 10,
           .step = 2,
           .is_last = true},
          {.channels = 3, .filters = 64, .height = 20, .width = 20, .taps = 7, .step = 2, .pad = 3},
          {.out = DType::kF16,
           .channels = 96,
           .filters = 80,
           .height = 9,
           .width = 9,
           .taps = 1,
           .pad = 0}};
}

TEST_F(ImplicitGemm, ConvolutionsAreProducts) {
  uint64_t seed = 200;
  for (const char* chip : kExecutedChips)
    for (const Windows& w : convolutions()) expect_right_on_amd(w, chip, ++seed);
}

TEST(ImplicitGemmNv, ConvolutionsAreProducts) {
  uint64_t seed = 300;
  for (const char* card : {"sm_75", "sm_80", "sm_90"})
    for (const Windows& w : convolutions())
      if (card != std::string_view("sm_75") || w.in == DType::kF16)
        expect_right_on_nv(w, card, ++seed);
  expect_right_on_nv(Windows{.in = DType::kI8,
                             .out = DType::kI32,
                             .channels = 64,
                             .height = 8,
                             .width = 9,
                             .is_last = true},
                     "sm_80", ++seed);
}

/// Rows that are no multiple of 16 bytes apart cannot be copied by cp.async, nor be read 16 bytes
/// at a time; K ends inside a stage, or in the first one.
TEST(ImplicitGemmNv, ExtentsMayBeOdd) {
  uint64_t seed = 400;
  for (const char* card : {"sm_75", "sm_80", "sm_90"}) {
    for (const bool is_left_transposed : {false, true})
      for (const bool is_right_deep : {false, true})
        expect_right_on_nv(Product{.m = 77,
                                   .n = 101,
                                   .k = 65 + 34 * is_left_transposed + is_right_deep,
                                   .is_left_transposed = is_left_transposed,
                                   .is_right_deep = is_right_deep},
                           card, ++seed);
    expect_right_on_nv(Product{.m = 65, .n = 71, .k = 33, .is_right_deep = true}, card, ++seed);
    expect_right_on_nv(Product{.m = 77, .n = 77, .k = 64, .batches = 3}, card, ++seed);
  }
  expect_right_on_nv(integers(DType::kI8, {.m = 70, .n = 90, .k = 100, .is_right_deep = true}),
                     "sm_80", ++seed);
  expect_right_on_nv(Product{.m = 77, .n = 101, .k = 67, .is_right_deep = true}, "sm_80", ++seed,
                     "PTX", 4);
}

TEST(ImplicitGemmNv, ParamsStartAnywhere) {
  const Windows w{.channels = 32, .filters = 64, .height = 8, .width = 8, .is_last = true};
  expect_right_on_nv(w, "sm_80", 17, "PTX", 4);
}

// --- machine code -------------------------------------------------------------------------------

size_t count(const std::string& text, std::string_view what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

/// docs/hw/amd/code.md has the numbers.
TEST_F(ImplicitGemm, MachineCodeReadsSharedMemoryByChunks) {
  struct Row {
    const char *chip, *load, *store, *product;
  };
  const Row rows[] = {{"gfx1100", "ds_load_b128", "ds_store_b128", "v_wmma_f32_16x16x16_f16"},
                      {"gfx1201", "ds_load_b128", "ds_store_b128", "v_wmma_f32_16x16x16_f16"},
                      {"gfx942", "ds_read_b128", "ds_write_b128", "v_mfma_f32_16x16x16_f16"}};
  for (const Row& row : rows) {
    hal::Arch arch = amd_arch(row.chip);
    arch.units = 96;
    for (const bool is_deep : {true, false}) {
      const auto kernel =
          product_kernel({.m = 4096, .n = 4096, .k = 4096, .is_right_deep = is_deep});
      const auto text = compiler::explain(kernel, arch, "");
      ASSERT_TRUE(text) << row.chip << text.error().message;
      const std::string& code = text->assembly;
      std::printf(
          "%s%s: %zu products, %zu loads and %zu stores of 16 bytes of shared memory, %zu "
          "loads of 16 bytes\n",
          row.chip, is_deep ? "" : " transposed", count(code, row.product), count(code, row.load),
          count(code, row.store),
          count(code, "global_load_b128") + count(code, "global_load_dwordx4"));
      EXPECT_GT(count(code, row.product), 16u) << row.chip;
      EXPECT_GT(count(code, row.load), 0u) << row.chip << text->schedule;
      EXPECT_LT(count(code, row.load), 2 * count(code, row.product)) << row.chip;
      EXPECT_EQ(code.find("scratch_"), std::string::npos) << row.chip << ": spills";
    }
  }
}

}  // namespace
}  // namespace bm::test
