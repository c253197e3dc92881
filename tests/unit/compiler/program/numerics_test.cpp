// Sums of real-valued data: close to the exact answer, the same bits from every renderer, and the
// same bits however the grid is split.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "compiler/ir/evaluate.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

struct Named {
  const char* name;
  std::function<ir::KernelIr()> make;
  std::vector<int64_t> vars;
};

std::vector<Named> kernels() {
  return {
      {"matmul", [] { return matmul_kernel(37, 67, 129, DType::kF32); }, {}},
      {"tiled matmul", [] { return matmul_kernel(64, 96, 64, DType::kF32); }, {}},
      {"matmul with transposed weights",
       [] { return matmul_kernel(9, 50, 131, DType::kF32, true); },
       {}},
      {"float64 matmul", [] { return matmul_kernel(17, 33, 65, DType::kF64); }, {}},
      {"float16 matmul", [] { return matmul_kernel(8, 48, 40, DType::kF16); }, {}},
      {"bfloat16 matmul", [] { return matmul_kernel(8, 48, 40, DType::kBF16, true); }, {}},
      {"row sums",
       [] { return reduce_kernel(ir::ReduceOp::kSum, DType::kF32, 31, 517, false); },
       {}},
      {"column sums",
       [] { return reduce_kernel(ir::ReduceOp::kSum, DType::kF32, 201, 301, true); },
       {}},
      {"column maxima",
       [] { return reduce_kernel(ir::ReduceOp::kMax, DType::kF32, 40, 130, true); },
       {}},
      {"softmax", [] { return softmax_kernel(11, 133); }, {}},
      {"convolution", [] { return convolution_kernel(12, 3, 14, 21); }, {}},
      {"transposition", [] { return transpose_kernel(70, 90, DType::kF32); }, {}},
      {"transposition of bytes", [] { return transpose_kernel(70, 90, DType::kI8); }, {}},
      {"symbolic row sums", [] { return symbolic_row_sums(300, 5000); }, {217, 4099}},
      {"empty symbolic row sums", [] { return symbolic_row_sums(300, 50); }, {0, 40}},
  };
}

std::vector<std::vector<std::byte>> random_buffers(const ir::KernelIr& k) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<std::vector<std::byte>> out;
  for (const ir::Param& p : k.params) {
    std::vector<std::byte> bytes(static_cast<size_t>(p.elements * item_size(p.dtype)));
    for (size_t i = 0; i < static_cast<size_t>(p.elements) && p.is_read; ++i) {
      const auto size = static_cast<size_t>(item_size(p.dtype));
      const ir::Scalar from{DType::kF64, 0, static_cast<double>(uniform(random))};
      const ir::Scalar v = ir::fold(ir::Op::kCast, p.dtype, std::array{from});
      uint64_t bits = static_cast<uint64_t>(v.i);
      if (is_float(p.dtype)) {
        const DType as = size == 2 ? DType::kU16 : size == 4 ? DType::kU32 : DType::kU64;
        bits = static_cast<uint64_t>(ir::fold(ir::Op::kBitcast, as, std::array{v}).i);
      }
      std::memcpy(&bytes[i * size], &bits, size);
    }
    out.push_back(std::move(bytes));
  }
  return out;
}

std::vector<std::byte> run(const Named& n, const hal::Arch& arch, const char* renderer) {
  const ir::KernelIr k = n.make();
  auto program = build_kernel(k, arch, renderer);
  EXPECT_TRUE(program) << program.error().message;
  auto buffers = random_buffers(k);
  std::vector<void*> pointers;
  for (auto& b : buffers) pointers.push_back(b.data());
  run_kernel(**program, pointers, n.vars);
  return buffers[0];
}

double element(DType t, const std::vector<std::byte>& bytes, size_t i) {
  const auto size = static_cast<size_t>(item_size(t));
  uint64_t bits = 0;
  std::memcpy(&bits, &bytes[i * size], size);
  const DType as = size == 1   ? DType::kU8
                   : size == 2 ? DType::kU16
                   : size == 4 ? DType::kU32
                               : DType::kU64;
  return ir::fold(ir::Op::kBitcast, t, std::array{ir::Scalar{as, static_cast<int64_t>(bits), 0}}).f;
}

TEST(Numerics, SumsAreCloseToTheReference) {
  for (const Named& n : kernels()) {
    const ir::KernelIr k = n.make();
    const DType t = k.params[0].dtype;
    if (!is_float(t)) continue;
    const auto got = run(n, native_arch(), "LLVM");
    auto want = random_buffers(k);
    std::vector<std::span<std::byte>> spans(want.begin(), want.end());
    ASSERT_TRUE(compiler::evaluate(k, spans, n.vars));
    const double tolerance = t == DType::kF64   ? 1e-13
                             : t == DType::kF32 ? 2e-5
                             : t == DType::kF16 ? 2e-2
                                                : 1e-1;
    double most = 0;
    for (size_t i = 0; i < static_cast<size_t>(k.params[0].elements); ++i)
      most = std::max(most, std::abs(element(t, got, i) - element(t, want[0], i)));
    EXPECT_LE(most, tolerance) << n.name;
  }
}

TEST(Numerics, RenderersGiveTheSameBits) {
  for (const Named& n : kernels())
    for (const hal::Arch& arch : {native_arch(), baseline_arch()})
      EXPECT_TRUE(run(n, arch, "LLVM") == run(n, arch, "CLANG")) << n.name << " " << arch.cpu;
}

TEST(Numerics, NumberOfProcessorsDoesNotChangeBits) {
  for (const Named& n : kernels()) {
    hal::Arch few = native_arch(), many = native_arch();
    few.units = 1;
    many.units = 64;
    EXPECT_TRUE(run(n, few, "LLVM") == run(n, many, "LLVM")) << n.name;
  }
}

}  // namespace
}  // namespace bm::test
