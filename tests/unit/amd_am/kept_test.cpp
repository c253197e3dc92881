// Hot restart: what one process leaves in a card's memory on purpose, the next finds there; nobody
// else gets it, and after anything but an orderly end it is gone.

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "drivers/amd/am/kept_table.h"
#include "runtime/base/env.h"
#include "runtime/hal/kept_memory.h"
#include "tests/unit/amd_am/card_bench.h"

namespace bm::amd {
namespace {

using hal::KeptKey;
using hal::QueueKind;

constexpr uint64_t kMebibyte = 1 << 20, kBytes = 3 * kMebibyte + 4096, kSum = 0x1234'5678'9abc'def0;
constexpr KeptKey kKey{0xb0071e55, 17}, kOther{0xb0071e55, 18};

class AmKept : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override {
    buffers_.clear();
    bench_.close();
  }
  hal::KeptMemory& memory() { return dynamic_cast<hal::KeptMemory&>(bench_.hal()); }
  /// Every byte of it.
  void write(const hal::Buffer& buffer, std::byte value) {
    hal::Buffer* const seen = *bench_.allocate(buffer.size(), true);
    std::memset(seen->host(), static_cast<int>(value), buffer.size());
    ASSERT_TRUE(
        bench_.copy(QueueKind::kCopy, hal::raw(buffer.va()), hal::raw(seen->va()), buffer.size()));
  }
  /// Bytes that are not `value`.
  uint64_t others(uint64_t va, uint64_t bytes, std::byte value) {
    hal::Buffer* const seen = *bench_.allocate(bytes, true);
    EXPECT_TRUE(bench_.copy(QueueKind::kCopy, hal::raw(seen->va()), va, bytes));
    return bytes - static_cast<uint64_t>(std::count(seen->host(), seen->host() + bytes, value));
  }
  void keep(const KeptKey& key, std::byte value, uint64_t bytes = kBytes) {
    auto made = memory().allocate_to_keep(bytes);
    ASSERT_TRUE(made) << made.error().message;
    write(**made, value);
    const Status kept = memory().keep(**made, key, kSum);
    ASSERT_TRUE(kept) << kept.error().message;
    buffers_.push_back(std::move(*made));
  }
  /// As another process.
  void restart() {
    buffers_.clear();
    bench_.close();
    const Status again = bench_.open();
    ASSERT_TRUE(again) << again.error().message;
  }
  /// nullptr: nothing was found.
  hal::Buffer* attach(const KeptKey& key, uint64_t bytes = kBytes) {
    auto found = memory().attach(key, bytes);
    EXPECT_TRUE(found) << found.error().message;
    if (!found || !*found) return nullptr;
    EXPECT_EQ((*found)->checksum, kSum);
    buffers_.push_back(std::move((*found)->buffer));
    return buffers_.back().get();
  }
  std::vector<KeptRecord> records() { return bench_.gpu().kept_records(); }
  /// Where the table lies in video memory.
  uint64_t find_table() {
    am::KeptTable empty;
    const std::vector<std::byte> magic = empty.encode();
    std::vector<std::byte> page(4096);
    for (uint64_t at = 0; at < am::VideoMemory::kBootBytes; at += page.size()) {
      bench_.rig().card->vram().host_read(at, page);
      if (std::equal(magic.begin(), magic.begin() + 8, page.begin())) return at;
    }
    ADD_FAILURE() << "there is no table";
    return 0;
  }
  void flip(uint64_t physical) {
    std::byte one{};
    sim::amd::Vram& vram = bench_.rig().card->vram();
    vram.host_read(physical, {&one, 1});
    one ^= std::byte{0x10};
    vram.host_write(physical, {&one, 1});
    vram.flush();
  }

  const ScopedSetting quiet_{"BM_LOG", "amd=0"};
  CardBench bench_{
      GetParam(), PacketMode::kPm4, {.vram_bytes = 256 * kMebibyte, .bar0_bytes = 128 * kMebibyte}};
  std::vector<std::unique_ptr<hal::Buffer>> buffers_;
};

TEST_P(AmKept, TheNextProcessFindsTheBytesWhereTheyAre) {
  ASSERT_TRUE(bench_.open());
  EXPECT_TRUE(memory().can_keep());
  keep(kKey, std::byte{0x5a});
  keep(kOther, std::byte{0xa5}, 4096);
  restart();
  ASSERT_TRUE(bench_.gpu().was_warm());
  EXPECT_EQ(records().size(), 2u);
  EXPECT_EQ(attach(kKey, kBytes - 1), nullptr) << "another size";
  EXPECT_EQ(attach({1, 2}), nullptr) << "another key";
  const auto& counts = bench_.rig().card->counts();
  const uint64_t written = counts.memory_written_bytes;
  hal::Buffer* const found = attach(kKey);
  ASSERT_NE(found, nullptr);
  EXPECT_LT(counts.memory_written_bytes - written, 64u << 10) << "page tables alone";
  EXPECT_EQ(others(hal::raw(found->va()), kBytes, std::byte{0x5a}), 0u);
  EXPECT_EQ(attach(kKey), nullptr) << "it is attached already";
  ASSERT_NE(attach(kOther, 4096), nullptr);
  // And once more, although this process wrote nothing.
  restart();
  hal::Buffer* const again = attach(kKey);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(others(hal::raw(again->va()), kBytes, std::byte{0x5a}), 0u);
  EXPECT_EQ(bench_.rig().violations(), "");
}

TEST_P(AmKept, InTheSameProcessFreedMemoryIsFoundAgainAndNobodyElsesMeanwhile) {
  ASSERT_TRUE(bench_.open());
  keep(kKey, std::byte{0x5a});
  buffers_.clear();
  hal::Buffer* const other = *bench_.allocate(16 * kMebibyte);
  write(*other, std::byte{0x11});
  hal::Buffer* const found = attach(kKey);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(others(hal::raw(found->va()), kBytes, std::byte{0x5a}), 0u);
}

TEST_P(AmKept, ALaterRecordOfTheSameKeyReplacesTheFirst) {
  ASSERT_TRUE(bench_.open());
  keep(kKey, std::byte{0x5a});
  keep(kKey, std::byte{0x77});
  EXPECT_EQ(records().size(), 1u);
  restart();
  hal::Buffer* const found = attach(kKey);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(others(hal::raw(found->va()), kBytes, std::byte{0x77}), 0u);
}

TEST_P(AmKept, AfterAProcessThatWasKilledNothingIsFound) {
  ASSERT_TRUE(bench_.open());
  keep(kKey, std::byte{0x5a});
  bench_.rig().card->unplug();
  buffers_.clear();
  bench_.close();
  bench_.rig().card->plug_in();
  ASSERT_TRUE(bench_.open());
  EXPECT_FALSE(bench_.gpu().was_warm());
  EXPECT_EQ(attach(kKey), nullptr);
}

/// Puts bytes into video memory when the card has been reset.
class AfterReset final : public StageWatcher {
 public:
  explicit AfterReset(std::function<void()> act) : act_(std::move(act)) {}
  void stage_begins(std::string_view) override {}
  void stage_ended(const Stage& stage) override {
    if (stage.name == "reset") act_();
  }

 private:
  std::function<void()> act_;
};

/// A reset may leave contents as they were: they count for nothing, on the next warm boot as well.
TEST_P(AmKept, ATableThatSurvivedAResetCountsForNothing) {
  ASSERT_TRUE(bench_.open());
  keep(kKey, std::byte{0x5a});
  const uint64_t table = find_table();
  buffers_.clear();
  bench_.close();
  test::CardRig& rig = bench_.rig();
  std::vector<std::byte> saved(am::KeptTable::kHeaderBytes + am::KeptTable::kRecordBytes);
  rig.card->vram().host_read(table, saved);
  ASSERT_TRUE(am::KeptTable::decode(saved));
  uint32_t times = 0;
  AfterReset watcher([&] {
    rig.card->vram().host_write(table, saved);
    rig.card->vram().flush();
    ++times;
  });
  {
    auto gpu = am::AmGpu::open(std::make_unique<sim::amd::ChipFunction>(rig.card),
                               {.firmware = rig.folder.search(),
                                .clock = &rig.clock,
                                .always_reset = true,
                                .watcher = &watcher});
    ASSERT_TRUE(gpu) << gpu.error().message;
    EXPECT_EQ(times, 1u);
    EXPECT_TRUE((*gpu)->kept_records().empty());
  }
  ASSERT_TRUE(bench_.open());
  EXPECT_TRUE(bench_.gpu().was_warm());
  EXPECT_EQ(attach(kKey), nullptr);
}

TEST_P(AmKept, ADamagedTableKeepsNothingAndItsMemoryIsClearedBeforeUse) {
  for (const uint64_t damaged : {0u, 8u, 17u, 25u, 45u, 60u, 79u}) {
    ASSERT_TRUE(bench_.open());
    keep(kKey, std::byte{0x5a});
    const uint64_t table = find_table();
    buffers_.clear();
    bench_.close();
    flip(table + damaged);
    ASSERT_TRUE(bench_.open());
    EXPECT_TRUE(bench_.gpu().was_warm()) << "byte " << damaged;
    EXPECT_TRUE(records().empty()) << "byte " << damaged;
    EXPECT_EQ(attach(kKey), nullptr);
    hal::Buffer* const all = *bench_.allocate(24 * kMebibyte);
    EXPECT_EQ(others(hal::raw(all->va()), all->size(), std::byte{0}), 0u);
    bench_.close();
  }
}

TEST_P(AmKept, UnattachedMemoryMakesRoomWhenMemoryRunsOut) {
  ASSERT_TRUE(bench_.open());
  keep(kKey, std::byte{0x5a}, 40 * kMebibyte);
  keep(kOther, std::byte{0xa5}, 40 * kMebibyte);
  restart();
  const hal::MemoryInfo before = bench_.hal().memory();
  EXPECT_LT(before.used, 80 * kMebibyte) << "what can be dropped counts as free";
  hal::Buffer* const found = attach(kOther, 40 * kMebibyte);
  ASSERT_NE(found, nullptr);
  uint64_t taken = 0, dirty = 0;
  for (;; taken += 8 * kMebibyte) {
    const auto piece = bench_.allocate(8 * kMebibyte);
    if (!piece) {
      EXPECT_EQ(piece.error().code, Code::kOutOfMemory);
      break;
    }
    if (taken % (24 * kMebibyte) == 0)
      dirty += others(hal::raw((*piece)->va()), 8 * kMebibyte, std::byte{0});
  }
  EXPECT_EQ(dirty, 0u) << "what was dropped is cleared before anybody gets it";
  EXPECT_EQ(records().size(), 1u) << "the attached one stays";
  EXPECT_EQ(records()[0].key, kOther);
  restart();
  EXPECT_EQ(attach(kKey, 40 * kMebibyte), nullptr);
  EXPECT_NE(attach(kOther, 40 * kMebibyte), nullptr);
}

TEST_P(AmKept, WhatIsForgottenIsFreeAndCleared) {
  ASSERT_TRUE(bench_.open());
  keep(kKey, std::byte{0x5a});
  keep(kOther, std::byte{0xa5});
  restart();
  hal::Buffer* const found = attach(kOther);
  ASSERT_NE(found, nullptr);
  const KeptKey stays[] = {kOther};
  EXPECT_EQ(*memory().forget_all_but(stays), kBytes);
  EXPECT_EQ(records().size(), 1u);
  EXPECT_EQ(*memory().forget_all_but({}), kBytes);
  EXPECT_EQ(others(hal::raw(found->va()), kBytes, std::byte{0xa5}), 0u) << "still attached";
  restart();
  EXPECT_TRUE(records().empty());
  hal::Buffer* const all = *bench_.allocate(24 * kMebibyte);
  EXPECT_EQ(others(hal::raw(all->va()), all->size(), std::byte{0}), 0u);
}

TEST_P(AmKept, OnlyMemoryThatWasMadeForItIsKept) {
  ASSERT_TRUE(bench_.open());
  hal::Buffer* const plain = *bench_.allocate(4096);
  const Status refused = memory().keep(*plain, kKey, kSum);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_TRUE(records().empty());
}

INSTANTIATE_TEST_SUITE_P(Am, AmKept, testing::Values("gfx1100", "gfx1201"),
                         [](const auto& one) { return std::string(one.param); });

am::KeptTable some_table(uint64_t generation, size_t count) {
  am::KeptTable table{.generation = generation, .records = {}};
  for (size_t i = 0; i < count; ++i)
    table.records.push_back(
        {{i, generation}, (64 + i) * kMebibyte, kMebibyte, 0x9e3779b97f4a7c15u * (i + generation)});
  return table;
}

/// What a reader finds in memory that held one table while another was written over it, up to any
/// byte: one of the two, or none.
TEST(AmKeptTable, AWriteThatIsCutOffLeavesATableOrNone) {
  const auto read = [](std::span<const std::byte> memory) {
    const uint64_t size = std::max<uint64_t>(am::KeptTable::size_of(memory.first(40)), 40);
    return am::KeptTable::decode(memory.first(std::min<size_t>(size, memory.size())));
  };
  for (const auto& [first, second] :
       {std::pair<size_t, size_t>{3, 5}, {5, 3}, {1, 1}, {0, 4}, {4, 0}}) {
    const std::vector<std::byte> before = some_table(7, first).encode(),
                                 after = some_table(8, second).encode();
    for (size_t cut = 0; cut <= after.size(); ++cut) {
      std::vector<std::byte> memory(4096, std::byte{0xde});
      std::ranges::copy(before, memory.begin());
      std::copy_n(after.begin(), cut, memory.begin());
      const auto found = read(memory);
      EXPECT_TRUE(found || cut < after.size()) << "a whole table is none";
      if (!found) continue;
      EXPECT_TRUE((found->generation == 7 && found->records.size() == first) ||
                  (found->generation == 8 && found->records.size() == second))
          << first << " records, then " << second << ", cut at " << cut;
    }
  }
}

TEST(AmKeptTable, AnotherVersionIsNoTable) {
  std::vector<std::byte> bytes = some_table(1, 2).encode();
  ASSERT_TRUE(am::KeptTable::decode(bytes));
  bytes[8] = std::byte{am::KeptTable::kVersion + 1};
  const auto found = am::KeptTable::decode(bytes);
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("version 2"), std::string::npos) << found.error().message;
}

}  // namespace
}  // namespace bm::amd
