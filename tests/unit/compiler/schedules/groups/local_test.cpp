// Local arrays of programs without work-groups: the scratch memory of the executing thread.
#include <gtest/gtest.h>

#include <cstring>

#include "compiler/program/builder.h"
#include "compiler/render/render.h"
#include "compiler/toolchain/toolchain.h"
#include "tests/unit/compiler/runner.h"

namespace bm::compiler {
namespace {

constexpr uint32_t kLanes = 8;
constexpr int64_t kElements = 3 * kLanes;

/// Copies p0 to p1 through two local arrays: vectors go in, single elements come out, and the other
/// way round at a place that is no multiple of a vector.
Program copy_program(DType dtype, const TargetInfo& target) {
  Program p;
  p.name = "copy";
  p.params = {{dtype, kElements, false, true}, {dtype, kElements, true, false}};
  Builder b(p, target);
  const uint32_t first = b.add_local(dtype, kElements), second = b.add_local(dtype, kElements + 1);
  const Builder::Loop grid = b.open_loop(p.root, LoopKind::kGrid);
  for (int64_t i = 0; i < kElements; i += kLanes)
    b.local_store(grid.body, first, b.index(i), b.load(0, dtype, kLanes, b.index(i)));
  for (int64_t i = 0; i < kElements; ++i) {
    const ValueId v = b.local_load(grid.body, first, b.index(i));
    b.local_store(grid.body, second, b.index(i + 1), v);
  }
  for (int64_t i = 0; i < kElements; i += kLanes)
    b.store(grid.body, 1, b.index(i), b.local_load(grid.body, second, b.index(i + 1), kLanes));
  const ValueId begin = b.bitcast(p.block_begin, DType::kI64);
  b.close_loop(grid, begin, b.bitcast(p.block_end, DType::kI64), 1);
  return p;
}

class Locals : public testing::TestWithParam<DType> {};

TEST_P(Locals, HoldVectorsAndSingleElements) {
  const DType dtype = GetParam();
  for (const hal::Arch& arch : {test::native_arch(), test::baseline_arch()})
    for (const bool is_llvm : {true, false}) {
      const TargetInfo target = target_info(arch);
      const Program p = copy_program(dtype, target);
      const Status verified = verify(p);
      ASSERT_TRUE(verified) << verified.error().message;
      const auto size = static_cast<size_t>(item_size(dtype));
      EXPECT_GE(scratch_bytes(p), (2 * kElements + 1) * size);
      EXPECT_EQ(scratch_offset(p, 1) % 64, 0u);
      EXPECT_EQ(local_bytes(p), 0u);
      hal::CodeObject code;
      code.entry = p.name;
      code.arch = arch.name;
      code.num_buffers = 2;
      code.scratch_bytes = scratch_bytes(p);
      auto image = is_llvm ? llvm_compile(render_llvm(p, target), target)
                           : clang_compile(render_c(p, target), target);
      ASSERT_TRUE(image) << image.error().message;
      code.image = std::move(*image);
      const auto program = cpu::CpuProgram::load(code, arch.name);
      ASSERT_TRUE(program) << program.error().message;
      std::vector<uint8_t> in(kElements * size), out(in.size());
      for (size_t i = 0; i < in.size(); ++i)
        in[i] = static_cast<uint8_t>(is_bool(dtype) ? i % 3 == 0 : i * 7 + 1);
      void* const buffers[] = {in.data(), out.data()};
      test::run_kernel(**program, buffers, {});
      EXPECT_EQ(in, out) << arch.cpu << (is_llvm ? " LLVM" : " C");
    }
}

INSTANTIATE_TEST_SUITE_P(Types, Locals,
                         testing::Values(DType::kBool, DType::kI8, DType::kU16, DType::kBF16,
                                         DType::kF16, DType::kF32, DType::kI64, DType::kF64));

TEST(Locals, AnAccessOfAnotherTypeIsRefused) {
  const TargetInfo target = target_info(test::native_arch());
  Program p = copy_program(DType::kF32, target);
  p.locals[0].dtype = DType::kI32;
  EXPECT_FALSE(verify(p));
}

}  // namespace
}  // namespace bm::compiler
