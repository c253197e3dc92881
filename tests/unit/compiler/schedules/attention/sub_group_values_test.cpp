// What attention by matrix instructions is made of, instruction by instruction, on the interpreters
// of PTX and of AMD's instructions.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "compiler/backends.h"
#include "compiler/program/builder.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"

namespace bm::test {
namespace {

using compiler::Builder;
using compiler::Program;
using compiler::ValueId;

constexpr uint32_t kItems = 64;

hal::Arch sm_80() {
  hal::Arch arch = ptx_arch();
  arch.name = "sm_80";
  return arch;
}

/// p0[i] = what `value` makes of p1[i], by groups of 64.
template <class F>
Program program_of(DType in, DType out, int64_t count, const hal::Arch& arch, F&& value) {
  Program p;
  p.name = "one";
  p.params = {{.dtype = out, .elements = count, .is_written = true},
              {.dtype = in, .elements = count, .is_read = true}};
  p.block = kItems;
  Builder b(p, compiler::target_info(arch));
  const Builder::Loop groups = b.open_loop(p.root, compiler::LoopKind::kGroup);
  const ValueId at = b.add(b.mul(groups.index, b.index(kItems)), b.item());
  const ValueId v = b.load(1, in, 1, at);
  b.store(groups.body, 0, at, value(b, groups.body, v));
  b.close_groups(groups, 0, compiler::kNone);
  return p;
}

/// `change`: of the renderer's text, before it is assembled.
std::vector<std::byte> run_program(const Program& p, std::vector<std::byte> in,
                                   const hal::Arch& arch, std::string_view renderer = "PTX",
                                   const std::function<void(std::string*)>& change = {}) {
  const ScopedSetting setting("BM_NV_CODE", "ptx");
  const Status verified = compiler::verify(p);
  EXPECT_TRUE(verified) << (verified ? "" : verified.error().message);
  const compiler::Backend& backend = **compiler::find_backend(arch, renderer);
  std::string text = backend.render(p, compiler::target_of(arch, backend));
  if (change) change(&text);
  auto image = backend.assemble({text, arch.name}, arch);
  EXPECT_TRUE(image) << (image ? "" : image.error().message) << text;
  if (!image) return {};
  hal::CodeObject code;
  code.entry = p.name;
  code.arch = arch.name;
  code.num_buffers = static_cast<uint32_t>(p.params.size());
  code.block = {p.block, 1, 1};
  code.grid[0].constant = p.params[0].elements / kItems;
  code.grid[1].constant = code.grid[2].constant = 1;
  code.image = *std::move(image);
  const auto size = static_cast<size_t>(p.params[0].elements * item_size(p.params[0].dtype));
  Buffers buffers{std::vector<std::byte>(size), std::move(in)};
  std::string failure;
  if (arch.vendor == hal::Vendor::kAmd) {
    const auto done = run_on_amd(code, buffers, {});
    if (!done) failure = done.error().message;
  } else {
    const auto done = run_on_ptx(code, buffers, {});
    if (!done) failure = done.error().message;
  }
  EXPECT_EQ(failure, "") << text;
  return buffers[0];
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

TEST(GroupAttentionParts, ExponentialsOfDistancesHaveTheBitsOfAllExponentials) {
  const hal::Arch arch = sm_80();
  std::mt19937_64 random(std::random_device{}());
  std::uniform_real_distribution<float> far(-170, 0), near(-2, 0);
  std::vector<float> x{0.0F, -0.0F, -HUGE_VALF, NAN, -160.0F, -149.5F, -126.0F, -127.0F, -0.5F};
  while (x.size() < 256 * kItems) x.push_back(x.size() % 4 == 0 ? near(random) : far(random));
  const auto count = static_cast<int64_t>(x.size());
  const auto run = [&](bool is_short) {
    const auto power = [&](Builder& b, compiler::BlockId, ValueId v) {
      return is_short ? b.exp2_of_distance(v, 1) : b.alu(ir::Op::kExp2, DType::kF32, {&v, 1});
    };
    return run_program(program_of(DType::kF32, DType::kF32, count, arch, power), bytes_of(x), arch);
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(GroupAttentionParts, WorkItemsOfASubGroupExchangeNumbers) {
  const hal::Arch arch = sm_80();
  std::vector<uint32_t> x(2 * kItems);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint32_t>(1000 + i);
  for (const uint32_t with : {1U, 2U, 16U, 31U}) {
    const auto exchange = [&](Builder& b, compiler::BlockId block, ValueId v) {
      return b.shuffle(block, v, with);
    };
    const Program p =
        program_of(DType::kU32, DType::kU32, static_cast<int64_t>(x.size()), arch, exchange);
    std::vector<uint32_t> want(x.size());
    for (size_t i = 0; i < x.size(); ++i) want[i] = x[i ^ with];
    EXPECT_EQ(run_program(p, bytes_of(x), arch), bytes_of(want)) << with;
  }
}

TEST(GroupAttentionParts, TwoNumbersBecomeAWord) {
  const hal::Arch arch = sm_80();
  std::vector<float> x(kItems);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.37F - 3;
  for (const DType half : {DType::kF16, DType::kBF16}) {
    const auto word = [&](Builder& b, compiler::BlockId, ValueId v) {
      return b.pack_half2(v, b.neg(v), half);
    };
    const Program p = program_of(DType::kF32, DType::kU32, kItems, arch, word);
    std::vector<uint32_t> want;
    for (const float f : x) {
      const auto bits = [&](float v) -> uint32_t {
        return half == DType::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
      };
      want.push_back(bits(f) | bits(-f) << 16);
    }
    EXPECT_EQ(run_program(p, bytes_of(x), arch), bytes_of(want));
  }
}

struct CodesWay {
  const char *card, *renderer;
  const char* toolkit;  ///< as why_not() knows it
  const char *order, *other_order, *bias, *other_bias;
};
/// No schedule asks LLVM's NVPTX for it yet.
constexpr CodesWay kCodesWays[] = {
    {"sm_80", "PTX", "PTX", "0x4140", "0x4041", "0x64806480", "0x64006400"},
    {"sm_80", "NVRTC", "NVRTC", "0x4140", "0x4041", "0x64806480", "0x64006400"},
    {"sm_80", "LLVM", "NVPTX", "0x4140", "0x4041", "0x64806480", "0x64006400"},
    {"gfx942", "LLVM", "GFX942", "67175424", "67109889", "half 1152.0", "half 1024.0"},
    {"gfx1030", "LLVM", "GFX1030", "67175424", "67109889", "half 1152.0", "half 1024.0"},
    {"gfx1100", "LLVM", "GFX1100", "67175424", "67109889", "half 1152.0", "half 1024.0"},
    {"gfx1201", "LLVM", "GFX1201", "67175424", "67109889", "half 1152.0", "half 1024.0"}};

void PrintTo(const CodesWay& way, std::ostream* out) { *out << way.card << ' ' << way.renderer; }

class CodesTimesScales : public ::testing::TestWithParam<CodesWay> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not({way().toolkit}); !reason.empty())
      GTEST_SKIP() << reason;
  }
  static const CodesWay& way() { return GetParam(); }
  static hal::Arch arch() {
    if (std::string_view(way().card).starts_with("gfx")) return amd_arch(way().card);
    return sm_80();
  }
  /// Bytes 2·half and 2·half + 1 of every code, by two scales.
  static std::vector<std::byte> made(const std::vector<uint32_t>& codes, size_t half, uint32_t low,
                                     uint32_t high,
                                     const std::function<void(std::string*)>& change = {}) {
    const auto word = [&](Builder& b, compiler::BlockId, ValueId v) {
      const ValueId scales = b.constant({DType::kU32, 1}, int64_t{low | high << 16});
      return b.dequantise(v, scales)[half];
    };
    const Program p = program_of(DType::kU32, DType::kU32, kItems, arch(), word);
    return run_program(p, bytes_of(codes), arch(), way().renderer, change);
  }
  static std::vector<std::byte> wanted(const std::vector<uint32_t>& codes, size_t half,
                                       uint32_t low, uint32_t high) {
    std::vector<uint32_t> want;
    for (const uint32_t word : codes) {
      const auto bits = [&](size_t byte, uint32_t by) -> uint32_t {
        const auto code = static_cast<int8_t>(word >> 8 * byte);
        return f32_to_f16(static_cast<float>(code) * f16_to_f32(static_cast<uint16_t>(by)));
      };
      want.push_back(bits(2 * half, low) | bits(2 * half + 1, high) << 16);
    }
    return bytes_of(want);
  }
  /// All of them.
  static std::vector<uint32_t> all_codes() {
    std::vector<uint32_t> x(kItems);
    for (uint32_t i = 0; i < kItems; ++i) x[i] = (4 * i) * 0x01010101U + 0x03020100U;
    return x;
  }
};

INSTANTIATE_TEST_SUITE_P(All, CodesTimesScales, ::testing::ValuesIn(kCodesWays),
                         [](const auto& tested) {
                           return fmt::format("{}_{}", tested.param.card, tested.param.toolkit);
                         });

/// Scales of any size.
TEST_P(CodesTimesScales, AreRoundedOnce) {
  std::mt19937_64 random(std::random_device{}());
  const std::vector<uint32_t> x = all_codes();
  for (const uint32_t scale :
       {0x3c00U, 0x0003U, 0xb123U, 0x7b00U, static_cast<uint32_t>(random() % 0x7c00)}) {
    const auto other = static_cast<uint32_t>(random() % 0x7c00);
    for (const size_t half : {0U, 1U})
      EXPECT_EQ(made(x, half, scale, other), wanted(x, half, scale, other))
          << scale << " " << other;
  }
}

TEST_P(CodesTimesScales, InAnotherOrderOrOfAnotherBiasAreNoticed) {
  const std::vector<uint32_t> x = all_codes();
  for (const auto& [right, wrong] :
       {std::pair(way().order, way().other_order), std::pair(way().bias, way().other_bias)}) {
    const auto change = [&](std::string* text) {
      size_t places = 0;
      for (size_t at = text->find(right); at != std::string::npos; at = text->find(right, at + 1))
        text->replace(at, std::string_view(right).size(), wrong), ++places;
      EXPECT_GT(places, 0u) << right;
    };
    EXPECT_NE(made(x, 0, 0x3555, 0x2e66, change), wanted(x, 0, 0x3555, 0x2e66)) << right;
  }
}

/// Where only some work-items come to an exchange.
TEST(GroupAttentionParts, ExchangesThatSomeDoNotReachAreRefused) {
  const hal::Arch arch = sm_80();
  const auto exchange = [&](Builder& b, compiler::BlockId block, ValueId v) {
    const compiler::BlockId inside = b.open_block(block);
    b.shuffle(inside, v, 1);
    b.close_if(inside, b.lt(b.item(), b.index(7)));
    return v;
  };
  EXPECT_FALSE(compiler::verify(program_of(DType::kF32, DType::kF32, kItems, arch, exchange)));
}

}  // namespace
}  // namespace bm::test
