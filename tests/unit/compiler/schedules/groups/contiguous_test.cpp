// Vector loads and stores: elements narrower than a word are one work-item's, 16 bytes at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "compiler/compile.h"
#include "compiler/schedules/schedule.h"
#include "compiler/targets/target.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/ptx_runner.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using ir::Node;
using ir::Op;

/// out[i][j] = f(in[i][j], row[j], column[i]), or one number a row.
struct Case {
  int64_t rows = 1, columns = 1;
  DType in = DType::kF16, out = DType::kF16;
  bool has_row = false, has_column = false, has_padding = false, has_second = false;
  enum Kind : uint8_t { kEach, kSoftmax, kSum, kScaled } kind = kEach;
  std::string text() const {
    return fmt::format("{}x{} {} {}{}{}{}{} kind {}", rows, columns, dtype_name(in),
                       dtype_name(out), has_row ? " row" : "", has_column ? " column" : "",
                       has_padding ? " padding" : "", has_second ? " second" : "",
                       static_cast<int>(kind));
  }
};

class CaseBuilder {
 public:
  explicit CaseBuilder(const Case& c) : c_(c) {
    k_.name = "contiguous";
    k_.graph = std::make_unique<ir::Graph>();
  }
  ir::KernelIr build() {
    ir::Graph& g = *k_.graph;
    const Node *i = g.range(g.index(c_.rows)), *j = g.range(g.index(c_.columns));
    const bool is_sum = c_.kind == Case::kSum;
    k_.ranges = {i};
    if (!is_sum) k_.ranges.push_back(j);
    const int64_t all = c_.rows * c_.columns;
    k_.params.push_back({.dtype = c_.out, .elements = is_sum ? c_.rows : all, .is_written = true});
    const Node* at = g.add(g.mul(i, c_.columns), j);
    const Node* x =
        wide(load(c_.in, all, at, c_.has_padding ? g.less(i, g.index(c_.rows - 1)) : nullptr));
    if (c_.has_row) x = g.binary(Op::kAdd, x, wide(load(c_.in, c_.columns, j)));
    if (c_.has_column) x = g.binary(Op::kAdd, x, wide(load(c_.in, c_.rows, i)));
    if (c_.has_second) x = g.binary(Op::kAdd, x, load(DType::kF32, all, at));
    const std::array over{j};
    if (is_sum) x = g.reduce(ir::ReduceOp::kSum, x, over);
    if (c_.kind == Case::kScaled) x = g.binary(Op::kAdd, x, g.reduce(ir::ReduceOp::kMax, x, over));
    if (c_.kind == Case::kSoftmax) {
      const Node* most = g.reduce(ir::ReduceOp::kMax, x, over);
      const Node* power = g.unary(Op::kExp2, g.binary(Op::kSub, x, most));
      x = g.binary(Op::kDiv, power, g.reduce(ir::ReduceOp::kSum, power, over));
    }
    k_.stores.push_back({.param = 0, .index = is_sum ? i : at, .value = g.cast(x, c_.out)});
    return std::move(k_);
  }

 private:
  const Node* wide(const Node* n) { return k_.graph->cast(n, DType::kF32); }
  const Node* load(DType t, int64_t elements, const Node* at, const Node* gate = nullptr) {
    k_.params.push_back({.dtype = t, .elements = elements, .is_read = true});
    return k_.graph->load(static_cast<int>(k_.params.size() - 1), t, at, gate);
  }
  const Case& c_;
  ir::KernelIr k_;
};

Buffers small_numbers(const ir::KernelIr& kernel, std::mt19937_64& random) {
  Buffers out;
  for (const ir::Param& p : kernel.params) {
    const auto size = static_cast<size_t>(item_size(p.dtype));
    std::vector<std::byte> bytes(static_cast<size_t>(p.elements) * size, std::byte{1});
    for (size_t i = 0; p.is_read && i < bytes.size(); i += size) {
      const auto n = static_cast<int64_t>(random() % (is_bool(p.dtype) ? 2 : 5));
      const auto f = static_cast<float>(n);
      const auto bits = static_cast<uint64_t>(n);
      const uint16_t half = p.dtype == DType::kF16 ? f32_to_f16(f) : f32_to_bf16(f);
      if (p.dtype == DType::kF32)
        std::memcpy(&bytes[i], &f, 4);
      else if (is_half_like(p.dtype))
        std::memcpy(&bytes[i], &half, 2);
      else
        std::memcpy(&bytes[i], &bits, size);
    }
    out.push_back(std::move(bytes));
  }
  return out;
}

/// What the kernel makes of `in`, in float64; sums and maxima of these small numbers are exact.
std::vector<std::byte> reference(const Case& c, const Buffers& in) {
  const auto number = [](const std::vector<std::byte>& bytes, DType t, int64_t i) {
    float single = 0;
    uint16_t half = 0;
    const std::byte* from = &bytes[static_cast<size_t>(i * item_size(t))];
    if (t == DType::kF32) std::memcpy(&single, from, 4);
    if (is_half_like(t)) std::memcpy(&half, from, 2);
    return t == DType::kF32    ? static_cast<double>(single)
           : t == DType::kF16  ? static_cast<double>(f16_to_f32(half))
           : t == DType::kBF16 ? static_cast<double>(bf16_to_f32(half))
                               : static_cast<double>(static_cast<uint8_t>(*from));
  };
  std::vector<std::byte> out;
  const auto put = [&](double v) {
    const auto f = static_cast<float>(v);
    const uint16_t half = c.out == DType::kF16 ? f32_to_f16(f) : f32_to_bf16(f);
    const auto byte = static_cast<int8_t>(v);
    const auto* from = is_half_like(c.out) ? reinterpret_cast<const std::byte*>(&half)
                                           : reinterpret_cast<const std::byte*>(&byte);
    out.insert(out.end(), from, from + item_size(c.out));
  };
  for (int64_t i = 0; i < c.rows; ++i) {
    std::vector<double> x;
    for (int64_t j = 0; j < c.columns; ++j) {
      const int64_t at = i * c.columns + j;
      size_t next = 2;
      double v = c.has_padding && i + 1 == c.rows ? 0 : number(in[1], c.in, at);
      if (c.has_row) v += number(in[next++], c.in, j);
      if (c.has_column) v += number(in[next++], c.in, i);
      if (c.has_second) v += number(in[next], DType::kF32, at);
      x.push_back(v);
    }
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const double v : x) sum += c.kind == Case::kSoftmax ? std::exp2(v - most) : v;
    if (c.kind == Case::kSum) put(sum);
    for (size_t j = 0; c.kind != Case::kSum && j < x.size(); ++j)
      put(c.kind == Case::kSoftmax  ? std::exp2(x[j] - most) / sum
          : c.kind == Case::kScaled ? x[j] + most
                                    : x[j]);
  }
  return out;
}

/// Quotients may differ in their last bit: one unit of a 16-bit result.
bool is_near(const Case& c, const std::vector<std::byte>& got, const std::vector<std::byte>& want) {
  if (c.kind != Case::kSoftmax) return got == want;
  for (size_t i = 0; i < got.size(); i += 2) {
    uint16_t a = 0, b = 0;
    std::memcpy(&a, &got[i], 2);
    std::memcpy(&b, &want[i], 2);
    if (std::abs(a - b) > 1) return false;
  }
  return true;
}

uint32_t contiguous_of(const Case& c, const hal::Arch& arch) {
  const ir::KernelIr kernel = CaseBuilder(c).build();
  return compiler::make_schedule(kernel, compiler::target_info(arch), arch.units).contiguous.count;
}

class Contiguous : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(where()); !reason.empty()) GTEST_SKIP() << reason;
  }
  static Where where() { return {GetParam()}; }
  void expect_right(const Case& c, bool is_expected = true) {
    const ir::KernelIr kernel = CaseBuilder(c).build();
    ASSERT_TRUE(ir::verify(kernel)) << c.text();
    EXPECT_EQ(contiguous_of(c, arch_of(where())) > 1, is_expected) << c.text();
    Buffers got = small_numbers(kernel, random_);
    const std::vector<std::byte> want = reference(c, got);
    const Status done = run_on(where(), kernel, got, {});
    ASSERT_TRUE(done) << c.text() << ": " << done.error().message;
    EXPECT_TRUE(is_near(c, got[0], want)) << where_name(where()) << ": " << c.text();
  }
  std::mt19937_64 random_{std::random_device{}()};
};

TEST_P(Contiguous, Elements) {
  for (const auto& [in, out] : {std::pair{DType::kBF16, DType::kF16},
                                {DType::kU8, DType::kI8},
                                {DType::kI8, DType::kF16},
                                {DType::kBool, DType::kBF16}})
    expect_right({.rows = 36, .columns = 2048, .in = in, .out = out});
  expect_right({.rows = 70, .columns = 1000, .has_row = true});
  expect_right({.rows = 65, .columns = 1024, .has_column = true, .has_padding = true});
  expect_right({.rows = 36, .columns = 2048, .has_second = true});
  // Rows that do not start at whole accesses.
  expect_right({.rows = 70, .columns = 1001, .has_row = true}, false);
}

TEST_P(Contiguous, Rows) {
  using enum Case::Kind;
  for (const auto& [kind, columns] : {std::pair<Case::Kind, int64_t>{kSoftmax, 1024},
                                      {kSoftmax, 4096},
                                      {kScaled, 3000},
                                      {kSum, 1000},
                                      {kSum, 12'288}})
    expect_right({.rows = 9, .columns = columns, .has_row = kind == kScaled, .kind = kind});
  expect_right(
      {.rows = 5, .columns = 4096, .in = DType::kI8, .out = DType::kBF16, .kind = kScaled});
}

INSTANTIATE_TEST_SUITE_P(Gpus, Contiguous,
                         testing::Values("PTX", "NVRTC", "NVPTX", "GFX1100", "GFX1201", "GFX1030",
                                         "GFX942"),
                         [](const auto& given) { return std::string(given.param); });

std::string text_of(const ir::KernelIr& kernel) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  const auto code = compiler::compile(kernel, ptx_arch(), "PTX", {.use_cache = false});
  EXPECT_TRUE(code) << code.error().message;
  return code ? std::string(reinterpret_cast<const char*>(code->image.data())) : "";
}

size_t count_of(const std::string& text, std::string_view what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(ContiguousAccesses, AreOfSixteenBytes) {
  // Eight of two bytes, sixteen of one: once in each of the code's two ways, the other in a loop.
  for (const DType t : {DType::kF16, DType::kBF16, DType::kI8}) {
    const std::string text =
        text_of(CaseBuilder({.rows = 128, .columns = 2048, .in = t, .out = t}).build());
    EXPECT_EQ(count_of(text, "ld.global.v4.u32"), 1u) << text;
    EXPECT_EQ(count_of(text, "st.global.v4.u32"), 1u) << text;
    EXPECT_EQ(count_of(text, "ld.global"), 2u) << text;
    EXPECT_EQ(count_of(text, "st.global"), 2u) << text;
  }
}

/// Params that do not start at a multiple of 16 bytes: single elements.
TEST(ContiguousAccesses, OfParamsThatStartAnywhere) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  std::mt19937_64 random(std::random_device{}());
  for (const Case::Kind kind : {Case::kEach, Case::kSoftmax})
    for (const uint64_t shift : {uint64_t{2}, uint64_t{8}}) {
      const Case c{.rows = 32, .columns = 4096, .kind = kind};
      const ir::KernelIr kernel = CaseBuilder(c).build();
      Buffers got = small_numbers(kernel, random), amd = got;
      const std::vector<std::byte> want = reference(c, got);
      const auto code = compiler::compile(kernel, ptx_arch(), "PTX", {.use_cache = false});
      ASSERT_TRUE(code) << code.error().message;
      const auto done = run_on_ptx(*code, got, {}, shift);
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_TRUE(is_near(c, got[0], want)) << shift;
      const auto other =
          compiler::compile(kernel, amd_arch("gfx1100"), "LLVM", {.use_cache = false});
      ASSERT_TRUE(other) << other.error().message;
      const auto amd_done = run_on_amd(*other, amd, {}, shift);
      ASSERT_TRUE(amd_done) << amd_done.error().message;
      EXPECT_TRUE(is_near(c, amd[0], want)) << shift;
    }
}

}  // namespace
}  // namespace bm::test
