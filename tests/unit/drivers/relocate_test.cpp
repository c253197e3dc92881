#include "drivers/cpu/relocate.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "runtime/base/elf.h"

namespace bm::cpu {
namespace {

constexpr uint16_t kX86 = elf::kMachineX86_64, kArm = elf::kMachineAArch64;

struct Patched {
  Status status;
  uint64_t word = 0;
};

/// Applies to eight bytes that start as `before`.
Patched apply(uint16_t machine, uint32_t type, const RelocationPlace& at, uint64_t before = 0) {
  const RelocationRule* rule = find_relocation_rule(machine, type);
  EXPECT_NE(rule, nullptr);
  std::array<std::byte, 8> bytes{};
  std::memcpy(bytes.data(), &before, 8);
  Patched result{.status = apply_relocation(*rule, at, bytes)};
  std::memcpy(&result.word, bytes.data(), 8);
  return result;
}

TEST(Relocate, StoresAbsoluteAndRelativeValues) {
  const RelocationPlace at{.place = 0x2000, .symbol = 0x123456789a, .addend = 6};
  EXPECT_EQ(apply(kX86, 1, at).word, 0x12345678a0u);
  EXPECT_EQ(apply(kX86, 24, at).word, 0x12345658a0u);
  EXPECT_EQ(apply(kX86, 2, {.place = 0x2000, .symbol = 0x1000, .addend = -4}).word, 0xffffeffcu);
}

TEST(Relocate, RefusesValuesThatDoNotFit) {
  // 2^31 - 1 is the last signed and 2^32 - 1 the last unsigned 32-bit value.
  EXPECT_TRUE(apply(kX86, 11, {.symbol = 0x7fffffff}).status);
  EXPECT_FALSE(apply(kX86, 11, {.symbol = 0x80000000}).status);
  EXPECT_TRUE(apply(kX86, 11, {.symbol = 0, .addend = -0x80000000ll}).status);
  EXPECT_TRUE(apply(kX86, 10, {.symbol = 0xffffffff}).status);
  EXPECT_FALSE(apply(kX86, 10, {.symbol = 0x100000000}).status);
  const auto far = apply(kX86, 2, {.place = 0x100000000, .symbol = 0x7fff00000000});
  ASSERT_FALSE(far.status);
  EXPECT_EQ(far.status.error().code, Code::kCorrupt);
  EXPECT_NE(far.status.error().message.find("R_X86_64_PC32"), std::string::npos);
  EXPECT_EQ(far.word, 0u) << "nothing is written";
}

TEST(Relocate, UsesSlotsTableAndTrampoline) {
  const RelocationPlace at{.place = 0x1000,
                           .symbol = 0x7f0000000000,
                           .trampoline = 0x1800,
                           .slot = 0x3010,
                           .table = 0x3000,
                           .addend = -4};
  EXPECT_EQ(apply(kX86, 4, at).word, 0x7fcu);
  EXPECT_EQ(apply(kX86, 42, at).word, 0x200cu);
  EXPECT_EQ(apply(kX86, 27, at).word, 0xcu);
  EXPECT_EQ(apply(kX86, 29, at).word, 0x1ffcu);
  EXPECT_TRUE(find_relocation_rule(kX86, 9)->uses_slot());
  EXPECT_TRUE(find_relocation_rule(kX86, 31)->uses_trampoline());
}

TEST(Relocate, RefusesAPlaceAtTheEndOfItsSection) {
  const RelocationRule* rule = find_relocation_rule(kX86, 1);
  std::array<std::byte, 7> bytes{};
  EXPECT_FALSE(apply_relocation(*rule, {.symbol = 1}, bytes));
}

TEST(Relocate, EncodesAArch64Instructions) {
  // adrp x0, sym; add x0, x0, :lo12:sym; ldr x0/q0, [x0, :lo12:sym]; bl sym; as llvm-mc and ld.lld
  // 19 encode them
  EXPECT_EQ(apply(kArm, 275, {.place = 0x210120, .symbol = 0x230ff8}, 0x90000000).word,
            0x90000100u);
  EXPECT_EQ(apply(kArm, 275, {.place = 0x210120, .symbol = 0x20f000}, 0x90000000).word,
            0xf0ffffe0u);
  EXPECT_EQ(apply(kArm, 277, {.symbol = 0x230ff8}, 0x91000000).word, 0x913fe000u);
  EXPECT_EQ(apply(kArm, 286, {.symbol = 0x230ff8}, 0xf9400000).word, 0xf947fc00u);
  EXPECT_EQ(apply(kArm, 299, {.symbol = 0x230ff0}, 0x3dc00000).word, 0x3dc3fc00u);
  EXPECT_EQ(apply(kArm, 283, {.place = 0x1000, .trampoline = 0x2000}, 0x94000000).word,
            0x94000400u);
  EXPECT_EQ(apply(kArm, 282, {.place = 0x2000, .trampoline = 0x1ffc}, 0x14000000).word,
            0x17ffffffu);
}

TEST(Relocate, RefusesMisalignedAArch64Offsets) {
  EXPECT_FALSE(apply(kArm, 286, {.symbol = 0x1004}, 0xf9400000).status);
  EXPECT_FALSE(apply(kArm, 283, {.place = 0, .trampoline = 2}, 0x94000000).status);
  EXPECT_FALSE(apply(kArm, 283, {.place = 0, .trampoline = 1u << 27}, 0x94000000).status);
}

TEST(Relocate, KnowsNoOtherTypes) {
  EXPECT_EQ(find_relocation_rule(kX86, 19), nullptr) << "thread-local";
  EXPECT_EQ(find_relocation_rule(kX86, 0xffffffff), nullptr);
  EXPECT_EQ(find_relocation_rule(3, 1), nullptr);
}

TEST(Relocate, TrampolineHoldsTheTarget) {
  std::array<std::byte, kTrampolineBytes> bytes{};
  const uint64_t target = 0x7fedcba987654321;
  ASSERT_TRUE(write_trampoline(kX86, target, bytes));
  EXPECT_EQ(std::memcmp(bytes.data() + 6, &target, 8), 0);
  ASSERT_TRUE(write_trampoline(kArm, target, bytes));
  EXPECT_EQ(std::memcmp(bytes.data() + 8, &target, 8), 0);
  EXPECT_FALSE(write_trampoline(3, target, bytes));
}

}  // namespace
}  // namespace bm::cpu
