// Products of matrices on NVIDIA's targets whose tiles go through shared memory, on the PTX
// interpreter and for the toolkit that is found; SIMT tiles on AMD's interpreter too.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <regex>

#include <fmt/format.h>

#include "compiler/analysis/static_roofline.h"
#include "compiler/backends.h"
#include "compiler/compile.h"
#include "compiler/ir/number.h"
#include "compiler/targets/card.h"
#include "compiler/toolchain/nvjitlink.h"
#include "compiler/toolchain/nvrtc.h"
#include "compiler/tune/knobs.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"

namespace bm::test {
namespace {

hal::Arch card(const char* name, uint32_t units = 2) {
  hal::Arch arch = ptx_arch();
  arch.name = name;
  arch.units = units;
  return arch;
}

/// A card and what its kernels are to be made of.
struct Way {
  const char* card;
  const char* instruction;
};
constexpr Way kFragments{"sm_80", "ldmatrix"}, kGroups{"sm_90", "wgmma"},
    kTensor{"sm_100", "tcgen05.mma"};

std::string text_of(const hal::CodeObject& code) {
  return reinterpret_cast<const char*>(code.image.data());
}

Result<hal::CodeObject> compile_text(const ir::KernelIr& kernel, const hal::Arch& arch,
                                     const char* renderer) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  return compiler::compile(kernel, arch, renderer, {.use_cache = false});
}

PtxRun expect_right(const Product& p, const Way& way, const char* renderer, uint64_t shift = 0) {
  const ir::KernelIr kernel = product_kernel(p);
  const auto code = compile_text(kernel, card(way.card), renderer);
  EXPECT_TRUE(code) << (code ? "" : code.error().message);
  if (!code) return {};
  EXPECT_NE(text_of(*code).find(way.instruction), std::string::npos) << ir::to_string(kernel);
  const Buffers start = small_numbers(kernel);
  Buffers got = start;
  const auto done = run_on_ptx(*code, got, {}, shift);
  EXPECT_TRUE(done) << (done ? "" : done.error().message) << ir::to_string(kernel);
  if (!done) return {};
  EXPECT_EQ(difference_from_cpu(kernel, got, start), 0) << ir::to_string(kernel);
  return *done;
}

std::vector<Product> whole_products() {
  std::vector<Product> products;
  for (const DType in : {DType::kBF16, DType::kF16})
    for (const bool is_left_transposed : {false, true})
      for (const bool is_right_deep : {false, true})
        products.push_back({.in = in,
                            .out = in,
                            .m = 256,
                            .n = 128,
                            .k = 192,
                            .is_left_transposed = is_left_transposed,
                            .is_right_deep = is_right_deep});
  products.push_back({.in = DType::kI8,
                      .sum = DType::kI32,
                      .out = DType::kI32,
                      .m = 128,
                      .n = 256,
                      .k = 512,
                      .is_right_deep = true});
  products.push_back({.m = 64, .n = 128, .k = 1024, .batches = 3, .has_epilogue = true});
  return products;
}

/// Tiles reach beyond rows, columns and depth.
std::vector<Product> ragged_products() {
  std::vector<Product> products;
  for (const bool is_left_transposed : {false, true})
    for (const bool is_right_deep : {false, true})
      products.push_back({.in = DType::kBF16,
                          .out = DType::kBF16,
                          .m = 136,
                          .n = 200,
                          .k = 168,
                          .is_left_transposed = is_left_transposed,
                          .is_right_deep = is_right_deep,
                          .has_epilogue = true});
  products.push_back({.m = 77, .n = 101, .k = 136, .is_right_deep = true});
  products.push_back({.m = 20, .n = 72, .k = 40, .batches = 2});
  return products;
}

class Pipe : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() != std::string_view("NVRTC")) return;
    if (const auto v = compiler::nvrtc_version(); !v) GTEST_SKIP() << v.error().message;
  }
  /// NVRTC takes its time.
  static size_t step() { return GetParam() == std::string_view("NVRTC") ? 3 : 1; }
};

TEST_P(Pipe, ProductsGiveWhatTheCpuGives) {
  const std::vector<Product> products = whole_products();
  for (const Way& way : {kFragments, kGroups, kTensor})
    for (size_t i = 0; i < products.size(); i += step()) {
      const bool is_int8 = products[i].in == DType::kI8;
      if (is_int8 && way.card == kTensor.card) continue;  // by mma.sync there
      const PtxRun run = expect_right(products[i], way, GetParam());
      EXPECT_EQ(run.traffic.shared_conflicts, 0u);
      EXPECT_EQ(run.traffic.group_products != 0, way.instruction != kFragments.instruction);
    }
}

TEST_P(Pipe, TilesReachBeyondTheMatrices) {
  const std::vector<Product> products = ragged_products();
  for (const Way& way : {kFragments, kGroups, kTensor})
    for (size_t i = 0; i < products.size(); i += step()) expect_right(products[i], way, GetParam());
}

/// Memory of others may start anywhere.
TEST_P(Pipe, ParamsStartAtAnyAddress) {
  for (const Way& way : {kFragments, kGroups, kTensor})
    for (const bool is_right_deep : {false, true}) {
      const Product whole{.m = 64, .n = 128, .k = 256, .is_right_deep = is_right_deep};
      const Product ragged{.m = 72, .n = 88, .k = 200, .is_right_deep = is_right_deep};
      expect_right(whole, way, GetParam(), 4);
      expect_right(ragged, way, GetParam(), 8);
    }
}

INSTANTIATE_TEST_SUITE_P(Nv, Pipe, testing::Values("PTX", "NVRTC"),
                         [](const auto& given) { return std::string(given.param); });

TEST(NvPipe, OtherCardsHaveThemToo) {
  const ScopedSetting tf32("ALLOW_TF32", "1");
  expect_right({.m = 128, .n = 64, .k = 256}, {"sm_75", "ldmatrix"}, "PTX");
  expect_right({.in = DType::kF32, .m = 128, .n = 128, .k = 96, .is_right_deep = true}, kFragments,
               "PTX");
  const ScopedSetting none("BM_NV_WGMMA", "0");
  for (const char* name : {"sm_90", "sm_100"})
    expect_right({.m = 128, .n = 128, .k = 256}, {name, "ldmatrix"}, "PTX");
}

/// Only one generation has wgmma and one tcgen05, and code for them runs on no other.
TEST(NvPipe, TargetsAreOfOneGenerationOnlyWhereTheyMustBe) {
  const auto target = [](const Product& p, const char* name) {
    const auto code = compile_text(product_kernel(p), card(name), "PTX");
    return code ? text_of(*code).substr(0, 60) : code.error().message;
  };
  const Product large{.m = 128, .n = 128, .k = 256},
      small{.m = 16, .n = 16, .k = 32, .is_right_deep = true};
  EXPECT_NE(target(large, "sm_90").find(".target sm_90a"), std::string::npos);
  EXPECT_EQ(target(small, "sm_90").find("sm_90a"), std::string::npos);
  EXPECT_NE(target(large, "sm_100").find(".target sm_100a"), std::string::npos);
  EXPECT_EQ(target(small, "sm_100").find("sm_100a"), std::string::npos);
  EXPECT_EQ(target(large, "sm_120").find("a"), target(small, "sm_120").find("a"));
}

// --- random numbers, compared with float64 -------------------------------------------------------

constexpr std::array kTails = {Tail::kNone, Tail::kScale, Tail::kResidual, Tail::kSilu,
                               Tail::kGelu};

double with_tail(Tail tail, double x, double residual) {
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  switch (tail) {
    case Tail::kNone: return x;
    case Tail::kScale: return 0.125 * x;
    case Tail::kResidual: return x + residual;
    case Tail::kSilu: return x * sigmoid(x);
    case Tail::kGelu: return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x));
  }
  __builtin_unreachable();
}

/// Largest error in units of what rounding of the sums and of the result allows; rows beyond
/// `rows` must be as they were. `operand_error`: of a product, by rounding its factors.
double error_against_float64(const Product& p, const Buffers& start, const Buffers& got,
                             int64_t rows, double operand_error) {
  const auto number = [](DType t, const std::vector<std::byte>& from, int64_t at) {
    return number_at(t, &from[static_cast<size_t>(at * item_size(t))]);
  };
  const double result_ulp = p.out == DType::kF32 ? 0 : p.out == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  double worst = 0;
  for (int64_t b = 0; b < p.batches; ++b)
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        const int64_t at = (b * p.m + i) * p.n + j;
        const double result = number(p.out, got[0], at);
        if (i >= rows) {
          if (result != number(p.out, start[0], at)) return INFINITY;
          continue;
        }
        double sum = 0, size = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          const int64_t left = p.is_left_transposed ? k * p.m + i : i * p.k + k;
          const int64_t right = p.is_right_deep ? j * p.k + k : k * p.n + j;
          const double product = number(p.in, start[1], b * p.m * p.k + left) *
                                 number(p.in, start[2], b * p.n * p.k + right);
          sum += product;
          size += std::abs(product);
        }
        if (p.has_epilogue) sum = std::max(sum + number(p.sum, start[3], j), 0.0);
        const double residual =
            p.tail == Tail::kResidual ? number(p.sum, start[p.has_epilogue ? 4 : 3], at) : 0;
        const double want = with_tail(p.tail, sum, residual);
        // GELU is at most 1.13 times as steep as x.
        const double allowed = 1.13 * (static_cast<double>(p.k) * 0x1p-24 + operand_error) * size +
                               16 * 0x1p-24 * (std::abs(want) + std::abs(residual)) +
                               result_ulp * std::abs(want) * 1.001 + 1e-7;
        worst = std::max(worst, std::abs(result - want) / allowed);
      }
  return worst;
}

Buffers random_numbers(const ir::KernelIr& kernel, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  Buffers out;
  for (const ir::Param& p : kernel.params) {
    const auto size = static_cast<size_t>(item_size(p.dtype));
    out.emplace_back(static_cast<size_t>(p.elements) * size);
    for (size_t i = 0; i < static_cast<size_t>(p.elements); ++i)
      put(p.dtype, uniform(generator), &out.back()[i * size]);
  }
  return out;
}

/// -1: it does not run.
double random_error(const Product& p, const hal::CodeObject& code, uint64_t seed, int64_t rows,
                    double operand_error = 0) {
  const Buffers start = random_numbers(product_kernel(p), seed);
  Buffers got = start;
  const std::vector<int64_t> vars(p.has_symbolic_rows ? 1 : 0, rows);
  const auto done = run_on_ptx(code, got, vars);
  if (!done) return -1;
  return error_against_float64(p, start, got, rows, operand_error);
}

/// `tile`: rows and columns that are asked for; 0: the scheduler's choice.
void expect_near_float64(const Product& p, const Way& way, const char* renderer,
                         std::vector<int64_t> rows, int64_t tile = 0, double operand_error = 0) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  compiler::Knobs knobs;
  if (tile != 0) knobs.values["tile_m"] = knobs.values["tile_n"] = tile;
  const auto code = compiler::compile(product_kernel(p), card(way.card), renderer,
                                      {.use_cache = false, .knobs = &knobs});
  ASSERT_TRUE(code) << code.error().message;
  EXPECT_NE(text_of(*code).find(way.instruction), std::string::npos);
  for (const int64_t n : rows) {
    const uint64_t seed = std::random_device()();
    const double error = random_error(p, *code, seed, n, operand_error);
    EXPECT_GE(error, 0) << "it does not run";
    EXPECT_LE(error, 1) << fmt::format("{} {} seed {}: {} rows of {}×{}×{}, tail {}", way.card,
                                       renderer, seed, n, p.m, p.n, p.k, static_cast<int>(p.tail));
  }
}

/// Mean relative error of a product of float32 numbers between 1 and 2; -1: it does not run.
double mean_error(const Product& p, const hal::CodeObject& code, uint64_t seed) {
  Buffers start = random_numbers(product_kernel(p), seed);
  const auto number = [&](const Buffers& from, size_t param, int64_t at) {
    return number_at(DType::kF32, &from[param][static_cast<size_t>(at) * sizeof(float)]);
  };
  for (const size_t param : {1u, 2u})
    for (int64_t i = 0; i < static_cast<int64_t>(start[param].size() / sizeof(float)); ++i)
      put(DType::kF32, number(start, param, i) / 2 + 1.5,
          &start[param][static_cast<size_t>(i) * sizeof(float)]);
  Buffers got = start;
  if (!run_on_ptx(code, got, {})) return -1;
  double sum = 0;
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t j = 0; j < p.n; ++j) {
      double want = 0;
      for (int64_t k = 0; k < p.k; ++k)
        want += number(start, 1, i * p.k + k) *
                number(start, 2, p.is_right_deep ? j * p.k + k : k * p.n + j);
      sum += number(got, 0, i * p.n + j) / want - 1;
    }
  return sum / static_cast<double>(p.m * p.n);
}

/// MMA of tf32 does not look at the lowest 13 bits of its operands. If these were cut off, sums of
/// positive numbers would be too small by 2^-10.5 in the mean; rounded, by nothing.
TEST_P(Pipe, Tf32OperandsAreRounded) {
  const ScopedSetting tf32("ALLOW_TF32", "1");
  constexpr std::string_view kRounding = "cvt.rna.tf32.f32";
  for (const bool is_right_deep : {true, false}) {
    const Product p{.in = DType::kF32, .m = 64, .n = 64, .k = 128, .is_right_deep = is_right_deep};
    const auto code = compile_text(product_kernel(p), card("sm_80"), GetParam());
    ASSERT_TRUE(code) << code.error().message;
    std::string text = text_of(*code);
    EXPECT_NE(text.find("mma.sync.aligned.m16n8k8.row.col.f32.tf32"), std::string::npos);
    EXPECT_NE(text.find("cp.async"), std::string::npos);
    const uint64_t seed = std::random_device()();
    EXPECT_LT(std::abs(mean_error(p, *code, seed)), 0x1p-14) << seed;
    hal::CodeObject cut = *code;
    for (size_t at; (at = text.find(kRounding)) != std::string::npos;)
      text.replace(at, kRounding.size(), "mov.b32");
    const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
    cut.image.assign(bytes.begin(), bytes.end());
    EXPECT_LT(mean_error(p, cut, seed), -0x1p-11) << seed;
  }
}

TEST(NvPipe, EpiloguesAreNearFloat64) {
  for (const Way& way : {kFragments, kGroups, kTensor})
    for (const Tail tail : kTails) {
      const bool is_odd = static_cast<int>(tail) % 2 == 1;
      const Product p{.in = is_odd ? DType::kBF16 : DType::kF16,
                      .out = is_odd ? DType::kF32 : DType::kF16,
                      .m = 75,
                      .n = 129,
                      .k = 136,
                      .is_right_deep = true,
                      .has_epilogue = is_odd,
                      .tail = tail};
      expect_near_float64(p, way, "PTX", {p.m});
    }
}

// --- float32 whose factors are rounded to tf32 --------------------------------------------------

/// Of a product whose factors keep 11 digits: half an ulp each.
constexpr double kTf32Error = 2.002 * 0x1p-11;

Product tf32(int64_t m, int64_t n, int64_t k, bool is_left_transposed, bool is_right_deep) {
  return {.in = DType::kF32,
          .m = m,
          .n = n,
          .k = k,
          .is_left_transposed = is_left_transposed,
          .is_right_deep = is_right_deep};
}

TEST_P(Pipe, Tf32GoesThroughSharedMemoryWhateverIsContiguous) {
  const ScopedSetting setting("ALLOW_TF32", "1");
  for (const bool is_left_transposed : {false, true})
    for (const bool is_right_deep : {true, false}) {
      // Numbers that tf32 has are multiplied exactly.
      const PtxRun run =
          expect_right(tf32(128, 192, 96, is_left_transposed, is_right_deep), kGroups, GetParam());
      EXPECT_EQ(run.traffic.shared_conflicts, 0u);
      EXPECT_NE(run.traffic.group_products, 0u);
      for (const Way& way : {kGroups, kTensor})
        expect_right(tf32(72, 88, 40, is_left_transposed, is_right_deep), way, GetParam(), 4);
      // By mma.sync: the same copies, rounded in registers.
      const Product whole = tf32(128, 192, 96, is_left_transposed, is_right_deep);
      EXPECT_EQ(expect_right(whole, kFragments, GetParam()).traffic.shared_conflicts, 0u);
      const Product cut = tf32(72, 88, 40, is_left_transposed, is_right_deep);
      expect_right(cut, kFragments, GetParam(), 4);
      expect_near_float64(cut, kFragments, GetParam(), {cut.m}, 0, kTf32Error);
      Product ragged = tf32(140, 84, 100, is_left_transposed, is_right_deep);
      ragged.has_epilogue = is_right_deep;
      ragged.tail = is_left_transposed ? Tail::kResidual : Tail::kSilu;
      for (const Way& way : {kGroups, kTensor})
        expect_near_float64(ragged, way, GetParam(), {ragged.m}, 0, kTf32Error);
    }
  Product prompt = tf32(150, 136, 72, false, true);
  prompt.has_symbolic_rows = true;
  for (const Way& way : {kGroups, kFragments, kTensor})
    expect_near_float64(prompt, way, GetParam(), {1, 64, 150}, 0, kTf32Error);
}

TEST(NvPipe, Tf32IsRoundedNotTruncated) {
  const ScopedSetting setting("ALLOW_TF32", "1");
  const Product p = tf32(128, 64, 512, false, false);
  const ir::KernelIr kernel = product_kernel(p);
  auto code = compile_text(kernel, card("sm_90"), "PTX");
  ASSERT_TRUE(code) << code.error().message;
  // Positive numbers: what is cut off adds up.
  std::mt19937_64 generator(std::random_device{}());
  std::uniform_real_distribution<float> uniform(1, 2);
  Buffers start = small_numbers(kernel);
  for (const size_t i : {1u, 2u})
    for (size_t at = 0; at < start[i].size(); at += 4) {
      const float v = uniform(generator);
      std::memcpy(&start[i][at], &v, 4);
    }
  const auto bias = [&] {
    Buffers got = start;
    const auto done = run_on_ptx(*code, got, {});
    EXPECT_TRUE(done) << (done ? "" : done.error().message);
    double sum = 0;
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        double want = 0;
        for (int64_t k = 0; k < p.k; ++k)
          want += number_at(p.in, &start[1][static_cast<size_t>(4 * (i * p.k + k))]) *
                  number_at(p.in, &start[2][static_cast<size_t>(4 * (k * p.n + j))]);
        sum += number_at(p.out, &got[0][static_cast<size_t>(4 * (i * p.n + j))]) / want - 1;
      }
    return sum / static_cast<double>(p.m * p.n);
  };
  EXPECT_LT(std::abs(bias()), 0x1p-15);
  std::string text = text_of(*code);
  for (size_t at = text.find("cvt.rna.tf32.f32"); at != std::string::npos;
       at = text.find("cvt.rna.tf32.f32"))
    text.replace(at, 16, "mov.b32");
  const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  code->image.assign(bytes.begin(), bytes.end());
  EXPECT_LT(bias(), -0x1p-12) << "truncation was not noticed";
}

/// Prompts of any length.
TEST_P(Pipe, RowsMayBeKnownAtLaunchOnly) {
  for (const Way& way : {kFragments, kGroups, kTensor})
    for (const bool is_right_deep : {true, false}) {
      const Product p{.m = 150,
                      .n = 136,
                      .k = 72,
                      .is_right_deep = is_right_deep,
                      .has_epilogue = is_right_deep,
                      .has_symbolic_rows = true};
      expect_near_float64(p, way, GetParam(), {1, 63, 64, 65, 129, 150});
    }
}

/// float32 through shared memory: no extent is a multiple of a tile or of the steps of K.
TEST_P(Pipe, SimtTilesReachBeyondTheMatrices) {
  const Way way{"sm_90", "bar"};
  int shape = 0;
  for (const bool is_left_transposed : {false, true})
    for (const bool is_right_deep : {false, true}) {
      const Product p{.in = DType::kF32,
                      .m = 131 + 2 * shape,
                      .n = 77 + shape,
                      .k = 37 - shape,
                      .batches = shape == 1 ? 3 : 1,
                      .is_left_transposed = is_left_transposed,
                      .is_right_deep = is_right_deep,
                      .has_epilogue = shape == 2,
                      .tail = shape == 3 ? Tail::kResidual : Tail::kNone};
      expect_near_float64(p, way, GetParam(), {p.m}, shape % 2 == 0 ? 32 : 64);
      ++shape;
    }
  expect_near_float64({.in = DType::kF32, .m = 150, .n = 101, .k = 50, .has_symbolic_rows = true},
                      way, GetParam(), {1, 64, 65, 150}, 64);
}

/// Of code for AMD's GPUs, as random_error; -1: it does not run, and `*why` says so, or not through
/// shared memory.
double random_error_on_amd(const Product& p, const hal::CodeObject& code, int64_t rows,
                           std::string* why) {
  const Buffers start = random_numbers(product_kernel(p), std::random_device()());
  Buffers got = start;
  const auto done = run_on_amd(code, got, std::vector<int64_t>(p.has_symbolic_rows ? 1 : 0, rows));
  if (!done) {
    *why = done.error().message;
    return -1;
  }
  *why = "no instruction of shared memory";
  const bool is_staged = std::ranges::any_of(
      done->opcodes, [](const auto& o) { return o.second > 0 && o.first.starts_with("ds_"); });
  return is_staged ? error_against_float64(p, start, got, rows, 0) : -1;
}

/// As on NVIDIA's cards: steps of K that are all there, and the last ones.
TEST(SimtOfAmd, TilesReachBeyondTheMatrices) {
  for (const char* chip : {"gfx942", "gfx1030", "gfx1100", "gfx1201"})
    for (int shape = 0; shape < 4; ++shape) {
      const Product p{.in = DType::kF32,
                      .m = 131 + 2 * shape,
                      .n = 77 + shape,
                      .k = 53 - shape,
                      .batches = shape == 1 ? 3 : 1,
                      .is_left_transposed = shape / 2 != 0,
                      .is_right_deep = shape % 2 != 0,
                      .has_epilogue = shape == 2,
                      .tail = shape == 3 ? Tail::kResidual : Tail::kNone,
                      .has_symbolic_rows = shape == 0};
      compiler::Knobs knobs;
      knobs.values["tile_m"] = knobs.values["tile_n"] = shape % 2 == 0 ? 32 : 64;
      const auto code = compiler::compile(product_kernel(p), amd_arch(chip), "LLVM",
                                          {.use_cache = false, .knobs = &knobs});
      ASSERT_TRUE(code) << code.error().message;
      std::string why;
      const double error = random_error_on_amd(p, *code, p.m, &why);
      EXPECT_GE(error, 0) << chip << " " << shape << ": " << why;
      EXPECT_LE(error, 1) << chip << " " << shape;
    }
}

/// Steps beyond K that are taken for whole ones, or are not zeros.
TEST(SimtOfAmd, MistakesInTheLastStepsAreNoticed) {
  const Product p{.in = DType::kF32, .m = 131, .n = 77, .k = 53};
  const hal::Arch arch = amd_arch("gfx1100");
  const auto shown = compiler::explain(product_kernel(p), arch, "LLVM");
  const auto code = compiler::compile(product_kernel(p), arch, "LLVM", {.use_cache = false});
  ASSERT_TRUE(shown && code);
  ASSERT_NE(shown->schedule.find("16 of K"), std::string::npos) << shown->schedule;
  for (const auto& [right, wrong] :
       {std::pair("", ""), std::pair("(icmp slt i[0-9]+ [^,]+), 38\n", "$1, 99\n"),
        std::pair("(select i1 [^,]+, float [^,]+, float) 0[.x0-9e+]*\n", "$1 1.0\n")}) {
    const std::string text =
        *right ? std::regex_replace(shown->source, std::regex(right), wrong) : shown->source;
    if (*right) EXPECT_NE(text, shown->source) << right;
    auto image = (*compiler::find_backend(arch, "LLVM"))->assemble({text, ""}, arch);
    ASSERT_TRUE(image) << image.error().message;
    hal::CodeObject changed = *code;
    changed.image = *std::move(image);
    std::string why;
    const double error = random_error_on_amd(p, changed, p.m, &why);
    EXPECT_EQ(error < 0 || error > 1, *right != 0) << right << ": " << error;
  }
}

/// Instructions of all threads for each multiplication; docs/hw/nvidia/code.md has them.
TEST(NvPipe, OddFloat32ProductsTakeFewInstructions) {
  const Product p{.in = DType::kF32, .m = 250, .n = 250, .k = 250};
  const ir::KernelIr kernel = product_kernel(p);
  const ScopedSetting text("BM_NV_CODE", "ptx");
  double counts[2];
  for (const bool is_plain : {true, false}) {
    compiler::Knobs knobs;
    if (is_plain) knobs.values["plain"] = 1;
    const auto code =
        compiler::compile(kernel, card("sm_90"), "PTX", {.use_cache = false, .knobs = &knobs});
    ASSERT_TRUE(code) << code.error().message;
    Buffers got = small_numbers(kernel);
    const auto done = run_on_ptx(*code, got, {});
    ASSERT_TRUE(done) << done.error().message;
    counts[is_plain ? 0 : 1] =
        static_cast<double>(done->lane_instructions) / static_cast<double>(p.m * p.n * p.k);
  }
  std::printf("250³ float32: %.2f instructions a multiplication by loops, %.2f through tiles\n",
              counts[0], counts[1]);
  EXPECT_LT(counts[1], 2.3);
  EXPECT_GT(counts[0], 1.5 * counts[1]);
}

TEST(NvPipe, MistakesInSymbolicRowsAreNoticed) {
  const Product p{.m = 150, .n = 136, .k = 72, .is_right_deep = true, .has_symbolic_rows = true};
  const auto code = compile_text(product_kernel(p), card("sm_80"), "PTX");
  ASSERT_TRUE(code);
  /// The `which`-th place; nothing: there are fewer.
  const auto noticed = [&](const char* from, const char* to, int which) -> std::optional<bool> {
    std::string text = text_of(*code);
    size_t at = text.find(from);
    for (int i = 0; i < which && at != std::string::npos; ++i) at = text.find(from, at + 1);
    if (at == std::string::npos) return {};
    text.replace(at, std::strlen(from), to);
    hal::CodeObject wrong = *code;
    const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
    wrong.image.assign(bytes.begin(), bytes.end());
    const double error = random_error(p, wrong, 1, 65);
    return error < 0 || error > 1;
  };
  EXPECT_EQ(noticed("mma.sync", "mma.sync", 0), false);
  EXPECT_EQ(noticed("cp.async.wait_group", "//", 0), true);
  // Comparisons with the number of rows are among those of indices.
  int found = 0;
  for (int which = 0;; ++which) {
    const auto is_found = noticed("setp.lt.s32", "setp.le.s32", which);
    if (!is_found) break;
    found += *is_found ? 1 : 0;
  }
  EXPECT_GE(found, 2);
}

// --- the same with a mistake --------------------------------------------------------------------

struct Mistake {
  Way way;
  const char *from, *to;
  int which = 0;  ///< of several places
};

std::string replaced(std::string text, const Mistake& m) {
  size_t at = text.find(m.from);
  for (int i = 0; i < m.which && at != std::string::npos; ++i) at = text.find(m.from, at + 1);
  EXPECT_NE(at, std::string::npos) << m.from;
  if (at == std::string::npos) return text;
  return text.replace(at, std::strlen(m.from), m.to);
}

/// Whether the interpreter or the result shows it.
bool is_noticed(const Mistake& m) {
  const auto kernel = product_kernel({.in = DType::kBF16, .m = 128, .n = 128, .k = 512});
  auto code = compile_text(kernel, card(m.way.card), "PTX");
  EXPECT_TRUE(code);
  const std::string text = replaced(text_of(*code), m);
  const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  code->image.assign(bytes.begin(), bytes.end());
  const Buffers start = small_numbers(kernel);
  Buffers got = start;
  const auto done = run_on_ptx(*code, got, {});
  return !done || difference_from_cpu(kernel, got, start) != 0 ||
         done->traffic.shared_conflicts != 0;
}

TEST(NvPipe, MistakesAreNoticed) {
  const Mistake none{kGroups, "cp.async.commit_group;", "cp.async.commit_group;"};
  ASSERT_FALSE(is_noticed(none));
  const std::vector<Mistake> mistakes = {
      // In front of the loop: one group too few; in it: waits that are not there or too short.
      {kFragments, "cp.async.commit_group;", ""},
      {kGroups, "cp.async.commit_group;", ""},
      {kFragments, "cp.async.wait_group", "//"},
      {kGroups, "cp.async.wait_group", "//"},
      {kGroups, "cp.async.wait_group 3", "cp.async.wait_group 4"},
      {kFragments, "bar.sync 0;", ""},
      {kGroups, "bar.sync 0;", ""},
      {kGroups, "fence.proxy.async.shared::cta;", ""},
      {kGroups, "wgmma.fence.sync.aligned;", ""},
      {kGroups, "wgmma.commit_group.sync.aligned;", ""},
      {kGroups, "wgmma.wait_group.sync.aligned 0;", ""},
      {kGroups, "wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"},
      {kGroups, "wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 3;"},
      // Chunks at other addresses, adjacent ones in the other order, another stage.
      {kFragments, "xor.b32", "and.b32"},
      {kGroups, "xor.b32", "or.b32"},
      {kFragments, ".trans", ""},
      {kGroups, ", 1, 1, 0, 1;", ", 1, 1, 0, 0;"},
      {kFragments, "+4096]", "+4112]"},
      {kGroups, "+4096]", "+4112]"},
      {kFragments, "rem.u32", "add.s32"},
      {kGroups, "rem.u32", "add.s32"}};
  for (const Mistake& m : mistakes)
    EXPECT_TRUE(is_noticed(m)) << m.way.card << ": " << m.from << " → " << m.to;
}

/// The text of one place, changed.
struct TensorMistake {
  const char *from, *to;
  const char* said;  ///< by the interpreter; "": results are wrong
  int which = 0;     ///< of several places
};

std::string replaced(const std::string& text, const TensorMistake& m) {
  const std::regex from(m.from);
  auto at = std::sregex_iterator(text.begin(), text.end(), from);
  for (int i = 0; i < m.which && at != std::sregex_iterator(); ++i) ++at;
  EXPECT_NE(at, std::sregex_iterator()) << m.from;
  if (at == std::sregex_iterator()) return text;
  const auto first = static_cast<size_t>(at->position());
  return text.substr(0, first) + at->format(m.to) +
         text.substr(first + static_cast<size_t>(at->length()));
}

/// What the interpreter says of the kernel with a mistake, or "wrong", or "" where nothing is.
std::string found(const hal::CodeObject& code, const ir::KernelIr& kernel,
                  const std::string& text) {
  hal::CodeObject changed = code;
  const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  changed.image.assign(bytes.begin(), bytes.end());
  const Buffers start = small_numbers(kernel);
  Buffers got = start;
  const auto done = run_on_ptx(changed, got, {});
  if (!done) return done.error().message;
  return difference_from_cpu(kernel, got, start) == 0 ? "" : "wrong";
}

TEST(NvPipe, MistakesWithTensorMemoryAreNoticed) {
  const auto kernel =
      product_kernel({.in = DType::kBF16, .m = 128, .n = 256, .k = 768, .is_right_deep = true});
  const auto code = compile_text(kernel, card(kTensor.card), "PTX");
  ASSERT_TRUE(code);
  const std::string text = text_of(*code);
  ASSERT_EQ(found(*code, kernel, text), "");
  constexpr const char* kWait = R"(mbarrier\.try_wait\.parity\.shared::cta\.b64 (%p\d+), [^;]*;)";
  constexpr const char* kNoWait = "setp.eq.s32 $1, 0, 0;";
  constexpr const char* kAfter = R"(tcgen05\.fence::after_thread_sync;)";
  constexpr const char* kNoFence = "no tcgen05.fence::after_thread_sync";
  constexpr const char* kProduct = R"((tcgen05\.mma\S* \[\S+\], \S+ \S+) \d+,)";
  const TensorMistake mistakes[] = {
      {kWait, kNoWait, "a tcgen05.mma whose mbarrier this thread did not wait for"},
      {kWait, kNoWait, "a column that no product wrote that was waited for", 1},
      {R"(tcgen05\.commit[^;]*;)", "", "the phase never completes"},
      {R"(tcgen05\.wait::ld[^;]*;)", "", ""},
      {R"(fence\.proxy\.async[^;]*;)", "", "with no fence.proxy.async"},
      {R"(fence\.mbarrier_init[^;]*;)", "", "no fence.mbarrier_init"},
      {R"(bar\.sync 0;)", "", "since the last barrier"},
      {R"(bar\.sync 0;)", "", "since the last barrier", 1},
      {R"(bar\.sync 0;)", "", "loaded from them", 2},
      {kAfter, "", kNoFence, 1},
      {kAfter, "", kNoFence, 2},
      {kAfter, "", kNoFence, 3},
      {R"(tcgen05\.fence::before_thread_sync;)", "", "loaded from them", 1},
      // M 64, N 64, N 256, the other type, sums in float16.
      {kProduct, "$1 69207184,", "numbers of rows"},
      {kProduct, "$1 135267472,", "adds to a column that nobody wrote"},
      {kProduct, "$1 138413200,", "columns are allocated"},
      {kProduct, "$1 136315920,", "types of the operands"},
      {kProduct, "$1 136316032,", "sums are no float32"},
      // B turned; the swizzle of 64 bytes; wgmma's descriptor.
      {kProduct, "$1 136381584,", ""},
      {R"(or\.b64 (\S+ \S+) \d+;)", "or.b64 $1 -9223301393232625664;", "wrong"},
      {R"(or\.b64 (\S+ \S+) \d+;)", "or.b64 $1 4611686293305360384;", "no descriptor of tcgen05"},
      {R"((tcgen05\.ld[^\[]*\[%r\d+)\])", "$1+64]", "columns are allocated"},
      {R"((tcgen05\.ld[^\[]*\[%r\d+)\+1048576\])", "$1+2097152]", "its own quarter"},
      {R"((tcgen05\.alloc[^,]*,) 128;)", "$1 64;", "columns are allocated"},
      {R"((tcgen05\.dealloc[^,]*,) 128;)", "$1 64;", "these columns are not allocated"},
      {R"(tcgen05\.dealloc[^;]*;)", "", "columns of tensor memory were not freed"},
      {R"((tcgen05\.mma[^;]*), %p\d+;)", "$1, %p0;", ""}};
  for (const TensorMistake& m : mistakes) {
    const std::string said = found(*code, kernel, replaced(text, m));
    EXPECT_NE(said, "") << m.from << " → " << m.to;
    EXPECT_NE(said.find(m.said), std::string::npos) << m.from << " → " << m.to << ": " << said;
  }
}

// --- numbers ------------------------------------------------------------------------------------

/// docs/hw/nvidia/compiler.md has them.
TEST(NvPipe, ProductsLoadEachNumberFewTimes) {
  struct Row {
    Way way;
    const char* renderer;
    double most_instructions, most_bytes;
  };
  const Row rows[] = {{{"sm_101", "mma.sync"}, "PTX", 0.1, 1},  // fragments straight from memory
                      {kFragments, "PTX", 0.08, 0.04},
                      {kFragments, "NVRTC", 0.08, 0.04},
                      {kGroups, "PTX", 0.06, 0.04},
                      {kGroups, "NVRTC", 0.06, 0.04},
                      {kTensor, "PTX", 0.04, 0.04},
                      {kTensor, "NVRTC", 0.04, 0.04}};
  const Product p{.in = DType::kBF16, .out = DType::kBF16, .m = 256, .n = 512, .k = 512};
  for (const Row& row : rows) {
    if (row.renderer == std::string_view("NVRTC") && !compiler::nvrtc_version()) continue;
    const PtxRun run = expect_right(p, row.way, row.renderer);
    const auto products = static_cast<double>(p.m * p.n * p.k);
    const double instructions = static_cast<double>(run.lane_instructions) / products;
    const double bytes = static_cast<double>(run.traffic.global_load_bytes) / products;
    std::printf("%s %s %s: %.4f instructions, %.4f bytes loaded for each multiplication\n",
                row.way.card, row.way.instruction, row.renderer, instructions, bytes);
    EXPECT_LT(instructions, row.most_instructions);
    EXPECT_LT(bytes, row.most_bytes);
  }
}

/// What the toolkit's assembler says of the text of a kernel.
std::string assembler_says(const Product& p, const char* renderer, const std::string& name) {
  const auto code = compile_text(product_kernel(p), card(name.c_str(), 132), renderer);
  if (!code) return code.error().message;
  const std::string path = testing::TempDir() + fmt::format("bm_nv_pipe.{}.ptx", getpid());
  std::ofstream(path) << text_of(*code);
  const std::string command = fmt::format("ptxas -v -arch={}a -o /dev/null {} 2>&1", name, path);
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  std::array<char, 256> line;
  while (pipe != nullptr && std::fgets(line.data(), line.size(), pipe) != nullptr)
    out += line.data();
  if (pipe != nullptr) pclose(pipe);
  std::filesystem::remove(path);
  return out;
}

/// Assemblers put products in a row, each waiting for the one before, where they do not see that
/// nothing touches the sums meanwhile.
void expect_asynchronous(const Product& p, const char* renderer, const char* name = "sm_90") {
  const std::string said = assembler_says(p, renderer, name);
  EXPECT_NE(said.find("Used "), std::string::npos) << said;
  EXPECT_EQ(said.find("(C75"), std::string::npos) << said;
  EXPECT_NE(said.find(" 0 bytes spill stores"), std::string::npos) << said;
  EXPECT_EQ(said.find("warning"), std::string::npos) << said;
}

constexpr Product kLarge{.in = DType::kBF16, .out = DType::kBF16, .m = 4096, .n = 4096, .k = 4096};

bool has_assembler() { return std::system("ptxas --version >/dev/null 2>&1") == 0; }

TEST(NvPipe, ProductsGoOnBesideEachOther) {
  if (!has_assembler()) GTEST_SKIP() << "no ptxas";
  std::vector<Product> products = {kLarge, kLarge, kLarge, kLarge};
  products[1].is_right_deep = true;
  products[2].m = products[2].n = 4000;
  products[3].has_epilogue = true;
  for (const char* renderer : {"PTX", "NVRTC"}) {
    if (renderer == std::string_view("NVRTC") && !compiler::nvrtc_version()) continue;
    for (const Product& p : products)
      for (const char* name : {"sm_90", "sm_100"}) expect_asynchronous(p, renderer, name);
  }
}

TEST(NvPipe, Tf32ProductsGoOnBesideEachOther) {
  if (!has_assembler()) GTEST_SKIP() << "no ptxas";
  const ScopedSetting setting("ALLOW_TF32", "1");
  for (const char* renderer : {"PTX", "NVRTC"}) {
    if (renderer == std::string_view("NVRTC") && !compiler::nvrtc_version()) continue;
    for (const bool is_left_transposed : {false, true})
      for (const bool is_right_deep : {true, false})
        for (const char* name : {"sm_90", "sm_100"})
          expect_asynchronous(tf32(4096, 4096, 4096, is_left_transposed, is_right_deep), renderer,
                              name);
  }
}

TEST(NvPipe, OtherDatacenterBlackwellsHaveTensorMemory) {
  if (!has_assembler()) GTEST_SKIP() << "no ptxas";
  const ScopedSetting setting("ALLOW_TF32", "1");
  for (const char* renderer : {"PTX", "NVRTC"}) {
    if (renderer == std::string_view("NVRTC") && !compiler::nvrtc_version()) continue;
    for (const char* name : {"sm_103", "sm_110"}) {
      const auto code = compile_text(product_kernel(kLarge), card(name, 132), "PTX");
      ASSERT_TRUE(code) << code.error().message;
      EXPECT_NE(text_of(*code).find("tcgen05.mma"), std::string::npos) << name;
      expect_asynchronous(kLarge, renderer, name);
      expect_asynchronous(tf32(4096, 4096, 4096, false, true), renderer, name);
    }
  }
}

/// docs/hw/nvidia/code.md has them: of what the card could do in the time that issuing takes.
TEST(NvPipe, LargeProductsAreMostOfTheRoofline) {
  const ScopedSetting tf32_setting("ALLOW_TF32", "1");
  Product deep = kLarge, rows = kLarge;
  deep.in = rows.in = deep.out = rows.out = DType::kF32;
  deep.is_right_deep = true;
  for (const Product& p : {kLarge, deep, rows})
    for (const auto& [name, wgmma] : {std::pair("sm_90", "1"), std::pair("sm_90", "0"),
                                      std::pair("sm_100", "1"), std::pair("sm_100", "0")}) {
      const ScopedSetting setting("BM_NV_WGMMA", wgmma);
      const auto explained = compiler::explain(product_kernel(p), card(name, 132), "PTX");
      ASSERT_TRUE(explained) << explained.error().message;
      const auto size = static_cast<double>(item_size(p.in));
      const compiler::StaticRoof roof =
          compiler::static_roof(explained->count, *compiler::find_card(name), 132,
                                2.0 * 4096 * 4096 * 4096, 3.0 * 4096 * 4096 * size);
      std::printf("%s, %s, %s, wgmma %s: %.2f of the roofline, bound by %s\n", name,
                  p.in == DType::kF32 ? "tf32" : "bfloat16", p.is_right_deep ? "A·Bᵀ" : "A·B",
                  wgmma, roof.of_roof, roof.bound_by);
      // Of the peak of 16-bit operands, of which tf32's own is half.
      const bool has_tensor_memory = name == std::string_view("sm_100");
      const double least = p.in != DType::kF32 ? 0.6 : has_tensor_memory ? 0.25 : 0.5;
      EXPECT_GE(roof.of_roof, wgmma[0] == '1' ? least : 0);
    }
}

TEST(NvPipe, EpiloguesKeepProductsAsynchronous) {
  if (!has_assembler()) GTEST_SKIP() << "no ptxas";
  for (const Tail tail : kTails)
    for (const int variant : {0, 1, 2, 3}) {
      Product p = kLarge;
      p.has_epilogue = variant % 2 == 1;
      p.out = variant < 2 ? DType::kBF16 : DType::kF32;
      // Tiles that reach beyond the results load the bias at clamped places.
      if (variant > 0) p.n = 4001 + 7 * variant, p.m = 4000;
      p.tail = tail;
      SCOPED_TRACE(fmt::format("tail {}, variant {}", static_cast<int>(tail), variant));
      p.is_right_deep = tail == Tail::kResidual;
      for (const char* name : {"sm_90", "sm_100"}) expect_asynchronous(p, "PTX", name);
    }
}

TEST(NvPipe, SimtTilesStayInRegisters) {
  if (!has_assembler()) GTEST_SKIP() << "no ptxas";
  for (const int64_t size : {512, 1000, 2048})
    expect_asynchronous({.in = DType::kF32, .m = size, .n = size, .k = size}, "PTX");
}

TEST(NvPipe, LargeProductsAreAssembled) {
  if (const auto v = compiler::nvjitlink_version(); !v) GTEST_SKIP() << v.error().message;
  for (const char* name : {"sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"})
    for (const bool is_right_deep : {false, true}) {
      const auto kernel =
          product_kernel({.m = 4096, .n = 4096, .k = 4096, .is_right_deep = is_right_deep});
      const auto code = compiler::compile(kernel, card(name, 132), "PTX", {.use_cache = false});
      ASSERT_TRUE(code) << name << ": " << code.error().message;
      EXPECT_GT(code->launch_memory_bytes, 48u << 10) << name;
      EXPECT_EQ(std::memcmp(code->image.data(),
                            "\x7f"
                            "ELF",
                            4),
                0)
          << name;
    }
  if (!compiler::nvrtc_version()) return;
  const auto kernel = product_kernel({.in = DType::kBF16, .m = 1024, .n = 1024, .k = 1024});
  for (const char* name : {"sm_80", "sm_90"}) {
    const auto code = compiler::compile(kernel, card(name, 132), "NVRTC", {.use_cache = false});
    ASSERT_TRUE(code) << name << ": " << code.error().message;
    EXPECT_EQ(code->arch, name) << "whatever its code is made for";
  }
}

}  // namespace
}  // namespace bm::test
