#include <gtest/gtest.h>

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/hal/program.h"

namespace bm::hal {
namespace {

CodeObject example() {
  CodeObject code;
  code.entry = "matmul_3";
  code.arch = "x86_64";
  for (int i = 0; i < 300; ++i) code.image.push_back(static_cast<std::byte>(i));
  code.num_buffers = 3;
  code.num_vars = 2;
  code.grid[0] = {.constant = 5, .terms = {{.var = 1, .coefficient = -7}}, .divisor = 16};
  code.grid[1] = {.constant = 9, .terms = {}, .divisor = 2};
  code.block = {.x = 32, .y = 4, .z = 2};
  code.shared_memory_bytes = 1024;
  code.launch_memory_bytes = 2048;
  code.scratch_bytes = uint64_t{5} << 32;
  code.work_per_block = uint64_t{1} << 40;
  return code;
}

/// The same bytes with a checksum that fits them.
std::vector<std::byte> resealed(std::vector<std::byte> bytes) {
  const size_t body = bytes.size() - sizeof(uint64_t);
  const uint64_t sum = XXH3_64bits(bytes.data(), body);
  std::memcpy(bytes.data() + body, &sum, sizeof sum);
  return bytes;
}

TEST(CodeObject, EveryFieldSurvivesARoundTrip) {
  const CodeObject before = example();
  const auto after = CodeObject::deserialize(before.serialize());
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_EQ(after->entry, before.entry);
  EXPECT_EQ(after->arch, before.arch);
  EXPECT_EQ(after->image, before.image);
  EXPECT_EQ(after->num_buffers, 3u);
  EXPECT_EQ(after->num_vars, 2u);
  EXPECT_EQ(after->grid[0].constant, 5);
  ASSERT_EQ(after->grid[0].terms.size(), 1u);
  EXPECT_EQ(after->grid[0].terms[0].var, 1u);
  EXPECT_EQ(after->grid[0].terms[0].coefficient, -7);
  EXPECT_EQ(after->grid[0].divisor, 16);
  EXPECT_EQ(after->grid[1].constant, 9);
  EXPECT_EQ(after->grid[1].divisor, 2);
  EXPECT_TRUE(after->grid[2].is_constant());
  EXPECT_EQ(after->block, before.block);
  EXPECT_EQ(after->shared_memory_bytes, 1024u);
  EXPECT_EQ(after->launch_memory_bytes, 2048u);
  EXPECT_EQ(after->scratch_bytes, uint64_t{5} << 32);
  EXPECT_EQ(after->work_per_block, before.work_per_block);
}

TEST(CodeObject, AnyFlippedBitIsFound) {
  const std::vector<std::byte> good = example().serialize();
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    const auto read = CodeObject::deserialize(bad);
    ASSERT_FALSE(read) << "bit " << bit;
    EXPECT_EQ(read.error().code, Code::kCorrupt);
  }
}

TEST(CodeObject, EveryTruncationIsFound) {
  const std::vector<std::byte> good = example().serialize();
  for (size_t size = 0; size < good.size(); ++size) {
    std::vector<std::byte> bad(good.begin(), good.begin() + static_cast<ptrdiff_t>(size));
    ASSERT_FALSE(CodeObject::deserialize(bad)) << size << " bytes";
    // Also when the checksum fits: then the lengths inside must be what refuses it.
    if (size < sizeof(uint64_t)) continue;
    ASSERT_FALSE(CodeObject::deserialize(resealed(bad))) << size << " resealed bytes";
  }
}

TEST(CodeObject, TrailingBytesAreRefused) {
  std::vector<std::byte> bytes = example().serialize();
  bytes.push_back(std::byte{0});
  const auto read = CodeObject::deserialize(resealed(bytes));
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("bytes after"), std::string::npos) << read.error().message;
}

TEST(CodeObject, AnotherVersionIsRefused) {
  std::vector<std::byte> bytes = example().serialize();
  bytes[4] = std::byte{99};
  const auto read = CodeObject::deserialize(resealed(bytes));
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("version 99"), std::string::npos) << read.error().message;
}

TEST(CodeObject, GridThatNamesAMissingVariableIsRefused) {
  CodeObject code = example();
  code.num_vars = 1;  // grid[0] uses variable 1
  const auto read = CodeObject::deserialize(code.serialize());
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("variable 1 of 1"), std::string::npos);
}

TEST(CodeObject, GridDivisorBelowOneIsRefused) {
  CodeObject code = example();
  code.grid[2].divisor = 0;
  EXPECT_FALSE(CodeObject::deserialize(code.serialize()));
}

TEST(DimExpr, RoundsUpAndNeverGoesBelowZero) {
  const DimExpr dim{.constant = 1, .terms = {{.var = 0, .coefficient = 3}}, .divisor = 4};
  const int64_t two = 2, minus = -5;
  EXPECT_EQ(dim.evaluate({&two, 1}), 2);    // 7 / 4
  EXPECT_EQ(dim.evaluate({&minus, 1}), 0);  // -14 / 4
}

}  // namespace
}  // namespace bm::hal
