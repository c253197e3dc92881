// What a process leaves in a card's memory is found by nobody after it.

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "runtime/base/env.h"
#include "tests/unit/amd_am/card_bench.h"

namespace bm::amd {
namespace {

using hal::QueueKind;

constexpr uint64_t kPiece = 16 << 20, kMebibyte = 1 << 20;
constexpr std::byte kSecret{0x5a};

class AmHygiene : public testing::TestWithParam<const char*> {
 protected:
  /// Writes to as much of the card's memory as `pieces` say.
  void leave_secrets(int pieces) {
    hal::Buffer* const secret = *bench_.allocate(kMebibyte, true);
    std::memset(secret->host(), static_cast<int>(kSecret), kMebibyte);
    for (int i = 0; i < pieces; ++i) {
      hal::Buffer* const piece = *bench_.allocate(kPiece);
      for (uint64_t at = 0; at < kPiece; at += kMebibyte)
        ASSERT_TRUE(bench_.copy(QueueKind::kCopy, hal::raw(piece->va()) + at,
                                hal::raw(secret->va()), kMebibyte));
    }
  }
  /// Bytes other than zero in all that can be had.
  uint64_t look_everywhere() {
    hal::Buffer* const seen = *bench_.allocate(kPiece, true);
    uint64_t found = 0, looked = 0;
    for (;;) {
      const auto piece = bench_.allocate(kPiece);
      if (!piece) {
        EXPECT_EQ(piece.error().code, Code::kOutOfMemory) << piece.error().message;
        break;
      }
      EXPECT_TRUE(
          bench_.copy(QueueKind::kCopy, hal::raw(seen->va()), hal::raw((*piece)->va()), kPiece));
      found += kPiece -
               static_cast<uint64_t>(std::count(seen->host(), seen->host() + kPiece, std::byte{0}));
      looked += kPiece;
    }
    EXPECT_GT(looked, 80 * kMebibyte);
    return found;
  }

  const ScopedSetting quiet_{"BM_LOG", "amd=0"};
  /// Part of it beyond the window that the host sees.
  CardBench bench_{
      GetParam(), PacketMode::kPm4, {.vram_bytes = 256 * kMebibyte, .bar0_bytes = 128 * kMebibyte}};
};

TEST_P(AmHygiene, AfterAProcessThatLeftInOrder) {
  ASSERT_TRUE(bench_.open());
  leave_secrets(4);
  bench_.close();
  ASSERT_TRUE(bench_.open());
  EXPECT_TRUE(bench_.gpu().was_warm()) << "nothing else empties the memory";
  EXPECT_EQ(look_everywhere(), 0u);
  bench_.close();
  EXPECT_EQ(bench_.rig().violations(), "");
}

TEST_P(AmHygiene, WithoutClearingTheSameLookFindsIt) {
  ASSERT_TRUE(bench_.open());
  leave_secrets(4);
  bench_.close();
  ASSERT_TRUE(bench_.open());
  bench_.gpu().clear_with(nullptr);
  EXPECT_GE(look_everywhere(), 4 * kPiece);
}

TEST_P(AmHygiene, AfterAProcessThatWasKilled) {
  ASSERT_TRUE(bench_.open());
  leave_secrets(4);
  bench_.rig().card->unplug();
  bench_.close();
  bench_.rig().card->plug_in();
  ASSERT_TRUE(bench_.open());
  EXPECT_EQ(look_everywhere(), 0u);
}

/// A doorbell and what the host reads of its own memory: the bus carries next to nothing.
TEST_P(AmHygiene, ClearingCostsTheBusADoorbell) {
  ASSERT_TRUE(bench_.open());
  ASSERT_TRUE(bench_.allocate(kPiece));
  const sim::amd::BusCounts& counts = bench_.rig().card->counts();
  const uint64_t doorbells = counts.doorbells, bytes = counts.memory_written_bytes;
  ASSERT_TRUE(bench_.allocate(24 * kMebibyte));
  EXPECT_EQ(counts.doorbells, doorbells + 1);
  EXPECT_LT(counts.memory_written_bytes - bytes, 64u << 10) << "page tables";
}

INSTANTIATE_TEST_SUITE_P(Am, AmHygiene, testing::Values("gfx1100", "gfx1201"),
                         [](const auto& one) { return std::string(one.param); });

TEST(AmVideoMemory, WhatIsClearedIsRememberedAcrossItsPieces) {
  auto memory = am::VideoMemory::create(uint64_t{512} << 20, uint64_t{256} << 20, 64 << 20);
  ASSERT_TRUE(memory);
  EXPECT_FALSE(memory->is_cleared(0x10000, 0x1000));
  memory->note_cleared(0x10000, 0x1000);
  memory->note_cleared(0x12000, 0x1000);
  EXPECT_TRUE(memory->is_cleared(0x10000, 0x1000));
  EXPECT_FALSE(memory->is_cleared(0x10000, 0x3000));
  memory->note_cleared(0x11000, 0x1000);
  EXPECT_TRUE(memory->is_cleared(0x10000, 0x3000));
  EXPECT_TRUE(memory->is_cleared(0x11800, 0x1800));
  EXPECT_FALSE(memory->is_cleared(0x11800, 0x1801));
  EXPECT_FALSE(memory->is_cleared(0xffff, 2));
  memory->note_cleared(0xf000, 0x10000);
  EXPECT_TRUE(memory->is_cleared(0xf000, 0x10000));
}

}  // namespace
}  // namespace bm::amd
