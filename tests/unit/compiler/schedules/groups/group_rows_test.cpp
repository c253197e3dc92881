// Softmax, norms and reductions on targets with work-groups: results of random shapes, and how
// often a row is read and a group waits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "compiler/analysis/unify.h"
#include "compiler/compile.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/ptx_runner.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using ir::Node;
using ir::Op;
using ir::ReduceOp;

enum class Kind : uint8_t { kSoftmax, kNorm, kSum, kMax, kFirstMost };

struct Case {
  Kind kind = Kind::kSum;
  int64_t results = 1, depth = 1;  ///< rows and their elements
  bool is_down = false;            ///< neighbours in memory are rows
  DType dtype = DType::kF32;

  bool has_rows() const { return kind == Kind::kSoftmax || kind == Kind::kNorm; }
  std::string text() const {
    static constexpr std::array kNames = {"softmax", "norm", "sum", "max", "first largest"};
    return fmt::format("{} of {} rows of {}{}, {}", kNames[static_cast<size_t>(kind)], results,
                       depth, is_down ? ", one beside the other" : "", dtype_name(dtype));
  }
};

class Maker {
 public:
  explicit Maker(const Case& c) : c_(c) {}

  ir::KernelIr make() {
    k_.name = "rows";
    k_.graph = std::make_unique<ir::Graph>();
    i_ = g().range(g().index(c_.results));
    k_.ranges = {i_};
    const int64_t all = c_.results * c_.depth;
    const DType out = c_.kind == Kind::kFirstMost ? DType::kI64 : DType::kF32;
    k_.params = {{.dtype = out, .elements = c_.has_rows() ? all : c_.results, .is_written = true},
                 {.dtype = c_.dtype, .elements = all, .is_read = true}};
    const Node* j = c_.has_rows() ? range() : nullptr;
    const Node* value = c_.kind == Kind::kSoftmax ? softmax(j)
                        : c_.kind == Kind::kNorm  ? norm(j)
                        : c_.kind == Kind::kSum   ? sum([&](const Node* r) { return x(r); })
                        : c_.kind == Kind::kMax   ? most()
                                                  : first_most();
    if (c_.has_rows() && !c_.is_down) k_.ranges = {i_, j};
    if (c_.has_rows() && c_.is_down) k_.ranges = {j, i_};
    k_.stores.push_back({.param = 0, .index = c_.has_rows() ? at(j) : i_, .value = value});
    compiler::unify_ranges(&k_);
    return std::move(k_);
  }

 private:
  ir::Graph& g() { return *k_.graph; }
  const Node* range() { return g().range(g().index(c_.depth)); }
  const Node* at(const Node* r) {
    return c_.is_down ? g().add(g().mul(r, c_.results), i_) : g().add(g().mul(i_, c_.depth), r);
  }
  const Node* x(const Node* r) { return g().cast(g().load(1, c_.dtype, at(r)), DType::kF32); }
  const Node* number(double v) { return g().constant_f(DType::kF32, v); }
  template <class F>
  const Node* sum(F f) {
    const Node* r = range();
    return g().reduce(ReduceOp::kSum, f(r), std::array{r});
  }
  const Node* most() {
    const Node* r = range();
    return g().reduce(ReduceOp::kMax, x(r), std::array{r});
  }
  const Node* softmax(const Node* j) {
    const Node* top = most();
    const auto power = [&](const Node* r) {
      return g().unary(Op::kExp2, g().binary(Op::kSub, x(r), top));
    };
    return g().binary(Op::kDiv, power(j), sum(power));
  }
  const Node* norm(const Node* j) {
    const Node* count = number(1.0 / static_cast<double>(c_.depth));
    const Node* mean = g().binary(Op::kMul, sum([&](const Node* r) { return x(r); }), count);
    const auto centred = [&](const Node* r) { return g().binary(Op::kSub, x(r), mean); };
    const Node* squares = sum([&](const Node* r) {
      const Node* v = centred(r);
      return g().binary(Op::kMul, v, v);
    });
    const Node* spread = g().binary(Op::kAdd, g().binary(Op::kMul, squares, count), number(0.25));
    return g().binary(Op::kDiv, centred(j), g().unary(Op::kSqrt, spread));
  }
  const Node* first_most() {
    const Node* top = most();
    const Node* r = range();
    const Node* none = g().index(c_.depth);
    const Node* place = g().select(g().binary(Op::kEq, x(r), top), r, none);
    return g().reduce(ReduceOp::kMin, place, std::array{r});
  }

  Case c_;
  ir::KernelIr k_;
  const Node* i_ = nullptr;
};

/// Multiples of 1/4 that float16 holds, and the largest of every row twice.
std::vector<double> numbers(const Case& c, std::mt19937_64& random) {
  std::vector<double> v(static_cast<size_t>(c.results * c.depth));
  for (double& x : v) x = static_cast<double>(static_cast<int64_t>(random() % 33) - 16) / 4;
  return v;
}

std::vector<std::byte> stored(const Case& c, const std::vector<double>& v) {
  std::vector<std::byte> out(v.size() * static_cast<size_t>(item_size(c.dtype)));
  for (size_t i = 0; i < v.size(); ++i) {
    const auto f = static_cast<float>(v[i]);
    uint32_t bits = std::bit_cast<uint32_t>(f);
    if (c.dtype == DType::kBF16) bits >>= 16;
    if (c.dtype == DType::kF16)
      bits = f == 0
                 ? 0
                 : (bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023);
    std::memcpy(out.data() + i * static_cast<size_t>(item_size(c.dtype)), &bits,
                static_cast<size_t>(item_size(c.dtype)));
  }
  return out;
}

std::vector<double> wanted(const Case& c, const std::vector<double>& v) {
  std::vector<double> out(c.has_rows() ? v.size() : static_cast<size_t>(c.results));
  for (int64_t i = 0; i < c.results; ++i) {
    const auto at = [&](int64_t r) {
      return static_cast<size_t>(c.is_down ? r * c.results + i : i * c.depth + r);
    };
    double sum = 0, most = -INFINITY, total = 0, squares = 0;
    int64_t first = 1 << 30;
    for (int64_t r = 0; r < c.depth; ++r) {
      sum += v[at(r)];
      if (v[at(r)] > most) first = r;
      most = std::max(most, v[at(r)]);
    }
    const double mean = sum / static_cast<double>(c.depth);
    for (int64_t r = 0; r < c.depth; ++r) {
      total += std::exp2(v[at(r)] - most);
      squares += (v[at(r)] - mean) * (v[at(r)] - mean);
    }
    const double spread = std::sqrt(squares / static_cast<double>(c.depth) + 0.25);
    if (!c.has_rows())
      out[static_cast<size_t>(i)] = c.kind == Kind::kSum   ? sum
                                    : c.kind == Kind::kMax ? most
                                                           : static_cast<double>(first);
    for (int64_t r = 0; c.has_rows() && r < c.depth; ++r)
      out[at(r)] = c.kind == Kind::kSoftmax ? std::exp2(v[at(r)] - most) / total
                                            : (v[at(r)] - mean) / spread;
  }
  return out;
}

size_t result_bytes(const ir::KernelIr& kernel) {
  const ir::Param& p = kernel.params[0];
  return static_cast<size_t>(p.elements * item_size(p.dtype));
}

double number_at(const Case& c, const std::vector<std::byte>& bytes, size_t i) {
  if (c.kind == Kind::kFirstMost) {
    int64_t v = 0;
    std::memcpy(&v, bytes.data() + i * sizeof v, sizeof v);
    return static_cast<double>(v);
  }
  float v = 0;
  std::memcpy(&v, bytes.data() + i * sizeof v, sizeof v);
  return static_cast<double>(v);
}

void expect_numbers(const Case& c, const std::vector<std::byte>& bytes,
                    const std::vector<double>& want) {
  int wrong = 0;
  for (size_t i = 0; i < want.size() && wrong < 5; ++i) {
    const double got = number_at(c, bytes, i);
    const double most = c.has_rows() ? 4e-6 * std::max(std::abs(want[i]), 1e-2) : 0;
    if (std::abs(got - want[i]) <= most) continue;
    ++wrong;
    ADD_FAILURE() << c.text() << ": " << i << " is " << got << ", not " << want[i];
  }
}

/// Shapes around sizes of blocks, primes among them.
Case random_case(std::mt19937_64& random) {
  static constexpr std::array<int64_t, 16> kSizes = {1,  2,   7,   16,  31,  32,   33,   64,
                                                     97, 128, 255, 512, 997, 1024, 2053, 4096};
  Case c;
  c.kind = static_cast<Kind>(random() % 5);
  c.depth = kSizes[random() % kSizes.size()];
  const int64_t most = std::max<int64_t>(20'000 / c.depth, 1);
  c.results =
      1 + static_cast<int64_t>(random() % static_cast<uint64_t>(std::min<int64_t>(most, 300)));
  c.is_down = random() % 3 == 0;
  static constexpr std::array kTypes = {DType::kF32, DType::kF32, DType::kF16, DType::kBF16};
  c.dtype = kTypes[random() % kTypes.size()];
  return c;
}

class GroupRows : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not({GetParam()}); !reason.empty()) GTEST_SKIP() << reason;
  }
  static void expect_right(const Case& c, std::mt19937_64& random) {
    const std::vector<double> v = numbers(c, random);
    const ir::KernelIr kernel = Maker(c).make();
    std::vector<std::vector<std::byte>> buffers{std::vector<std::byte>(result_bytes(kernel)),
                                                stored(c, v)};
    const Status done = run_on({GetParam()}, kernel, buffers, {});
    ASSERT_TRUE(done) << c.text() << ": " << done.error().message;
    expect_numbers(c, buffers[0], wanted(c, v));
  }
};

TEST_P(GroupRows, OfRandomShapesAreRight) {
  std::mt19937_64 random(20);
  const std::string_view name = GetParam();
  for (int i = 0; i < (name == "PTX" ? 150 : name == "OPENCL" ? 8 : 30) && !HasFailure(); ++i)
    expect_right(random_case(random), random);
}

TEST_P(GroupRows, LongerThanRegistersHoldAreRight) {
  std::mt19937_64 random(21);
  for (const Kind kind : {Kind::kSoftmax, Kind::kNorm, Kind::kFirstMost})
    expect_right({.kind = kind, .results = 2, .depth = 40'009}, random);
  expect_right({.kind = Kind::kSum, .results = 70, .depth = 3001, .is_down = true}, random);
}

INSTANTIATE_TEST_SUITE_P(Gpus, GroupRows,
                         testing::Values("PTX", "NVRTC", "NVPTX", "OPENCL", "GFX1100", "GFX1201",
                                         "GFX1030", "GFX942"),
                         [](const auto& param) { return std::string(param.param); });

struct Counted {
  double bytes = 0;  ///< loaded for each byte of the input
  double instructions = 0;
  size_t barriers = 0;
  uint64_t conflicts = 0;
  uint32_t block = 0;
  int64_t groups = 0;
};

Counted count(const Case& c, uint32_t units) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  hal::Arch arch = ptx_arch();
  arch.units = units;
  const ir::KernelIr kernel = Maker(c).make();
  const auto code = compiler::compile(kernel, arch, "PTX", {.use_cache = false});
  EXPECT_TRUE(code) << code.error().message;
  if (!code) return {};
  std::mt19937_64 random(22);
  std::vector<std::vector<std::byte>> buffers{std::vector<std::byte>(result_bytes(kernel)),
                                              stored(c, numbers(c, random))};
  const auto done = run_on_ptx(*code, buffers, {});
  EXPECT_TRUE(done) << done.error().message;
  if (!done) return {};
  const std::string_view image(reinterpret_cast<const char*>(code->image.data()),
                               code->image.size());
  const auto elements = static_cast<double>(c.results * c.depth);
  Counted n{.bytes = static_cast<double>(done->traffic.global_load_bytes) / elements /
                     static_cast<double>(item_size(c.dtype)),
            .instructions = static_cast<double>(done->lane_instructions) / elements,
            .conflicts = done->traffic.shared_conflicts,
            .block = code->block.x,
            .groups = code->grid[0].evaluate({})};
  for (size_t at = image.find("bar.sync"); at != std::string_view::npos;
       at = image.find("bar.sync", at + 1))
    ++n.barriers;
  fmt::print(
      "{}: {} groups of {}, {:.2f} bytes per byte, {:.2f} instructions per element, {} "
      "barriers\n",
      c.text(), n.groups, n.block, n.bytes, n.instructions, n.barriers);
  return n;
}

TEST(GroupRowCounts, ARowIsReadOnce) {
  for (const Kind kind : {Kind::kSoftmax, Kind::kNorm})
    for (const int64_t depth : {64, 512, 4096, 4099})
      for (const DType t : {DType::kF32, DType::kF16}) {
        const Case c{.kind = kind, .results = 32'768 / depth, .depth = depth, .dtype = t};
        EXPECT_DOUBLE_EQ(count(c, 2).bytes, 1) << c.text();
      }
  // Longer than registers hold: once a pass.
  const Case c{.kind = Kind::kSoftmax, .results = 1, .depth = 80'000};
  EXPECT_DOUBLE_EQ(count(c, 2).bytes, 3) << c.text();
}

/// Sub-groups by shuffles, then one barrier in front of what these have made.
TEST(GroupRowCounts, AReductionWaitsOnce) {
  const Counted sum = count({.kind = Kind::kSum, .results = 8, .depth = 4096}, 2);
  EXPECT_EQ(sum.barriers, 1u);
  EXPECT_EQ(sum.conflicts, 0u);
  const Counted softmax = count({.kind = Kind::kSoftmax, .results = 8, .depth = 4096}, 2);
  EXPECT_EQ(softmax.barriers, 2u);
  EXPECT_EQ(softmax.conflicts, 0u);
}

/// The same on AMD: within rows of 16 lanes by DPP, between them by v_permlanex16 where waves have
/// 32 lanes, so that nothing waits for LDS but the one exchange of waves.
TEST(GroupRowCode, AReductionOfAmdWaitsOnce) {
  for (const auto& [where, chip] : {std::pair{"GFX1030", "gfx1030"},
                                    {"GFX1100", "gfx1100"},
                                    {"GFX1201", "gfx1201"},
                                    {"GFX1100", "gfx942"}}) {
    if (const std::string reason = why_not({where}); !reason.empty()) GTEST_SKIP() << reason;
    const std::string_view name = chip;
    for (const auto& [kind, reductions] : {std::pair{Kind::kSum, 1U}, {Kind::kSoftmax, 2U}}) {
      const ir::KernelIr kernel = Maker({.kind = kind, .results = 8, .depth = 4096}).make();
      const auto text = compiler::explain(kernel, amd_arch(chip), "LLVM");
      ASSERT_TRUE(text) << text.error().message;
      const auto count = [&](std::string_view what) {
        size_t n = 0;
        for (size_t at = 0; (at = text->assembly.find(what, at)) != std::string::npos;
             at += what.size())
          ++n;
        return n;
      };
      // gfx12 signals and waits: "s_barrier_wait".
      const size_t barriers = count(name == "gfx1201" ? "s_barrier_wait" : "s_barrier");
      EXPECT_EQ(barriers, reductions) << chip;
      EXPECT_GE(count("_dpp"), (name == "gfx942" ? 3U : 4U) * reductions) << chip;
      EXPECT_EQ(count("v_permlanex16"), name == "gfx942" ? 0 : reductions) << chip;
      EXPECT_EQ(count("ds_swizzle"), name == "gfx942" ? 2 * reductions : 0) << chip;
    }
  }
}

/// Maxima by one instruction, places in 32 bits.
TEST(GroupRowCounts, ThePlaceOfTheLargestTakesFewInstructions) {
  const Counted n = count({.kind = Kind::kFirstMost, .results = 64, .depth = 4096}, 2);
  EXPECT_DOUBLE_EQ(n.bytes, 1);
  EXPECT_LT(n.instructions, 11);
}

TEST(GroupRowCounts, ShortRowsShareAGroup) {
  const Counted n = count({.kind = Kind::kSoftmax, .results = 2048, .depth = 64}, 2);
  EXPECT_GE(n.block, 64u);
  EXPECT_LT(n.groups, 2048);
  EXPECT_EQ(n.conflicts, 0u);
}

TEST(GroupRowCounts, ColumnsSideBySideFillTheCard) {
  for (const int64_t columns : {4096, 4099}) {
    const Case c{.kind = Kind::kSum, .results = columns, .depth = 256, .is_down = true};
    const Counted n = count(c, 132);
    EXPECT_GE(n.groups, 100) << c.text();
    EXPECT_DOUBLE_EQ(n.bytes, 1) << c.text();
    EXPECT_EQ(n.conflicts, 0u) << c.text();
  }
}

}  // namespace
}  // namespace bm::test
