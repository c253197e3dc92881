// Targets with work-groups: shared reductions of every size, limits of the device, launch sizes.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "compiler/ir/evaluate.h"
#include "compiler/lowering/lower.h"
#include "compiler/targets/target.h"
#include "compiler/schedules/schedule.h"
#include "tests/unit/compiler/cl_runner.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using ir::Node;
using ir::Op;

constexpr Where kOpenCl{"OPENCL"};

/// A GPU of moderate size.
hal::Arch gpu_arch() {
  hal::Arch arch;
  arch.vendor = hal::Vendor::kOpenCl;
  arch.name = "opencl_c_1.2";
  arch.units = 16;
  arch.max_block = 1024;
  arch.shared_memory_bytes = 48 << 10;
  arch.has_f16 = false;
  return arch;
}

std::vector<std::byte> bytes_of(const std::vector<float>& v) {
  const auto bytes = std::as_bytes(std::span(v));
  return {bytes.begin(), bytes.end()};
}

std::vector<float> floats_of(const std::vector<std::byte>& v) {
  std::vector<float> out(v.size() / sizeof(float));
  std::memcpy(out.data(), v.data(), v.size());
  return out;
}

hal::CodeObject compiled(const ir::KernelIr& kernel, const hal::Arch& arch) {
  auto code = compiler::compile(kernel, arch, "OPENCL", {.use_cache = false});
  EXPECT_TRUE(code) << code.error().message;
  return code ? std::move(*code) : hal::CodeObject{};
}

std::string source_of(const ir::KernelIr& kernel, const hal::Arch& arch) {
  auto text = compiler::explain(kernel, arch, "OPENCL");
  EXPECT_TRUE(text) << text.error().message;
  return text ? text->source : "";
}

/// Small whole numbers: sums are exact whatever the order.
std::vector<float> whole_numbers(size_t n) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<float>(static_cast<int>(i * 7 % 23) - 11);
  return v;
}

class SharedReduction : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(kOpenCl); !reason.empty()) GTEST_SKIP() << reason;
  }
  /// One sum per row.
  static std::vector<float> sums(int64_t rows, int64_t n) {
    const auto kernel = reduce_kernel(ir::ReduceOp::kSum, DType::kF32, rows, n, false);
    std::vector<std::vector<std::byte>> buffers{
        std::vector<std::byte>(static_cast<size_t>(rows) * sizeof(float)),
        bytes_of(whole_numbers(static_cast<size_t>(rows * n)))};
    const Status done = run_on(kOpenCl, kernel, buffers, {});
    EXPECT_TRUE(done) << done.error().message;
    return floats_of(buffers[0]);
  }
};

TEST_P(SharedReduction, SumsRows) {
  const int64_t n = GetParam();
  for (const int64_t rows : {1, 3}) {
    const std::vector<float> in = whole_numbers(static_cast<size_t>(rows * n)), out = sums(rows, n);
    for (int64_t r = 0; r < rows; ++r) {
      double want = 0;
      for (int64_t i = 0; i < n; ++i)
        want += static_cast<double>(in[static_cast<size_t>(r * n + i)]);
      EXPECT_EQ(out[static_cast<size_t>(r)], static_cast<float>(want)) << rows << " rows, " << r;
    }
  }
}

TEST_P(SharedReduction, GivesTheSameBitsEveryTime) {
  const auto n = static_cast<size_t>(GetParam());
  const auto kernel = reduce_kernel(ir::ReduceOp::kSum, DType::kF32, 1, GetParam(), false);
  std::vector<float> in(n);
  for (size_t i = 0; i < n; ++i) in[i] = std::sin(static_cast<float>(i));
  std::vector<float> first;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<std::byte>> buffers{std::vector<std::byte>(sizeof(float)),
                                                bytes_of(in)};
    ASSERT_TRUE(run_on(kOpenCl, kernel, buffers, {}));
    if (round == 0) first = floats_of(buffers[0]);
    EXPECT_EQ(floats_of(buffers[0]), first);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, SharedReduction, testing::Values(1, 31, 1000, 1'000'000));

TEST(WorkGroups, SymbolicReductionsTakeEverySize) {
  if (const std::string reason = why_not(kOpenCl); !reason.empty()) GTEST_SKIP() << reason;
  const auto kernel = symbolic_row_sums(5000, 40);
  const std::vector<float> in = whole_numbers(5000 * 40);
  for (const int64_t n : {0, 1, 31, 1000, 5000})
    for (const int64_t m : {0, 1, 40}) {
      const std::array vars{n, m};
      std::vector<std::vector<std::byte>> got{std::vector<std::byte>(40 * sizeof(float)),
                                              bytes_of(in)};
      auto want = got;
      const Status done = run_on(kOpenCl, kernel, got, vars);
      ASSERT_TRUE(done) << done.error().message;
      const std::vector<std::span<std::byte>> spans(want.begin(), want.end());
      ASSERT_TRUE(compiler::evaluate(kernel, spans, vars));
      EXPECT_EQ(floats_of(got[0]), floats_of(want[0])) << n << " of " << m;
    }
}

/// out[x][y][z] = in[x][y][z] + Σ over w, every extent a variable.
ir::KernelIr all_symbolic() {
  ir::KernelIr k;
  k.name = "symbols";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  constexpr int64_t kMax = 9;
  std::vector<const Node*> r;
  for (int v = 0; v < 4; ++v) {
    k.vars.push_back({.name = std::string(1, static_cast<char>('a' + v)), .min = 0, .max = kMax});
    r.push_back(g.range(v == 1 ? g.mul(g.var(v, 0, kMax), g.var(v, 0, kMax)) : g.var(v, 0, kMax)));
  }
  k.ranges = {r[0], r[1], r[2]};
  const int64_t total = kMax * kMax * kMax * kMax;
  k.params = {{.dtype = DType::kI32, .elements = total, .is_written = true},
              {.dtype = DType::kI32, .elements = total, .is_read = true}};
  const Node* at = g.add(g.mul(g.add(g.mul(r[0], kMax * kMax), r[1]), kMax), r[2]);
  const Node* sum =
      g.reduce(ir::ReduceOp::kSum, g.load(1, DType::kI32, g.mul(r[3], 3)), std::array{r[3]});
  k.stores.push_back(
      {.param = 0, .index = at, .value = g.binary(Op::kAdd, g.load(1, DType::kI32, at), sum)});
  return k;
}

TEST(WorkGroups, SeveralSymbolicLoopsSpreadOverTheGrid) {
  const auto kernel = all_symbolic();
  ASSERT_TRUE(ir::verify(kernel));
  const hal::CodeObject code = compiled(kernel, gpu_arch());
  EXPECT_FALSE(code.grid[0].is_constant() && code.grid[1].is_constant());
  if (const std::string reason = why_not(kOpenCl); !reason.empty()) GTEST_SKIP() << reason;
  for (const std::array<int64_t, 4> vars : {std::array<int64_t, 4>{9, 9, 9, 9},
                                            {1, 2, 3, 4},
                                            {0, 3, 3, 3},
                                            {3, 0, 3, 3},
                                            {3, 3, 0, 3},
                                            {5, 4, 7, 0}}) {
    std::vector<std::vector<std::byte>> got;
    for (const ir::Param& p : kernel.params)
      got.emplace_back(static_cast<size_t>(p.elements) * sizeof(int32_t));
    for (size_t i = 0; i < got[1].size(); ++i) got[1][i] = static_cast<std::byte>(i % 7);
    auto want = got;
    const Status done = run_on(kOpenCl, kernel, got, vars);
    ASSERT_TRUE(done) << done.error().message;
    const std::vector<std::span<std::byte>> spans(want.begin(), want.end());
    ASSERT_TRUE(compiler::evaluate(kernel, spans, vars));
    EXPECT_EQ(got[0], want[0]) << vars[0] << vars[1] << vars[2] << vars[3];
  }
}

TEST(WorkGroups, BlocksStayWithinTheDevice) {
  const std::vector<ir::KernelIr (*)()> kernels{
      [] { return matmul_kernel(64, 64, 64, DType::kF32); },
      [] { return reduce_kernel(ir::ReduceOp::kSum, DType::kF64, 2, 100'000, false); },
      [] { return softmax_kernel(7, 3000); }, [] { return transpose_kernel(300, 200, DType::kI8); },
      [] { return symbolic_row_sums(300, 5000); }};
  for (const auto& make : kernels)
    for (const uint32_t most : {1u, 8u, 96u, 1024u})
      for (const uint32_t local : {0u, 512u, 65536u}) {
        hal::Arch arch = gpu_arch();
        arch.max_block = most;
        arch.shared_memory_bytes = local;
        const hal::CodeObject code = compiled(make(), arch);
        const uint64_t threads = uint64_t{code.block.x} * code.block.y * code.block.z;
        EXPECT_GE(threads, 1u) << code.entry;
        EXPECT_LE(threads, most) << code.entry;
        EXPECT_LE(code.shared_memory_bytes, local) << code.entry;
        EXPECT_TRUE(most < 32 || threads % 32 == 0 || threads == 1) << code.entry;
      }
}

TEST(WorkGroups, SmallBlocksGiveTheSameResults) {
  if (const std::string reason = why_not(kOpenCl); !reason.empty()) GTEST_SKIP() << reason;
  const auto kernel = softmax_kernel(5, 700);
  std::vector<float> in = whole_numbers(5 * 700);
  std::vector<std::vector<std::byte>> want{std::vector<std::byte>(in.size() * sizeof(float)),
                                           bytes_of(in)};
  const std::vector<std::span<std::byte>> spans(want.begin(), want.end());
  ASSERT_TRUE(compiler::evaluate(kernel, spans, {}));
  for (const uint32_t most : {1u, 4u, 33u, 256u}) {
    hal::Arch arch = arch_of(kOpenCl);
    arch.max_block = std::min(arch.max_block, most);
    std::vector<std::vector<std::byte>> got{want[0], want[1]};
    const Status done = run_on_cl(compiled(kernel, arch), got, {});
    ASSERT_TRUE(done) << done.error().message;
    const std::vector<float> a = floats_of(got[0]), b = floats_of(want[0]);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-6F);
  }
}

TEST(WorkGroups, FewLongSumsAreShared) {
  const hal::CodeObject code =
      compiled(reduce_kernel(ir::ReduceOp::kSum, DType::kF32, 4, 100'000, false), gpu_arch());
  EXPECT_GE(code.shared_memory_bytes, code.block.x * sizeof(float));
  EXPECT_EQ(code.grid[0].evaluate({}), 4);
}

TEST(WorkGroups, ManyShortSumsAreNot) {
  const hal::CodeObject code =
      compiled(reduce_kernel(ir::ReduceOp::kSum, DType::kF32, 100'000, 4, false), gpu_arch());
  EXPECT_EQ(code.shared_memory_bytes, 0u);
  EXPECT_GE(code.grid[0].evaluate({}) * code.block.x, 25'000);
}

TEST(WorkGroups, Float64NeedsADeviceThatHasIt) {
  hal::Arch arch = gpu_arch();
  arch.has_f64 = false;
  const auto code =
      compiler::compile(matmul_kernel(4, 4, 4, DType::kF64), arch, "OPENCL", {.use_cache = false});
  ASSERT_FALSE(code);
  EXPECT_EQ(code.error().code, Code::kUnsupported);
  EXPECT_NE(code.error().message.find("float64"), std::string::npos);
  // Functions of float32 do without.
  for (const Op op : {Op::kSin, Op::kExp2, Op::kLog2, Op::kSqrt}) {
    const std::array types{DType::kF32};
    const std::string text = source_of(map_kernel(op, DType::kF32, types, 100), arch);
    EXPECT_EQ(text.find("double"), std::string::npos) << ir::op_name(op);
  }
  const std::array pair{DType::kF32, DType::kF32};
  EXPECT_EQ(source_of(map_kernel(Op::kMod, DType::kF32, pair, 100), arch).find("double"),
            std::string::npos);
}

/// Beside work-item 0, which stores in place, the others would load for nothing: a race.
TEST(Groups, IdleWorkItemsLoadNothing) {
  ir::KernelIr k;
  k.name = "increment";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  k.params = {{.dtype = DType::kF32, .elements = 1, .is_written = true, .is_read = true}};
  const Node* sum =
      g.binary(Op::kAdd, g.load(0, DType::kF32, g.index(0)), g.constant_f(DType::kF32, 1.0));
  k.stores = {{.param = 0, .index = g.index(0), .value = sum, .gate = nullptr}};
  const std::string text = source_of(k, arch_of(kOpenCl));
  const size_t guard = text.find("if (", text.find("__kernel"));
  ASSERT_NE(guard, std::string::npos) << text;
  EXPECT_NE(text.find("= p0[", guard), std::string::npos) << text;
}

/// float32 functions of a device without float64, run on one that may have it.
std::vector<float> run_without_f64(Op op, std::vector<std::vector<float>> columns) {
  hal::Arch arch = arch_of(kOpenCl);
  arch.has_f64 = false;
  const std::vector<DType> types(columns.size(), DType::kF32);
  const auto n = static_cast<int64_t>(columns[0].size());
  std::vector<std::vector<std::byte>> buffers{bytes_of(columns[0])};
  for (const auto& c : columns) buffers.push_back(bytes_of(c));
  const Status done = run_on_cl(compiled(map_kernel(op, DType::kF32, types, n), arch), buffers, {});
  EXPECT_TRUE(done) << done.error().message;
  return floats_of(buffers[0]);
}

TEST(WorkGroups, SineWithoutFloat64IsAccurateEverywhere) {
  if (const std::string reason = why_not(kOpenCl); !reason.empty()) GTEST_SKIP() << reason;
  std::vector<float> in{0.0F, -0.0F, HUGE_VALF, -HUGE_VALF, NAN, 1e-30F, 0.75F, 3e38F};
  for (int e = -20; e < 127; ++e)
    for (int k = 0; k < 200; ++k)
      in.push_back(std::ldexp(1 + static_cast<float>(k * 37 % 200) / 200, e) * (k % 2 ? 1 : -1));
  for (int k = 1; k < 20'000; ++k) in.push_back(static_cast<float>(k * 1.5707963267948966));
  const std::vector<float> out = run_without_f64(Op::kSin, {in});
  double worst = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!std::isfinite(in[i])) {
      EXPECT_TRUE(std::isnan(out[i]));
      continue;
    }
    const double want = std::sin(static_cast<double>(in[i]));
    const auto rounded = static_cast<float>(want);
    if (want == 0) {
      EXPECT_EQ(std::signbit(out[i]), std::signbit(in[i]));
      EXPECT_EQ(out[i], 0);
      continue;
    }
    const double ulp = std::ldexp(1.0, std::ilogb(rounded) - 23);
    const double error = std::abs(static_cast<double>(out[i]) - want) / ulp;
    if (error > worst) worst = error;
    ASSERT_LE(error, 2) << in[i];
  }
  RecordProperty("worst", std::to_string(worst));
}

TEST(WorkGroups, RemainderWithoutFloat64IsExact) {
  if (const std::string reason = why_not(kOpenCl); !reason.empty()) GTEST_SKIP() << reason;
  std::vector<std::vector<float>> pairs(2);
  const std::vector<float> values{1.0F, -7.5F, 3e38F, 1e30F, 0.3F, 1e-38F, 1e-40F, 123456.7F, 2.5F};
  for (float a : values)
    for (float b : values) {
      pairs[0].push_back(a);
      pairs[1].push_back(b);
    }
  const std::vector<float> out = run_without_f64(Op::kMod, pairs);
  for (size_t i = 0; i < out.size(); ++i)
    EXPECT_EQ(out[i], std::fmod(pairs[0][i], pairs[1][i])) << pairs[0][i] << " % " << pairs[1][i];
}

TEST(WorkGroups, VerifierRefusesBarriersThatSomeItemsMiss) {
  const auto kernel = reduce_kernel(ir::ReduceOp::kSum, DType::kF32, 1, 1000, false);
  const compiler::TargetInfo target = compiler::target_info(gpu_arch());
  const compiler::Schedule schedule = compiler::make_schedule(kernel, target, 16);
  auto program = compiler::lower(kernel, schedule, target);
  ASSERT_TRUE(program) << program.error().message;
  ASSERT_TRUE(compiler::verify(*program));
  // A barrier at the start of a loop that is dealt out.
  for (auto& block : program->blocks)
    for (auto& s : block.stmts)
      if (s.kind == compiler::StmtKind::kLoop && s.loop == compiler::LoopKind::kItem) {
        auto& body = program->blocks[s.body].stmts;
        body.insert(body.begin(), compiler::Stmt{.kind = compiler::StmtKind::kBarrier});
        const Status status = compiler::verify(*program);
        ASSERT_FALSE(status);
        EXPECT_NE(status.error().message.find("barrier"), std::string::npos);
        return;
      }
  FAIL() << "no shared reduction";
}

}  // namespace
}  // namespace bm::test
