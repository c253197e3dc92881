// Targets with work-groups: kernels that only wait for memory. Transposed loads go through local
// memory, elementwise kernels keep several elements of every work-item on their way.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "compiler/ir/evaluate.h"
#include "compiler/targets/target.h"
#include "compiler/schedules/schedule.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/ptx_runner.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using ir::Node;
using ir::Op;

/// out[b][i][j] = f(in[b][j][i], …): what is drawn of a kernel that transposes.
struct Transpose {
  int64_t batch = 1, rows = 1, columns = 1;
  DType type = DType::kF32;
  int64_t offset = 0, gap = 0;  ///< elements before the input; between its rows
  bool has_plain = false;       ///< plus a param in the order of the output
  bool has_row = false;         ///< plus one number per column
  bool has_padding = false;     ///< the input is zero at its border, which is not there
  bool has_mask = false;        ///< only elements whose mask is set are stored
  bool has_second = false;      ///< plus the transpose of another param
  bool has_symbols = false;     ///< rows and columns are variables
  std::string text() const {
    return fmt::format(
        "{}x{}x{} {} offset {} gap {}{}{}{}{}{}{}", batch, rows, columns, dtype_name(type), offset,
        gap, has_plain ? " plain" : "", has_row ? " row" : "", has_padding ? " padding" : "",
        has_mask ? " mask" : "", has_second ? " second" : "", has_symbols ? " symbols" : "");
  }
};

class TransposeBuilder {
 public:
  explicit TransposeBuilder(const Transpose& t) : t_(t) {
    k_.name = "transpose";
    k_.graph = std::make_unique<ir::Graph>();
  }

  ir::KernelIr build() {
    ir::Graph& g = *k_.graph;
    b_ = g.range(g.index(t_.batch));
    i_ = g.range(extent("rows", t_.rows));
    j_ = g.range(extent("columns", t_.columns));
    k_.ranges = {b_, i_, j_};
    const int64_t all = t_.batch * t_.rows * t_.columns;
    k_.params.push_back({.dtype = t_.type, .elements = all, .is_written = true});
    const Node* at = g.add(g.mul(g.add(g.mul(b_, t_.rows), i_), t_.columns), j_);
    const Node* value = transposed();
    if (t_.has_second) value = plus(value, transposed());
    if (t_.has_plain) value = plus(value, load(t_.type, all, at));
    if (t_.has_row) value = plus(value, load(t_.type, t_.columns, j_));
    const Node* gate = t_.has_mask ? load(DType::kBool, all, at) : nullptr;
    k_.stores.push_back({.param = 0, .index = at, .value = value, .gate = gate});
    return std::move(k_);
  }

 private:
  const Node* extent(const char* name, int64_t n) {
    if (!t_.has_symbols) return k_.graph->index(n);
    k_.vars.push_back({.name = name, .min = 0, .max = n});
    return k_.graph->var(static_cast<int>(k_.vars.size() - 1), 0, n);
  }

  const Node* load(DType t, int64_t elements, const Node* at, const Node* gate = nullptr) {
    k_.params.push_back({.dtype = t, .elements = elements, .is_read = true});
    return k_.graph->load(static_cast<int>(k_.params.size() - 1), t, at, gate);
  }

  const Node* plus(const Node* a, const Node* b) {
    ir::Graph& g = *k_.graph;
    if (is_bool(t_.type)) return g.binary(Op::kXor, a, b);
    if (!is_half_like(t_.type)) return g.binary(Op::kAdd, a, b);
    return g.cast(g.binary(Op::kAdd, g.cast(a, DType::kF32), g.cast(b, DType::kF32)), t_.type);
  }

  const Node* transposed() {
    ir::Graph& g = *k_.graph;
    const int64_t row = t_.rows + t_.gap;
    const int64_t border = t_.has_padding ? 1 : 0;
    const Node *x = g.add(i_, -border), *y = g.add(j_, -border);
    const Node* at = g.add(g.add(g.mul(g.add(g.mul(b_, t_.columns), y), row), x), t_.offset);
    const Node* gate = nullptr;
    if (t_.has_padding)
      gate = g.both(g.both(g.less(g.index(-1), x), g.less(g.index(-1), y)),
                    g.both(g.less(x, g.index(t_.rows - 2)), g.less(y, g.index(t_.columns - 2))));
    return load(t_.type, t_.offset + t_.batch * t_.columns * row, at, gate);
  }

  const Transpose& t_;
  ir::KernelIr k_;
  const Node *b_ = nullptr, *i_ = nullptr, *j_ = nullptr;
};

ir::KernelIr transpose_kernel(const Transpose& t) { return TransposeBuilder(t).build(); }

/// Small whole numbers, whose sums are exact in every type; poison in what is written.
Buffers numbers(const ir::KernelIr& kernel, std::mt19937_64& random) {
  Buffers out;
  for (const ir::Param& p : kernel.params) {
    const auto size = static_cast<size_t>(item_size(p.dtype));
    std::vector<std::byte> bytes(static_cast<size_t>(p.elements) * size, std::byte{1});
    for (size_t i = 0; p.is_read && i < bytes.size(); i += size) {
      const auto n = static_cast<int64_t>(random() % (is_bool(p.dtype) ? 2 : 23));
      const uint64_t bits = static_cast<uint64_t>(n);
      const float f = static_cast<float>(n);
      const double d = static_cast<double>(n);
      switch (p.dtype) {
        case DType::kF64: std::memcpy(&bytes[i], &d, 8); break;
        case DType::kF32: std::memcpy(&bytes[i], &f, 4); break;
        case DType::kF16: {
          const uint16_t h = f32_to_f16(f);
          std::memcpy(&bytes[i], &h, 2);
          break;
        }
        default: std::memcpy(&bytes[i], &bits, size);
      }
    }
    out.push_back(std::move(bytes));
  }
  return out;
}

void expect_reference(const Where& where, const ir::KernelIr& kernel, std::span<const int64_t> vars,
                      uint64_t seed, const std::string& text) {
  std::mt19937_64 random(seed);
  Buffers got = numbers(kernel, random), want = got;
  const Status done = run_on(where, kernel, got, vars);
  ASSERT_TRUE(done) << text << ": " << done.error().message;
  const std::vector<std::span<std::byte>> spans(want.begin(), want.end());
  ASSERT_TRUE(compiler::evaluate(kernel, spans, vars));
  EXPECT_TRUE(got == want) << where_name(where) << ": " << text;
}

bool is_transposed(const ir::KernelIr& kernel, const hal::Arch& arch) {
  return compiler::make_schedule(kernel, compiler::target_info(arch), arch.units).transposed() !=
         nullptr;
}

class Moves : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(where()); !reason.empty()) GTEST_SKIP() << reason;
  }
  static Where where() { return {GetParam()}; }
};

constexpr std::array kTypes = {DType::kF32, DType::kF16,  DType::kI8,
                               DType::kF64, DType::kBool, DType::kI32};

TEST_P(Moves, TransposesEveryShape) {
  uint64_t seed = 1;
  size_t type = 0;
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, 8192},
                                                                              {8192, 1},
                                                                              {31, 300},
                                                                              {33, 257},
                                                                              {100, 257},
                                                                              {128, 128},
                                                                              {127, 131},
                                                                              {16, 1024},
                                                                              {257, 33}})
    for (const int64_t batch : {int64_t{1}, int64_t{3}}) {
      const Transpose t{
          .batch = batch, .rows = rows, .columns = columns, .type = kTypes[type++ % kTypes.size()]};
      expect_reference(where(), transpose_kernel(t), {}, seed++, t.text());
    }
}

TEST_P(Moves, TransposesWhatIsDrawn) {
  std::mt19937_64 random(20261122);
  const auto one_of = [&](int n) { return random() % static_cast<uint64_t>(n) == 0; };
  // PoCL takes most of a second for each.
  const uint64_t most = where().renderer == std::string_view("OPENCL") ? 12 : 60;
  for (uint64_t seed = 1; seed <= most; ++seed) {
    Transpose t;
    t.batch = one_of(2) ? 1 : 1 + static_cast<int64_t>(random() % 3);
    t.rows = 16 + static_cast<int64_t>(random() % 180);
    t.columns = 1 + 8192 / t.rows + static_cast<int64_t>(random() % 70);
    if (one_of(3)) t.rows = (t.rows + 31) & ~31, t.columns = (t.columns + 31) & ~31;
    t.type = kTypes[random() % kTypes.size()];
    t.offset = one_of(3) ? static_cast<int64_t>(random() % 9) : 0;
    t.gap = one_of(3) ? static_cast<int64_t>(random() % 9) : 0;
    t.has_plain = one_of(3);
    t.has_row = one_of(3);
    t.has_padding = one_of(3) && t.rows > 2 && t.columns > 2;
    t.has_mask = one_of(4);
    t.has_second = one_of(4);
    t.has_symbols = one_of(4);
    const ir::KernelIr kernel = transpose_kernel(t);
    ASSERT_TRUE(ir::verify(kernel)) << t.text();
    std::vector<int64_t> vars;
    for (const ir::VarDecl& v : kernel.vars)
      vars.push_back(one_of(3) ? v.max
                               : static_cast<int64_t>(random() % static_cast<uint64_t>(v.max + 1)));
    expect_reference(where(), kernel, vars, seed, t.text());
  }
}

/// out[n][h][w][c] = in[n][c][h][w] and back.
ir::KernelIr permuted(int64_t n, int64_t c, int64_t h, int64_t w, bool is_back) {
  ir::KernelIr k;
  k.name = "permuted";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  const Node *a = g.range(g.index(n)), *b = g.range(g.index(is_back ? c : h)),
             *d = g.range(g.index(is_back ? h : w)), *e = g.range(g.index(is_back ? w : c));
  k.ranges = {a, b, d, e};
  const Node *y = is_back ? d : b, *x = is_back ? e : d, *z = is_back ? b : e;
  const auto plain = [&](const Node* p, int64_t np, const Node* q, int64_t nq, const Node* r,
                         int64_t nr) {
    return g.add(g.mul(g.add(g.mul(g.add(g.mul(a, np), p), nq), q), nr), r);
  };
  const Node *chw = plain(z, c, y, h, x, w), *hwc = plain(y, h, x, w, z, c);
  k.params = {{.dtype = DType::kF32, .elements = n * c * h * w, .is_written = true},
              {.dtype = DType::kF32, .elements = n * c * h * w, .is_read = true}};
  k.stores.push_back({.param = 0,
                      .index = is_back ? chw : hwc,
                      .value = g.load(1, DType::kF32, is_back ? hwc : chw)});
  return k;
}

TEST_P(Moves, PermutesImages) {
  for (const bool is_back : {false, true}) {
    const ir::KernelIr kernel = permuted(3, 40, 3, 50, is_back);
    EXPECT_TRUE(is_transposed(kernel, arch_of(where())) || arch_of(where()).max_block < 256);
    expect_reference(where(), kernel, {}, 7, "permuted");
  }
}

TEST_P(Moves, ElementwiseKernelsTakeEverySize) {
  const std::array pair{DType::kF32, DType::kF32};
  for (const int64_t n : {1, 31, 1024, 4096, 65536, 100'003, 131'072 + 255, 262'144})
    expect_reference(where(), map_kernel(Op::kAdd, DType::kF32, pair, n), {}, 3,
                     fmt::format("{} elements", n));
  for (const DType t : {DType::kI8, DType::kF16, DType::kF64, DType::kBool})
    for (const int64_t n : {65'536, 70'001, 200'001}) {
      const std::array one{t};
      expect_reference(where(), map_kernel(Op::kCast, DType::kF32, one, n), {}, 5,
                       fmt::format("{} of {}", n, dtype_name(t)));
    }
}

/// sum[i][j] += in[j][i] and half[i][j] = in[j][i] for float32 in and sum.
ir::KernelIr two_results(int64_t rows, int64_t columns) {
  ir::KernelIr k;
  k.name = "two_results";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  const Node *i = g.range(g.index(rows)), *j = g.range(g.index(columns));
  k.ranges = {i, j};
  const int64_t all = rows * columns;
  k.params = {{.dtype = DType::kF32, .elements = all, .is_written = true, .is_read = true},
              {.dtype = DType::kF32, .elements = all, .is_read = true},
              {.dtype = DType::kF16, .elements = all, .is_written = true}};
  const Node* at = g.add(g.mul(i, columns), j);
  const Node* in = g.load(1, DType::kF32, g.add(g.mul(j, rows), i));
  k.stores.push_back(
      {.param = 0, .index = at, .value = g.binary(Op::kAdd, g.load(0, DType::kF32, at), in)});
  k.stores.push_back({.param = 2, .index = at, .value = g.cast(in, DType::kF16)});
  return k;
}

TEST_P(Moves, TransposesAddToWhatIsThere) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{128, 256}, {200, 100}}) {
    const ir::KernelIr kernel = two_results(rows, columns);
    EXPECT_TRUE(is_transposed(kernel, arch_of(where())));
    expect_reference(where(), kernel, {}, 11, "two results");
  }
}

/// out[i][j] = in[place[j]][i]: rows of the tile are not where a multiple says.
ir::KernelIr taken(int64_t rows, int64_t columns) {
  ir::KernelIr k;
  k.name = "taken";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  const Node *i = g.range(g.index(rows)), *j = g.range(g.index(columns));
  k.ranges = {i, j};
  k.params = {{.dtype = DType::kF32, .elements = rows * columns, .is_written = true},
              {.dtype = DType::kF32, .elements = 23 * rows, .is_read = true},
              {.dtype = DType::kI32, .elements = columns, .is_read = true}};
  const Node* place = g.cast(g.load(2, DType::kI32, j), DType::kI64);
  const Node* inside = g.both(g.less(g.index(-1), place), g.less(place, g.index(23)));
  const Node* at = g.add(g.mul(place, rows), i);
  k.stores.push_back({.param = 0,
                      .index = g.add(g.mul(i, columns), j),
                      .value = g.load(1, DType::kF32, at, inside)});
  return k;
}

TEST_P(Moves, TransposesRowsThatAreChosen) {
  const ir::KernelIr kernel = taken(150, 77);
  ASSERT_TRUE(ir::verify(kernel));
  EXPECT_TRUE(is_transposed(kernel, arch_of(where())));
  expect_reference(where(), kernel, {}, 13, "taken");
}

/// out[i][j] = in[i][j] + row[j] for i < n.
ir::KernelIr rows_plus_row(int64_t most, int64_t columns, DType t) {
  ir::KernelIr k;
  k.name = "rows_plus_row";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  k.vars = {{.name = "n", .min = 0, .max = most}};
  const Node *i = g.range(g.var(0, 0, most)), *j = g.range(g.index(columns));
  k.ranges = {i, j};
  k.params = {{.dtype = t, .elements = most * columns, .is_written = true},
              {.dtype = t, .elements = most * columns, .is_read = true},
              {.dtype = t, .elements = columns, .is_read = true}};
  const Node* at = g.add(g.mul(i, columns), j);
  const Node* sum = g.binary(Op::kAdd, g.load(1, t, at), g.load(2, t, j));
  k.stores.push_back({.param = 0, .index = at, .value = sum});
  return k;
}

TEST_P(Moves, SymbolicElementwiseKernelsTakeEverySize) {
  for (const int64_t columns : {1000, 4096})
    for (const DType t : {DType::kF32, DType::kI8}) {
      const ir::KernelIr kernel = rows_plus_row(300, columns, t);
      for (const int64_t n : {0, 1, 3, 17, 300})
        expect_reference(where(), kernel, std::array{n}, 9,
                         fmt::format("{} rows of {} {}", n, columns, dtype_name(t)));
    }
}

INSTANTIATE_TEST_SUITE_P(Gpus, Moves,
                         testing::Values("PTX", "NVRTC", "NVPTX", "OPENCL", "GFX1100", "GFX1201",
                                         "GFX1030", "GFX942"),
                         [](const auto& given) { return std::string(given.param); });

/// Sectors against what is needed, and conflicts of banks.
struct Efficiency {
  double loads = 0, stores = 0, instructions = 0;
  uint64_t conflicts = 0;
};

class OnPtx : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not({GetParam()}); !reason.empty()) GTEST_SKIP() << reason;
  }
  static Efficiency run(const ir::KernelIr& kernel) {
    const ScopedSetting text("BM_NV_CODE", "ptx");
    const auto code = compiler::compile(kernel, arch_of({GetParam()}), renderer_of({GetParam()}),
                                        {.use_cache = false});
    EXPECT_TRUE(code) << code.error().message;
    if (!code) return {};
    std::mt19937_64 random(1);
    Buffers buffers = numbers(kernel, random);
    const auto done = run_on_ptx(*code, buffers, {});
    EXPECT_TRUE(done) << done.error().message;
    if (!done) return {};
    const sim::ptx::Traffic& t = done->traffic;
    const auto ratio = [](uint64_t sectors, uint64_t bytes) {
      return static_cast<double>(sectors * sim::ptx::kSectorBytes) / static_cast<double>(bytes);
    };
    return {ratio(t.global_load_sectors, t.global_load_bytes),
            ratio(t.global_store_sectors, t.global_store_bytes),
            static_cast<double>(done->lane_instructions) /
                static_cast<double>(kernel.params[0].elements),
            t.shared_conflicts};
  }
};

TEST_P(OnPtx, TransposesMoveWholeSectors) {
  struct Row {
    DType type;
    int64_t rows, columns;
    double most;
  };
  for (const Row& row : {Row{DType::kF32, 256, 256, 1.0}, Row{DType::kF64, 256, 256, 1.0},
                         Row{DType::kF16, 256, 256, 1.0}, Row{DType::kI8, 256, 256, 1.0},
                         Row{DType::kF32, 1024, 512, 1.0}, Row{DType::kF32, 248, 248, 1.1},
                         Row{DType::kF32, 257, 255, 1.5}}) {
    const Transpose t{.rows = row.rows, .columns = row.columns, .type = row.type};
    const Efficiency e = run(transpose_kernel(t));
    std::printf("%s: loads %.2f, stores %.2f sectors, %.2f instructions, %lu conflicts\n",
                t.text().c_str(), e.loads, e.stores, e.instructions,
                static_cast<unsigned long>(e.conflicts));
    EXPECT_LE(e.loads, row.most) << t.text();
    EXPECT_LE(e.stores, row.most) << t.text();
    EXPECT_EQ(e.conflicts, 0u) << t.text();
  }
}

TEST_P(OnPtx, ElementwiseKernelsMoveWholeSectors) {
  for (const DType t : {DType::kF32, DType::kF16, DType::kI8}) {
    const std::array two{t, t};
    ir::KernelIr kernel = map_kernel(Op::kMax, t, two, 1 << 18);
    const Efficiency e = run(kernel);
    std::printf("max of %s: loads %.2f, stores %.2f sectors, %.2f instructions\n",
                std::string(dtype_name(t)).c_str(), e.loads, e.stores, e.instructions);
    EXPECT_EQ(e.loads, 1.0);
    EXPECT_EQ(e.stores, 1.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, OnPtx, testing::Values("PTX", "NVRTC", "NVPTX"),
                         [](const auto& given) { return std::string(given.param); });

/// A matrix and its transpose, added.
TEST(Transposes, AreChosenWhereTheyPay) {
  hal::Arch arch = ptx_arch();
  arch.units = 132;
  const auto chosen = [&](const Transpose& t) { return is_transposed(transpose_kernel(t), arch); };
  EXPECT_TRUE(chosen({.rows = 4096, .columns = 4096}));
  EXPECT_TRUE(chosen({.rows = 4096, .columns = 4096, .has_plain = true}));
  EXPECT_TRUE(chosen({.rows = 4096, .columns = 4096, .has_symbols = true}));
  EXPECT_TRUE(chosen({.batch = 64, .rows = 20, .columns = 50}));
  EXPECT_FALSE(chosen({.rows = 3, .columns = 100'000})) << "few rows";
  EXPECT_FALSE(chosen({.rows = 40, .columns = 40})) << "few elements";
  EXPECT_FALSE(
      is_transposed(map_kernel(Op::kSqrt, DType::kF32, std::array{DType::kF32}, 1 << 20), arch))
      << "not a transposition";
}

}  // namespace
}  // namespace bm::test
