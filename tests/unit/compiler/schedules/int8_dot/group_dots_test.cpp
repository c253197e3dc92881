// Dot products of work-items: quantised products give the reference's integers on every GPU, by
// instructions where words lie at multiples of 4 bytes, and at any address of the params.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "compiler/program/builder.h"
#include "compiler/render/render.h"
#include "compiler/toolchain/toolchain.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/dot_sums.h"
#include "tests/unit/compiler/ptx_runner.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using compiler::DotKind;

bool has(std::string_view text, std::string_view what) {
  return text.find(what) != std::string_view::npos;
}

/// A column of vectors, a tile of them, and few results whose blocks a group shares.
constexpr DotShape kShapes[] = {
    {.vectors = 1, .rows = 64, .blocks = 5, .code = Bytes::kLow},
    {.vectors = 1, .rows = 48, .blocks = 3, .code = Bytes::kHigh, .has_shift = false},
    {.vectors = 3, .rows = 32, .blocks = 4, .code = Bytes::kMixed},
    {.vectors = 40, .rows = 96, .blocks = 2},
    {.vectors = 2, .rows = 3, .blocks = 70, .code = Bytes::kLow, .is_packed = false},
    {.vectors = 1, .rows = 2, .blocks = 40, .is_packed = false, .is_signed = true},
    {.vectors = 1, .rows = 48, .blocks = 70, .code = Bytes::kLow},
    {.vectors = 2, .rows = 16, .blocks = 37, .has_shift = false},
    {.vectors = 7, .rows = 20, .blocks = 3, .is_packed = false, .words = 2, .width = 8},
    {.vectors = 5, .rows = 16, .blocks = 6, .code = Bytes::kHigh, .words = 1, .skipped = 8},
    {.vectors = 4, .rows = 5, .blocks = 3, .is_packed = false, .words = 1, .width = 32},
    {.vectors = 2, .rows = 9, .blocks = 3, .code = Bytes::kHigh, .is_packed = false, .skipped = 4},
    {.vectors = 3, .rows = 7, .blocks = 2, .is_packed = false, .padding = 4},
    // No words: not four numbers, or not where words begin.
    {.vectors = 3, .rows = 32, .blocks = 3, .width = 3},
    {.vectors = 2, .rows = 16, .blocks = 4, .code = Bytes::kLow, .skipped = 2},
    {.vectors = 2, .rows = 6, .blocks = 4, .is_packed = false, .padding = 3},
    {.vectors = 2, .rows = 9, .blocks = 2, .is_packed = false, .is_signed = true, .width = 6},
};

class GroupDots : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(where()); !reason.empty()) GTEST_SKIP() << reason;
  }
  Where where() const { return {GetParam()}; }
  bool has_instruction() const { return !compiler::target_info(arch_of(where())).dots.empty(); }

  void check(const DotShape& s, uint32_t seed) {
    const ir::KernelIr k = dot_sum_kernel(s);
    const Buffers start = dot_sum_buffers(k, seed);
    Buffers got = start;
    const Status done = run_on(where(), k, got, {});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(got[0], evaluated(k, start)[0])
        << s.vectors << " vectors, " << s.rows << " rows, " << s.blocks << " blocks of " << s.words
        << "x" << s.width << ", code " << static_cast<int>(s.code) << ", " << s.skipped
        << " skipped, " << s.padding << " between rows" << (s.is_packed ? ", packed" : "")
        << (s.is_signed ? ", signed" : "");
  }
};

TEST_P(GroupDots, SumsAreThoseOfTheReference) {
  for (const DotShape& s : kShapes) check(s, 3);
}

TEST_P(GroupDots, RandomShapesAreThoseOfTheReference) {
  std::mt19937 random(17);
  const auto pick = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random()) % (most - least + 1);
  };
  for (uint32_t i = 0; i < 16; ++i) {
    DotShape s{.vectors = pick(1, 9), .rows = pick(1, 50), .blocks = pick(1, 24)};
    s.is_packed = pick(0, 1) != 0;
    s.is_signed = pick(0, 3) == 0;
    s.has_shift = pick(0, 1) != 0;
    s.words = pick(1, 8);
    s.width = pick(0, 3) ? 4 : pick(1, 8);
    s.skipped = pick(0, 3) ? 0 : pick(1, 9);
    s.padding = pick(0, 3) ? 0 : pick(1, 12);
    if (s.is_packed) s.rows = 16 * pick(1, 4);
    if (!s.is_signed) s.code = static_cast<Bytes>(pick(0, 3));
    check(s, i);
  }
}

/// Sums that no other sum stands around, for every copy of the loops around them.
TEST_P(GroupDots, ShortProductsAreThoseOfTheReference) {
  for (const int64_t n : {12, 520}) {
    const auto k = product_kernel({.in = DType::kI8,
                                   .sum = DType::kI32,
                                   .out = DType::kI32,
                                   .m = 20,
                                   .n = n,
                                   .k = 28,
                                   .is_right_deep = true});
    const Buffers start = dot_sum_buffers(k);
    Buffers got = start;
    const Status done = run_on(where(), k, got, {});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(got[0], evaluated(k, start)[0]) << n;
    const auto text = compiler::explain(k, arch_of(where()), renderer_of(where()));
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_EQ(has(text->lowered, "= dot"), has_instruction()) << text->lowered;
  }
}

TEST_P(GroupDots, WordsAreMultipliedByInstructions) {
  for (const DotShape& s : kShapes) {
    const auto text = compiler::explain(dot_sum_kernel(s), arch_of(where()), renderer_of(where()));
    ASSERT_TRUE(text) << text.error().message;
    // Prompts are multiplied by matrix instructions where there are some (quantised_gemm_test).
    EXPECT_EQ(has(text->lowered, "= dot") || has(text->lowered, "matrix "),
              has_instruction() && s.has_words())
        << text->lowered;
    // Few results of many blocks, and the opposite.
    if (s.blocks >= 37) {
      EXPECT_TRUE(has(text->schedule, "shared by the work-items")) << text->schedule;
      EXPECT_EQ(has(text->schedule, "side by side"), has_instruction() && s.is_packed)
          << text->schedule;
    }
    if (s.vectors == 40) {
      EXPECT_FALSE(has(text->schedule, "shared by the work-items")) << text->schedule;
    }
  }
}

/// Memory of others may begin anywhere that its elements allow.
TEST_P(GroupDots, ParamsBeginAtAnyAddress) {
  if (GetParam() == std::string_view("OPENCL")) GTEST_SKIP() << "buffers begin where it says";
  const ScopedSetting text("BM_NV_CODE", "ptx");
  struct Row {
    ir::KernelIr kernel;
    std::vector<uint64_t> shifts;
  };
  std::vector<Row> rows;
  for (const DotShape& s : {kShapes[0], kShapes[3], kShapes[4]})
    rows.push_back({dot_sum_kernel(s), {0, 4, 16, 20}});
  // Nothing but bytes; of 512 columns, the rows are the same for all work-items of a group.
  for (const int64_t n : {12, 520, 512})
    rows.push_back({product_kernel({.in = DType::kI8,
                                    .sum = DType::kI32,
                                    .out = DType::kI8,
                                    .m = 20,
                                    .n = n,
                                    .k = 28,
                                    .is_right_deep = true}),
                    {0, 1, 2, 3, 16}});
  for (const auto& [k, shifts] : rows) {
    const auto code =
        compiler::compile(k, arch_of(where()), renderer_of(where()), {.use_cache = false});
    ASSERT_TRUE(code) << code.error().message;
    const Buffers start = dot_sum_buffers(k), want = evaluated(k, start);
    for (const uint64_t shift : shifts) {
      Buffers got = start;
      Status done;
      if (arch_of(where()).vendor == hal::Vendor::kAmd) {
        if (auto ran = run_on_amd(*code, got, {}, shift); !ran) done = tl::unexpected(ran.error());
      } else if (auto ran = run_on_ptx(*code, got, {}, shift); !ran) {
        done = tl::unexpected(ran.error());
      }
      ASSERT_TRUE(done) << shift << ": " << done.error().message;
      EXPECT_EQ(got[0], want[0]) << shift;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, GroupDots,
                         testing::Values("PTX", "NVRTC", "NVPTX", "GFX1100", "GFX1201", "GFX1030",
                                         "GFX942", "OPENCL"),
                         [](const auto& given) { return std::string(given.param); });

std::string assembly(const DotShape& s, const hal::Arch& arch, const char* renderer) {
  const auto text = compiler::explain(dot_sum_kernel(s), arch, renderer);
  EXPECT_TRUE(text) << text.error().message;
  return text ? text->assembly : "";
}

TEST(GroupDot, EveryChipHasItsInstruction) {
  if (const std::string reason = why_not({"GFX1100"}); !reason.empty()) GTEST_SKIP() << reason;
  const DotShape whole{.vectors = 1, .rows = 512, .blocks = 8};
  DotShape low = whole, numbers = whole, odd = whole;
  low.code = Bytes::kLow;
  numbers.is_signed = true;
  odd.skipped = 1;
  for (const char* chip : {"gfx1100", "gfx1151", "gfx1201"}) {
    const hal::Arch arch = amd_arch(chip);
    EXPECT_TRUE(has(assembly(whole, arch, ""), "v_dot4_i32_iu8")) << chip;
    EXPECT_TRUE(has(assembly(whole, arch, ""), "neg_lo:[0,1,0]")) << chip;
    EXPECT_TRUE(has(assembly(numbers, arch, ""), "neg_lo:[1,1,0]")) << chip;
    EXPECT_FALSE(has(assembly(odd, arch, ""), "v_dot4")) << chip;
  }
  // Signed numbers alone: seven bits are such, of eight the highest bit is turned over.
  const hal::Arch cdna = amd_arch("gfx942");
  for (const DotShape& s : {whole, low, numbers}) EXPECT_TRUE(has(assembly(s, cdna, ""), "v_dot4"));
  EXPECT_TRUE(has(assembly(whole, cdna, ""), "v_xor_b32"));
  EXPECT_FALSE(has(assembly(low, cdna, ""), "v_xor_b32"));
  EXPECT_FALSE(has(assembly(odd, cdna, ""), "v_dot4"));
}

TEST(GroupDot, CardsFromPascalOnHaveDp4a) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  hal::Arch arch = ptx_arch();
  const DotShape whole{.vectors = 1, .rows = 512, .blocks = 8};
  DotShape numbers = whole, odd = whole;
  numbers.is_signed = true;
  odd.skipped = 1;
  EXPECT_TRUE(has(assembly(whole, arch, "PTX"), "dp4a.u32.s32"));
  EXPECT_TRUE(has(assembly(numbers, arch, "PTX"), "dp4a.s32.s32"));
  EXPECT_FALSE(has(assembly(odd, arch, "PTX"), "dp4a"));
  // Eight words of a row lie together; shifted by four numbers those of the matrix are single.
  DotShape row = whole, moved, apart;
  row.is_packed = false;
  moved = apart = row;
  moved.skipped = apart.padding = 4;
  const auto count = [&](const DotShape& s, std::string_view what) {
    const std::string code = assembly(s, arch, "PTX");
    int n = 0;
    for (size_t at = 0; (at = code.find(what, at)) != std::string::npos; ++at) ++n;
    return n;
  };
  EXPECT_EQ(count(whole, "ld.global.v4.u32"), 2);
  EXPECT_EQ(count(row, "ld.global.v4.u32"), 4);
  EXPECT_EQ(count(moved, "ld.global.v4.u32"), 2);
  EXPECT_EQ(count(apart, "ld.global.v4.u32"), 2);
  arch.name = "sm_60";
  EXPECT_TRUE(compiler::target_info(arch).dots.empty());
  arch.name = "sm_61";
  EXPECT_EQ(compiler::target_info(arch).dots.size(), 2u);
}

/// Instructions of one work-item for each multiplication, with words and where the matrix begins at
/// an odd address of them; docs/hw/amd/compiler.md and docs/hw/nvidia/compiler.md have the numbers.
TEST(GroupDot, ProductsTakeFewInstructions) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  for (const char* where : {"PTX", "GFX1100", "GFX1201"}) {
    if (!why_not({where}).empty()) continue;
    for (const int64_t vectors : {1, 16}) {
      double each[2] = {};
      for (const int64_t skipped : {0, 1}) {
        const DotShape s{.vectors = vectors,
                         .rows = vectors == 1 ? 4096 : 512,
                         .blocks = 12,
                         .code = Bytes::kLow,
                         .skipped = skipped};
        const auto k = dot_sum_kernel(s);
        const auto code =
            compiler::compile(k, arch_of({where}), renderer_of({where}), {.use_cache = false});
        ASSERT_TRUE(code) << code.error().message;
        Buffers buffers = dot_sum_buffers(k);
        double instructions = 0;
        if (arch_of({where}).vendor == hal::Vendor::kAmd) {
          const auto done = run_on_amd(*code, buffers, {});
          ASSERT_TRUE(done) << done.error().message;
          instructions = 32 * static_cast<double>(done->instructions);
        } else {
          const auto done = run_on_ptx(*code, buffers, {});
          ASSERT_TRUE(done) << done.error().message;
          instructions = static_cast<double>(done->lane_instructions);
        }
        each[skipped] = instructions / static_cast<double>(vectors * s.rows * s.blocks * s.block());
      }
      std::printf("%s, %ld vectors: %.2f instructions per multiplication, without words %.2f\n",
                  where, static_cast<long>(vectors), each[0], each[1]);
      EXPECT_LT(each[0], vectors == 1 ? 2.5 : 1.8);
      EXPECT_LT(each[0], each[1] / 3);
    }
  }
}

/// out = dot(… dot(acc, a, b) …) of one word after the other, one work-item for each sum.
constexpr uint32_t kItems = 64, kRounds = 3;
compiler::Program dot_program(DotKind kind, const compiler::TargetInfo& target) {
  compiler::Program p;
  p.name = "dots";
  p.block = kItems;
  p.params = {{DType::kI32, kItems, true, false},
              {DType::kI32, kItems, false, true},
              {DType::kU8, kItems * 4 * kRounds, false, true},
              {DType::kU8, kItems * 4 * kRounds, false, true}};
  compiler::Builder b(p, target);
  const auto items = b.open_loop(p.root, compiler::LoopKind::kItem);
  compiler::ValueId acc = b.load(1, DType::kI32, 1, items.index);
  for (uint32_t i = 0; i < kRounds; ++i) {
    const compiler::ValueId at = b.mul(b.add(items.index, b.index(i * kItems)), b.index(4));
    const compiler::ValueId left = b.words(2, 1, at, true), right = b.words(3, 1, at, true);
    acc = b.dot(kind, acc, left, right);
  }
  b.store(items.body, 0, items.index, acc);
  b.close_items(items, b.index(0), compiler::kNone, 1);
  return p;
}

/// Bytes of all values, extremes among them, against sums of this test's own.
TEST(GroupDot, OfTargetsWithSignedNumbersOnlyIsExact) {
  if (const std::string reason = why_not({"GFX1100"}); !reason.empty()) GTEST_SKIP() << reason;
  const compiler::TargetInfo target = compiler::target_info(amd_arch("gfx1100"));
  std::mt19937 random(5);
  const auto byte = [&] {
    constexpr uint8_t kEdges[] = {0, 1, 127, 128, 255};
    return random() % 2 ? kEdges[random() % 5] : static_cast<uint8_t>(random());
  };
  for (const DotKind kind : {DotKind::kU8S8, DotKind::kS8S8})
    for (const std::vector<compiler::DotInfo>& dots :
         {std::vector<compiler::DotInfo>{}, {{DotKind::kS8S8, 32}}, target.dots}) {
      compiler::TargetInfo narrow = target;
      narrow.dots = dots;
      const compiler::Program p = dot_program(kind, narrow);
      const Status verified = compiler::verify(p);
      ASSERT_TRUE(verified) << verified.error().message;
      auto image = compiler::llvm_compile(compiler::render_amdgpu(p, target), target);
      ASSERT_TRUE(image) << image.error().message;
      hal::CodeObject code;
      code.entry = p.name;
      code.arch = "gfx1100";
      code.image = std::move(*image);
      code.num_buffers = 4;
      code.block = {kItems, 1, 1};
      for (hal::DimExpr& dim : code.grid) dim.constant = 1;
      Buffers buffers;
      for (const ir::Param& param : p.params)
        buffers.emplace_back(static_cast<size_t>(param.elements * item_size(param.dtype)));
      for (size_t i = 1; i < 4; ++i)
        for (std::byte& b : buffers[i]) b = static_cast<std::byte>(byte());
      const auto done = run_on_amd(code, buffers, {});
      ASSERT_TRUE(done) << done.error().message;
      for (size_t item = 0; item < kItems; ++item) {
        uint32_t want = 0, got = 0;
        std::memcpy(&want, &buffers[1][4 * item], 4);
        std::memcpy(&got, &buffers[0][4 * item], 4);
        for (size_t round = 0; round < kRounds; ++round)
          for (size_t i = 0; i < 4; ++i) {
            const size_t at = 4 * (round * kItems + item) + i;
            const auto a = static_cast<uint8_t>(buffers[2][at]);
            const int left = kind == DotKind::kU8S8 ? a : static_cast<int8_t>(a);
            want += static_cast<uint32_t>(left * static_cast<int8_t>(buffers[3][at]));
          }
        ASSERT_EQ(got, want) << static_cast<int>(kind) << ", " << dots.size() << " instructions";
      }
    }
}

}  // namespace
}  // namespace bm::test
