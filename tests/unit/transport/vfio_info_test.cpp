#include "drivers/transport/vfio_info.h"

#include <gtest/gtest.h>

#include <cstring>

namespace bm {
namespace {

std::vector<std::byte> words(std::initializer_list<uint32_t> list) {
  std::vector<std::byte> bytes(list.size() * 4);
  std::memcpy(bytes.data(), list.begin(), bytes.size());
  return bytes;
}

// Written out as the kernel lays them out: argsz, flags, index, cap_offset, size, offset; then
// capabilities of id | version << 16, next.
TEST(VfioInfo, PartsThatCanBeMapped) {
  const auto region =
      parse_vfio_region(words({80, 0xf, 0,       32, 0x40000, 0, 0,      0x100, 1 | 1 << 16, 0,
                               2,  0,   0x10000, 0,  0x1000,  0, 0x2000, 0,     0x1000,      0}));
  ASSERT_TRUE(region) << region.error().message;
  EXPECT_EQ(region->size, 0x40000u);
  EXPECT_EQ(region->offset, 0x100ull << 32);
  EXPECT_TRUE(region->is_readable && region->is_writable && region->is_mappable);
  EXPECT_EQ(region->areas, (std::vector<BusRange>{{0x2000, 0x1000}, {0x10000, 0x1000}}));
}

TEST(VfioInfo, RegionsThatCannotBe) {
  const auto code = [](std::initializer_list<uint32_t> list) {
    const auto region = parse_vfio_region(words(list));
    return region ? Code::kInternal : region.error().code;
  };
  EXPECT_EQ(code({32, 3, 0, 0, 0x1000, 0}), Code::kCorrupt) << "short";
  EXPECT_EQ(code({32, 3, 0, 0, ~0u, ~0u, 0x1000, 0}), Code::kCorrupt) << "beyond 2^64";
  EXPECT_EQ(code({32, 0xf, 0, 32, 0x1000, 0, 0, 0, 9, 32}), Code::kCorrupt) << "a loop";
  EXPECT_EQ(code({32, 0xf, 0, 4000, 0x1000, 0, 0, 0}), Code::kCorrupt);
  EXPECT_EQ(code({56, 0xf, 0, 32, 0x1000, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0x2000, 0}), Code::kCorrupt)
      << "larger than the region";
  EXPECT_EQ(code({56, 0xf, 0, 32, 0x1000, 0, 0, 0, 1, 0, ~0u, 0}), Code::kCorrupt);
  EXPECT_EQ(
      code({72, 0xf, 0, 32, 0x9000, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0x2000, 0, 0x1000, 0, 0x1000, 0}),
      Code::kCorrupt)
      << "overlap";
}

TEST(VfioInfo, IovasThatCannotBe) {
  const auto parse = [](std::initializer_list<uint32_t> list) {
    return parse_vfio_iommu(words(list));
  };
  // argsz, flags, page sizes, cap_offset, padding; id 1: count, reserved, first and last.
  const auto all = parse({56, 3, 0xfffff000, ~0u, 24, 0, 1, 0, 1, 0, 0, 0, ~0u, ~0u});
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(all->limits.address_bits, 64u);
  EXPECT_TRUE(all->limits.reserved.empty());
  EXPECT_EQ(parse({16, 1, 0x200000, 0})->limits.page_bytes, 2u << 20) << "a kernel before 5.4";
  EXPECT_EQ(parse({16, 1, 0, 0}).error().code, Code::kCorrupt);
  EXPECT_EQ(parse({16, 1, 0}).error().code, Code::kCorrupt);
  EXPECT_EQ(parse({56, 3, 0x1000, 0, 24, 0, 1, 0, 1, 0, 0x2000, 0, 0x1000, 0}).error().code,
            Code::kCorrupt);
  EXPECT_EQ(parse({56, 3, 0x1000, 0, 24, 0, 1, 0, 0, 0}).error().code, Code::kCorrupt);
  EXPECT_EQ(parse({56, 3, 0x1000, 0, 24, 0, 1, 24, 9, 0}).error().code, Code::kCorrupt);
  EXPECT_EQ(parse({72, 3, 0x1000, 0, 24, 0, 1, 0, 2, 0, 0, 0, 0x5000, 0, 0x4000, 0, 0x9000, 0})
                .error()
                .code,
            Code::kCorrupt)
      << "overlap";
}

}  // namespace
}  // namespace bm
