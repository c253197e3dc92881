// BM_CHECKED: kernels that leave their buffers say so and end the process.
#include <gtest/gtest.h>

#include <array>

#include "compiler/program/builder.h"
#include "compiler/program/checks.h"
#include "compiler/render/render.h"
#include "compiler/toolchain/toolchain.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/runner.h"

namespace bm::compiler {
namespace {

constexpr int64_t kElements = 40;

/// out[i] = in[i + shift] for i < n, gates that only a variable keeps inside. Both buffers have 40
/// elements.
ir::KernelIr shifted(bool is_store) {
  ir::KernelIr k;
  k.name = "shifted";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  k.vars = {{"n", 0, 100}, {"shift", 0, 100}};
  const ir::Node* i = g.range(g.index(kElements));
  const ir::Node* far = g.add(i, g.var(1, 0, 100));
  const ir::Node* gate = g.less(far, g.var(0, 0, 100));
  k.ranges = {i};
  k.params = {{DType::kF32, kElements, false, true}, {DType::kF32, kElements, true, false}};
  if (is_store)
    k.stores = {{1, far, g.load(0, DType::kF32, i), gate}};
  else
    k.stores = {{1, i, g.load(0, DType::kF32, far, gate), nullptr}};
  return k;
}

void run_shifted(std::string_view renderer, bool is_store, int64_t n, int64_t shift) {
  const ScopedSetting checked("BM_CHECKED", "1");
  const ir::KernelIr k = shifted(is_store);
  const auto program = test::build_kernel(k, test::native_arch(), renderer);
  ASSERT_TRUE(program) << program.error().message;
  std::vector<float> in(100, 1), out(100);
  void* const buffers[] = {in.data(), out.data()};
  test::run_kernel(**program, buffers, std::array{n, shift});
}

class Checked : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Renderers, Checked, testing::Values("LLVM", "CLANG"));

TEST_P(Checked, AKernelInsideItsBuffersRuns) {
  for (const bool is_store : {false, true}) {
    run_shifted(GetParam(), is_store, kElements, 0);
    run_shifted(GetParam(), is_store, kElements, 60);
    run_shifted(GetParam(), is_store, 17, 3);
  }
}

TEST_P(Checked, ALoadBeyondItsParamIsReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run_shifted(GetParam(), false, kElements + 1, 1),
               "kernel shifted: load of [0-9]+ elements? of param 0 \\(float32, 40 elements\\) at "
               "element [0-9]+: outside");
}

TEST_P(Checked, AStoreBeyondItsParamIsReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run_shifted(GetParam(), true, kElements + 1, 1),
               "kernel shifted: store of [0-9]+ elements? of param 1 \\(float32, 40 elements\\) at "
               "element [0-9]+: outside");
}

/// Copies a vector through a local array of 8 elements, from place `at` on.
void run_local(int64_t at, bool is_store) {
  const hal::Arch arch = test::native_arch();
  const TargetInfo target = target_info(arch);
  Program p;
  p.name = "through";
  p.params = {{DType::kF32, 16, true, true}};
  Builder b(p, target);
  const uint32_t local = b.add_local(DType::kF32, 8);
  const Builder::Loop grid = b.open_loop(p.root, LoopKind::kGrid);
  b.local_store(grid.body, local, b.index(is_store ? at : 0),
                b.load(0, DType::kF32, 4, b.index(0)));
  b.store(grid.body, 0, b.index(8), b.local_load(grid.body, local, b.index(is_store ? 0 : at), 4));
  const ValueId begin = b.bitcast(p.block_begin, DType::kI64);
  b.close_loop(grid, begin, b.bitcast(p.block_end, DType::kI64), 1);
  insert_checks(p);
  ASSERT_TRUE(verify(p));
  hal::CodeObject code;
  code.entry = p.name;
  code.arch = arch.name;
  code.num_buffers = 1;
  code.scratch_bytes = scratch_bytes(p) + 64;
  auto image = llvm_compile(render_llvm(p, target), target);
  ASSERT_TRUE(image) << image.error().message;
  code.image = std::move(*image);
  const auto program = cpu::CpuProgram::load(code, arch.name);
  ASSERT_TRUE(program);
  std::vector<float> data(16, 1);
  void* const buffers[] = {data.data()};
  test::run_kernel(**program, buffers, {});
}

TEST(CheckedScratch, AccessesOutsideAreReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  run_local(4, true);
  run_local(4, false);
  EXPECT_DEATH(run_local(5, true),
               "kernel through: store of 4 elements of scratch array 0 "
               "\\(float32, 8 elements\\) at element 5: outside");
  EXPECT_DEATH(run_local(-1, false),
               "kernel through: load of 4 elements of scratch array 0 "
               "\\(float32, 8 elements\\) at element -1: outside");
}

/// Σ over j of (in[j]·2 of every j up to `written`): a row of 8 of which a loop writes the first.
Program row_program(int64_t written, bool writes) {
  Program p;
  p.name = "row";
  p.params = {{DType::kF32, 16, true, true}};
  Builder b(p, target_info(test::native_arch()));
  const uint32_t row = b.add_local(DType::kF32, 8);
  const Builder::Loop grid = b.open_loop(p.root, LoopKind::kGrid);
  const Builder::Loop first = b.open_loop(grid.body);
  const ValueId v = b.load(0, DType::kF32, 1, first.index);
  if (writes) b.local_store(first.body, row, first.index, b.add(v, v));
  b.close_loop(first, b.index(0), b.index(written), 1);
  const Builder::Loop second = b.open_loop(grid.body);
  b.store(second.body, 0, b.add(second.index, b.index(8)),
          b.local_load(second.body, row, second.index));
  b.close_loop(second, b.index(0), b.index(8), 1);
  const ValueId begin = b.bitcast(p.block_begin, DType::kI64);
  b.close_loop(grid, begin, b.bitcast(p.block_end, DType::kI64), 1);
  return p;
}

void run_row(int64_t written) {
  const hal::Arch arch = test::native_arch();
  const TargetInfo target = target_info(arch);
  Program p = row_program(written, true);
  ASSERT_TRUE(verify(p));
  insert_checks(p, true);
  ASSERT_TRUE(verify(p));
  hal::CodeObject code;
  code.entry = p.name;
  code.arch = arch.name;
  code.num_buffers = 1;
  code.scratch_bytes = scratch_bytes(p);
  auto image = llvm_compile(render_llvm(p, target), target);
  ASSERT_TRUE(image) << image.error().message;
  code.image = std::move(*image);
  const auto program = cpu::CpuProgram::load(code, arch.name);
  ASSERT_TRUE(program);
  std::vector<float> data(16, 1);
  void* const buffers[] = {data.data()};
  test::run_kernel(**program, buffers, {});
  EXPECT_EQ(data[15], 2);
}

TEST(CheckedScratch, PartsOfRowsThatNothingWroteAreReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  run_row(8);
  EXPECT_DEATH(run_row(7),
               "kernel row: load of 1 element of scratch array 0 \\(float32, 8 elements\\) "
               "at element 7: nothing was written there");
}

TEST(CheckedScratch, AProgramThatReadsARowItNeverWritesIsRefused) {
  EXPECT_TRUE(verify(row_program(8, true)));
  const Status refused = verify(row_program(8, false));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "program row: local array 0 is read but not written before");
}

}  // namespace
}  // namespace bm::compiler
