// Dot products of small numbers: instructions and what stands for them give the exact integer, and
// the bfloat16 sum in the documented order, from both renderers.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "compiler/program/builder.h"
#include "compiler/render/render.h"
#include "compiler/toolchain/toolchain.h"
#include "drivers/cpu/cpu_info.h"
#include "drivers/cpu/program.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using compiler::DotKind;
using compiler::ValueId;

constexpr uint32_t kRounds = 3;  ///< dot products in a chain

/// out = dot(… dot(acc, a, b) …), on `lanes` words.
Result<compiler::Program> dot_program(DotKind kind, uint32_t lanes,
                                      const compiler::TargetInfo& target) {
  compiler::Program p;
  p.name = "dots";
  const DType sum = compiler::dot_sum(kind);
  p.params = {{sum, lanes, true, false},
              {sum, lanes, false, true},
              {DType::kU8, lanes * 4 * kRounds + 1, false, true},
              {DType::kU8, lanes * 4 * kRounds + 1, false, true}};
  compiler::Builder b(p, target);
  ValueId acc = b.load(1, sum, lanes, b.index(0));
  for (uint32_t i = 0; i < kRounds; ++i) {
    // Odd addresses: words need no alignment.
    const ValueId left = b.words(2, lanes, b.index(1 + i * lanes * 4), false);
    const ValueId right = b.words(3, lanes, b.index(1 + i * lanes * 4), false);
    acc = b.dot(kind, acc, left, right);
  }
  b.store(p.root, 0, b.index(0), acc);
  BM_TRY(compiler::verify(p));
  return p;
}

struct Data {
  std::vector<uint32_t> acc;
  std::vector<uint8_t> a, b;
};

Data random_data(DotKind kind, uint32_t lanes) {
  std::mt19937 random(7);
  Data d;
  d.acc.resize(lanes);
  d.a.resize(lanes * 4 * kRounds + 1);
  d.b.resize(d.a.size());
  if (kind != DotKind::kBF16BF16) {
    const uint8_t edges[] = {0, 1, 127, 128, 255};
    const auto byte = [&] {
      return random() % 2 ? edges[random() % 5] : static_cast<uint8_t>(random());
    };
    for (uint32_t& v : d.acc) v = static_cast<uint32_t>(random());
    for (uint8_t& v : d.a) v = byte();
    for (uint8_t& v : d.b) v = byte();
    return d;
  }
  std::uniform_real_distribution<float> uniform(-2, 2);
  for (uint32_t& v : d.acc) v = std::bit_cast<uint32_t>(uniform(random));
  for (auto* bytes : {&d.a, &d.b})
    for (size_t i = 1; i + 1 < bytes->size(); i += 2) {
      const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(uniform(random)) >> 16);
      std::memcpy(&(*bytes)[i], &bits, 2);
    }
  return d;
}

template <class T>
int64_t number(const std::vector<uint8_t>& bytes, size_t i) {
  T v;
  std::memcpy(&v, &bytes[1 + i * sizeof(T)], sizeof(T));
  return v;
}

float brain(const std::vector<uint8_t>& bytes, size_t i) {
  return std::bit_cast<float>(static_cast<uint32_t>(number<uint16_t>(bytes, i)) << 16);
}

std::vector<uint32_t> expected(DotKind kind, uint32_t lanes, const Data& d) {
  std::vector<uint32_t> out = d.acc;
  for (uint32_t round = 0; round < kRounds; ++round)
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      const size_t word = round * lanes + lane;
      int64_t sum = 0;
      if (kind == DotKind::kU8S8) {
        for (size_t i = 4 * word; i < 4 * word + 4; ++i)
          sum += number<uint8_t>(d.a, i) * number<int8_t>(d.b, i);
      } else if (kind == DotKind::kS16S16) {
        for (size_t i = 2 * word; i < 2 * word + 2; ++i)
          sum += number<int16_t>(d.a, i) * number<int16_t>(d.b, i);
      } else {
        float acc = std::bit_cast<float>(out[lane]);
        for (size_t i : {2 * word + 1, 2 * word}) acc = std::fma(brain(d.a, i), brain(d.b, i), acc);
        out[lane] = std::bit_cast<uint32_t>(acc);
        continue;
      }
      out[lane] += static_cast<uint32_t>(sum);
    }
  return out;
}

std::vector<uint32_t> run(const compiler::Program& p, const compiler::TargetInfo& target,
                          bool is_llvm, Data d) {
  auto image = is_llvm ? compiler::llvm_compile(compiler::render_llvm(p, target), target)
                       : compiler::clang_compile(compiler::render_c(p, target), target);
  EXPECT_TRUE(image) << image.error().message;
  hal::CodeObject code;
  code.entry = p.name;
  code.arch = "x86_64";
  code.image = std::move(*image);
  code.num_buffers = 4;
  auto program = cpu::CpuProgram::load(code, "x86_64");
  EXPECT_TRUE(program) << program.error().message;
  std::vector<uint32_t> out(d.acc.size());
  std::array<void*, 4> buffers = {out.data(), d.acc.data(), d.a.data(), d.b.data()};
  run_kernel(**program, buffers, {});
  return out;
}

void check(const hal::Arch& arch) {
  const compiler::TargetInfo target = compiler::target_info(arch);
  const bool has_clang = compiler::clang_version().has_value();
  for (const DotKind kind : {DotKind::kU8S8, DotKind::kS16S16, DotKind::kBF16BF16}) {
    // Without FMA the pairs are not added in one rounding each: only renderers are compared then.
    const bool is_exact = kind != DotKind::kBF16BF16 || target.has_fma;
    for (const uint32_t lanes : {1u, 4u, 8u, 16u}) {
      const auto p = dot_program(kind, lanes, target);
      ASSERT_TRUE(p) << p.error().message;
      const Data d = random_data(kind, lanes);
      const std::vector<uint32_t> got = run(*p, target, true, d);
      if (is_exact) {
        EXPECT_EQ(got, expected(kind, lanes, d)) << static_cast<int>(kind) << " x" << lanes;
      }
      if (has_clang) {
        EXPECT_EQ(run(*p, target, false, d), got) << static_cast<int>(kind) << " x" << lanes;
      }
    }
  }
}

TEST(Dot, IsExactOnThisMachine) { check(native_arch()); }
TEST(Dot, IsExactOnTheBaseline) { check(baseline_arch()); }
TEST(Dot, IsExactWithoutTheInstructionsOfThisMachine) {
  const auto arch = cpu::make_arch("x86_64,-avx512f,-avxvnni");
  ASSERT_TRUE(arch) << arch.error().message;
  check(*arch);
}

TEST(Dot, InstructionsAreRowsOfTheTarget) {
  const auto count = [](const hal::Arch& arch, DotKind kind) {
    int n = 0;
    for (const compiler::DotInfo& d : compiler::target_info(arch).dots) n += d.kind == kind;
    return n;
  };
  hal::Arch arch = baseline_arch();
  EXPECT_EQ(count(arch, DotKind::kU8S8), 0);
  EXPECT_EQ(count(arch, DotKind::kS16S16), 1);
  arch.vector_bits = 256;
  arch.features = "+avx,+avx2,+avxvnni";
  EXPECT_EQ(count(arch, DotKind::kU8S8), 2);
  EXPECT_EQ(count(arch, DotKind::kS16S16), 2);
  arch.vector_bits = 512;
  arch.features = "+avx,+avx2,+avx512f,+avx512bw,+avx512vl,+avx512vnni,+avx512bf16";
  EXPECT_EQ(count(arch, DotKind::kU8S8), 3);
  EXPECT_EQ(count(arch, DotKind::kBF16BF16), 0) << "slow where nothing says it is AMD's";
  arch.features += ",+sse4a";
  EXPECT_EQ(count(arch, DotKind::kBF16BF16), 3);
  arch.features.back() = 'x';
  arch.cpu = "sapphirerapids";
  EXPECT_EQ(count(arch, DotKind::kBF16BF16), 0);
}

/// To name a processor takes nothing away that it has.
TEST(Dot, NamedProcessorsHaveTheirInstructions) {
  const auto kinds = [](const char* request) {
    const auto arch = cpu::other_arch(request);
    EXPECT_TRUE(arch) << arch.error().message;
    std::array<int, 3> n{};
    for (const compiler::DotInfo& d : compiler::target_info(*arch).dots) {
      n[0] += d.kind == DotKind::kU8S8 && d.bits == 512;
      n[1] += d.kind == DotKind::kU8S8 && d.bits == 256;
      n[2] += d.kind == DotKind::kBF16BF16 && d.bits == 512;
    }
    return std::array{n[0] > 0, n[1] > 0, n[2] > 0};
  };
  EXPECT_EQ(kinds("x86_64,sapphirerapids"), (std::array{true, true, false}));
  EXPECT_EQ(kinds("cascadelake"), (std::array{true, true, false}));
  EXPECT_EQ(kinds("znver4"), (std::array{true, true, true}));
  EXPECT_EQ(kinds("znver5,-avx512bf16"), (std::array{true, true, false}));
  EXPECT_EQ(kinds("alderlake"), (std::array{false, true, false}));
  EXPECT_EQ(kinds("skylake-avx512"), (std::array{false, false, false}));
}

TEST(Dot, MalformedOnesAreRefused) {
  const compiler::TargetInfo target = compiler::target_info(baseline_arch());
  auto p = dot_program(DotKind::kU8S8, 4, target);
  ASSERT_TRUE(p);
  compiler::Builder b(*p, target);
  const ValueId acc = b.constant({DType::kI32, 4}, 1), words = b.constant({DType::kU32, 4}, 1);
  for (const std::vector<ValueId>& args :
       {std::vector<ValueId>{acc, words}, {acc, acc, words}, {words, words, words}}) {
    compiler::Program bad = *p;
    bad.values.push_back({.op = compiler::ValueOp::kDot,
                          .alu = ir::Op::kConst,
                          .type = {DType::kI32, 4},
                          .imm = 0,
                          .args = args});
    bad.block_of.push_back(bad.root);
    bad.blocks[bad.root].stmts.push_back({.value = static_cast<ValueId>(bad.values.size() - 1)});
    EXPECT_FALSE(compiler::verify(bad));
  }
}

}  // namespace
}  // namespace bm::test
