// What attention by matrix instructions is made of, instruction by instruction, on the PTX
// interpreter.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "compiler/program/builder.h"
#include "compiler/render/render.h"
#include "runtime/base/half.h"
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
  p.params = {{out, count, false, true}, {in, count, true, false}};
  p.block = kItems;
  Builder b(p, compiler::target_info(arch));
  const Builder::Loop groups = b.open_loop(p.root, compiler::LoopKind::kGroup);
  const ValueId at = b.add(b.mul(groups.index, b.index(kItems)), b.item());
  const ValueId v = b.load(1, in, 1, at);
  b.store(groups.body, 0, at, value(b, groups.body, v));
  b.close_groups(groups, 0, compiler::kNone);
  return p;
}

std::vector<std::byte> run_program(const Program& p, std::vector<std::byte> in,
                                   const hal::Arch& arch) {
  const Status verified = compiler::verify(p);
  EXPECT_TRUE(verified) << (verified ? "" : verified.error().message);
  const std::string text = compiler::render_ptx(p, compiler::target_info(arch));
  hal::CodeObject code;
  code.entry = p.name;
  code.block = {p.block, 1, 1};
  code.grid[0].constant = p.params[0].elements / kItems;
  const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  code.image.assign(bytes.begin(), bytes.end());
  const auto size = static_cast<size_t>(p.params[0].elements * item_size(p.params[0].dtype));
  Buffers buffers{std::vector<std::byte>(size), std::move(in)};
  const auto done = run_on_ptx(code, buffers, {});
  EXPECT_TRUE(done) << (done ? "" : done.error().message) << text;
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

/// All codes, and scales of any size.
TEST(GroupAttentionParts, CodesTimesTheirScalesAreRoundedOnce) {
  const hal::Arch arch = sm_80();
  std::mt19937_64 random(std::random_device{}());
  std::vector<uint32_t> x(kItems);
  for (uint32_t i = 0; i < kItems; ++i) x[i] = (4 * i) * 0x01010101U + 0x03020100U;
  for (const uint32_t scale :
       {0x3c00U, 0x0003U, 0xb123U, 0x7b00U, static_cast<uint32_t>(random() % 0x7c00)}) {
    const uint32_t other = static_cast<uint32_t>(random() % 0x7c00);
    for (const size_t half : {0U, 1U}) {
      const auto word = [&](Builder& b, compiler::BlockId, ValueId v) {
        const ValueId scales = b.constant({DType::kU32, 1}, int64_t{scale | other << 16});
        return b.dequantise(v, scales)[half];
      };
      const Program p = program_of(DType::kU32, DType::kU32, kItems, arch, word);
      std::vector<uint32_t> want;
      for (const uint32_t codes : x) {
        const auto bits = [&](size_t byte, uint32_t by) -> uint32_t {
          const auto code = static_cast<int8_t>(codes >> 8 * byte);
          return f32_to_f16(static_cast<float>(code) * f16_to_f32(static_cast<uint16_t>(by)));
        };
        want.push_back(bits(2 * half, scale) | bits(2 * half + 1, other) << 16);
      }
      EXPECT_EQ(run_program(p, bytes_of(x), arch), bytes_of(want)) << scale << " " << other;
    }
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
