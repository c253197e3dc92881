#include "firmware/nvidia/radix3.h"

#include <map>
#include <optional>

#include <gtest/gtest.h>

namespace bm::firmware::nvidia {
namespace {

/// The GSP's way from an address of the image to the bus, by nova-core's drawing of the levels:
/// nine bits each, eight bytes an entry.
class Walker {
 public:
  Walker(std::span<const std::byte> tables, std::span<const uint64_t> addresses) {
    for (size_t i = 0; i < addresses.size(); ++i) pages_[addresses[i]] = tables.data() + i * 4096;
    root_ = addresses[0];
  }
  std::optional<uint64_t> find(uint64_t page) const {
    uint64_t at = root_;
    for (const int shift : {18, 9, 0}) {
      const auto table = pages_.find(at);
      if (table == pages_.end()) return std::nullopt;
      at = 0;
      for (size_t i = 8; i-- > 0;)
        at = at << 8 | static_cast<uint8_t>(table->second[(page >> shift & 511) * 8 + i]);
    }
    return at;
  }

 private:
  std::map<uint64_t, const std::byte*> pages_;
  uint64_t root_ = 0;
};

TEST(Radix3, SizesAtEveryEdge) {
  struct Case {
    uint64_t bytes;
    std::array<uint64_t, 3> pages;
  };
  constexpr uint64_t kPage = 4096;
  for (const Case& one : {Case{1, {1, 1, 1}},
                          {512 * kPage, {1, 1, 1}},
                          {512 * kPage + 1, {1, 1, 2}},
                          {512 * 512 * kPage, {1, 1, 512}},
                          {512 * 512 * kPage + 1, {1, 2, 513}},
                          {63541248, {1, 1, 31}},  // gsp-570.144.bin of GA102
                          {512 * 512 * 512 * kPage, {1, 512, 512 * 512}}}) {
    const auto radix = size_radix3(one.bytes);
    ASSERT_TRUE(radix) << one.bytes;
    EXPECT_EQ(radix->pages, one.pages) << one.bytes;
  }
  for (const uint64_t bytes : {uint64_t{0}, 512 * 512 * 512 * kPage + 1, UINT64_MAX})
    EXPECT_EQ(size_radix3(bytes).error().code, Code::kInvalidArgument) << bytes;
}

TEST(Radix3, EveryPageIsFoundAndNoOther) {
  for (const uint64_t pages : {1U, 2U, 511U, 512U, 513U, 5000U, 262144U, 262145U}) {
    const auto radix = size_radix3(pages * 4096 - 5);
    ASSERT_TRUE(radix);
    ASSERT_EQ(radix->image_pages, pages);
    std::vector<std::byte> tables(radix->table_pages() * 4096, std::byte{0xee});
    std::vector<uint64_t> table_at, image_at;
    // Scattered, and the tables not in order.
    for (uint64_t i = 0; i < radix->table_pages(); ++i)
      table_at.push_back((0x7000000 + (i * 7919 % radix->table_pages()) * 3) * 4096);
    for (uint64_t i = 0; i < pages; ++i) image_at.push_back((0x100000000 + i * 5) * 4096);
    ASSERT_TRUE(write_radix3(*radix, tables, table_at, image_at));
    const Walker walker(tables, table_at);
    for (uint64_t i = 0; i < pages; ++i) ASSERT_EQ(walker.find(i), image_at[i]) << i;
    for (const uint64_t i : {pages, pages + 1, (pages + 511) / 512 * 512 - 1})
      if (i >= pages) {
        EXPECT_EQ(walker.find(i).value_or(0), 0u) << i;
      }
  }
}

TEST(Radix3, WhatDoesNotFitIsRefused) {
  const auto radix = size_radix3(600 * 4096);
  ASSERT_TRUE(radix);
  ASSERT_EQ(radix->table_pages(), 4u);
  std::vector<std::byte> tables(4 * 4096);
  std::vector<uint64_t> table_at(4, 4096), image_at(600, 8192);
  EXPECT_TRUE(write_radix3(*radix, tables, table_at, image_at));
  const auto refused = [&] {
    const Status status = write_radix3(*radix, tables, table_at, image_at);
    return !status && status.error().code == Code::kInvalidArgument;
  };
  image_at[599] = 8193;
  EXPECT_TRUE(refused());
  image_at.pop_back();
  EXPECT_TRUE(refused());
  image_at.push_back(0);
  table_at[2] = 1;
  EXPECT_TRUE(refused());
  table_at.pop_back();
  EXPECT_TRUE(refused());
  table_at.assign(4, 4096);
  tables.pop_back();
  EXPECT_TRUE(refused());
}

}  // namespace
}  // namespace bm::firmware::nvidia
