#include "drivers/memory/page_table.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "tests/unit/driver_memory/mmu_walker.h"

namespace bm::memory {
namespace {

using test::FakeTableMemory;
using test::Mmu;
using test::Translation;
using test::walk;
using test::Walk;

constexpr uint64_t kPage = 4096, kMiB = 1 << 20, kGiB = 1 << 30;

struct FormatCase {
  const char* name;
  Mmu mmu;
  const PageTableFormat& (*format)();
  uint64_t largest_page;
  uint32_t levels;  ///< tables on the way to a 4 KiB page
};

class PageTables : public ::testing::TestWithParam<FormatCase> {
 protected:
  void SetUp() override { open(); }
  void TearDown() override { EXPECT_EQ(memory_.misuses, std::vector<std::string>()); }

  void open() {
    tables_.reset();
    auto made = PageTable::create(GetParam().format(), memory_);
    ASSERT_TRUE(made) << made.error().message;
    tables_ = std::move(*made);
  }
  Walk at(uint64_t va) const { return walk(GetParam().mmu, memory_, tables_->root_address(), va); }
  std::optional<Translation> find(uint64_t va) const {
    const Walk found = at(va);
    EXPECT_EQ(found.error, "") << std::hex << va;
    return found.translation;
  }
  uint64_t map(uint64_t va, uint64_t address, uint64_t bytes, const PageAttributes& how = {}) {
    const PhysicalRange range{address, bytes};
    const auto result = tables_->map(va, std::span(&range, 1), how);
    EXPECT_TRUE(result) << result.error().message;
    return result ? result->bytes : 0;
  }
  bool is_amd() const { return GetParam().mmu == Mmu::kGfx11 || GetParam().mmu == Mmu::kGfx12; }

  FakeTableMemory memory_;
  std::unique_ptr<PageTable> tables_;
};

TEST_P(PageTables, ThePathToAnAddressIsItsDirectories) {
  constexpr uint64_t kVa = uint64_t{5} << 30;
  ASSERT_EQ(tables_->path(kVa).size(), 1u);
  EXPECT_EQ(tables_->path(kVa).front().address, tables_->root_address());
  map(kVa, 0x7000, kPage);
  const auto path = tables_->path(kVa);
  ASSERT_EQ(path.size(), GetParam().levels - 1);
  for (size_t i = 0; i < path.size(); ++i) {
    EXPECT_EQ(path[i].level, i);
    EXPECT_TRUE(memory_.live.contains(path[i].address)) << i;
  }
  // Another address below the same directories goes the same way as far as those lead.
  const auto other = tables_->path(kVa + kGiB);
  ASSERT_LT(other.size(), path.size());
  for (size_t i = 0; i < other.size(); ++i) EXPECT_EQ(other[i].address, path[i].address);
}

TEST_P(PageTables, AFreshSpaceMapsNothing) {
  EXPECT_FALSE(find(0));
  EXPECT_FALSE(find((uint64_t{1} << GetParam().format().va_bits) - kPage));
  EXPECT_EQ(tables_->tables(), 1u);
  EXPECT_EQ(memory_.writes, 1u);
}

TEST_P(PageTables, AttributesReachTheEntry) {
  uint64_t va = 0x2000'0000'0000 + 5 * kPage;
  for (const Aperture aperture : {Aperture::kVideo, Aperture::kSystem, Aperture::kPeer}) {
    if (aperture == Aperture::kPeer && is_amd()) continue;
    for (int bits = 0; bits < 8; ++bits) {
      PageAttributes how{.aperture = aperture,
                         .is_read_only = (bits & 1) != 0,
                         .is_uncached = (bits & 2) != 0,
                         .is_executable = (bits & 4) != 0};
      how.is_privileged = !is_amd() && (bits & 4) != 0;
      how.kind = is_amd() ? 0 : 6;
      how.peer = aperture == Aperture::kPeer ? 5 : 0;
      map(va, 0x1234'5000, kPage, how);
      const std::optional<Translation> got = find(va + 0x123);
      ASSERT_TRUE(got);
      EXPECT_EQ(got->address, 0x1234'5123u);
      EXPECT_EQ(got->aperture, aperture);
      EXPECT_EQ(got->can_write, !how.is_read_only);
      EXPECT_EQ(got->is_privileged, how.is_privileged);
      EXPECT_EQ(got->kind, how.kind);
      EXPECT_EQ(got->peer, how.peer);
      EXPECT_EQ(got->page_bytes, kPage);
      if (is_amd()) {
        EXPECT_EQ(got->can_execute, how.is_executable);
        EXPECT_EQ(got->is_uncached, how.is_uncached);
      } else {
        EXPECT_EQ(got->is_uncached, how.is_uncached || aperture == Aperture::kSystem);
      }
      va += 3 * kPage;
    }
  }
}

TEST_P(PageTables, PagesAreAsLargeAsAlignmentAllows) {
  const uint64_t va = 0x2000'0000'0000;
  map(va, 4 * kGiB, kGiB + 2 * kMiB + 64 * 1024 + kPage);
  EXPECT_EQ(find(va)->page_bytes, GetParam().largest_page);
  EXPECT_EQ(find(va + kGiB)->page_bytes, 2 * kMiB);
  EXPECT_EQ(find(va + kGiB + 2 * kMiB)->page_bytes, is_amd() ? kPage : 64 * 1024);
  EXPECT_EQ(find(va + kGiB + 2 * kMiB + 64 * 1024)->page_bytes, kPage);
  EXPECT_EQ(find(va + kGiB + 2 * kMiB + 64 * 1024)->address, 5 * kGiB + 2 * kMiB + 64 * 1024);
  EXPECT_FALSE(find(va + kGiB + 2 * kMiB + 64 * 1024 + kPage));
  // 4 KiB beside 2 MiB: only small pages fit.
  map(va + 4 * kGiB, 8 * kGiB + kPage, 4 * kMiB);
  EXPECT_EQ(find(va + 4 * kGiB + 2 * kMiB)->page_bytes, kPage);
}

TEST_P(PageTables, OneBurstPerTouchedTable) {
  const uint64_t va = 0x2000'0000'0000;
  map(va, kGiB, 32 * kMiB);
  const uint64_t tables = tables_->tables();
  EXPECT_EQ(memory_.writes, 1 + tables) << "the root twice";
  map(va + 32 * kMiB, 2 * kGiB, 32 * kMiB);
  EXPECT_EQ(memory_.writes, 2 + tables);
  EXPECT_EQ(tables_->tables(), tables);
  ASSERT_TRUE(tables_->unmap(va + 32 * kMiB, 32 * kMiB));
  EXPECT_EQ(memory_.writes, 3 + tables);
  EXPECT_EQ(tables_->bursts(), memory_.writes);
}

TEST_P(PageTables, EmptyTablesGoBackAfterTheFlush) {
  const uint64_t va = 0x7f00'1234'5000;
  map(va, kGiB, kPage);
  EXPECT_EQ(tables_->tables(), GetParam().levels);
  const TlbRange range = *tables_->unmap(va, kPage);
  EXPECT_TRUE(range.has_directories);
  EXPECT_EQ(range.va, va);
  EXPECT_EQ(range.bytes, kPage);
  EXPECT_EQ(tables_->tables(), 1u);
  EXPECT_EQ(memory_.live.size(), GetParam().levels) << "walkers may still be there";
  tables_->release_retired();
  EXPECT_EQ(memory_.live.size(), 1u);
  EXPECT_FALSE(find(va));
  EXPECT_EQ(tables_->mapped_bytes(), 0u);
}

TEST_P(PageTables, ALargePageIsSplitWhereItIsCut) {
  const uint64_t va = 0x2000'0000'0000;
  map(va, 4 * kGiB, 2 * kMiB, {.is_read_only = true});
  const TlbRange range = *tables_->unmap(va + 5 * kPage, 2 * kPage);
  EXPECT_LE(range.va, va);
  EXPECT_GE(range.va + range.bytes, va + 2 * kMiB);
  EXPECT_TRUE(range.has_directories);
  EXPECT_EQ(find(va + 4 * kPage)->address, 4 * kGiB + 4 * kPage);
  EXPECT_FALSE(find(va + 4 * kPage)->can_write);
  EXPECT_FALSE(find(va + 5 * kPage));
  EXPECT_FALSE(find(va + 6 * kPage));
  EXPECT_EQ(find(va + 7 * kPage)->address, 4 * kGiB + 7 * kPage);
  EXPECT_EQ(find(va + 2 * kMiB - 1)->address, 4 * kGiB + 2 * kMiB - 1);
  // And filled again it is one page again once it is mapped as one.
  const PhysicalRange whole{4 * kGiB, 2 * kMiB};
  ASSERT_TRUE(tables_->remap(va, std::span(&whole, 1), {}));
  EXPECT_EQ(find(va)->page_bytes, 2 * kMiB);
  tables_->release_retired();
  EXPECT_EQ(memory_.live.size(), tables_->tables());
}

TEST_P(PageTables, ScatteredMemoryIsOneRange) {
  const uint64_t va = 0x2000'0000'0000;
  const std::vector<PhysicalRange> pieces = {
      {0x9000, kPage}, {0xa000, kPage}, {0x4000, 2 * kPage}, {0x100000, kPage}};
  ASSERT_TRUE(tables_->map(va, pieces, {.aperture = Aperture::kSystem}));
  for (const auto& [page, address] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 0x9000}, {1, 0xa000}, {2, 0x4000}, {3, 0x5000}, {4, 0x100000}})
    EXPECT_EQ(find(va + page * kPage)->address, address);
  EXPECT_EQ(tables_->find(va)->bytes, 2 * kPage) << "neighbours in memory are one mapping";
  ASSERT_TRUE(tables_->unmap(va, 5 * kPage));
  EXPECT_FALSE(tables_->find(va));
}

TEST_P(PageTables, TablesMayLieInSystemMemory) {
  tables_.reset();
  memory_.where = Aperture::kSystem;
  open();
  map(0x2000'0000'0000, 0x1000, 3 * kPage);
  EXPECT_EQ(find(0x2000'0000'2000)->address, 0x3000u);
}

TEST_P(PageTables, TheLastPageOfTheSpaceCanBeMapped) {
  const uint64_t last = (uint64_t{1} << GetParam().format().va_bits) - kPage;
  map(last, kPage, kPage);
  EXPECT_EQ(find(last)->address, kPage);
  map(0, 2 * kPage, kPage);
  EXPECT_EQ(find(0)->address, 2 * kPage);
}

TEST_P(PageTables, WhatCannotBeIsAnErrorAndChangesNothing) {
  const uint64_t va = 0x2000'0000'0000, end = uint64_t{1} << GetParam().format().va_bits;
  map(va, kGiB, 4 * kPage);
  const uint64_t writes = memory_.writes;
  const auto fails = [&](uint64_t at, uint64_t address, uint64_t bytes, Aperture aperture) {
    const PhysicalRange range{address, bytes};
    const auto result = tables_->map(at, std::span(&range, 1), {.aperture = aperture});
    ASSERT_FALSE(result) << std::hex << at << " " << address << " " << bytes;
    EXPECT_EQ(result.error().code, Code::kInvalidArgument) << result.error().message;
  };
  fails(va + kPage, kGiB, kPage, Aperture::kVideo);
  fails(va - kPage, kGiB, 2 * kPage, Aperture::kVideo);
  fails(va + 3 * kPage, kGiB, 2 * kPage, Aperture::kVideo);
  fails(va - kPage, kGiB, 16 * kPage, Aperture::kVideo);
  fails(va + 8 * kPage, kGiB, 0, Aperture::kVideo);
  fails(va + 8 * kPage, kGiB, 100, Aperture::kVideo);
  fails(va + 8 * kPage + 1, kGiB, kPage, Aperture::kVideo);
  fails(va + 8 * kPage, kGiB + 8, kPage, Aperture::kVideo);
  fails(end, kGiB, kPage, Aperture::kVideo);
  fails(end - kPage, kGiB, 2 * kPage, Aperture::kVideo);
  fails(~uint64_t{0} - kPage + 1, kGiB, kPage, Aperture::kVideo);
  fails(va + 8 * kPage, kGiB, ~uint64_t{0} - kPage + 1, Aperture::kVideo);
  fails(va + 8 * kPage, uint64_t{1} << GetParam().format().system_bits, kPage, Aperture::kSystem);
  fails(va + 8 * kPage, uint64_t{1} << GetParam().format().video_bits, kPage, Aperture::kVideo);
  EXPECT_FALSE(tables_->map(va + 8 * kPage, {}, {}));
  EXPECT_FALSE(tables_->unmap(va, 5 * kPage));
  EXPECT_FALSE(tables_->unmap(va - kPage, 2 * kPage));
  EXPECT_FALSE(tables_->unmap(va, 0));
  EXPECT_FALSE(tables_->unmap(va + 1, kPage));
  EXPECT_FALSE(tables_->unmap(end, kPage));
  EXPECT_EQ(memory_.writes, writes);
  EXPECT_EQ(tables_->mapped_bytes(), 4 * kPage);
}

TEST_P(PageTables, NoMemoryForATableChangesNothing) {
  const uint64_t va = 0x2000'0000'0000;
  map(va, 4 * kGiB, 2 * kMiB);
  const size_t live = memory_.live.size();
  for (int allowed = 0; allowed < 6; ++allowed) {
    memory_.allocations_left = allowed;
    const PhysicalRange range{8 * kGiB, kPage};
    const auto mapped = tables_->map(va + (uint64_t{1} << 40), std::span(&range, 1), {});
    memory_.allocations_left = allowed == 0 ? 0 : -1;
    if (allowed == 0) {
      EXPECT_EQ(tables_->unmap(va + kPage, kPage).error().code, Code::kOutOfMemory) << "a split";
    }
    memory_.allocations_left = -1;
    EXPECT_EQ(find(va + kPage)->page_bytes, 2 * kMiB);
    if (mapped) {
      ASSERT_TRUE(tables_->unmap(va + (uint64_t{1} << 40), kPage));
    } else {
      EXPECT_EQ(mapped.error().code, Code::kOutOfMemory);
      EXPECT_FALSE(find(va + (uint64_t{1} << 40)));
    }
    tables_->release_retired();
    EXPECT_EQ(memory_.live.size(), live);
  }
}

TEST_P(PageTables, ARefusedWriteIsMadeUpForByTheNextCall) {
  const uint64_t va = 0x2000'0000'0000;
  memory_.writes_left = 1;
  const PhysicalRange range{kGiB, kPage};
  EXPECT_EQ(tables_->map(va, std::span(&range, 1), {}).error().code, Code::kDeviceLost);
  EXPECT_FALSE(find(va)) << "nothing leads to a table that is not written";
  memory_.writes_left = -1;
  map(va + (uint64_t{1} << 40), 2 * kGiB, kPage);
  EXPECT_EQ(find(va)->address, kGiB);
  EXPECT_EQ(find(va + (uint64_t{1} << 40))->address, 2 * kGiB);
}

TEST_P(PageTables, EverythingGoesBackAtTheEnd) {
  map(0x2000'0000'0000, kGiB, 5 * kPage);
  map(0x1000'0000'0000, kGiB, 2 * kMiB);
  tables_.reset();
  EXPECT_TRUE(memory_.live.empty());
}

/// Random changes against one entry per page, with TLBs that forget only what they are told to.
TEST_P(PageTables, RandomChangesAgreeWithAListOfPages) {
  struct Page {
    uint64_t address = 0;
    PageAttributes how;
  };
  constexpr uint64_t kPages = 3 * 512 + 100;  // more than three pages of 2 MiB
  // Around a boundary of the upper levels.
  const uint64_t base = (uint64_t{1} << 39) - 700 * kPage / 512 * 512;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    open();
    std::mt19937_64 random(seed);
    const auto below = [&random](uint64_t limit) { return random() % limit; };
    std::vector<std::optional<Page>> pages(kPages);
    std::vector<std::optional<Translation>> tlb(kPages);
    for (int step = 0; step < 120; ++step) {
      const uint64_t first = below(8) == 0 ? below(3) * 512 : below(kPages);
      uint64_t count = std::vector<uint64_t>{1, 1 + below(20), 16, 512, 1 + below(700)}[below(5)];
      count = std::min(count, kPages - first);
      const uint64_t va = base + first * kPage;
      const bool is_free = std::none_of(pages.begin() + static_cast<long>(first),
                                        pages.begin() + static_cast<long>(first + count),
                                        [](const auto& page) { return page.has_value(); });
      const bool is_full = std::all_of(pages.begin() + static_cast<long>(first),
                                       pages.begin() + static_cast<long>(first + count),
                                       [](const auto& page) { return page.has_value(); });
      const PageAttributes how{.aperture = below(2) == 0 ? Aperture::kVideo : Aperture::kSystem,
                               .is_read_only = below(2) == 0};
      std::vector<PhysicalRange> ranges;
      for (uint64_t left = count; left != 0;) {
        const uint64_t piece = below(3) == 0 ? 1 + below(left) : left;
        // Often aligned like the addresses, so that large pages come about.
        uint64_t address = (1 + below(1000)) * 64 * kMiB;
        address += below(3) == 0 ? below(600) * kPage : (va + (count - left) * kPage) % (4 * kMiB);
        ranges.push_back({address, piece * kPage});
        left -= piece;
      }
      const uint64_t kind = below(3);
      Result<TlbRange> result = kind == 0   ? tables_->map(va, ranges, how)
                                : kind == 1 ? tables_->remap(va, ranges, how)
                                            : tables_->unmap(va, count * kPage);
      ASSERT_EQ(result.has_value(), kind == 0 ? is_free : kind == 1 || is_full)
          << "seed " << seed << " step " << step;
      if (!result) continue;
      uint64_t next = first;
      for (const PhysicalRange& range : ranges)
        for (uint64_t done = 0; done < range.bytes; done += kPage, ++next) {
          pages[next].reset();
          if (kind != 2) pages[next] = {range.address + done, how};
        }
      for (uint64_t i = 0; i < kPages; ++i) {
        const uint64_t page = base + i * kPage;
        if (page - result->va < result->bytes) tlb[i].reset();
      }
      tables_->release_retired();
      uint64_t mapped = 0;
      std::pair<uint64_t, uint64_t> checked;
      for (uint64_t i = 0; i < kPages; ++i) {
        const Walk found = at(base + i * kPage);
        ASSERT_EQ(found.error, "") << "seed " << seed << " step " << step << " page " << i;
        const std::optional<Translation> got = found.translation;
        ASSERT_EQ(got.has_value(), pages[i].has_value())
            << "seed " << seed << " step " << step << " page " << i;
        ASSERT_TRUE(!tlb[i] ||
                    (got && tlb[i]->address == got->address && tlb[i]->can_write == got->can_write))
            << "stale: seed " << seed << " step " << step << " page " << i;
        if (!got) continue;
        ++mapped;
        ASSERT_EQ(got->address, pages[i]->address);
        ASSERT_EQ(got->can_write, !pages[i]->how.is_read_only);
        ASSERT_EQ(got->aperture, pages[i]->how.aperture);
        // One walk may fill the TLB with all of a fragment.
        const uint64_t block = (base + i * kPage) / got->fragment_bytes * got->fragment_bytes;
        const bool is_checked = checked == std::pair(block, got->fragment_bytes);
        checked = {block, got->fragment_bytes};
        ASSERT_EQ((got->address - (base + i * kPage - block)) % got->fragment_bytes, 0u);
        for (uint64_t at_va = block; !is_checked && at_va < block + got->fragment_bytes;
             at_va += kPage) {
          ASSERT_GE(at_va, base) << "a fragment beyond what is mapped";
          const uint64_t j = (at_va - base) / kPage;
          ASSERT_LT(j, kPages);
          ASSERT_TRUE(pages[j]) << "seed " << seed << " step " << step << " fragment of page " << i;
          ASSERT_EQ(pages[j]->address, got->address + (at_va - (base + i * kPage)));
        }
        tlb[i] = got;
      }
      ASSERT_EQ(tables_->mapped_bytes(), mapped * kPage);
      ASSERT_EQ(memory_.live.size(), tables_->tables());
    }
  }
}

TEST_P(PageTables, ArbitraryArgumentsAreRefusedOrDone) {
  std::mt19937_64 random(7);
  const auto any = [&random]() -> uint64_t {
    const uint64_t value = random() >> random() % 64;
    return random() % 3 == 0 ? value : value / kPage * kPage;
  };
  for (int i = 0; i < 5'000; ++i) {
    const PhysicalRange range{any(), any() % (8 * kMiB)};
    const uint64_t va = any();
    const PageAttributes how{.aperture = static_cast<Aperture>(random() % 2)};
    const uint64_t mapped = tables_->mapped_bytes();
    const Result<TlbRange> result = random() % 2 == 0 ? tables_->map(va, std::span(&range, 1), how)
                                                      : tables_->unmap(va, range.bytes);
    if (result) {
      if (tables_->mapped_bytes() > mapped) {
        ASSERT_EQ(find(va)->address, range.address);
        ASSERT_TRUE(tables_->unmap(va, range.bytes));
      }
    } else {
      ASSERT_EQ(result.error().code, Code::kInvalidArgument);
      ASSERT_EQ(tables_->mapped_bytes(), mapped);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, PageTables,
    ::testing::Values(FormatCase{"gfx11", Mmu::kGfx11, gfx11_page_tables, kGiB, 4},
                      FormatCase{"gfx12", Mmu::kGfx12, gfx12_page_tables, kGiB, 4},
                      FormatCase{"nv2", Mmu::kNvV2, nv_mmu_v2_page_tables, 2 * kMiB, 5},
                      FormatCase{"nv3", Mmu::kNvV3, nv_mmu_v3_page_tables, 512 * kMiB, 6}),
    [](const auto& format) { return std::string(format.param.name); });

/// Whole words, by hand from the sources named in mmu_walker.cpp.
TEST(PageTableFormat, WordsOfAmd) {
  const auto leaf11 = gfx11_page_tables().leaf, leaf12 = gfx12_page_tables().leaf;
  const PageAttributes plain, uncached{.is_uncached = true};
  const PageAttributes system{.aperture = Aperture::kSystem, .is_read_only = true};
  EXPECT_EQ(leaf11({3, 0x1234'5000, plain, 12}), 0x0000'0000'1234'5071u);
  EXPECT_EQ(leaf11({3, 0x1234'5000, uncached, 12}), 0x0003'0000'1234'5071u);
  EXPECT_EQ(leaf11({2, 0x1240'0000, plain, 21}), 0x0040'0000'1240'04f1u);
  EXPECT_EQ(leaf11({3, 0x1000, system, 12}), 0x1037u);
  EXPECT_EQ(leaf12({3, 0x1000, plain, 12}), 0x8000'0000'0000'1071u);
  EXPECT_EQ(leaf12({2, 0x20'0000, uncached, 21}), 0x80c0'0000'0020'04f1u);
  const auto directory = gfx11_page_tables().directory;
  EXPECT_EQ(directory(0, 0, 0x4000, Aperture::kVideo), 0x4001u);
  EXPECT_EQ(directory(0, 0, 0x4000, Aperture::kSystem), 0x4007u);
}

TEST(PageTableFormat, WordsOfNvidia) {
  const auto leaf2 = nv_mmu_v2_page_tables().leaf, leaf3 = nv_mmu_v3_page_tables().leaf;
  const PageAttributes video{.kind = 6}, system{.aperture = Aperture::kSystem};
  const PageAttributes peer{.aperture = Aperture::kPeer, .is_read_only = true, .peer = 3};
  EXPECT_EQ(leaf2({5, 0x1'2345'6000, video, 12}), 0x0600'0000'1234'5601u);
  EXPECT_EQ(leaf2({5, 0x1000, system, 12}), 0x10du);
  EXPECT_EQ(leaf2({5, 0x1000, peer, 12}), 0x6'0000'0143u);
  EXPECT_EQ(leaf3({6, 0x1'2345'6000, video, 12}), 0x1'2345'6681u);
  EXPECT_EQ(leaf3({6, 0x1000, system, 12}), 0x108du);
  EXPECT_EQ(leaf3({6, 0x1000, peer, 12}), 0x6000'0000'0000'10a3u);
  EXPECT_EQ(nv_mmu_v2_page_tables().directory(3, 0, 0x1'0100, Aperture::kVideo), 0x1012u);
  EXPECT_EQ(nv_mmu_v2_page_tables().directory(0, 0, 0x1'0000, Aperture::kSystem), 0x100cu);
  EXPECT_EQ(nv_mmu_v3_page_tables().directory(0, 0, 0x1'0000, Aperture::kVideo), 0x1'0012u);
  EXPECT_EQ(nv_mmu_v3_page_tables().directory(0, 0, 0x1'0000, Aperture::kSystem), 0x1'001cu);
}

}  // namespace
}  // namespace bm::memory
