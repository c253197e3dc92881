// Scans (prefix sums) of GPUs on the interpreters of PTX and of AMD's instructions, against sums in
// float64 and whole numbers; mistakes in their code are found.
#include <gtest/gtest.h>

#include <algorithm>
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

/// out[i][j][k] = op over j' <= j of in[i][j'][k], offset elements into the input.
struct Lines {
  int64_t outer = 1, length = 1, inner = 1;
  DType in = DType::kF32, sum = DType::kF32, out = DType::kF32;
  ir::ReduceOp op = ir::ReduceOp::kSum;
  int64_t offset = 0;
  int64_t used = -1;  ///< of the length, known at launch only; -1: it is a constant
  int64_t elements() const { return outer * length * inner; }
  std::string text() const {
    return fmt::format("{}x{}x{} {} {} {} op {} offset {} used {}", outer, length, inner,
                       dtype_name(in), dtype_name(sum), dtype_name(out), static_cast<int>(op),
                       offset, used);
  }
};

ir::KernelIr scan_kernel(const Lines& l) {
  ir::KernelIr k;
  k.name = "scan";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  const Node* length = g.index(l.length);
  if (l.used >= 0) {
    k.vars = {{.name = "n", .min = 1, .max = l.length}};
    length = g.var(0, 1, l.length);
  }
  // Axes of one element have no loops, as in kernels of tensors.
  const auto loop = [&](const Node* extent) {
    if (extent->is_const(1)) return g.index(0);
    k.ranges.push_back(g.range(extent));
    return k.ranges.back();
  };
  const Node *i = loop(g.index(l.outer)), *j = g.range(length);
  k.ranges.push_back(j);
  const Node* c = loop(g.index(l.inner));
  k.params = {{.dtype = l.out, .elements = l.elements(), .is_written = true},
              {.dtype = l.in, .elements = l.elements() + l.offset, .is_read = true}};
  const Node* at = g.add(g.mul(g.add(g.mul(i, l.length), j), l.inner), c);
  const Node* value = g.cast(g.load(1, l.in, g.add(at, l.offset)), l.sum);
  k.stores.push_back({.param = 0, .index = at, .value = g.cast(g.scan(l.op, value, j), l.out)});
  return k;
}

double number_at(const std::vector<std::byte>& bytes, DType t, int64_t i) {
  const std::byte* from = &bytes[static_cast<size_t>(i * item_size(t))];
  const auto as = [&]<class T>(T v) {
    std::memcpy(&v, from, sizeof v);
    return v;
  };
  switch (t) {
    case DType::kF32: return static_cast<double>(as(float{}));
    case DType::kF64: return as(double{});
    case DType::kF16: return static_cast<double>(f16_to_f32(as(uint16_t{})));
    case DType::kBF16: return static_cast<double>(bf16_to_f32(as(uint16_t{})));
    case DType::kI8: return as(int8_t{});
    case DType::kU8: return as(uint8_t{});
    case DType::kI32: return as(int32_t{});
    case DType::kI64: return static_cast<double>(as(int64_t{}));
    default: ADD_FAILURE() << dtype_name(t); return 0;
  }
}

void set_number(std::vector<std::byte>* bytes, DType t, int64_t i, double v) {
  std::byte* to = &(*bytes)[static_cast<size_t>(i * item_size(t))];
  const auto put = [&](auto value) { std::memcpy(to, &value, sizeof value); };
  switch (t) {
    case DType::kF32: return put(static_cast<float>(v));
    case DType::kF64: return put(v);
    case DType::kF16: return put(f32_to_f16(static_cast<float>(v)));
    case DType::kBF16: return put(f32_to_bf16(static_cast<float>(v)));
    case DType::kI8: return put(static_cast<int8_t>(v));
    case DType::kU8: return put(static_cast<uint8_t>(v));
    case DType::kI32: return put(static_cast<int32_t>(v));
    case DType::kI64: return put(static_cast<int64_t>(v));
    default: ADD_FAILURE() << dtype_name(t);
  }
}

Buffers drawn(const Lines& l, std::mt19937_64& random) {
  Buffers out;
  out.emplace_back(static_cast<size_t>(l.elements() * item_size(l.out)), std::byte{0x5a});
  out.emplace_back(static_cast<size_t>((l.elements() + l.offset) * item_size(l.in)));
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < l.elements() + l.offset; ++i) {
    double v = normal(random);
    if (l.op == ir::ReduceOp::kProd) v = 1 + v / 64;
    if (is_int(l.in)) v = static_cast<double>(random() % 7) - (is_signed(l.in) ? 3 : 0);
    set_number(&out[1], l.in, i, v);
  }
  return out;
}

/// "" or the first element that is wrong. Elements beyond those used are as they were.
std::string wrong(const Lines& l, const Buffers& got) {
  const int64_t used = l.used < 0 ? l.length : l.used;
  const double unit = l.out == DType::kF16    ? 0x1p-10
                      : l.out == DType::kBF16 ? 0x1p-7
                      : l.sum == DType::kF32  ? 0x1p-20
                                              : 0x1p-40;
  for (int64_t i = 0; i < l.outer; ++i)
    for (int64_t c = 0; c < l.inner; ++c) {
      double sum = l.op == ir::ReduceOp::kSum    ? 0
                   : l.op == ir::ReduceOp::kProd ? 1
                   : l.op == ir::ReduceOp::kMax  ? -HUGE_VAL
                                                 : HUGE_VAL;
      double size = 0;
      for (int64_t j = 0; j < l.length; ++j) {
        const int64_t at = (i * l.length + j) * l.inner + c;
        const double own = number_at(got[1], l.in, at + l.offset);
        switch (l.op) {
          case ir::ReduceOp::kSum: sum += own; break;
          case ir::ReduceOp::kProd: sum *= own; break;
          case ir::ReduceOp::kMax: sum = std::max(sum, own); break;
          case ir::ReduceOp::kMin: sum = std::min(sum, own); break;
        }
        // A product rounds at every factor, and all of it is there to be rounded.
        const double factors = std::max(4.0, static_cast<double>(j) / 64);
        size = l.op == ir::ReduceOp::kSum ? size + std::fabs(own) : std::fabs(sum) * factors;
        if (j >= used) {
          const auto bytes = static_cast<size_t>(item_size(l.out));
          for (size_t b = 0; b < bytes; ++b)
            if (got[0][static_cast<size_t>(at) * bytes + b] != std::byte{0x5a})
              return fmt::format("{}: element {} of {} was written", l.text(), j, used);
          continue;
        }
        const double value = number_at(got[0], l.out, at);
        const double most = is_int(l.out) ? 0 : unit * (size + std::fabs(sum));
        if (!(std::fabs(value - sum) <= most))
          return fmt::format("{}: line {}, {}, element {}: {}, not {}", l.text(), i, c, j, value,
                             sum);
      }
    }
  return "";
}

class Scans : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(where()); !reason.empty()) GTEST_SKIP() << reason;
  }
  static Where where() { return {GetParam()}; }
  void expect_right(const Lines& l) {
    const ir::KernelIr kernel = scan_kernel(l);
    ASSERT_TRUE(ir::verify(kernel)) << l.text();
    Buffers buffers = drawn(l, random_);
    std::vector<int64_t> vars(kernel.vars.size(), l.used);
    const Status done = run_on(where(), kernel, buffers, vars);
    ASSERT_TRUE(done) << where_name(where()) << ": " << l.text() << ": " << done.error().message;
    EXPECT_EQ(wrong(l, buffers), "") << where_name(where());
  }
  std::mt19937_64 random_{std::random_device{}()};
};

TEST_P(Scans, OfLinesOfEveryLength) {
  for (const int64_t length : {1, 5, 33, 256, 1000, 4096})
    expect_right({.outer = length < 300 ? 9 : 2, .length = length});
  expect_right({.outer = 1, .length = 9000});
}

TEST_P(Scans, AcrossAdjacentLines) {
  for (const int64_t length : {3, 70, 200})
    for (const int64_t inner : {2, 32, 100})
      expect_right({.outer = 2, .length = length, .inner = inner});
}

TEST_P(Scans, OfEveryTypeAndOperation) {
  using enum DType;
  using enum ir::ReduceOp;
  for (const int64_t length : {96, 4500})
    for (const Lines& l :
         {Lines{.in = kF16, .sum = kF32, .out = kF16},
          Lines{.in = kBF16, .sum = kF32, .out = kBF16}, Lines{.in = kI8, .sum = kI64, .out = kI64},
          Lines{.in = kU8, .sum = kI32, .out = kI32}, Lines{.in = kI64, .sum = kI64, .out = kI64},
          Lines{.in = kF64, .sum = kF64, .out = kF64},
          Lines{.in = kI8, .sum = kI8, .out = kI8, .op = kMax},
          Lines{.in = kU8, .sum = kU8, .out = kU8, .op = kMin},
          Lines{.in = kF16, .sum = kF16, .out = kF16, .op = kMax},
          Lines{.in = kF32, .op = kProd}}) {
      Lines own = l;
      own.length = length;
      own.outer = length < 100 ? 5 : 1;
      expect_right(own);
    }
}

TEST_P(Scans, OfLengthsKnownAtLaunch) {
  for (const int64_t used : {1, 63, 300}) {
    expect_right({.outer = 3, .length = 300, .used = used});
    expect_right({.outer = 2, .length = 300, .inner = 40, .used = used});
  }
  expect_right({.outer = 1, .length = 9000, .used = 5001});
}

TEST_P(Scans, FromAnywhere) {
  for (const int64_t offset : {1, 2, 3})
    expect_right({.outer = 2, .length = 512, .in = DType::kF16, .offset = offset});
}

INSTANTIATE_TEST_SUITE_P(Gpus, Scans,
                         testing::Values("PTX", "NVRTC", "NVPTX", "OPENCL", "GFX1100", "GFX1201",
                                         "GFX1030", "GFX942"),
                         [](const auto& given) { return std::string(given.param); });

/// Params that do not start at a multiple of 16 bytes: the same numbers by single elements.
TEST(GroupScans, OfParamsThatStartAnywhere) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  std::mt19937_64 random(std::random_device{}());
  for (const uint64_t shift : {uint64_t{2}, uint64_t{8}}) {
    const Lines l{
        .outer = 2, .length = 4096, .in = DType::kF16, .sum = DType::kF32, .out = DType::kF16};
    Buffers buffers = drawn(l, random), other = buffers;
    const auto ptx = compiler::compile(scan_kernel(l), ptx_arch(), "PTX", {.use_cache = false});
    ASSERT_TRUE(ptx) << ptx.error().message;
    const auto done = run_on_ptx(*ptx, buffers, {}, shift);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(wrong(l, buffers), "");
    const auto amd =
        compiler::compile(scan_kernel(l), amd_arch("gfx1100"), "LLVM", {.use_cache = false});
    ASSERT_TRUE(amd) << amd.error().message;
    const auto amd_done = run_on_amd(*amd, other, {}, shift);
    ASSERT_TRUE(amd_done) << amd_done.error().message;
    EXPECT_EQ(wrong(l, other), "");
  }
}

/// What the text of a kernel is changed to must not give the right results, or not run at all.
TEST(GroupScans, PlantedMistakesAreFound) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  std::mt19937_64 random(std::random_device{}());
  const Lines l{.outer = 1, .length = 9000};
  auto code = compiler::compile(scan_kernel(l), ptx_arch(), "PTX", {.use_cache = false});
  ASSERT_TRUE(code) << code.error().message;
  const std::string right(reinterpret_cast<const char*>(code->image.data()),
                          code->image.size() - 1);
  struct Mistake {
    const char* what;
    std::string_view from, to;
  };
  for (const Mistake& m :
       {Mistake{"no barrier behind the totals of sub-groups", "bar.sync", "// bar.sync"},
        Mistake{"lanes exchanged twice as far", ", 4, 31", ", 8, 31"},
        Mistake{"what precedes is left out", "add.f32", "sub.f32"},
        Mistake{"an element loaded twice", "ld.global.v4.u32", "ld.global.v4.u32 "}}) {
    std::string changed = right;
    const bool is_none = m.from.size() + 1 == m.to.size();
    // The first way is that of params at multiples of 16 bytes, which are these.
    const size_t at = changed.find(m.from);
    ASSERT_NE(at, std::string::npos) << m.what << "\n" << right;
    changed.replace(at, m.from.size(), m.to);
    hal::CodeObject other = *code;
    other.image.resize(changed.size() + 1);
    std::memcpy(other.image.data(), changed.c_str(), changed.size() + 1);
    Buffers buffers = drawn(l, random);
    const auto done = run_on_ptx(other, buffers, {});
    const bool is_found = !done || !wrong(l, buffers).empty();
    EXPECT_EQ(is_found, !is_none) << m.what;
  }
}

/// One pass: every element is read and written once, whole sectors, and little is done for each.
TEST(GroupScans, ReadOnceAndWriteOnce) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  std::mt19937_64 random(std::random_device{}());
  for (const Lines& l :
       {Lines{.outer = 4, .length = 4096}, Lines{.outer = 1, .length = 256, .inner = 256},
        Lines{.outer = 2,
              .length = 8192,
              .in = DType::kF16,
              .sum = DType::kF32,
              .out = DType::kF16}}) {
    const auto code = compiler::compile(scan_kernel(l), ptx_arch(), "PTX", {.use_cache = false});
    ASSERT_TRUE(code) << code.error().message;
    Buffers buffers = drawn(l, random);
    const auto done = run_on_ptx(*code, buffers, {});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(wrong(l, buffers), "");
    const sim::ptx::Traffic& t = done->traffic;
    const auto each = static_cast<uint64_t>(l.elements());
    EXPECT_EQ(t.global_load_bytes, each * static_cast<uint64_t>(item_size(l.in))) << l.text();
    EXPECT_EQ(t.global_load_sectors * sim::ptx::kSectorBytes, t.global_load_bytes) << l.text();
    EXPECT_EQ(t.global_store_sectors * sim::ptx::kSectorBytes, t.global_store_bytes) << l.text();
    const double instructions =
        static_cast<double>(done->lane_instructions) / static_cast<double>(each);
    std::printf("%s: %.1f instructions an element\n", l.text().c_str(), instructions);
    EXPECT_LE(instructions, 30) << l.text();
  }
}

}  // namespace
}  // namespace bm::test
